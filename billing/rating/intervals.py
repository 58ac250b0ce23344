"""Seconds and months of UTC, as integers. Pure.

Two aware datetimes of one zone subtract by the wall clock in Python, so a day with a time change
comes out as 24 hours. Everything here goes through seconds since the epoch, which knows neither
time changes nor leap seconds.
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)

Stretch = tuple[datetime, datetime]
"""A half-open time [start, end) of whole seconds in UTC."""


def epoch(moment: datetime) -> int:
    """Whole seconds since 1970 UTC, truncated. Raises ValueError for a naive moment."""
    if moment.utcoffset() is None:
        raise ValueError("a moment of billing needs a time zone")
    return (moment.astimezone(UTC) - _EPOCH) // _SECOND


def from_epoch(seconds: int) -> datetime:
    return _EPOCH + seconds * _SECOND


def whole_seconds(moment: datetime) -> datetime:
    """`moment` truncated to a whole second of UTC."""
    return from_epoch(epoch(moment))


def seconds_between(start: datetime, end: datetime) -> int:
    """Whole seconds of [start, end); negative where it runs backwards.

    >>> from zoneinfo import ZoneInfo
    >>> berlin = ZoneInfo("Europe/Berlin")
    >>> midnight = datetime(2026, 10, 25, tzinfo=berlin)
    >>> seconds_between(midnight, midnight.replace(day=26))
    90000
    """
    return epoch(end) - epoch(start)


def month_of(moment: datetime) -> date:
    """The UTC month that `moment` lies in, named by its first day."""
    return moment.astimezone(UTC).date().replace(day=1)


def month_bounds(month: date) -> Stretch:
    """The first second of a month, and that of the next.

    >>> seconds_between(*month_bounds(date(2026, 2, 1)))
    2419200
    """
    if month.day != 1:
        raise ValueError("a month is named by its first day")
    years, before = divmod(month.month, 12)
    start = datetime(month.year, month.month, 1, tzinfo=UTC)
    return start, start.replace(year=month.year + years, month=before + 1)


def cut(start: datetime, end: datetime, *, at: Iterable[datetime] = ()) -> list[Stretch]:
    """[start, end) as contiguous stretches, cut at UTC month borders and at each moment of `at`.

    An empty or backward time has no stretches.

    >>> new_year = datetime(2027, 1, 1, tzinfo=UTC)
    >>> pieces = cut(new_year - 30 * _SECOND, new_year + 60 * _SECOND, at=[new_year + 20 * _SECOND])
    >>> [seconds_between(*piece) for piece in pieces]
    [30, 20, 40]
    """
    if end <= start:
        return []
    borders = set(at)
    _, border = month_bounds(month_of(start))
    while border < end:
        borders.add(border)
        _, border = month_bounds(border.date())
    edges = [start, *sorted(moment for moment in borders if start < moment < end), end]
    return list(pairwise(edges))


def overlap(one: Stretch, other: Stretch) -> int:
    """The seconds that two stretches have in common."""
    return max(0, seconds_between(max(one[0], other[0]), min(one[1], other[1])))
