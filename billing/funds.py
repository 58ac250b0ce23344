"""How long the money lasts, and who has run out of it.

The end is computed when something changes, never looked for: `Account.exhaust_at` holds the
second up to which the balance, less what is held, pays for all that runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.db.models import Sum

from billing.models import Account, Hold, UsageInterval
from billing.rating.charge import Burn, charged_micros, exhausted_at
from billing.rating.intervals import epoch, from_epoch, seconds_between, whole_second

# A datetime holds no later year than 9999; who is funded for longer is funded for ever.
FOR_EVER = 253_000_000_000


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Something that runs unfunded, and the second from which it does."""

    reference: UUID
    exhaust_at: datetime


@dataclass(frozen=True, slots=True)
class Balance:
    """An account as its owner should see it now, in micros.

    available = settled − accrued − held; `accrued` is used but not posted yet.
    """

    currency: str
    settled_micros: int
    accrued_micros: int
    held_micros: int
    burn_micros_per_hour: int
    exhaust_at: datetime | None

    @property
    def available_micros(self) -> int:
        return self.settled_micros - self.accrued_micros - self.held_micros

    @property
    def live_micros(self) -> int:
        """What is left after all use so far, held money included."""
        return self.settled_micros - self.accrued_micros


def lock(account_id: int) -> Account:
    """Serialise what changes an account's funds; the caller is in a transaction."""
    return Account.objects.select_for_update(no_key=True).get(pk=account_id)


def reckon(account_id: int) -> datetime | None:
    """Compute `exhaust_at` anew; the caller holds the account's lock and changed its funds.

    Charging needs no new reckoning: what leaves the balance is then charged.
    """
    account = Account.objects.get(pk=account_id)
    second = exhausted_at(
        balance_micros=account.balance_micros - held_micros(account_id),
        burns=[_burn(interval) for interval in open_intervals(account_id)],
    )
    exhaust_at = None if second is None or second > FOR_EVER else from_epoch(second)
    Account.objects.filter(pk=account_id).update(exhaust_at=exhaust_at)
    return exhaust_at


def unfunded(now: datetime) -> list[Exhausted]:
    """What runs though its account's money has ended, by the time it ended. One indexed query."""
    running = UsageInterval.objects.filter(ended_at=None, account__exhaust_at__lte=now)
    rows = running.order_by("account__exhaust_at", "pk")
    return [
        Exhausted(reference, exhaust_at)
        for reference, exhaust_at in rows.values_list("reference", "account__exhaust_at")
        if exhaust_at is not None
    ]


def balance(account_id: int, *, now: datetime) -> Balance:
    """Three queries, whatever the account has used."""
    account = Account.objects.get(pk=account_id)
    intervals = list(open_intervals(account_id))
    accrued = sum(
        accrued_micros(interval, until=live_until(interval, account.exhaust_at, now=now))
        for interval in intervals
    )
    return Balance(
        currency=account.currency,
        settled_micros=account.balance_micros,
        accrued_micros=accrued,
        held_micros=held_micros(account_id),
        burn_micros_per_hour=sum(interval.micros_per_hour for interval in intervals),
        exhaust_at=account.exhaust_at,
    )


def open_intervals(account_id: int) -> Iterable[UsageInterval]:
    return UsageInterval.objects.filter(account=account_id, ended_at=None)


def held_micros(account_id: int) -> int:
    held = Hold.objects.filter(account=account_id, released_at=None)
    return held.aggregate(total=Sum("amount_micros"))["total"] or 0


def live_until(interval: UsageInterval, exhaust_at: datetime | None, *, now: datetime) -> datetime:
    """Up to when an interval may be shown to have run: its end, or now while it is seen to run.

    Never past the money's end, nor far past the last confirmation.
    """
    if interval.ended_at is not None:
        return interval.ended_at
    limits = [now, interval.confirmed_at + settings.CONFIRMATION_TOLERANCE]
    if exhaust_at is not None:
        limits.append(exhaust_at)
    return max(interval.started_at, whole_second(min(limits)))


def accrued_micros(interval: UsageInterval, *, until: datetime) -> int:
    """What [started_at, until) costs beyond what is charged already; never negative."""
    cost = charged_micros(
        micros_per_hour=interval.micros_per_hour,
        seconds=seconds_between(interval.started_at, until),
    )
    return max(0, cost - interval.charged_micros)


def _burn(interval: UsageInterval) -> Burn:
    return Burn(interval.micros_per_hour, epoch(interval.started_at), interval.charged_micros)
