"""What an account used in a period, interval by interval: for exports and the API."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Q, QuerySet

from billing import metering
from billing.models import UsageInterval
from billing.rating.intervals import seconds_between


@dataclass(frozen=True, slots=True)
class Used:
    """One interval with its cost so far; `ended_at` is None while it runs."""

    reference: UUID
    sku: str
    micros_per_hour: int
    started_at: datetime
    ended_at: datetime | None
    seconds: int
    micros: int


def overlapping(
    *, account_id: int, since: datetime | None, until: datetime | None
) -> QuerySet[UsageInterval]:
    """The intervals, whole, that share a second with [since, until); None: without that end."""
    intervals = UsageInterval.objects.filter(account=account_id).select_related("account")
    if since is not None:
        intervals = intervals.filter(Q(ended_at=None) | Q(ended_at__gt=since))
    if until is not None:
        intervals = intervals.filter(started_at__lt=until)
    return intervals


def used(interval: UsageInterval, *, now: datetime) -> Used:
    """`interval` to the second, as far as `metering.shown_until` lets it count. No query."""
    until = metering.shown_until(interval, now)
    return Used(
        reference=interval.reference,
        sku=interval.sku,
        micros_per_hour=interval.micros_per_hour,
        started_at=interval.started_at,
        ended_at=interval.ended_at,
        seconds=seconds_between(interval.started_at, until),
        micros=interval.cost_micros(until),
    )
