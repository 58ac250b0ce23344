"""Credit that the house gives a customer, with a reason: an adjustment, never an edit."""

from datetime import datetime

from django.db import transaction

from billing import accounts, funds, ledger
from billing.models import EntryKind
from billing.rating.money import MICROS

GOODWILL = "goodwill"
# A slip of the keyboard costs no more than this.
GRANT_MAX_MICROS = 100_000 * MICROS
NOTE_CHARACTERS = 200


class BadGrant(Exception):
    """Credit that cannot be granted; the message says why."""


@transaction.atomic
def grant(*, account_id: int, amount_micros: int, key: str, note: str, now: datetime) -> bool:
    """Move `amount_micros` from the house's goodwill to a customer's account, once per `key`.

    `note` says why, and who gave it. Returns False where the key was used before. Raises BadGrant
    for an amount that is not positive or above `GRANT_MAX_MICROS`, and for a missing or too long
    note; nothing is written then.
    """
    if not 0 < amount_micros <= GRANT_MAX_MICROS:
        raise BadGrant(f"A grant is more than $0 and at most ${GRANT_MAX_MICROS // MICROS:,}.")
    if not note.strip() or len(note) > NOTE_CHARACTERS:
        raise BadGrant(f"A grant needs a reason, in at most {NOTE_CHARACTERS} characters.")
    funds.lock(account_id)
    moved = ledger.post(
        debit_id=accounts.system_account(GOODWILL).pk,
        credit_id=account_id,
        amount_micros=amount_micros,
        kind=EntryKind.ADJUSTMENT,
        cause=f"goodwill:{key}",
        at=now,
        note=note,
    )
    funds.reckon(account_id)
    return moved
