"""Usage as a CSV file, row by row, so that a year of it fits in no memory at once."""

import csv
from collections.abc import Iterable, Iterator
from datetime import datetime

from billing.usage import Used

COLUMNS = (
    *("instance", "sku", "started_at", "ended_at"),
    *("seconds", "micros_per_hour", "cost_micros"),
)


class _Echo:
    """A file that gives back what is written to it."""

    def write(self, row: str) -> str:
        return row


def rows(intervals: Iterable[Used]) -> Iterator[str]:
    """A heading and one row for each interval. Amounts are exact micros, times RFC 3339 UTC."""
    writer = csv.writer(_Echo())
    yield writer.writerow(COLUMNS)
    for used in intervals:
        yield writer.writerow(
            (
                *(used.reference, used.sku, _moment(used.started_at), _moment(used.ended_at)),
                *(used.seconds, used.micros_per_hour, used.micros),
            )
        )


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")
