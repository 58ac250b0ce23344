"""How many instances of each plan would start now → portal.catalog.Availability."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from portal.catalog.models import Availability, Plan
from scheduler.capacity import Capacity, capacities, shape_of
from scheduler.placement.feasible import how_many_fit
from scheduler.placement.snapshot import FreeNode, Shape


def publish(*, now: datetime) -> int:
    """Write what changed of the plans on offer; returns how many rows that was.

    Four queries where nothing changed.
    """
    known = {row.plan_id: row for row in Availability.objects.all()}
    nodes = capacities(now=now)
    rows = [_availability(plan, nodes, now=now) for plan in Plan.objects.offered()]
    changed = [
        row
        for row in rows
        if row.plan_id not in known or _figures(known[row.plan_id]) != _figures(row)
    ]
    Availability.objects.bulk_create(
        changed,
        update_conflicts=True,
        unique_fields=["plan"],
        update_fields=["free_now", "total", "simulated", "updated_at"],
    )
    return len(changed)


def _availability(plan: Plan, nodes: Sequence[Capacity], *, now: datetime) -> Availability:
    shape = shape_of(plan)
    return Availability(
        plan=plan,
        free_now=_fitting(shape, (node.free for node in nodes)),
        total=_fitting(shape, (node.empty for node in nodes)),
        simulated=_only_simulated(shape, nodes),
        updated_at=now,
    )


def _fitting(shape: Shape, nodes: Iterable[FreeNode]) -> int:
    return sum(how_many_fit(shape, node) for node in nodes)


def _figures(row: Availability) -> tuple[int, int, bool]:
    return (row.free_now, row.total, row.simulated)


def _only_simulated(shape: Shape, nodes: Iterable[Capacity]) -> bool:
    offering = [node.simulated for node in nodes if how_many_fit(shape, node.empty)]
    return bool(offering) and all(offering)
