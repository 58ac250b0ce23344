"""Credit that the house gives a customer, with a reason: an adjustment, never an edit."""

from datetime import datetime

from billing import accounts
from billing.ledger import CauseTaken
from billing.models import EntryKind
from billing.rating.money import MICROS

# A slip of the keyboard costs no more than this.
GRANT_MAX_MICROS = 100_000 * MICROS
NOTE_CHARACTERS = 200


class BadGrant(ValueError):
    """Credit that cannot be granted; the message says why."""


def grant(*, account_id: int, amount_micros: int, key: str, note: str, now: datetime) -> bool:
    """Move `amount_micros` from the house's goodwill to a customer's account, once per `key`.

    `note` says why, and who gave it. Returns False where the key was used before, with whatever
    amount. Raises BadGrant for an amount that is not positive or above `GRANT_MAX_MICROS`, and
    for a missing or too long note; nothing is written then.
    """
    if not 0 < amount_micros <= GRANT_MAX_MICROS:
        raise BadGrant(f"A grant is more than $0 and at most ${GRANT_MAX_MICROS // MICROS:,}.")
    if not note.strip() or len(note) > NOTE_CHARACTERS:
        raise BadGrant(f"A grant needs a reason, in at most {NOTE_CHARACTERS} characters.")
    try:
        return accounts.credit(
            account_id=account_id,
            amount_micros=amount_micros,
            cause=f"goodwill:{key}",
            kind=EntryKind.ADJUSTMENT,
            note=note,
            now=now,
        )
    except CauseTaken:
        return False
