"""What the house has earned, for its operators."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, Sum

from billing.accounts import system_account
from billing.models import LedgerEntry, UsageInterval
from billing.rating.charge import charged_micros
from billing.rating.intervals import seconds_between
from billing.settlement import REVENUE


@dataclass(frozen=True, slots=True)
class Revenue:
    """Micros earned since midnight and since the first of the month (UTC), and earned per hour."""

    today_micros: int
    month_micros: int
    burn_micros_per_hour: int


def revenue(*, now: datetime) -> Revenue:
    """What is charged, and what runs uncharged, up to the last time it was seen to run.

    A charge counts to the day and month in which the time it pays for begins. Three queries; the
    cost grows with the charges of a month and with what runs.
    """
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    house = system_account(REVENUE).pk
    today, month = (_charged(house, since) for since in (midnight, midnight.replace(day=1)))
    uncharged, burn = _running(now)
    return Revenue(today + uncharged, month + uncharged, burn)


def _charged(house: int, since: datetime) -> int:
    entries = LedgerEntry.objects.filter(period_start__gte=since)
    sums = entries.filter(Q(credit=house) | Q(debit=house)).aggregate(
        earned=Sum("amount_micros", filter=Q(credit=house)),
        returned=Sum("amount_micros", filter=Q(debit=house)),
    )
    return (sums["earned"] or 0) - (sums["returned"] or 0)


def _running(now: datetime) -> tuple[int, int]:
    uncharged = burn = 0
    columns = ("micros_per_hour", "started_at", "confirmed_at", "charged_micros")
    for rate, started_at, confirmed_at, charged in UsageInterval.objects.filter(
        ended_at=None
    ).values_list(*columns):
        through = max(started_at, min(now, confirmed_at))
        cost = charged_micros(micros_per_hour=rate, seconds=seconds_between(started_at, through))
        uncharged += max(0, cost - charged)
        burn += rate
    return uncharged, burn
