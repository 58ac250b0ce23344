"""The only module that writes LedgerEntry rows.

The database does the rest (migration 0002): an entry can be neither changed nor removed, and
writing one moves the stored balance of the accounts that have a floor.
"""

from datetime import datetime
from typing import cast

from django.db import IntegrityError, transaction
from django.db.models import Q, Sum
from psycopg import Error as PsycopgError

from billing.models import Account, EntryKind, LedgerEntry, UsageInterval
from billing.rating.money import check_micros


class InsufficientFunds(Exception):
    """An account cannot cover this without falling below its floor."""


def post(  # noqa: PLR0913 - a movement has this many sides, and each is named at the call
    *,
    debit_id: int,
    credit_id: int,
    amount_micros: int,
    kind: EntryKind,
    cause: str,
    at: datetime,
    period: tuple[datetime, datetime] | None = None,
    interval: UsageInterval | None = None,
    note: str = "",
) -> bool:
    """Move money from the debited to the credited account, once per `cause`.

    Returns False where that cause was posted before. `period` is the time that usage pays for.
    Raises InsufficientFunds where an account would fall below its floor, TypeError or ValueError
    for what is no amount; nothing is written then.
    """
    start, end = period or (at, at)
    entry = LedgerEntry(
        debit_id=debit_id,
        credit_id=credit_id,
        amount_micros=check_micros(amount_micros),
        kind=kind,
        cause=cause,
        interval=interval,
        period_start=start,
        period_end=end,
        posted_at=at,
        note=note,
    )
    try:
        with transaction.atomic():
            entry.save(force_insert=True)
    except IntegrityError as error:
        match _violated_constraint(error):
            case "entry_once_per_cause":
                return False
            case "account_balance_stays_above_its_floor":
                raise InsufficientFunds("The balance does not cover this.") from error
        raise
    return True


def balance_micros(account_id: int) -> int:
    """What an account holds: stored where it has a floor, else the sum of its entries."""
    account = Account.objects.get(pk=account_id)
    if account.floor_micros is not None:
        return account.balance_micros
    return sum_of_entries(account_id)


def sum_of_entries(account_id: int, *, before: datetime | None = None) -> int:
    """Credits less debits, of all entries or of those whose period begins before a moment."""
    entries = LedgerEntry.objects.filter(Q(credit=account_id) | Q(debit=account_id))
    if before is not None:
        entries = entries.filter(period_start__lt=before)
    totals = entries.aggregate(
        credited=Sum("amount_micros", filter=Q(credit=account_id)),
        debited=Sum("amount_micros", filter=Q(debit=account_id)),
    )
    return (totals["credited"] or 0) - (totals["debited"] or 0)


def _violated_constraint(error: IntegrityError) -> str | None:
    cause = error.__cause__
    return cast("PsycopgError", cause).diag.constraint_name if cause else None
