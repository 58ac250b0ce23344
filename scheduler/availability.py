"""How many instances of each plan would start now → portal.catalog.Availability."""

from collections.abc import Sequence
from datetime import datetime

from django.conf import settings

from portal.catalog.models import Availability, Plan
from scheduler.cycle import shape_of
from scheduler.models import Gpu, Node
from scheduler.placement.feasible import how_many_fit
from scheduler.placement.snapshot import FreeNode, Shape


def publish(nodes: Sequence[FreeNode], *, now: datetime) -> int:
    """Write what changed of the plans on offer; returns how many rows that was."""
    known = {row.plan_id: row for row in Availability.objects.all()}
    empty, simulated = _empty_nodes(now=now)
    changed = []
    for plan in Plan.objects.offered():
        shape = shape_of(plan)
        row = Availability(
            plan=plan,
            free_now=sum(how_many_fit(shape, node) for node in nodes),
            total=sum(how_many_fit(shape, node) for node in empty),
            simulated=_only_simulated(shape, empty, simulated),
            updated_at=now,
        )
        before = known.get(plan.pk)
        if before is None or _figures(before) != _figures(row):
            changed.append(row)
    Availability.objects.bulk_create(
        changed,
        update_conflicts=True,
        unique_fields=["plan"],
        update_fields=["free_now", "total", "simulated", "updated_at"],
    )
    return len(changed)


def _figures(row: Availability) -> tuple[int, int, bool]:
    return (row.free_now, row.total, row.simulated)


def _empty_nodes(*, now: datetime) -> tuple[list[FreeNode], set[int]]:
    """Every node that takes work as if nothing ran on it, and which of them are simulated."""
    nodes = Node.objects.taking_work(now=now, seen_within=settings.NODE_SUSPECT_AFTER)
    gpus: dict[int, dict[str, tuple[str, ...]]] = {}
    for gpu in Gpu.objects.usable():
        of_node = gpus.setdefault(gpu.node_id, {})
        of_node[gpu.model] = (*of_node.get(gpu.model, ()), gpu.uuid)
    empty = [
        FreeNode(node.pk, gpus.get(node.pk, {}), node.vcpus, node.memory_mib) for node in nodes
    ]
    return empty, {node.pk for node in nodes if node.simulated or node.simulated_gpus}


def _only_simulated(shape: Shape, nodes: Sequence[FreeNode], simulated: set[int]) -> bool:
    offering = {node.node_id for node in nodes if how_many_fit(shape, node)}
    return bool(offering) and offering <= simulated
