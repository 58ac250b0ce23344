"""One scheduling cycle: look, decide, commit."""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models import FilteredRelation, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce

from database.compiled import Compiled, CompiledModels, param
from database.refusals import violated_constraint
from portal import hints
from portal.instances import lifecycle
from portal.instances.models import Instance
from portal.instances.operations import reports
from scheduler.capacity import MIB_PER_GIB, free_nodes
from scheduler.models import Allocation, Gpu, Lease, Node
from scheduler.placement.explain import sentence
from scheduler.placement.place import place
from scheduler.placement.snapshot import Assignment, Blocked, Demand, Shape

logger = logging.getLogger(__name__)

# Two cycles can plan the same GPU or the same instance. These decide which one commits.
RACE_CONSTRAINTS = {
    "gpu_has_one_live_allocation",
    "instance_has_one_live_lease",
    "lease_generation_once_per_instance",
}
CYCLE_LOCK = 7_210_002
ALONE_WITHIN = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Queued:
    """One instance of the queue: what it needs, and what its page says of it."""

    demand: Demand
    explanation: str
    last_node: str | None  # where its last lease still ends: it can go nowhere before


def run(*, now: datetime, limit: int = settings.SCHEDULER_CYCLE_LIMIT) -> int:
    """Place as many queued instances as fit; return how many were placed.

    Deciding takes no lock: the plan is made from a snapshot that may be stale, and each
    assignment is checked again as it is committed. Any number of cycles may run at once.
    """
    queue = read_queue(limit=limit)
    if not queue:
        return 0
    hints.space_task(hints.SCHEDULER_CYCLE, settings.SCHEDULER_CYCLE_SPACING)
    demands = [queued.demand for queued in queue if queued.last_node is None]
    decision = place(demands, free_nodes(now=now) if demands else [])
    placed = sum(commit(of_one, now=now) for of_one in by_node(decision.assignments))
    explain(queue, decision.blocked)
    return placed


@contextmanager
def alone() -> Iterator[None]:
    """One cycle at a time, for economy alone: two at once would plan the same and one lose.

    So a worker that hangs in its cycle keeps no other from beginning after `ALONE_WITHIN`.
    """
    # One round trip: without parameters several statements may stand in one.
    wait = (
        f"SET lock_timeout = '{ALONE_WITHIN.total_seconds():.0f}s'; "
        f"SELECT pg_advisory_lock({CYCLE_LOCK}); RESET lock_timeout"
    )
    with connection.cursor() as cursor:
        try:
            cursor.execute(wait)
        except OperationalError:
            logger.warning("another cycle does not end; this one begins beside it")
        try:
            yield
        finally:
            cursor.execute("SELECT pg_advisory_unlock_all()")


@cache
def _queue(limit: int) -> Compiled:
    return Compiled(
        lambda: (
            Instance.objects.in_queue_order()
            .annotate(live=FilteredRelation("leases", condition=Q(leases__ended_at=None)))
            .values_list(
                "pk",
                "plan__gpu_model",
                "plan__gpu_count",
                "plan__vcpus",
                "plan__memory_gib",
                "explanation",
                "live__node__name",
            )[:limit]
        )
    )


def read_queue(*, limit: int) -> list[Queued]:
    """The first `limit` of what waits, in queue order. One query."""
    return [
        Queued(
            Demand(pk, Shape(gpu_model, gpu_count, vcpus, memory_gib * MIB_PER_GIB)),
            explanation,
            last_node,
        )
        for pk, gpu_model, gpu_count, vcpus, memory_gib, explanation, last_node in _queue(limit)()
    ]


def explain(queue: Iterable[Queued], blocked: Iterable[Blocked]) -> None:
    """Say of each instance why it waits; what is said of it already costs no statement."""
    said = {queued.demand.instance_id: queued.explanation for queued in queue}
    waiting: defaultdict[str, list[UUID]] = defaultdict(list)
    for of_one_shape in blocked:
        waiting[sentence(of_one_shape)] += of_one_shape.instance_ids
    for queued in queue:
        if queued.last_node is not None:
            why = f"Waits until node {queued.last_node} has removed its last container."
            waiting[why].append(queued.demand.instance_id)
    for why, instance_ids in waiting.items():
        news = [instance_id for instance_id in instance_ids if said[instance_id] != why]
        if news:
            reports.record_waiting(sentence=why, instance_ids=news)


def by_node(assignments: Iterable[Assignment]) -> Collection[Sequence[Assignment]]:
    """The assignments of each node together."""
    groups: defaultdict[int, list[Assignment]] = defaultdict(list)
    for assignment in assignments:
        groups[assignment.node_id].append(assignment)
    return groups.values()


