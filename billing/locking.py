"""An account under its lock: read once, and changed in memory as in the database.

Whatever opens, closes, charges, holds or credits takes the lock first, so that each sees what the
others did, and no two wait for each other.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import BigIntegerField, DateTimeField, QuerySet, Sum, Value
from django.db.models.functions import Cast

from billing.models import Account, Hold, UsageInterval
from billing.rating import charge
from billing.rating.charge import Burn
from billing.rating.intervals import epoch
from database.compiled import Compiled, param

# The columns of an interval that `Burn.of` takes.
BURN = ("micros_per_hour", "started_at", "charged_until", "charged_micros")


@dataclass(slots=True)
class LockedAccount:
    """What an account has, and what it burns, until the transaction ends.

    `burning` holds its open intervals that cost something, by id. Micros throughout.
    """

    pk: int
    balance_micros: int
    floor_micros: int
    exhaust_at: datetime | None
    held_micros: int = 0
    burning: dict[int, Burn] = field(default_factory=dict)
    _stored_exhaust_at: datetime | None = field(init=False)

    def __post_init__(self) -> None:
        self._stored_exhaust_at = self.exhaust_at

    @property
    def unheld_micros(self) -> int:
        return self.balance_micros - self.floor_micros - self.held_micros

    @property
    def burn_micros_per_hour(self) -> int:
        return sum(burn.micros_per_hour for burn in self.burning.values())

    def available_micros(self, now: datetime) -> int:
        """What a launch may count on: what is unconfirmed counts as used."""
        last = epoch(now if self.exhaust_at is None else min(now, self.exhaust_at))
        return self.unheld_micros - sum(burn.accrued_micros(last) for burn in self.burning.values())

    def note(self, interval: UsageInterval, *, charged_micros: int = 0) -> None:
        """Take in that an interval was opened, was charged `charged_micros` more, or has ended."""
        self.balance_micros -= charged_micros
        if interval.ended_at is not None:
            self.burning.pop(interval.pk, None)
        elif interval.micros_per_hour:
            self.burning[interval.pk] = Burn.of(
                interval.micros_per_hour,
                interval.started_at,
                interval.charged_until,
                interval.charged_micros,
            )

    def reckon(self) -> None:
        """Compute when it is used up, from what is known of it now."""
        self.exhaust_at = charge.exhaust_at(
            available_micros=self.unheld_micros, burns=self.burning.values()
        )

    def save(self) -> None:
        """Store when it is used up, where that has changed."""
        if self.exhaust_at != self._stored_exhaust_at:
            Account.objects.filter(pk=self.pk).update(exhaust_at=self.exhaust_at)
            self._stored_exhaust_at = self.exhaust_at


def _rows(accounts: QuerySet[Account]) -> QuerySet[Account, tuple[Any, ...]]:
    locked = accounts.order_by("pk").select_for_update(no_key=True)
    return locked.values_list("pk", "balance_micros", "floor_micros", "exhaust_at")


def _used_by_references() -> QuerySet[Any, Any]:
    """The accounts whose meters run, or whose money is held, for some references."""
    running = UsageInterval.objects.filter(reference__any=param("references"), ended_at=None)
    held = Hold.objects.filter(reference__any=param("references"), released_at=None)
    return running.values("account").union(held.values("account"))


_LOCK = Compiled(lambda: _rows(Account.objects.filter(pk=param("pk"))))
_LOCK_USED = Compiled(lambda: _rows(Account.objects.filter(pk__in=_used_by_references())))


def _burning_and_held() -> QuerySet[Any, Any]:
    """For some accounts: each open interval that costs something, and a row without an interval
    for the sum that is held."""
    burning = UsageInterval.objects.filter(
        account__any=param("pks"), ended_at=None, micros_per_hour__gt=0
    )
    held = Hold.objects.filter(account__any=param("pks"), released_at=None).values("account")
    no_interval, no_moment = Value(None, BigIntegerField()), Value(None, DateTimeField())
    return burning.values_list("account", "pk", *BURN).union(
        held.annotate(micros=Cast(Sum("amount_micros"), BigIntegerField())).values_list(
            "account", no_interval, "micros", no_moment, no_moment, no_interval
        ),
        all=True,
    )


_BURNING_AND_HELD = Compiled(_burning_and_held)


def lock(account_id: int) -> LockedAccount:
    """Two statements. Raises KeyError where there is no such account."""
    return _read(_LOCK(pk=account_id))[account_id]


def lock_used(references: Collection[UUID]) -> dict[int, LockedAccount]:
    """The accounts whose meters run, or whose money is held, for `references`.

    Locked in the order of their ids; two statements for any number.
    """
    return _read(_LOCK_USED(references=list(references)))


def _read(rows: Iterable[tuple[Any, ...]]) -> dict[int, LockedAccount]:
    """What locked accounts have, by a statement that begins once they are locked: it sees what
    others did before."""
    accounts = {
        pk: LockedAccount(pk, balance, floor or 0, exhaust_at)
        for pk, balance, floor, exhaust_at in rows
    }
    if not accounts:
        return accounts
    for pk, interval_id, micros, *figures in _BURNING_AND_HELD(pks=list(accounts)):
        if interval_id is None:
            accounts[pk].held_micros = micros
        else:
            accounts[pk].burning[interval_id] = Burn.of(micros, *figures)
    return accounts
