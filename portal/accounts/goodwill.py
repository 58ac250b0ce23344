"""Credit that an operator gives a team."""

from datetime import datetime

from billing import goodwill
from portal.accounts.models import Team, User
from portal.errors import Conflict, DomainError, Forbidden


class InvalidCredit(DomainError):
    code = "invalid_credit"


class AlreadyGranted(Conflict):
    code = "already_granted"


def grant_credit(
    *, operator: User, team: Team, amount_micros: int, because: str, key: str, now: datetime
) -> None:
    """Add to the team's balance from the house's goodwill, once per `key`.

    The ledger keeps why and by whom. Raises Forbidden, InvalidCredit or AlreadyGranted; nothing
    is written then.
    """
    if not operator.is_staff:
        raise Forbidden("Only an operator may do this.")
    if not because.strip():
        raise InvalidCredit("A grant needs a reason.", next_step="Say why it is given.")
    try:
        granted = goodwill.grant(
            account_id=team.account_id,
            amount_micros=amount_micros,
            key=key,
            note=f"{because.strip()} ({operator})",
            now=now,
        )
    except goodwill.BadGrant as refusal:
        raise InvalidCredit(str(refusal)) from refusal
    if not granted:
        raise AlreadyGranted("This credit was granted already.")
