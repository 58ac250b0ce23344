"""From intervals to the ledger: every charge is C(through) less what was charged before."""

from datetime import datetime

from django.db import transaction
from django.db.models import F, Q

from billing import accounts, funds, ledger
from billing.models import EntryKind, UsageInterval
from billing.rating.charge import charged_micros
from billing.rating.intervals import (
    cut,
    epoch,
    months_within,
    seconds_between,
    whole_second,
)


def charge_due(*, now: datetime, limit: int = 10_000) -> int:
    """Charge all that has run and is not charged yet; returns the number of entries posted.

    Each interval is its own short transaction, so a crash loses none of the others. Running it
    late, twice or at once posts the same total: an entry's cause names the second it pays up to,
    and the account's lock lets one worker look at an interval at a time.
    """
    due = UsageInterval.objects.filter(Q(ended_at=None) | Q(charged_until__lt=F("ended_at")))
    ids = list(due.order_by("pk").values_list("pk", flat=True)[:limit])
    return sum(_charge_one(interval_id, now=now) for interval_id in ids)


@transaction.atomic
def _charge_one(interval_id: int, *, now: datetime) -> int:
    account_id = UsageInterval.objects.values_list("account_id", flat=True).get(pk=interval_id)
    account = funds.lock(account_id)
    interval = UsageInterval.objects.get(pk=interval_id)
    # Only confirmed time is charged: a lost node's interval ends at its last confirmation.
    through = interval.ended_at or min(now, interval.confirmed_at)
    if account.exhaust_at is not None and interval.ended_at is None:
        through = min(through, account.exhaust_at)
    return charge(interval, through=through)


def charge(interval: UsageInterval, *, through: datetime) -> int:
    """Post what [charged_until, through) costs, cut at month borders; returns the entries posted.

    The caller holds the account's lock. An earlier `through` than was charged does nothing.
    """
    through = whole_second(through)
    start = interval.charged_until
    if through <= start:
        return 0
    revenue = accounts.system_account(accounts.REVENUE)
    posted = 0
    for piece in cut(start, through, at=months_within(start, through)):
        posted += _post_piece(interval, piece, revenue_id=revenue.pk)
    interval.save(update_fields=["charged_until", "charged_micros"])
    return posted


def _post_piece(
    interval: UsageInterval, piece: tuple[datetime, datetime], *, revenue_id: int
) -> int:
    _, end = piece
    total = charged_micros(
        micros_per_hour=interval.micros_per_hour,
        seconds=seconds_between(interval.started_at, end),
    )
    amount = total - interval.charged_micros
    interval.charged_until, interval.charged_micros = end, total
    if amount == 0:
        return 0
    ledger.post(
        debit_id=interval.account_id,
        credit_id=revenue_id,
        amount_micros=amount,
        kind=EntryKind.USAGE,
        cause=f"usage:{interval.pk}:{epoch(end)}",
        at=end,
        period=piece,
        interval=interval,
    )
    return 1
