"""What was used becomes entries in the ledger: late, twice or at once, the total is the same."""

import logging
from datetime import datetime, timedelta

from django.db import DatabaseError, transaction
from django.db.models import DateTimeField, F, Value
from django.db.models.functions import Least

from billing import locking, prices
from billing.ledger import InsufficientFunds
from billing.metering import follow_prices
from billing.models import UsageInterval
from billing.rating.intervals import month_bounds, month_of
from billing.settlement import charge, settle

logger = logging.getLogger(__name__)

SECOND = timedelta(seconds=1)


def charge_due(*, now: datetime, limit: int = 1000, every: timedelta = timedelta(0)) -> int:
    """Charge open intervals up to `now`, their last confirmation or the end of their money.

    Only those that have not been charged for `every`, or not up to the start of this month: the
    total does not depend on when it is asked for, but each time adds a row to the ledger. The
    longest uncharged come first, at most `limit`.

    Returns the micros posted. Each interval is its own transaction under its account's lock, so
    a worker that is killed leaves the others charged and its own as it was; one that cannot be
    charged is logged as an error and keeps no other waiting.
    """
    charged = 0
    for interval_id, account_id in _due(now, every)[:limit]:
        try:
            charged += _charge(interval_id, account_id, now)
        except (DatabaseError, InsufficientFunds):
            logger.exception("interval not charged", extra={"interval": interval_id})
    return charged


def _due(now: datetime, every: timedelta) -> list[tuple[int, int]]:
    month_start, _ = month_bounds(month_of(now))
    payable = Least(
        Value(now, output_field=DateTimeField()), F("confirmed_at"), F("account__exhaust_at")
    )
    due = UsageInterval.objects.annotate(payable=payable).filter(
        ended_at=None,
        payable__gte=F("charged_until") + SECOND,
        charged_until__lt=max(now - every, month_start),
    )
    return list(due.order_by("charged_until", "pk").values_list("pk", "account"))


@transaction.atomic
def _charge(interval_id: int, account_id: int, now: datetime) -> int:
    account = locking.lock(account_id)
    interval = UsageInterval.objects.filter(pk=interval_id, ended_at=None).first()
    if interval is None:
        return 0
    moment = min(now, interval.confirmed_at)
    interval, payable = follow_prices(account, interval, prices.since([interval]), moment=moment)
    account.save()
    if payable == interval.charged_until:
        return 0
    charged = charge(account, interval, until=payable)
    settle([charged], at=now)
    return charged.micros
