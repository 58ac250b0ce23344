"""Opens, confirms and closes usage intervals; what a reference has cost so far."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Max

from billing import charging, funds, holds, prices
from billing.models import Price, UsageInterval
from billing.rating.intervals import seconds_between, whole_second


class NothingHeld(Exception):
    """The meter cannot open: no hold pins a price for the reference."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """One interval as a customer sees it; `ended_at` is None while it runs."""

    started_at: datetime
    ended_at: datetime | None
    sku: str
    micros_per_hour: int
    seconds: int
    micros: int


@dataclass(frozen=True, slots=True)
class Cost:
    """All that a reference has cost, to the second."""

    lines: tuple[CostLine, ...]

    @property
    def total_micros(self) -> int:
        return sum(line.micros for line in self.lines)

    @property
    def seconds(self) -> int:
        return sum(line.seconds for line in self.lines)

    @property
    def burn_micros_per_hour(self) -> int:
        """The rate that runs now; nought when nothing does."""
        return sum(line.micros_per_hour for line in self.lines if line.ended_at is None)


@transaction.atomic
def open_interval(*, reference: UUID, now: datetime) -> UsageInterval:
    """Start to meter what was held for, at the price that the hold pins. Raises NothingHeld."""
    hold = holds.release(reference=reference, now=now)
    if hold is None:
        raise NothingHeld(f"{reference} has no open hold.")
    # Two servers' clocks may differ by a little: no second is begun twice.
    earlier = UsageInterval.objects.filter(reference=reference)
    last_end = earlier.aggregate(last=Max("ended_at"))["last"]
    at = whole_second(now) if last_end is None else max(last_end, whole_second(now))
    return _open(hold.account_id, reference, hold.price, at=at)


@transaction.atomic
def close_interval(*, reference: UUID, ended_at: datetime) -> UsageInterval | None:
    """End what runs at `ended_at` or at the end of its money, the earlier, and charge the rest.

    Returns the interval, or None where nothing was open: closing twice changes nothing.
    """
    interval = UsageInterval.objects.filter(reference=reference, ended_at=None).first()
    if interval is None:
        return None
    account = funds.lock(interval.account_id)
    interval = UsageInterval.objects.filter(pk=interval.pk, ended_at=None).first()
    if interval is None:
        return None
    ended_at = _close(interval, whole_second(ended_at), account.exhaust_at)
    charging.charge(interval, through=ended_at)
    funds.reckon(interval.account_id)
    return interval


def confirm(*, references: Collection[UUID], now: datetime) -> int:
    """Each reference was seen to run until `now`; only ever moves forwards."""
    if not references:
        return 0
    running = UsageInterval.objects.filter(reference__in=references, ended_at=None)
    return running.filter(confirmed_at__lt=now).update(confirmed_at=now)


def last_confirmed_at(*, reference: UUID) -> datetime | None:
    """When the open interval was last seen to run; None where nothing is open."""
    running = UsageInterval.objects.filter(reference=reference, ended_at=None)
    return running.values_list("confirmed_at", flat=True).first()


def apply_price_decreases(*, now: datetime) -> int:
    """Split every open interval for whose sku a lower price holds by now, at its first second.

    A higher price leaves what runs alone. Returns how many were split.
    """
    rates = prices.current_rates(now)
    running = UsageInterval.objects.filter(ended_at=None, sku__in=rates)
    cheaper = [i for i in running.iterator() if rates[i.sku] < i.micros_per_hour]
    return sum(_reprice(interval.pk, now=now) for interval in cheaper)


def cost_of(*, reference: UUID, now: datetime) -> Cost:
    """One query. The open interval is counted to the second, as `funds.live_until` allows."""
    intervals = UsageInterval.objects.filter(reference=reference).select_related("account")
    return Cost(tuple(_line(interval, now=now) for interval in intervals.order_by("started_at")))


def costs_of(*, references: Collection[UUID], now: datetime) -> dict[UUID, int]:
    """reference → micros so far. One query for all."""
    costs = dict.fromkeys(references, 0)
    intervals = UsageInterval.objects.filter(reference__in=references).select_related("account")
    for interval in intervals:
        costs[interval.reference] += _line(interval, now=now).micros
    return costs


def _line(interval: UsageInterval, *, now: datetime) -> CostLine:
    until = funds.live_until(interval, interval.account.exhaust_at, now=now)
    return CostLine(
        started_at=interval.started_at,
        ended_at=interval.ended_at,
        sku=interval.sku,
        micros_per_hour=interval.micros_per_hour,
        seconds=seconds_between(interval.started_at, until),
        micros=interval.charged_micros + funds.accrued_micros(interval, until=until),
    )


def _open(account_id: int, reference: UUID, price: Price, *, at: datetime) -> UsageInterval:
    funds.lock(account_id)
    interval = UsageInterval.objects.create(
        account_id=account_id,
        reference=reference,
        price=price,
        sku=price.sku,
        micros_per_hour=price.micros_per_hour,
        started_at=at,
        confirmed_at=at,
        charged_until=at,
    )
    funds.reckon(account_id)
    return interval


def _close(interval: UsageInterval, ended_at: datetime, exhaust_at: datetime | None) -> datetime:
    """The end is never past the money's end, and never before what is charged already."""
    if exhaust_at is not None:
        ended_at = min(ended_at, exhaust_at)
    interval.ended_at = max(ended_at, interval.charged_until)
    interval.save(update_fields=["ended_at"])
    return interval.ended_at


@transaction.atomic
def _reprice(interval_id: int, *, now: datetime) -> bool:
    interval = UsageInterval.objects.get(pk=interval_id)
    account = funds.lock(interval.account_id)
    interval.refresh_from_db()
    price = prices.price_at(interval.sku, now)
    if interval.ended_at is not None or price.micros_per_hour >= interval.micros_per_hour:
        return False
    # Charged seconds stay as they are: a tick after the price's start has paid for them.
    at = max(price.book.effective_from, interval.charged_until)
    ended_at = _close(interval, whole_second(at), account.exhaust_at)
    charging.charge(interval, through=ended_at)
    reopened = _open(interval.account_id, interval.reference, price, at=ended_at)
    UsageInterval.objects.filter(pk=reopened.pk).update(confirmed_at=interval.confirmed_at)
    return True