def commit(assignments: Sequence[Assignment], *, now: datetime) -> int:
    """Make assignments of one node real; return how many. One that loses a race changes nothing.

    All are committed together, in as many statements as one would take. Only where one of them
    loses a race is each tried alone, so that it keeps no other.
    """
    if _commit_together(assignments, now=now):
        return len(assignments)
    if len(assignments) == 1:
        return 0
    return sum(_commit_together([assignment], now=now) for assignment in assignments)


def _commit_together(assignments: Sequence[Assignment], *, now: datetime) -> bool:
    """All or nothing: False, and nothing changed, where one of them lost a race."""
    try:
        with transaction.atomic():
            _commit(assignments, now=now)
    except (_LostRace, lifecycle.Outrun):
        return False
    except IntegrityError as error:
        if violated_constraint(error) not in RACE_CONSTRAINTS:
            raise
        return False
    return True


def _commit(assignments: Sequence[Assignment], *, now: datetime) -> None:
    instance_ids = [assignment.instance_id for assignment in assignments]
    node = lock_node(assignments[0].node_id)
    if node.cordoned_at or node.retired_at or not _has_room(node, assignments):
        raise _LostRace
    gpu_ids = _free_gpus(node, assignments)
    generations = _lock_generations(instance_ids)
    moved = reports.record_placed(
        instance_ids=instance_ids, node_name=node.name, simulated=node.simulated, now=now
    )
    if not moved:
        raise _LostRace
    leases = Lease.objects.bulk_create(
        Lease(
            instance_id=instance_id,
            node=node,
            generation=generations[instance_id] + 1,
            started_at=now,
            expires_at=now + settings.LEASE_DURATION,
        )
        for instance_id in instance_ids
    )
    Allocation.objects.bulk_create(
        Allocation(
            gpu_id=gpu_ids[uuid], lease=lease, instance_id=lease.instance_id, allocated_at=now
        )
        for lease, assignment in zip(leases, assignments, strict=True)
        for uuid in assignment.gpu_uuids
    )
    hints.send(hints.node_topic(node.pk))


_LOCK_NODE = CompiledModels(
    lambda: Node.objects.filter(pk=param("pk")).select_for_update(no_key=True)
)


def lock_node(node_id: int) -> Node:
    """One commit at a time per node: a cordon or a second cycle waits for it, or came first."""
    node: Node
    [node] = _LOCK_NODE(pk=node_id)
    return node


_USED = Compiled(
    lambda: Lease.objects.filter(node=param("node"), ended_at=None).values_list(
        "instance__plan__vcpus", "instance__plan__memory_gib"
    )
)


def _has_room(node: Node, assignments: Iterable[Assignment]) -> bool:
    """Whether vCPUs and memory still suffice: no constraint can say so, the node's lock does."""
    shapes = [assignment.shape for assignment in assignments]
    vcpus = sum(shape.vcpus for shape in shapes)
    memory_mib = sum(shape.memory_mib for shape in shapes)
    for used_vcpus, used_gib in _USED(node=node.pk):
        vcpus += used_vcpus
        memory_mib += used_gib * MIB_PER_GIB
    return vcpus <= node.vcpus and memory_mib <= node.memory_mib


_FREE_GPUS = Compiled(
    lambda: (
        Gpu.objects.free()
        .filter(uuid__any=param("uuids"), node=param("node"))
        .values_list("uuid", "pk")
    )
)


def _free_gpus(node: Node, assignments: Iterable[Assignment]) -> dict[str, int]:
    """The keys of the planned GPUs by UUID. Raises _LostRace where one is not free any more."""
    planned = {uuid for assignment in assignments for uuid in assignment.gpu_uuids}
    keys = dict(_FREE_GPUS(uuids=list(planned), node=node.pk))
    if len(keys) != len(planned):
        raise _LostRace
    return keys


_LOCK_GENERATIONS = Compiled(
    lambda: (
        Instance.objects.filter(pk__any=param("pks"))
        .order_by("pk")
        .select_for_update(no_key=True)
        .values_list(
            "pk",
            Coalesce(
                Subquery(
                    Lease.objects.filter(instance=OuterRef("pk"))
                    .order_by("-generation")
                    .values("generation")[:1]
                ),
                0,
            ),
        )
    )
)


def _lock_generations(instance_ids: Collection[UUID]) -> dict[UUID, int]:
    """The last generation of each instance, 0 before its first lease; the instances are locked.

    In the order of their ids: of two workers who move several at once, one waits for the other.
    """
    return dict(_LOCK_GENERATIONS(pks=list(instance_ids)))


class _LostRace(Exception):
    """The world moved on since the snapshot; rolls the commit back."""
