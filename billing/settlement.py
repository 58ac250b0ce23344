"""Use becomes entries: forwards while it runs, or back where it ended earlier.

The account's lock is what makes a charge happen once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from billing import ledger
from billing.accounts import system_account
from billing.ledger import InsufficientFunds
from billing.locking import LockedAccount
from billing.models import EntryKind, LedgerEntry, UsageInterval
from billing.rating.intervals import cut, epoch

REVENUE = "revenue:compute"


class ChargedMeanwhile(Exception):
    """Another worker charged the interval: its account was not locked."""


@dataclass(frozen=True, slots=True)
class Charged:
    """An interval that is charged in memory, and how far it is charged in the database."""

    interval: UsageInterval
    charged_until: datetime
    charged_micros: int

    @property
    def micros(self) -> int:
        """What is to be posted: below nought where it is given back."""
        return self.interval.charged_micros - self.charged_micros


def charge(
    account: LockedAccount, interval: UsageInterval, *, until: datetime, closing: bool = False
) -> Charged:
    """Charge an open interval in memory up to `until`, a whole second; with `closing`, it ends.

    What is charged beyond `until` is given back. Nothing is stored before `settle`. Raises
    InsufficientFunds where the account has less.
    """
    before = Charged(interval, interval.charged_until, interval.charged_micros)
    cost = interval.cost_micros(until)
    needed = cost - interval.charged_micros
    above_floor = account.balance_micros - account.floor_micros
    if needed > above_floor:
        raise InsufficientFunds("This", needed_micros=needed, available_micros=above_floor)
    interval.charged_until, interval.charged_micros = until, cost
    if closing:
        interval.ended_at = until
    account.note(interval, charged_micros=needed)
    return before


def settle(charged: Sequence[Charged], *, at: datetime) -> None:
    """Post what was charged, and store how far; three statements for any number of intervals.

    Each entry belongs to one UTC month. Raises ChargedMeanwhile; the transaction is lost then.
    """
    if any(one.micros for one in charged):
        house_id = system_account(REVENUE).pk
        ledger.post_all([entry for one in charged for entry in _entries(one, house_id, at=at)])
    if charged:
        _store(charged)


def _entries(charged: Charged, house_id: int, *, at: datetime) -> Iterator[LedgerEntry]:
    interval = charged.interval
    if charged.micros < 0:
        # It belongs to the end of what was charged: that second's month cannot be issued yet.
        yield LedgerEntry(
            debit_id=house_id,
            credit_id=interval.account_id,
            amount_micros=-charged.micros,
            kind=EntryKind.ADJUSTMENT,
            cause=f"usage-returned:{interval.pk}",
            interval=interval,
            period_start=charged.charged_until,
            period_end=charged.charged_until,
            posted_at=at,
            note="Ended before what was charged.",
        )
    for start, end in cut(charged.charged_until, interval.charged_until):
        micros = interval.cost_micros(end) - interval.cost_micros(start)
        if micros:
            yield LedgerEntry(
                debit_id=interval.account_id,
                credit_id=house_id,
                amount_micros=micros,
                kind=EntryKind.USAGE,
                cause=f"usage:{interval.pk}:{epoch(end)}",
                interval=interval,
                period_start=start,
                period_end=end,
                posted_at=at,
            )


# The ORM has no update from a list of rows. Rows are locked in the order of their ids, as
# `metering.confirm` does.
_STORE = """
WITH charged AS (
    SELECT * FROM unnest(%s::bigint[], %s::timestamptz[], %s::timestamptz[], %s::bigint[],
                         %s::timestamptz[]) AS charged (id, before, until, micros, ended_at)
), locked AS (
    SELECT id FROM billing_usageinterval WHERE id IN (SELECT id FROM charged)
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE billing_usageinterval AS stored
SET charged_until = charged.until, charged_micros = charged.micros, ended_at = charged.ended_at
FROM charged JOIN locked USING (id)
WHERE stored.id = charged.id AND stored.ended_at IS NULL AND stored.charged_until = charged.before
"""


def _store(charged: Sequence[Charged]) -> None:
    intervals = [one.interval for one in charged]
    with connection.cursor() as cursor:
        cursor.execute(
            _STORE,
            [
                [interval.pk for interval in intervals],
                [one.charged_until for one in charged],
                [interval.charged_until for interval in intervals],
                [interval.charged_micros for interval in intervals],
                [interval.ended_at for interval in intervals],
            ],
        )
        if cursor.rowcount < len(charged):
            raise ChargedMeanwhile(f"one of the intervals {[one.pk for one in intervals]}")
