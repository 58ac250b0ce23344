"""Meters: they open when use begins, follow lower prices, and close when use or money ends."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, Max, OuterRef
from django.db.models.functions import Least

from billing import funds, prices
from billing.models import Hold, Price, UsageInterval
from billing.rating.intervals import seconds_between, whole_seconds
from billing.settlement import settle


@dataclass(frozen=True, slots=True)
class CostLine:
    """One interval as a customer sees it; `ended_at` is None while it is open."""

    started_at: datetime
    ended_at: datetime | None
    sku: str
    micros_per_hour: int
    seconds: int
    micros: int


@dataclass(frozen=True, slots=True)
class Cost:
    """All that a reference has cost, to the second.

    `burn_micros_per_hour` is what an hour adds now: nought while nothing does.
    """

    lines: tuple[CostLine, ...]
    burn_micros_per_hour: int

    @property
    def total_micros(self) -> int:
        return sum(line.micros for line in self.lines)

    @property
    def seconds(self) -> int:
        return sum(line.seconds for line in self.lines)


class NothingHeld(LookupError):
    """Nothing was set aside for the reference, so its meter cannot open."""


@transaction.atomic
def open_interval(*, reference: UUID, now: datetime) -> UsageInterval:
    """Start the meter of `reference` at the price its hold pinned, or a lower one of today.

    The hold is released in the same transaction. Returns the open interval where there is one
    already. Raises NothingHeld.
    """
    holds = Hold.objects.filter(reference=reference, released_at=None)
    hold = holds.select_related("price").first()
    if hold is not None:
        funds.lock(hold.account_id)
        if holds.filter(pk=hold.pk).update(released_at=now):
            return _start_held(hold, now=now)
    running = _open_interval(reference)
    if running is None:
        raise NothingHeld(f"nothing is held for {reference}")
    return running


@transaction.atomic(savepoint=False)
def close_interval(*, reference: UUID, ended_at: datetime) -> UsageInterval | None:
    """Stop the meter of `reference`, and charge what is left to charge.

    It ends at `ended_at`, at the second its account's money ended, or at its own start,
    whichever of the first two is earlier and the third allows; what was charged beyond that
    is given back. Returns None where no meter runs.
    """
    running = _open_interval(reference)
    if running is None:
        return None
    funds.lock(running.account_id)
    interval = _open_interval(reference)
    if interval is None:
        return None
    interval, payable = follow_prices(interval, moment=ended_at)
    end = max(interval.started_at, min(payable, whole_seconds(ended_at)))
    settle(interval, until=end, at=ended_at, closing=True)
    others = UsageInterval.objects.filter(
        account=interval.account_id, ended_at=None, micros_per_hour__gt=0
    )
    # What runs out of money together ends together: what the first leaves of its last second
    # does not carry the others on.
    if end != funds.exhaust_at(interval.account_id) or not others.exists():
        funds.reckon(interval.account_id)
    return interval


@transaction.atomic
def confirm(*, references: Collection[UUID], now: datetime) -> int:
    """Note that use was seen to go on at `now`: only then is it charged. Never moves backwards.

    One statement; rows are locked in order, so that two reports at once do not block each other.
    It locks meters without their accounts: call it in no transaction that then locks an account.
    Returns how many meters it moved.
    """
    moment = whole_seconds(now)
    seen = UsageInterval.objects.filter(
        reference__in=references, ended_at=None, confirmed_at__lt=moment
    )
    ordered = seen.order_by("pk").select_for_update(no_key=True)
    return UsageInterval.objects.filter(pk__in=ordered.values("pk")).update(confirmed_at=moment)


def last_confirmed_at(*, reference: UUID) -> datetime | None:
    """When the use of `reference` was last seen to go on; None where no meter runs."""
    running = _open_interval(reference)
    return running.confirmed_at if running else None


def apply_price_decreases(*, now: datetime, limit: int = 1000) -> int:
    """Let lower prices reach what runs, from the second they came into force on.

    Increases do not: what runs keeps its price. Each meter is its own short transaction, at most
    `limit` of them. Returns how many changed their price.
    """
    lower = prices.came_into_force().filter(
        sku=OuterRef("sku"),
        micros_per_hour__lt=OuterRef("micros_per_hour"),
        book__effective_from__gt=OuterRef("started_at"),
        book__effective_from__lte=Least(now, OuterRef("confirmed_at")),
    )
    due = UsageInterval.objects.filter(Exists(lower), ended_at=None).order_by("pk")
    changed = 0
    for interval_id, account_id in due.values_list("pk", "account")[:limit]:
        with transaction.atomic():
            funds.lock(account_id)
            interval = UsageInterval.objects.filter(pk=interval_id, ended_at=None).first()
            if interval is not None:
                moment = min(now, interval.confirmed_at)
                changed += follow_prices(interval, moment=moment)[0].pk != interval_id
    return changed


def cost_of(*, reference: UUID, now: datetime) -> Cost:
    """All intervals of a reference, the earliest first, priced to the second; one query.

    An open one counts until `now`, but no further than its confirmation tolerates or its
    account's money lasts; where that holds it back, its rate counts as nought.
    """
    intervals = UsageInterval.objects.filter(reference=reference).select_related("account")
    lines, burn = [], 0
    for interval in intervals.order_by("started_at", "pk"):
        until = shown_until(interval, now)
        lines.append(
            CostLine(
                started_at=interval.started_at,
                ended_at=interval.ended_at,
                sku=interval.sku,
                micros_per_hour=interval.micros_per_hour,
                seconds=seconds_between(interval.started_at, until),
                micros=interval.cost_micros(until),
            )
        )
        if interval.ended_at is None and until >= whole_seconds(now):
            burn = interval.micros_per_hour
    return Cost(tuple(lines), burn)


def costs_of(references: Collection[UUID], now: datetime) -> dict[UUID, int]:
    """The total of `cost_of` for each reference, nought where nothing was used; one query."""
    totals = dict.fromkeys(references, 0)
    intervals = UsageInterval.objects.filter(reference__in=totals).select_related("account")
    for interval in intervals:
        totals[interval.reference] += interval.cost_micros(shown_until(interval, now))
    return totals


def shown_until(interval: UsageInterval, now: datetime) -> datetime:
    """Up to when a shown cost counts: no further than it is seen to run and can be paid."""
    return interval.payable_until(funds.seen_until(interval, now), interval.account.exhaust_at)


def follow_prices(interval: UsageInterval, *, moment: datetime) -> tuple[UsageInterval, datetime]:
    """Split an open interval of a locked account at each lower price in force by `moment`.

    Returns the interval that is open then, and up to when it is payable. Where the time before
    a lower price is charged already, that price counts from there on.
    """
    while True:
        payable = interval.payable_until(moment, funds.exhaust_at(interval.account_id))
        lower = _lower_prices(interval, until=payable)
        if not lower:
            return interval, payable
        at = max(lower[0].book.effective_from, interval.charged_until)
        price = min(_lower_prices(interval, until=at), key=lambda price: price.micros_per_hour)
        settle(interval, until=at, at=at, closing=True)
        interval = _start(
            account_id=interval.account_id,
            reference=interval.reference,
            price=price,
            started_at=at,
            confirmed_at=interval.confirmed_at,
        )


def _lower_prices(interval: UsageInterval, *, until: datetime) -> list[Price]:
    """In force since some moment of (start, until], the earliest first."""
    lower = prices.came_into_force().filter(
        sku=interval.sku,
        micros_per_hour__lt=interval.micros_per_hour,
        book__effective_from__gt=interval.started_at,
        book__effective_from__lte=until,
    )
    return list(lower.order_by("book__version"))


def _open_interval(reference: UUID) -> UsageInterval | None:
    return UsageInterval.objects.filter(reference=reference, ended_at=None).first()


def _start_held(hold: Hold, *, now: datetime) -> UsageInterval:
    earlier = UsageInterval.objects.filter(reference=hold.reference)
    last_end = earlier.aggregate(at=Max("ended_at"))["at"]
    # A restart within the second of the stop does not pay that second twice.
    started_at = max(whole_seconds(now), last_end or whole_seconds(now))
    today = prices.price_at(hold.price.sku, started_at)
    return _start(
        account_id=hold.account_id,
        reference=hold.reference,
        price=min(hold.price, today, key=lambda price: price.micros_per_hour),
        started_at=started_at,
        confirmed_at=started_at,
    )


def _start(
    *,
    account_id: int,
    reference: UUID,
    price: Price,
    started_at: datetime,
    confirmed_at: datetime,
) -> UsageInterval:
    interval = UsageInterval.objects.create(
        account_id=account_id,
        reference=reference,
        price=price,
        sku=price.sku,
        micros_per_hour=price.micros_per_hour,
        started_at=started_at,
        confirmed_at=max(started_at, confirmed_at),
        charged_until=started_at,
    )
    funds.reckon(account_id)
    return interval
