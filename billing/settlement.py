"""One interval's use becomes entries: forwards while it runs, or back where it ended earlier.

The account's lock is what makes a charge happen once.
"""

from datetime import datetime

from billing import ledger
from billing.accounts import system_account
from billing.locking import LockedAccount
from billing.models import EntryKind, UsageInterval
from billing.rating.intervals import cut, epoch

REVENUE = "revenue:compute"


class ChargedMeanwhile(Exception):
    """Another worker charged the interval: its account was not locked."""


def settle(
    account: LockedAccount,
    interval: UsageInterval,
    *,
    until: datetime,
    at: datetime,
    closing: bool = False,
) -> int:
    """Charge an open interval up to `until`, a whole second; with `closing`, it ends there.

    Each entry belongs to one UTC month. Returns the micros posted: below nought where `until`
    lies before what is charged, since that is given back. Raises InsufficientFunds.
    """
    before, charged = interval.charged_until, interval.charged_micros
    if until < before:
        _give_back(interval, until=until, at=at)
    for start, end in cut(before, until):
        _charge(interval, start, end, at=at)
    interval.charged_until, interval.charged_micros = until, interval.cost_micros(until)
    if closing:
        interval.ended_at = until
    written = UsageInterval.objects.filter(
        pk=interval.pk, ended_at=None, charged_until=before
    ).update(
        charged_until=interval.charged_until,
        charged_micros=interval.charged_micros,
        ended_at=interval.ended_at,
    )
    if not written:
        raise ChargedMeanwhile(f"interval {interval.pk}")
    account.note(interval, charged_micros=interval.charged_micros - charged)
    return interval.charged_micros - charged


def _charge(interval: UsageInterval, start: datetime, end: datetime, *, at: datetime) -> None:
    micros = interval.cost_micros(end) - interval.cost_micros(start)
    if micros:
        ledger.post(
            debit_id=interval.account_id,
            credit_id=system_account(REVENUE).pk,
            amount_micros=micros,
            kind=EntryKind.USAGE,
            cause=f"usage:{interval.pk}:{epoch(end)}",
            at=at,
            period=(start, end),
            interval=interval,
        )


def _give_back(interval: UsageInterval, *, until: datetime, at: datetime) -> None:
    micros = interval.charged_micros - interval.cost_micros(until)
    if micros:
        # It belongs to the end of what was charged: that second's month cannot be issued yet.
        moment = interval.charged_until
        ledger.post(
            debit_id=system_account(REVENUE).pk,
            credit_id=interval.account_id,
            amount_micros=micros,
            kind=EntryKind.ADJUSTMENT,
            cause=f"usage-returned:{interval.pk}",
            at=at,
            period=(moment, moment),
            interval=interval,
            note="Ended before what was charged.",
        )
