"""Accounts are opened here, and money comes into them."""

from collections.abc import Mapping
from datetime import datetime

from django.db import transaction

from billing import ledger, locking
from billing.models import Account, EntryKind
from database.compiled import CompiledModels, param

# Where the money of a credit comes from.
SOURCES: Mapping[EntryKind, str] = {
    EntryKind.TRIAL_CREDIT: "promo_expense",
    EntryKind.TOP_UP: "stripe:clearing",
    EntryKind.ADJUSTMENT: "goodwill",
}


_HOUSE = CompiledModels(lambda: Account.objects.filter(code=param("code")))


def open_account(*, code: str, currency: str = "USD") -> Account:
    """An empty account of a customer: prepaid, so its balance is never below nought."""
    return Account.objects.create(code=code, currency=currency, floor_micros=0)


def system_account(code: str) -> Account:
    """A house account, made when first used.

    It has no floor and so no stored balance: no row that every posting would have to lock.
    """
    found = _HOUSE(code=code)
    return found[0] if found else Account.objects.get_or_create(code=code)[0]


def grant_trial_credit(*, account_id: int, amount_micros: int, now: datetime) -> bool:
    """Give a new customer something to try with, once for each account.

    Returns False where it was given before, or is nought. Raises CauseTaken where it was another
    amount before.
    """
    if amount_micros == 0:
        return False
    return credit(
        account_id=account_id,
        amount_micros=amount_micros,
        cause=f"trial:{account_id}",
        kind=EntryKind.TRIAL_CREDIT,
        note="Trial credit",
        now=now,
    )


@transaction.atomic
def credit(
    *,
    account_id: int,
    amount_micros: int,
    cause: str,
    kind: EntryKind,
    note: str,
    now: datetime,
) -> bool:
    """Put money into an account, once for each cause; what it uses may go on for longer.

    Returns False where the cause was posted before. Raises ValueError for an amount that is not
    positive, and KeyError for a kind that is no credit.
    """
    account = locking.lock(account_id)
    posted = ledger.post(
        debit_id=system_account(SOURCES[kind]).pk,
        credit_id=account_id,
        amount_micros=amount_micros,
        kind=kind,
        cause=cause,
        at=now,
        note=note,
    )
    if posted:
        account.balance_micros += amount_micros
        account.reckon()
        account.save()
    return posted
