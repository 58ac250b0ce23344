"""What the nodes that take work have, and what is free of it, as placement sees it."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db.models import FilteredRelation, Q, QuerySet, Sum

from database.compiled import Compiled, param
from portal.catalog.models import Plan
from scheduler.models import Gpu, Node
from scheduler.placement.snapshot import FreeNode, Shape

MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True)
class Capacity:
    """One node that takes work: what is free on it, and what would be if nothing ran there."""

    free: FreeNode
    empty: FreeNode
    simulated: bool  # its containers or its GPUs


@dataclass(frozen=True, slots=True)
class _SeenGpu:
    model: str
    uuid: str
    held: bool


def _nodes_that_take_work() -> QuerySet[Node]:
    return Node.objects.taking_work(seen_after=param("seen_after"))


_NODES = Compiled(
    lambda: (
        _nodes_that_take_work()
        .annotate(
            live=FilteredRelation("leases", condition=Q(leases__ended_at=None)),
            used_vcpus=Sum("live__instance__plan__vcpus", default=0),
            used_gib=Sum("live__instance__plan__memory_gib", default=0),
        )
        .values_list(
            "pk", "vcpus", "memory_mib", "used_vcpus", "used_gib", "simulated", "simulated_gpus"
        )
    )
)
_GPUS = Compiled(
    lambda: (
        Gpu.objects.usable()
        .filter(node__in=_nodes_that_take_work())
        .annotate(live=FilteredRelation("allocations", condition=Q(allocations__released_at=None)))
        .order_by("uuid")
        .values_list("node", "model", "uuid", "live")
    )
)


def shape_of(plan: Plan) -> Shape:
    return Shape(plan.gpu_model, plan.gpu_count, plan.vcpus, plan.memory_gib * MIB_PER_GIB)


def free_nodes(*, now: datetime) -> list[FreeNode]:
    """What is free on every node that takes work. Two queries."""
    return [node.free for node in capacities(now=now)]


def capacities(*, now: datetime) -> list[Capacity]:
    """Every node that takes work. Two queries and no lock: what they say may have passed."""
    seen_after = now - settings.NODE_SUSPECT_AFTER
    gpus = _usable_gpus(seen_after)
    rows = _NODES(seen_after=seen_after)
    return [
        Capacity(
            free=FreeNode(
                node_id,
                _uuids_by_model(gpus[node_id], free_only=True),
                vcpus - used_vcpus,
                memory_mib - used_gib * MIB_PER_GIB,
            ),
            empty=FreeNode(node_id, _uuids_by_model(gpus[node_id]), vcpus, memory_mib),
            simulated=simulated or simulated_gpus,
        )
        for node_id, vcpus, memory_mib, used_vcpus, used_gib, simulated, simulated_gpus in rows
    ]


def _usable_gpus(seen_after: datetime) -> dict[int, list[_SeenGpu]]:
    """By node, and in the order of their UUIDs: one snapshot always gives one plan."""
    by_node = defaultdict(list)
    for node_id, model, uuid, allocation in _GPUS(seen_after=seen_after):
        by_node[node_id].append(_SeenGpu(model, uuid, held=allocation is not None))
    return by_node


def _uuids_by_model(
    gpus: Iterable[_SeenGpu], *, free_only: bool = False
) -> dict[str, tuple[str, ...]]:
    """A model is there, and empty, where all its GPUs are held."""
    by_model: defaultdict[str, list[str]] = defaultdict(list)
    for gpu in gpus:
        of_model = by_model[gpu.model]
        if not (free_only and gpu.held):
            of_model.append(gpu.uuid)
    return {model: tuple(uuids) for model, uuids in by_model.items()}
