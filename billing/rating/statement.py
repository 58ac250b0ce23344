"""The lines of a month: one for each reference and price, one for each credit. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Usage:
    """What one interval adds to a month: its seconds there, and what they were charged."""

    reference: UUID
    sku: str
    micros_per_hour: int
    started_at: datetime
    seconds: int
    charged_micros: int


@dataclass(frozen=True, slots=True)
class Credit:
    """A movement of the month that is no usage. Negative where it took money away."""

    kind: str
    description: str
    posted_at: datetime
    amount_micros: int


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a statement. Usage is negative, credit positive; only usage has the rest."""

    kind: str
    description: str
    amount_micros: int
    reference: UUID | None = None
    seconds: int | None = None
    micros_per_hour: int | None = None


@dataclass(frozen=True, slots=True)
class MonthlyStatement:
    """What an account had, got, used and has left in a month. `issued_at` is None in a preview.

    `month` is its first day; months are cut in UTC. Opening + Σ lines = closing, in micros.
    """

    account_id: int
    month: date
    opening_micros: int
    closing_micros: int
    lines: tuple[Line, ...]
    issued_at: datetime | None = None

    @property
    def adds_up(self) -> bool:
        return self.opening_micros + sum(x.amount_micros for x in self.lines) == self.closing_micros


def lines(*, usage: Iterable[Usage], credits: Iterable[Credit], usage_kind: str) -> list[Line]:
    """Credits by time, then usage by first start: intervals of one reference and price in one.

    >>> from datetime import UTC
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> runs = [Usage(UUID(int=1), "h100-1x", 2_490_000, noon, 1800, 1_245_000)] * 2
    >>> [line] = lines(usage=runs, credits=[], usage_kind="usage")
    >>> line.seconds, line.amount_micros
    (3600, -2490000)
    """
    merged: dict[tuple[UUID, str, int], tuple[int, int]] = {}
    for used in sorted(usage, key=lambda used: (used.started_at, used.reference)):
        key = used.reference, used.sku, used.micros_per_hour
        seconds, micros = merged.get(key, (0, 0))
        merged[key] = seconds + used.seconds, micros + used.charged_micros
    return [
        Line(credit.kind, credit.description, credit.amount_micros)
        for credit in sorted(credits, key=lambda credit: (credit.posted_at, credit.description))
    ] + [
        Line(usage_kind, sku, -micros, reference, seconds, rate)
        for (reference, sku, rate), (seconds, micros) in merged.items()
        if seconds or micros
    ]
