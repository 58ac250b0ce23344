"""How much an account has, how fast it goes, and when it is used up."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import FilteredRelation, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from billing.locking import BURN
from billing.models import Account, Hold, UsageInterval
from billing.rating import charge
from billing.rating.charge import Burn
from billing.rating.intervals import epoch
from database.compiled import Compiled, param


@dataclass(frozen=True, slots=True)
class Balance:
    """An account at a moment, in micros. Available = settled - accrued - held, less its floor.

    `settled` is in the ledger; `accrued` is used, but not charged yet; `held` is set aside for
    what is to start. `burn_micros_per_hour` is what all open intervals cost in an hour, and
    `exhaust_at` is when they will have used it up; None: never.
    """

    currency: str
    settled_micros: int
    accrued_micros: int
    held_micros: int
    available_micros: int
    burn_micros_per_hour: int
    exhaust_at: datetime | None

    @property
    def live_micros(self) -> int:
        """What is left after all use so far, held money included."""
        return self.settled_micros - self.accrued_micros


@dataclass(frozen=True, slots=True)
class Unfunded:
    """What still runs although its account is used up, and the second when that happened."""

    reference: UUID
    exhaust_at: datetime


@dataclass(frozen=True, slots=True)
class _Account:
    """An account with its open holds and intervals, all as of one moment of the database.

    Each burn comes with the last confirmation of its use.
    """

    currency: str
    settled_micros: int
    floor_micros: int
    exhaust_at: datetime | None
    held_micros: int
    burns: Sequence[tuple[Burn, datetime]]

    @property
    def unheld_micros(self) -> int:
        return self.settled_micros - self.floor_micros - self.held_micros

    def accrued_micros(self, now: datetime) -> int:
        """What was used up to `now`, as far as it is confirmed and can be paid."""
        last = now if self.exhaust_at is None else min(now, self.exhaust_at)
        return sum(
            burn.accrued_micros(epoch(seen_until(confirmed_at, last)))
            for burn, confirmed_at in self.burns
        )


def exhaustion(account_id: int) -> datetime | None:
    """When the open intervals of an account will have used it up; None: never."""
    account = _read(account_id)
    return charge.exhaust_at(
        available_micros=account.unheld_micros, burns=[burn for burn, _ in account.burns]
    )


def balance(account_id: int, now: datetime) -> Balance:
    """What a page shows: use counts as long as it is confirmed, see `seen_until`."""
    account = _read(account_id)
    accrued = account.accrued_micros(now)
    return Balance(
        currency=account.currency,
        settled_micros=account.settled_micros,
        accrued_micros=accrued,
        held_micros=account.held_micros,
        available_micros=account.unheld_micros - accrued,
        burn_micros_per_hour=sum(burn.micros_per_hour for burn, _ in account.burns),
        exhaust_at=account.exhaust_at,
    )


def live_balance_micros(account_id: int, now: datetime) -> int:
    """Settled less accrued, to the second."""
    return balance(account_id, now).live_micros


def unfunded(now: datetime, limit: int = 1000) -> list[Unfunded]:
    """What is to be stopped because its account is used up, the longest overdue first."""
    overdue = UsageInterval.objects.filter(
        ended_at=None, micros_per_hour__gt=0, account__exhaust_at__lte=now
    ).order_by("account__exhaust_at", "pk")
    return [
        Unfunded(reference, end)
        for reference, end in overdue.values_list("reference", "account__exhaust_at")[:limit]
        if end is not None
    ]


def seen_until(confirmed_at: datetime, now: datetime) -> datetime:
    """Up to when a shown cost runs on: now, or some time after the last confirmation.

    What is charged waits for the confirmation; a page would stand still between two of them.
    """
    return min(now, confirmed_at + settings.CONFIRMATION_TOLERANCE)


def _account() -> QuerySet[Account, tuple[Any, ...]]:
    """A row for each open interval, and one where there is none."""
    holds = Hold.objects.filter(account=param("pk"), released_at=None).values("account")
    held = Subquery(holds.annotate(total=Sum("amount_micros")).values("total"))
    running = FilteredRelation("intervals", condition=Q(intervals__ended_at=None))
    account = Account.objects.filter(pk=param("pk"))
    return account.annotate(held=Coalesce(held, 0), running=running).values_list(
        *("currency", "balance_micros", "floor_micros", "exhaust_at", "held"),
        *(f"running__{column}" for column in ("confirmed_at", *BURN)),
    )


_ACCOUNT = Compiled(_account)


def _read(account_id: int) -> _Account:
    """One query, so a charge that lands meanwhile is not half seen. Raises Account.DoesNotExist."""
    rows = _ACCOUNT(pk=account_id)
    if not rows:
        raise Account.DoesNotExist(f"no account {account_id}")
    currency, settled, floor, exhaust_at, held, *_ = rows[0]
    burns = [(Burn.of(*row[6:]), row[5]) for row in rows if row[5] is not None]
    return _Account(currency, settled, floor or 0, exhaust_at, held, burns)
