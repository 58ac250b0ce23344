"""What time costs: a telescoping floor, and when money will be used up. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

SECONDS_PER_HOUR = 3600


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
    if seconds < 0:
        raise ValueError("time cannot be charged backwards")
    if micros_per_hour < 0:
        raise ValueError("a price is not negative")
    return seconds * micros_per_hour // SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class Burn:
    """One open interval: its rate, the epoch second it began at, and what is charged so far."""

    micros_per_hour: int
    started_at: int
    charged_micros: int


def exhausted_at(*, balance_micros: int, burns: Iterable[Burn]) -> int | None:
    """The last epoch second up to which `balance_micros` pays for all `burns`; None: for ever.

    t* = floor((3600 × B + K) / R) with B = balance + what the open intervals were charged,
    R = Σ rate, K = Σ rate × start. Each charge is a floor of the exact cost, so what is spent
    at t* never exceeds B. Python's integers cannot overflow here; K passes 2^63 at 10,000
    H100s.

    >>> h100 = Burn(micros_per_hour=2_490_000, started_at=0, charged_micros=0)
    >>> exhausted_at(balance_micros=10_000_000, burns=[h100])
    14457
    >>> rtx4090 = Burn(micros_per_hour=440_000, started_at=600, charged_micros=0)
    >>> exhausted_at(balance_micros=10_000_000, burns=[h100, rtx4090])
    12376
    """
    burns = list(burns)
    rate = sum(burn.micros_per_hour for burn in burns)
    if rate == 0:
        return None
    funds = balance_micros + sum(burn.charged_micros for burn in burns)
    weighted = sum(burn.micros_per_hour * burn.started_at for burn in burns)
    return (SECONDS_PER_HOUR * funds + weighted) // rate
