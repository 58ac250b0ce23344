"""The ledger: one row for each movement of money. The only writer of LedgerEntry."""

from collections.abc import Sequence
from datetime import datetime

from django.db import IntegrityError, connection, transaction
from django.db.models import Q, Sum
from django.db.models.functions import Coalesce

from billing.models import Account, EntryKind, LedgerEntry
from billing.rating.money import check_micros, format_available, format_needed
from database.refusals import violated_constraint

FLOOR = "account_balance_stays_above_its_floor"


class InsufficientFunds(Exception):
    """An account has less than is needed; nothing was written. Both amounts are in micros."""

    def __init__(self, purpose: str, *, needed_micros: int, available_micros: int) -> None:
        self.needed_micros = needed_micros
        self.available_micros = available_micros
        super().__init__(
            f"{purpose} costs {format_needed(needed_micros)}, "
            f"and {format_available(available_micros)} is available."
        )


class CauseTaken(Exception):
    """The cause was posted before, with other accounts or another amount: a bug of the caller."""


def post(  # noqa: PLR0913 - an entry is its fields
    *,
    debit_id: int,
    credit_id: int,
    amount_micros: int,
    kind: EntryKind,
    cause: str,
    at: datetime,
    note: str = "",
) -> bool:
    """Move `amount_micros` from one account to another at the moment `at`, once for each cause.

    Returns False where the cause was posted before. The floors of both accounts hold: raises
    InsufficientFunds where one would be broken, and nothing is written then.

    Raises CauseTaken, and TypeError or ValueError for an amount that is no positive integer.
    """
    entry = LedgerEntry(
        debit_id=debit_id,
        credit_id=credit_id,
        amount_micros=amount_micros,
        kind=EntryKind(kind),
        cause=cause,
        period_start=at,
        period_end=at,
        posted_at=at,
        note=note,
    )
    try:
        # A savepoint: what is available can still be read after a refusal.
        with transaction.atomic():
            return bool(post_all([entry]))
    except IntegrityError as error:
        if violated_constraint(error) != FLOOR:
            raise
        raise InsufficientFunds(
            "This", needed_micros=amount_micros, available_micros=_above_floor(debit_id)
        ) from error


def post_all(entries: Sequence[LedgerEntry]) -> int:
    """Move what unsaved entries say, each cause once; one statement for any number.

    Returns how many of the causes were not posted before. A broken floor is an IntegrityError
    that costs the caller its transaction: it knows what is there, since it holds the accounts'
    locks. Raises as `post` does otherwise.
    """
    if not entries:
        return 0
    if any(check_micros(entry.amount_micros) <= 0 for entry in entries):
        raise ValueError("an entry moves a positive amount")
    posted = _insert(entries)
    if posted < len(entries):
        for entry in entries:
            _check_same(entry)
    return posted


def balance_micros(account_id: int) -> int:
    """What was credited less what was debited: stored where a floor is set, else summed up."""
    account = Account.objects.get(pk=account_id)
    if account.floor_micros is not None:
        return account.balance_micros
    return sum_of_entries(account_id)


def sum_of_entries(account_id: int, *, before: datetime | None = None) -> int:
    """The same from the entries alone; with `before`, of those that belong to earlier times."""
    entries = LedgerEntry.objects.all()
    if before is not None:
        entries = entries.filter(period_start__lt=before)
    sums = entries.filter(Q(debit=account_id) | Q(credit=account_id)).aggregate(
        credited=Coalesce(Sum("amount_micros", filter=Q(credit=account_id)), 0),
        debited=Coalesce(Sum("amount_micros", filter=Q(debit=account_id)), 0),
    )
    return int(sums["credited"] - sums["debited"])


# `bulk_create(ignore_conflicts=True)` would not tell how many rows were new.
_INSERT = """
INSERT INTO billing_ledgerentry (id, debit_id, credit_id, amount_micros, kind, cause, interval_id,
                                 period_start, period_end, posted_at, note)
SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::text[],
                     %s::bigint[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[],
                     %s::text[])
ON CONFLICT (cause) DO NOTHING
"""


def _insert(entries: Sequence[LedgerEntry]) -> int:
    rows = [
        (
            entry.pk,
            entry.debit_id,
            entry.credit_id,
            entry.amount_micros,
            entry.kind,
            entry.cause,
            entry.interval_id,
            entry.period_start,
            entry.period_end,
            entry.posted_at,
            entry.note,
        )
        for entry in entries
    ]
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, [list(column) for column in zip(*rows, strict=True)])
        return int(cursor.rowcount)


def _check_same(entry: LedgerEntry) -> None:
    same = LedgerEntry.objects.filter(
        cause=entry.cause,
        debit=entry.debit_id,
        credit=entry.credit_id,
        amount_micros=entry.amount_micros,
    )
    if not same.exists():
        raise CauseTaken(f"{entry.cause} was posted with other figures")


def _above_floor(account_id: int) -> int:
    account = Account.objects.get(pk=account_id)
    return account.balance_micros - (account.floor_micros or 0)
