"""Smallest valid rows of the billing room. A test names only what it is about."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from django.db import transaction

from billing import accounts, holds, locking, metering, prices
from billing.models import Account, Hold, UsageInterval

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
H100_MICROS = 2_490_000
_serial = itertools.count(1)


@contextmanager
def rolled_back() -> Iterator[None]:
    """Nothing of what happens inside stays: each example of a property starts anew."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def make_account(*, micros: int = 100_000_000, now: datetime = NOON) -> Account:
    account = accounts.open_account(code=f"team:{next(_serial)}")
    if micros:
        accounts.grant_trial_credit(account_id=account.pk, amount_micros=micros, now=now)
    account.refresh_from_db()
    return account


def make_price(
    micros_per_hour: int = H100_MICROS, *, sku: str | None = None, at: datetime = NOON
) -> str:
    """A sku with a price from `at` on."""
    sku = sku or f"sku-{next(_serial)}"
    prices.publish(prices={sku: micros_per_hour}, effective_from=at, note="test", now=at)
    return sku


def start(
    account: Account,
    *,
    sku: str | None = None,
    micros_per_hour: int = H100_MICROS,
    reference: UUID | None = None,
    at: datetime = NOON,
    runway: timedelta = timedelta(0),
) -> UsageInterval:
    """Something that runs from `at` on, by default with nothing required of its account."""
    reference = reference or uuid4()
    with transaction.atomic():
        place(
            account_id=account.pk,
            sku=sku or make_price(micros_per_hour, at=at),
            reference=reference,
            runway=runway,
            now=at,
        )
    return open_interval(reference=reference, now=at)


def confirm(interval: UsageInterval, *, at: datetime) -> None:
    metering.confirm(references=[interval.reference], now=at)


def place(*, account_id: int, sku: str, reference: UUID, runway: timedelta, now: datetime) -> Hold:
    """A hold at the price of `now`."""
    price = prices.price_at(sku, now)
    account = locking.lock(account_id)
    return holds.place(account, price=price, reference=reference, runway=runway, now=now)


def open_interval(*, reference: UUID, now: datetime) -> UsageInterval:
    with transaction.atomic():
        metering.open_intervals(references=[reference], now=now)
    return UsageInterval.objects.get(reference=reference, ended_at=None)


def close_interval(*, reference: UUID, ended_at: datetime) -> UsageInterval | None:
    """The interval that ended; None where none ran."""
    with transaction.atomic():
        ends = metering.close_intervals(ends={reference: ended_at}, now=ended_at)
    if reference not in ends:
        return None
    return UsageInterval.objects.filter(reference=reference).latest("started_at", "pk")


def release(*, reference: UUID, now: datetime) -> bool:
    """Give back what is held for what never ran. Returns False where nothing is."""
    held = Hold.objects.filter(reference=reference, released_at=None).exists()
    with transaction.atomic():
        metering.close_intervals(ends={reference: now}, now=now)
    return held
