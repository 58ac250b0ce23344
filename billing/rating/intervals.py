"""Seconds and months of UTC, as integers. Pure.

Two aware datetimes of one zone subtract by the wall clock in Python, so a day with a time change
comes out as 24 hours. Everything here goes through seconds since the epoch.
"""

import itertools
from collections.abc import Iterable
from datetime import UTC, datetime


def epoch(moment: datetime) -> int:
    """Whole seconds since 1970 UTC, truncated. Raises ValueError for a naive moment."""
    if moment.tzinfo is None:
        raise ValueError("a moment of billing needs a time zone")
    return int(moment.timestamp() // 1)


def from_epoch(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def whole_second(moment: datetime) -> datetime:
    """`moment` truncated to a whole second of UTC."""
    return from_epoch(epoch(moment))


def seconds_between(start: datetime, end: datetime) -> int:
    """Whole seconds of [start, end); negative where it runs backwards.

    >>> from zoneinfo import ZoneInfo
    >>> berlin = ZoneInfo("Europe/Berlin")
    >>> clocks_go_back = datetime(2026, 10, 25, tzinfo=berlin)
    >>> seconds_between(clocks_go_back, clocks_go_back.replace(day=26))
    90000
    """
    return epoch(end) - epoch(start)


def month_start(moment: datetime) -> datetime:
    """The first second of the UTC month that `moment` lies in."""
    return moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def next_month(moment: datetime) -> datetime:
    """The first second of the UTC month after that of `moment`."""
    first = month_start(moment)
    years, month = divmod(first.month, 12)
    return first.replace(year=first.year + years, month=month + 1)


def months_within(start: datetime, end: datetime) -> list[datetime]:
    """Every month border strictly between start and end."""
    borders = []
    border = next_month(start)
    while border < end:
        borders.append(border)
        border = next_month(border)
    return borders


def cut(
    start: datetime, end: datetime, *, at: Iterable[datetime]
) -> list[tuple[datetime, datetime]]:
    """[start, end) as contiguous pieces, cut at each moment of `at` that lies strictly inside.

    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> [seconds_between(*piece) for piece in cut(noon, noon.replace(hour=13),
    ...     at=[noon.replace(minute=30), noon.replace(hour=9)])]
    [1800, 1800]
    """
    inside = sorted({moment for moment in at if start < moment < end})
    edges = [start, *inside, end]
    return list(itertools.pairwise(edges))
