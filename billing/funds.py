"""How much an account has, how fast it goes, and when it is used up."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.db.models import OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce

from billing.models import Account, Hold, UsageInterval
from billing.rating import charge


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
    """An account with its open holds and intervals, all as of one moment of the database."""

    account: Account
    held_micros: int
    intervals: Sequence[UsageInterval]

    def at(self, moments: Sequence[datetime]) -> Balance:
        """Its balance where the intervals are known to go on up to `moments`, in their order."""
        account = self.account
        accrued = sum(
            interval.cost_micros(interval.payable_until(moment, account.exhaust_at))
            - interval.charged_micros
            for interval, moment in zip(self.intervals, moments, strict=True)
        )
        return Balance(
            currency=account.currency,
            settled_micros=account.balance_micros,
            accrued_micros=accrued,
            held_micros=self.held_micros,
            available_micros=self.unheld_micros - accrued,
            burn_micros_per_hour=sum(interval.micros_per_hour for interval in self.intervals),
            exhaust_at=account.exhaust_at,
        )

    @property
    def unheld_micros(self) -> int:
        floor = self.account.floor_micros or 0
        return self.account.balance_micros - floor - self.held_micros


def exhaustion(account_id: int) -> datetime | None:
    """When the open intervals of an account will have used it up; None: never."""
    held = Coalesce(
        Subquery(
            Hold.objects.filter(account=OuterRef("pk"), released_at=None)
            .values("account")
            .annotate(total=Sum("amount_micros"))
            .values("total")
        ),
        0,
    )
    account = Account.objects.annotate(held=held).filter(pk=account_id)
    [(balance_micros, floor_micros, held_micros)] = account.values_list(
        "balance_micros", "floor_micros", "held"
    )
    burning = UsageInterval.objects.filter(
        account=account_id, ended_at=None, micros_per_hour__gt=0
    ).values_list("micros_per_hour", "started_at", "charged_until", "charged_micros")
    return charge.exhaust_at(
        available_micros=balance_micros - (floor_micros or 0) - held_micros,
        burns=[charge.Burn(*row) for row in burning],
    )


def balance(account_id: int, now: datetime) -> Balance:
    """What a page shows: use counts as long as it is confirmed, see `seen_until`."""
    state = _read(account_id)
    return state.at([seen_until(interval, now) for interval in state.intervals])


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


def seen_until(interval: UsageInterval, now: datetime) -> datetime:
    """Up to when a shown cost runs on: now, or some time after the last confirmation.

    What is charged waits for the confirmation; a page would stand still between two of them.
    """
    return min(now, interval.confirmed_at + settings.CONFIRMATION_TOLERANCE)


def _read(account_id: int) -> _Account:
    """One query where something runs, so a charge that lands meanwhile is not half seen."""
    held = Coalesce(
        Subquery(
            Hold.objects.filter(account=OuterRef("account"), released_at=None)
            .values("account")
            .annotate(total=Sum("amount_micros"))
            .values("total")
        ),
        0,
    )
    intervals = list(
        UsageInterval.objects.filter(account=account_id, ended_at=None)
        .select_related("account")
        .annotate(held_micros=held)
        .order_by("pk")
    )
    if intervals:
        return _Account(intervals[0].account, intervals[0].held_micros, intervals)
    open_holds = Hold.objects.filter(account=account_id, released_at=None)
    held_micros = open_holds.aggregate(total=Coalesce(Sum("amount_micros"), 0))["total"]
    return _Account(Account.objects.get(pk=account_id), held_micros, [])
