"""Monthly statements: computed from intervals and entries, frozen when issued."""

import logging
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta

from django.db import transaction
from django.db.models import F, Max, Prefetch, Q, QuerySet, Sum
from django.db.models.functions import Coalesce, TruncMonth

from billing import ledger, locking, metering
from billing.models import (
    Account,
    EntryKind,
    LedgerEntry,
    Statement,
    StatementLine,
    UsageInterval,
)
from billing.rating.intervals import Stretch, month_bounds, month_of, overlap
from billing.rating.statement import Credit, Line, MonthlyStatement, Usage, lines

logger = logging.getLogger(__name__)

# What happened just before midnight may be written just after it.
SETTLING_TIME = timedelta(hours=1)


class MonthNotOver(ValueError):
    """A statement of a month that goes on."""


class UsageNotCharged(Exception):
    """Use of the month is not charged up to its end; `charging.charge_due` comes first."""


@transaction.atomic
def issue(*, account_id: int, month: date, now: datetime) -> MonthlyStatement:
    """Freeze the statement of a finished month; the same one where it is issued already.

    Its figures are the ledger's: opening + Σ lines = closing = the balance at the month's end,
    which the database checks again. Raises MonthNotOver or UsageNotCharged; nothing is written
    then.
    """
    bounds = start, end = month_bounds(month)
    locking.lock(account_id)
    before = find(account_id=account_id, month=month)
    if before is not None:
        return before
    if now < end:
        raise MonthNotOver(f"{month:%B %Y} is not over.")
    uncharged = _within(account_id, bounds).filter(
        Q(ended_at=None) | Q(ended_at__gt=F("charged_until")), charged_until__lt=end
    )
    if uncharged.exists():
        raise UsageNotCharged(f"Use of {month:%B %Y} is not charged up to its end.")
    found = _lines(account_id, bounds, _charged_until)
    row = Statement.objects.create(
        account_id=account_id,
        month=month,
        opening_micros=ledger.sum_of_entries(account_id, before=start),
        closing_micros=ledger.sum_of_entries(account_id, before=end),
        line_count=len(found),
        issued_at=now,
    )
    StatementLine.objects.bulk_create(
        StatementLine(statement=row, position=position, **asdict(line))
        for position, line in enumerate(found)
    )
    return _read(row)


def issue_due(*, now: datetime, limit: int = 1000) -> int:
    """Issue what is missing of finished months in which money moved, the earliest first.

    A month waits while use of it is unconfirmed, and later months of that account with it.
    Returns how many were issued, at most `limit`. Each is its own transaction.
    """
    border, _ = month_bounds(month_of(now - SETTLING_TIME))
    count = 0
    customers = Account.objects.filter(floor_micros__isnull=False)
    for account in customers.annotate(last=Max("statements__month")).order_by("pk"):
        for month in _months_with_entries(account.pk, after=account.last, before=border):
            if count == limit:
                return count
            try:
                issue(account_id=account.pk, month=month, now=now)
            except UsageNotCharged:
                logger.info("statement waits", extra={"account": account.pk, "month": str(month)})
                break
            count += 1
    return count


def preview(*, account_id: int, month: date, now: datetime) -> MonthlyStatement:
    """The same for a month that goes on, with what is used but not charged; nothing is written."""
    bounds = start, _ = month_bounds(month)

    def shown_until(interval: UsageInterval) -> datetime:
        return metering.shown_until(interval, now)

    earlier = sum(
        max(0, interval.cost_micros(min(start, shown_until(interval))) - interval.charged_micros)
        for interval in _within(account_id, bounds).filter(charged_until__lt=start)
    )
    opening = ledger.sum_of_entries(account_id, before=start) - earlier
    found = tuple(_lines(account_id, bounds, shown_until))
    return MonthlyStatement(
        account_id=account_id,
        month=month,
        opening_micros=opening,
        closing_micros=opening + sum(line.amount_micros for line in found),
        lines=found,
    )


