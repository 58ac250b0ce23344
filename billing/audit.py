"""Proves that balances, entries, intervals and statements tell one story. Reads only."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection
from django.db.models import Q

from billing import funds
from billing.comparisons import COMPARISONS
from billing.models import Account, UsageInterval
from billing.rating.intervals import whole_seconds

logger = logging.getLogger(__name__)

# An open interval that is confirmed is charged every hour; twice that is an alarm.
OVERDUE_AFTER = timedelta(hours=2)
# Of each comparison: what is wrong a thousand times needs no further example.
DIFFERENCES_MAX = 1000

Runs = Sequence[tuple[datetime, datetime | None]]
"""The times something was used, each [start, end), or from start on where it goes on."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two figures that should agree, and do not."""

    check: str
    subject: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.check}: {self.subject} should be {self.expected}, is {self.found}"


@dataclass(slots=True)
class Report:
    """How many figures each check compared, and which differed."""

    counts: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)

    def compare(self, check: str, rows: Iterable[tuple[object, object, object]]) -> None:
        """Add a check of rows (subject, expected, found)."""
        self.counts.setdefault(check, 0)
        for subject, expected, found in rows:
            self.counts[check] += 1
            if expected != found:
                self.differences.append(Difference(check, str(subject), str(expected), str(found)))


def examine(*, now: datetime, usage: Mapping[UUID, Runs] | None = None) -> Report:
    """Compare all that is stored twice, and each figure with what it is computed from.

    `usage` is what the room above says ran: it is compared with the intervals to the second.
    For one view of a system at work, call it in a transaction of isolation REPEATABLE READ.
    The cost grows with the ledger: every entry is read.
    """
    report = Report()
    for check, query in COMPARISONS.items():
        _compare_in_database(report, check, query, now)
    report.compare("second of exhaustion", _exhaustions(now))
    if usage is not None:
        report.compare("usage and intervals", _runs(usage))
    return report


def differences(*, now: datetime, usage: Mapping[UUID, Runs] | None = None) -> list[Difference]:
    """What `examine` found to differ."""
    return examine(now=now, usage=usage).differences


def alarm(*, now: datetime) -> int:
    """Log an error for each difference; returns how many there are."""
    found = differences(now=now)
    for difference in found:
        logger.error("ledger differs", extra={"difference": str(difference)})
    return len(found)


def _compare_in_database(report: Report, check: str, query: str, now: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            query,
            {
                "now": now,
                "overdue_seconds": OVERDUE_AFTER.total_seconds(),
                "limit": DIFFERENCES_MAX,
            },
        )
        rows = cursor.fetchall()
    *differing, (_, count, _) = rows
    report.compare(check, differing)
    report.counts[check] = int(count)


def _exhaustions(now: datetime) -> list[tuple[object, object, object]]:
    """Of accounts in use; one that is used up keeps its second until all it ran has stopped."""
    accounts = (
        Account.objects.filter(
            Q(intervals__isnull=False, intervals__ended_at=None) | Q(exhaust_at__isnull=False)
        )
        .exclude(exhaust_at__lte=now)
        .distinct()
    )
    return [
        (account.code, funds.exhaustion(account.pk), account.exhaust_at)
        for account in accounts.order_by("pk").iterator()
    ]


def _runs(usage: Mapping[UUID, Runs]) -> list[tuple[object, object, object]]:
    metered: dict[UUID, list[tuple[datetime, datetime | None]]] = defaultdict(list)
    intervals = UsageInterval.objects.order_by("reference", "started_at", "pk")
    for reference, start, end in intervals.values_list("reference", "started_at", "ended_at"):
        metered[reference].append((start, end))
    return [
        (reference, _joined(usage.get(reference, [])), _joined(metered.get(reference, [])))
        for reference in sorted(usage.keys() | metered.keys())
    ]


def _joined(runs: Runs) -> list[tuple[datetime, datetime | None]]:
    """In whole seconds, without empty runs; runs that touch, as at a change of price, are one."""
    joined: list[tuple[datetime, datetime | None]] = []
    whole = ((whole_seconds(start), end and whole_seconds(end)) for start, end in runs)
    for start, end in sorted(whole, key=lambda run: run[0]):
        if end is not None and end <= start:
            continue
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]  # noqa: PLW2901
        joined.append((start, end))
    return joined
