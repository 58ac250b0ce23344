"""Meters: they open when use begins, follow lower prices, and close when use or money ends."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, Max, OuterRef
from django.db.models.functions import Least

from billing import funds, holds, locking, prices
from billing.locking import LockedAccount
from billing.models import Hold, Price, UsageInterval
from billing.rating.intervals import seconds_between, whole_seconds
from billing.settlement import Charged, charge, settle
from database.compiled import Compiled, param


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


_RUNNING = Compiled(
    lambda: UsageInterval.objects.filter(
        reference__any=param("references"), ended_at=None
    ).values_list()
)
_LAST_ENDS = Compiled(
    lambda: (
        UsageInterval.objects.filter(reference__any=param("references"))
        .values_list("reference")
        .annotate(Max("ended_at"))
    )
)


def open_intervals(*, references: Collection[UUID], now: datetime) -> dict[UUID, datetime]:
    """Start the meter of each reference at the price its hold pinned, or a lower one of today.

    Call it in a transaction; what is held is released in it too. Returns the first second of each
    meter, of one that runs already too. Raises NothingHeld where nothing is held for one, nor
    runs.
    """
    accounts = locking.lock_used(references)
    held = holds.release(accounts, references, now=now)
    opened = _start_held(accounts, held, now=now)
    if missing := set(references) - opened.keys():
        running: list[UsageInterval] = _RUNNING.models(references=list(missing))
        opened |= {interval.reference: interval.started_at for interval in running}
    if missing := set(references) - opened.keys():
        raise NothingHeld(f"nothing is held for {missing}")
    for account in accounts.values():
        account.save()
    return opened


def close_intervals(*, ends: Mapping[UUID, datetime], now: datetime) -> dict[UUID, datetime]:
    """Stop the meter of each reference, charge what is left to charge, and release its hold.

    Call it in a transaction. A meter ends at the moment that `ends` gives, at the second its
    account's money ended, or at its own start, whichever of the first two is earlier and the
    third allows; what was charged beyond that is given back. Returns the end of each meter that
    ran.
    """
    accounts = locking.lock_used(ends)
    released = holds.release(accounts, ends, now=now)
    closing: list[UsageInterval] = _RUNNING.models(references=list(ends))
    closing.sort(key=lambda interval: ends[interval.reference])
    later = prices.since(closing)
    charged = [
        _close(accounts[interval.account_id], interval, later, ended_at=ends[interval.reference])
        for interval in closing
    ]
    settle(charged, at=now)
    for account_id in {hold.account_id for hold in released}:
        accounts[account_id].reckon()
    for account in accounts.values():
        account.save()
    return {one.interval.reference: one.interval.charged_until for one in charged}


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
    running: list[UsageInterval] = _RUNNING.models(references=[reference])
    return running[0].confirmed_at if running else None


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
            account = locking.lock(account_id)
            interval = UsageInterval.objects.filter(pk=interval_id, ended_at=None).first()
            if interval is not None:
                moment = min(now, interval.confirmed_at)
                later = prices.since([interval])
                changed += (
                    follow_prices(account, interval, later, moment=moment)[0].pk != interval_id
                )
                account.save()
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
    return interval.payable_until(
        funds.seen_until(interval.confirmed_at, now), interval.account.exhaust_at
    )


def follow_prices(
    account: LockedAccount, interval: UsageInterval, later: Sequence[Price], *, moment: datetime
) -> tuple[UsageInterval, datetime]:
    """Split an open interval of a locked account at each lower price in force by `moment`.

    `later` are the prices since it began, see `prices.since`. Returns the interval that is open
    then, and up to when it is payable. Where the time before a lower price is charged already,
    that price counts from there on.
    """
    while True:
        payable = interval.payable_until(moment, account.exhaust_at)
        lower = _lower(later, interval, until=payable)
        if not lower:
            return interval, payable
        at = max(lower[0].book.effective_from, interval.charged_until)
        price = min(_lower(later, interval, until=at), key=lambda price: price.micros_per_hour)
        settle([charge(account, interval, until=at, closing=True)], at=at)
        interval = _new_interval(
            account_id=interval.account_id,
            reference=interval.reference,
            price=price,
            started_at=at,
            confirmed_at=interval.confirmed_at,
        )
        interval.save(force_insert=True)
        account.note(interval)
        account.reckon()


def _lower(later: Sequence[Price], interval: UsageInterval, *, until: datetime) -> list[Price]:
    """In force since some moment of (start, until], the earliest first."""
    return [
        price
        for price in later
        if price.sku == interval.sku
        and price.micros_per_hour < interval.micros_per_hour
        and interval.started_at < price.book.effective_from <= until
    ]


def _close(
    account: LockedAccount, interval: UsageInterval, later: Sequence[Price], *, ended_at: datetime
) -> Charged:
    """Charge an interval to its end, in memory."""
    interval, payable = follow_prices(account, interval, later, moment=ended_at)
    end = max(interval.started_at, min(payable, whole_seconds(ended_at)))
    charged = charge(account, interval, until=end, closing=True)
    # What runs out of money together ends together: what the first leaves of its last second
    # does not carry the others on.
    if end != account.exhaust_at or not account.burning:
        account.reckon()
    return charged


def _start_held(
    accounts: Mapping[int, LockedAccount], held: Collection[Hold], *, now: datetime
) -> dict[UUID, datetime]:
    if not held:
        return {}
    last_ends = dict(_LAST_ENDS(references=[hold.reference for hold in held]))
    # A restart within the second of the stop does not pay that second twice.
    starts = {
        hold.reference: max(whole_seconds(now), last_ends.get(hold.reference) or whole_seconds(now))
        for hold in held
    }
    # One moment for all, but where a run restarts within the second of its stop.
    skus: dict[datetime, set[str]] = defaultdict(set)
    for hold in held:
        skus[starts[hold.reference]].add(hold.price.sku)
    today = {moment: prices.prices_at(wanted, moment) for moment, wanted in skus.items()}
    started = [
        _new_interval(
            account_id=hold.account_id,
            reference=hold.reference,
            price=min(
                hold.price,
                today[starts[hold.reference]][hold.price.sku],
                key=lambda price: price.micros_per_hour,
            ),
            started_at=starts[hold.reference],
            confirmed_at=starts[hold.reference],
        )
        for hold in held
    ]
    UsageInterval.objects.bulk_create(started)
    for interval in started:
        accounts[interval.account_id].note(interval)
    for account_id in {hold.account_id for hold in held}:
        accounts[account_id].reckon()
    return starts


def _new_interval(
    *,
    account_id: int,
    reference: UUID,
    price: Price,
    started_at: datetime,
    confirmed_at: datetime,
) -> UsageInterval:
    return UsageInterval(
        account_id=account_id,
        reference=reference,
        price=price,
        sku=price.sku,
        micros_per_hour=price.micros_per_hour,
        started_at=started_at,
        confirmed_at=max(started_at, confirmed_at),
        charged_until=started_at,
    )
