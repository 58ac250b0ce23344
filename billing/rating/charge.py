"""What time costs: a telescoping floor, and when money will be used up. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple, Self

from billing.rating.intervals import epoch, from_epoch
from billing.rating.money import check_rate

SECONDS_PER_HOUR = 3600
_LAST_MOMENT = epoch(datetime.fromisoformat("9999-12-31T00:00:00+00:00"))


def charged_micros(*, micros_per_hour: int, seconds: int) -> int:
    """C(seconds) = floor(seconds × rate / 3600), in micros.

    Postings are differences of C, so any pattern of ticks gives the same total, and less than
    one micro of each interval is never charged: always in the customer's favour. A price per
    second would drift instead ($2.49 an hour is 691.666… micros a second).

    >>> charged_micros(micros_per_hour=2_490_000, seconds=5025)
    3475625
    >>> totals = [charged_micros(micros_per_hour=2_490_000, seconds=s) for s in range(7)]
    >>> [after - before for before, after in zip(totals, totals[1:])]
    [691, 692, 692, 691, 692, 692]
    """
    return check_seconds(seconds) * check_rate(micros_per_hour) // SECONDS_PER_HOUR


def check_seconds(seconds: object) -> int:
    """`seconds` where it is an integer and not negative. Raises TypeError or ValueError."""
    if not isinstance(seconds, int) or isinstance(seconds, bool):
        raise TypeError(f"billed time is an integer of seconds, not {type(seconds).__name__}")
    if seconds < 0:
        raise ValueError("time cannot be charged backwards")
    return seconds


def needed_micros(*, micros_per_hour: int, runway: timedelta) -> int:
    """What must be there to pay for `runway`, rounded up to the micro.

    >>> needed_micros(micros_per_hour=2_490_000, runway=timedelta(seconds=1))
    692
    """
    seconds = -(-runway // timedelta(seconds=1))
    return -(-check_rate(micros_per_hour) * seconds // SECONDS_PER_HOUR)


class Burn(NamedTuple):
    """One open interval: its rate, since when it runs, and what is charged of it so far.

    An account may have hundreds, so its moments are seconds of the epoch: integers are quick.
    """

    micros_per_hour: int
    start_epoch: int
    charged_epoch: int
    charged_micros: int = 0

    @classmethod
    def of(
        cls, rate: int, started_at: datetime, charged_until: datetime, charged_micros: int
    ) -> Self:
        return cls(rate, epoch(started_at), epoch(charged_until), charged_micros)

    def accrued_micros(self, until_epoch: int) -> int:
        """What it costs until then beyond what is charged; nought where more is charged."""
        seconds = max(until_epoch, self.charged_epoch) - self.start_epoch
        cost = charged_micros(micros_per_hour=self.micros_per_hour, seconds=seconds)
        return cost - self.charged_micros


def exhaust_at(*, available_micros: int, burns: Iterable[Burn]) -> datetime | None:
    """The last whole second up to which `available_micros` pays for all `burns`; None: for ever.

    `available_micros` is the balance less holds, that is, after what `burns` were charged. With
    B = available + charged, R = Σ rate and K = Σ rate × start in epoch seconds, it is
    t* = floor((3600 × B + K) / R). B does not change when an interval is charged, so t* does not
    either. Each charge is a floor of the exact cost, so what is spent at t* never exceeds B.

    An interval costs nothing before it is charged up to, so one that starts after the money has
    ended does not pay for the others: intervals are taken in that order, and t* is the first
    that comes before the next one begins.

    >>> h100 = Burn(2_490_000, start_epoch=0, charged_epoch=0)
    >>> epoch(exhaust_at(available_micros=10_000_000, burns=[h100]))
    14457
    >>> rtx4090 = Burn(440_000, start_epoch=600, charged_epoch=600)
    >>> epoch(exhaust_at(available_micros=10_000_000, burns=[h100, rtx4090]))
    12376
    """
    paying = [burn for burn in burns if burn.micros_per_hour > 0]
    if not paying:
        return None
    paying.sort(key=lambda burn: burn.charged_epoch)
    rate = weighted = last = 0
    for position, burn in enumerate(paying):
        if position and last < burn.charged_epoch:
            break
        # Python's integers cannot overflow here; K passes 2^63 at 10,000 H100s.
        rate += burn.micros_per_hour
        weighted += burn.micros_per_hour * burn.start_epoch + SECONDS_PER_HOUR * burn.charged_micros
        last = max(burn.charged_epoch, (SECONDS_PER_HOUR * available_micros + weighted) // rate)
    return from_epoch(last) if last <= _LAST_MOMENT else None