def find(*, account_id: int, month: date) -> MonthlyStatement | None:
    """The issued statement of a month, with its lines."""
    row = _issued(account_id).filter(month=month).first()
    return _read(row) if row else None


def issued(*, account_id: int) -> list[MonthlyStatement]:
    """Every issued statement of an account with its lines, the newest first; two queries."""
    return [_read(row) for row in _issued(account_id)]


def _issued(account_id: int) -> QuerySet[Statement]:
    lines_in_order = Prefetch("lines", StatementLine.objects.order_by("position"))
    rows = Statement.objects.filter(account=account_id).order_by("-month")
    return rows.prefetch_related(lines_in_order)


def _read(row: Statement) -> MonthlyStatement:
    return MonthlyStatement(
        account_id=row.account_id,
        month=row.month,
        opening_micros=row.opening_micros,
        closing_micros=row.closing_micros,
        lines=tuple(
            Line(
                kind=line.kind,
                description=line.description,
                amount_micros=line.amount_micros,
                reference=line.reference,
                seconds=line.seconds,
                micros_per_hour=line.micros_per_hour,
            )
            for line in row.lines.all()
        ),
        issued_at=row.issued_at,
    )


def _months_with_entries(account_id: int, *, after: date | None, before: datetime) -> list[date]:
    """The months in which money of an account moved, between its last statement and `before`."""
    entries = LedgerEntry.objects.filter(_of(account_id), period_start__lt=before)
    if after is not None:
        _, start = month_bounds(after)
        entries = entries.filter(period_start__gte=start)
    months = entries.annotate(month=TruncMonth("period_start", tzinfo=UTC))
    found = months.values_list("month", flat=True).distinct().order_by("month")
    return [month_of(month) for month in found]


def _lines(
    account_id: int, bounds: Stretch, until: Callable[[UsageInterval], datetime]
) -> list[Line]:
    """The month's credits from the ledger; its usage too, and what is not charged up to `until`."""
    entries = LedgerEntry.objects.filter(
        _of(account_id), period_start__gte=bounds[0], period_start__lt=bounds[1]
    )
    charged: dict[int, int] = {
        row["interval"]: row["debited"] - row["credited"]
        for row in entries.exclude(interval=None)
        .values("interval")
        .annotate(
            debited=Coalesce(Sum("amount_micros", filter=Q(debit=account_id)), 0),
            credited=Coalesce(Sum("amount_micros", filter=Q(credit=account_id)), 0),
        )
    }
    intervals = _within(account_id, bounds) | UsageInterval.objects.filter(pk__in=charged)
    return lines(
        usage=[
            _usage(interval, bounds, until(interval), charged.get(interval.pk, 0))
            for interval in intervals.select_related("account")
        ],
        credits=[
            Credit(
                kind=entry.kind,
                description=entry.note or entry.get_kind_display(),
                posted_at=entry.posted_at,
                amount_micros=(
                    entry.amount_micros if entry.credit_id == account_id else -entry.amount_micros
                ),
            )
            for entry in entries.filter(interval=None)
        ],
        usage_kind=EntryKind.USAGE,
    )


def _usage(interval: UsageInterval, bounds: Stretch, until: datetime, charged: int) -> Usage:
    start, end = max(bounds[0], interval.charged_until), min(bounds[1], until)
    accrued = interval.cost_micros(end) - interval.cost_micros(start) if start < end else 0
    return Usage(
        reference=interval.reference,
        sku=interval.sku,
        micros_per_hour=interval.micros_per_hour,
        started_at=interval.started_at,
        seconds=overlap((interval.started_at, until), bounds),
        charged_micros=charged + accrued,
    )


def _within(account_id: int, bounds: Stretch) -> QuerySet[UsageInterval]:
    start, end = bounds
    return UsageInterval.objects.filter(
        Q(ended_at=None) | Q(ended_at__gt=start), account=account_id, started_at__lt=end
    )


def _of(account_id: int) -> Q:
    return Q(debit=account_id) | Q(credit=account_id)


def _charged_until(interval: UsageInterval) -> datetime:
    return interval.charged_until
