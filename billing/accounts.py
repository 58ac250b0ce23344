"""Opening accounts, and putting money on them."""

from datetime import datetime

from django.db import transaction

from billing import funds, ledger
from billing.models import Account, EntryKind

REVENUE = "revenue:compute"
PROMO_EXPENSE = "promo_expense"
CASH = "cash"


def open_account(*, code: str, currency: str = "USD") -> Account:
    """A customer's prepaid account: its balance never falls below nought."""
    return Account.objects.create(code=code, currency=currency, floor_micros=0)


def system_account(code: str) -> Account:
    """One of the house's own accounts, made when first named; it has no floor."""
    account, _ = Account.objects.get_or_create(code=code)
    return account


def grant_trial_credit(*, account_id: int, amount_micros: int, now: datetime) -> bool:
    """The credit a new customer starts with, once. Returns False where it was given before."""
    if amount_micros == 0:
        return False
    return credit(
        account_id=account_id,
        source=PROMO_EXPENSE,
        amount_micros=amount_micros,
        kind=EntryKind.TRIAL_CREDIT,
        cause=f"trial:{account_id}",
        now=now,
    )


@transaction.atomic
def credit(
    *,
    account_id: int,
    source: str,
    amount_micros: int,
    kind: EntryKind,
    cause: str,
    now: datetime,
) -> bool:
    """Move money from a house account to a customer's, once per `cause`."""
    funds.lock(account_id)
    moved = ledger.post(
        debit_id=system_account(source).pk,
        credit_id=account_id,
        amount_micros=amount_micros,
        kind=kind,
        cause=cause,
        at=now,
    )
    funds.reckon(account_id)
    return moved
