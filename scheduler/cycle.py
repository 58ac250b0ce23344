"""One scheduling cycle: look, decide, commit."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models import Exists, OuterRef, Q, Sum
from psycopg import Error as PsycopgError

from portal import hints
from portal.instances.models import Instance, State
from portal.instances.operations import reports
from scheduler.capacity import MIB_PER_GIB, free_nodes
from scheduler.models import Allocation, Gpu, Lease, Node
from scheduler.placement.explain import sentence
from scheduler.placement.place import place
from scheduler.placement.snapshot import Assignment, Demand, Shape

logger = logging.getLogger(__name__)

# Two cycles can plan the same GPU or the same instance. These decide which one commits.
RACE_CONSTRAINTS = {
    "gpu_has_one_live_allocation",
    "instance_has_one_live_lease",
    "lease_generation_once_per_instance",
}
CYCLE_LOCK = 7_210_002
ALONE_WITHIN = timedelta(seconds=5)


def run(*, now: datetime, limit: int = settings.SCHEDULER_CYCLE_LIMIT) -> int:
    """Place as many queued instances as fit; return how many were placed.

    Deciding takes no lock: the plan is made from a snapshot that may be stale, and each
    assignment is checked again as it is committed. Any number of cycles may run at once.
    """
    demands = queued_demands(limit=limit)
    decision = place(demands, free_nodes(now=now) if demands else [])
    placed = sum(commit(assignment, now=now) for assignment in decision.assignments)
    blocked = {blocked.instance_id: sentence(blocked) for blocked in decision.blocked}
    reports.record_waiting(explanations=blocked | waiting_for_their_last_node())
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


def queued_demands(*, limit: int) -> list[Demand]:
    """What waits, in queue order; an instance whose last lease still ends waits a little more."""
    ending = Lease.objects.filter(instance=OuterRef("pk"), ended_at=None)
    queued = Instance.objects.in_queue_order().filter(~Exists(ending))
    rows = queued.values_list(
        "pk", "plan__gpu_model", "plan__gpu_count", "plan__vcpus", "plan__memory_gib"
    )
    return [
        Demand(instance_id, Shape(model, gpus, vcpus, memory_gib * MIB_PER_GIB))
        for instance_id, model, gpus, vcpus, memory_gib in rows[:limit]
    ]


def waiting_for_their_last_node() -> dict[UUID, str]:
    """Why an instance waits whose last lease still ends: its node may still run the container."""
    ending = Lease.objects.filter(ended_at=None, instance__state=State.QUEUED)
    return {
        instance_id: f"Waits until node {node} has removed its last container."
        for instance_id, node in ending.values_list("instance", "node__name")
    }


def commit(assignment: Assignment, *, now: datetime) -> bool:
    """Make one assignment real, or change nothing and return False where it lost a race."""
    try:
        with transaction.atomic():
            _commit(assignment, now=now)
    except _LostRace:
        return False
    except IntegrityError as error:
        if violated_constraint(error) not in RACE_CONSTRAINTS:
            raise
        return False
    return True


def _commit(assignment: Assignment, *, now: datetime) -> None:
    node = lock_node(assignment.node_id)
    gpus = Gpu.objects.free().filter(uuid__in=assignment.gpu_uuids, node=node)
    gpu_ids = list(gpus.values_list("pk", flat=True))
    all_free = len(gpu_ids) == len(assignment.gpu_uuids)
    if node.cordoned_at or node.retired_at or not all_free or not _has_room(node, assignment):
        raise _LostRace
    moved = reports.record_placed(
        instance_ids=[assignment.instance_id],
        node_name=node.name,
        simulated=node.simulated,
        now=now,
    )
    if not moved:
        raise _LostRace
    lease = Lease.objects.create(
        instance_id=assignment.instance_id,
        node=node,
        generation=Lease.objects.filter(instance=assignment.instance_id).count() + 1,
        started_at=now,
        expires_at=now + settings.LEASE_DURATION,
    )
    Allocation.objects.bulk_create(
        Allocation(gpu_id=gpu_id, lease=lease, instance_id=assignment.instance_id, allocated_at=now)
        for gpu_id in gpu_ids
    )
    hints.send(hints.node_topic(node.pk))


def _has_room(node: Node, assignment: Assignment) -> bool:
    """Whether vCPUs and memory still suffice: no constraint can say so, the node's lock does."""
    leased = Lease.objects.filter(node=node, ended_at=None).values("instance")
    together = Instance.objects.filter(Q(pk__in=leased) | Q(pk=assignment.instance_id))
    total = together.aggregate(vcpus=Sum("plan__vcpus"), memory_gib=Sum("plan__memory_gib"))
    return (total["vcpus"] or 0) <= node.vcpus and (
        total["memory_gib"] or 0
    ) * MIB_PER_GIB <= node.memory_mib


def lock_node(node_id: int) -> Node:
    """One commit at a time per node: a cordon or a second cycle waits for it, or came first."""
    return Node.objects.select_for_update(no_key=True).get(pk=node_id)


class _LostRace(Exception):
    """The world moved on since the snapshot; rolls the commit back."""


def violated_constraint(error: IntegrityError) -> str | None:
    cause = error.__cause__
    return cast("PsycopgError", cause).diag.constraint_name if cause else None
