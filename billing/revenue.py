"""What the house has earned, for its operators."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, Sum

from billing.accounts import system_account
from billing.models import LedgerEntry, UsageInterval
from billing.settlement import REVENUE


@dataclass(frozen=True, slots=True)
class Revenue:
    """Micros earned since midnight and since the first of the month (UTC), and earned per hour."""

    today_micros: int
    month_micros: int
    burn_micros_per_hour: int


def revenue(*, now: datetime) -> Revenue:
    """What is charged, and what runs uncharged, up to the last time it was seen to run.

    A charge counts to the day and month in which the time it pays for begins. Four queries; the
    cost grows with the charges of a month and with what runs.
    """
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    first = midnight.replace(day=1)
    house = system_account(REVENUE).pk
    open_intervals = list(UsageInterval.objects.filter(ended_at=None))
    return Revenue(
        today_micros=_charged(house, midnight) + _uncharged(open_intervals, midnight, now),
        month_micros=_charged(house, first) + _uncharged(open_intervals, first, now),
        burn_micros_per_hour=sum(interval.micros_per_hour for interval in open_intervals),
    )


def _charged(house: int, since: datetime) -> int:
    entries = LedgerEntry.objects.filter(period_start__gte=since)
    sums = entries.filter(Q(credit=house) | Q(debit=house)).aggregate(
        earned=Sum("amount_micros", filter=Q(credit=house)),
        returned=Sum("amount_micros", filter=Q(debit=house)),
    )
    return (sums["earned"] or 0) - (sums["returned"] or 0)


def _uncharged(intervals: Sequence[UsageInterval], since: datetime, now: datetime) -> int:
    total = 0
    for interval in intervals:
        begun = max(since, interval.charged_until)
        through = min(now, interval.confirmed_at)
        if through > begun:
            total += interval.cost_micros(through) - interval.cost_micros(begun)
    return total
