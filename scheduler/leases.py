"""What a node is told to run, and how its rights to do so are renewed and ended."""

from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from agents.protocol import ContainerSpec, Order, Want
from billing.metering import last_confirmed_at
from portal import hints
from portal.instances.lifecycle import Why
from portal.instances.models import Instance, Reason, State
from portal.instances.operations import reports
from scheduler.models import Allocation, Lease, Node

# A renewal is written only where it adds this much, so that a busy node's syncs stay cheap.
RENEWAL_STEP = timedelta(seconds=5)
# How long after a lease's end its node may still be putting it into effect.
FENCE_MARGIN = timedelta(seconds=30)


def live_leases(node: Node) -> list[Lease]:
    """The leases a node has, with all that an order needs, in two queries."""
    leases = Lease.objects.filter(node=node, ended_at=None).order_by("instance_id")
    return list(
        leases.select_related("instance__plan", "instance__image").prefetch_related(
            "allocations__gpu"
        )
    )


def renew(leases: Collection[Lease], *, now: datetime) -> None:
    expires_at = now + settings.LEASE_DURATION
    due = [lease for lease in leases if lease.expires_at < expires_at - RENEWAL_STEP]
    if due:
        Lease.objects.filter(pk__in=[lease.pk for lease in due], ended_at=None).update(
            expires_at=expires_at
        )
    for lease in due:
        lease.expires_at = expires_at


def order_for(lease: Lease, *, now: datetime) -> Order:
    """What the node is to do about one lease: run its instance, or be rid of it."""
    instance = lease.instance
    state = State(instance.state)
    runs = state in (State.STARTING, State.RUNNING)
    return Order(
        instance=str(instance.pk),
        generation=lease.generation,
        want=Want.RUNNING if runs else Want.GONE,
        expires_in_seconds=(lease.expires_at - now).total_seconds(),
        may_start=state == State.STARTING,
        keeps_running=state == State.RUNNING,
        spec=spec_for(lease) if runs else None,
    )


def spec_for(lease: Lease) -> ContainerSpec:
    instance = lease.instance
    plan, image = instance.plan, instance.image
    return ContainerSpec(
        image=image.reference,
        gpu_uuids=tuple(sorted(a.gpu.uuid for a in lease.allocations.all())),
        vcpus=plan.vcpus,
        memory_mib=plan.memory_gib * 1024,
        disk_gib=plan.disk_gib,
        hostname=instance.name,
        command=tuple(instance.command or image.command),
        env=dict(instance.env),
        ports=tuple(instance.ports),
        ssh_keys=tuple(instance.ssh_keys),
        ready_port=image.ready_port,
    )


def withdrawal(instance_id: UUID, generation: int) -> Order:
    """Tells a node to be rid of a generation whose lease has ended."""
    return Order(
        instance=str(instance_id), generation=generation, want=Want.GONE, expires_in_seconds=0.0
    )


@transaction.atomic(savepoint=False)
def end(lease: Lease, *, now: datetime) -> bool:
    """Give a lease's GPUs back. Returns False where it had ended before."""
    ended = Lease.objects.filter(pk=lease.pk, ended_at=None).update(ended_at=now)
    if not ended:
        return False
    lease.ended_at = now
    Allocation.objects.filter(lease=lease, released_at=None).update(released_at=now)
    hints.send_task(hints.SCHEDULER_CYCLE)
    return True


def expire(*, now: datetime) -> int:
    """Act on every deadline of a placed instance; returns how many instances moved.

    - starting, and its lease ended unrenewed: the node removes it by itself, so it is queued
      again (or given up) and its GPUs are released;
    - starting for longer than `START_DEADLINE`: given up, nothing charged;
    - running or stopping on a node unseen for `NODE_LOST_AFTER`: ended, and paid up to the last
      confirmation. Its GPUs stay given until the node says that the container is gone, or is
      retired.
    """
    return (
        sum(_expire_start(lease, now=now) for lease in _unrenewed_starts(now))
        + sum(_give_up_start(lease, now=now) for lease in _overdue_starts(now))
        + sum(_give_up_node(lease, now=now) for lease in _on_lost_nodes(now))
    )


def _unrenewed_starts(now: datetime) -> list[Lease]:
    """Leases whose node removes the container by itself at their end: it never ran.

    One that ran is kept running by a node that is cut off, whatever was wished meanwhile, so its
    GPUs stay given.
    """
    never_ran = Q(instance__state=State.STARTING) | Q(
        instance__state=State.QUEUED, instance__start_attempts__gt=0
    )
    ended = Lease.objects.filter(never_ran, ended_at=None, expires_at__lt=now - FENCE_MARGIN)
    return list(ended.select_related("instance", "node"))


def _expire_start(lease: Lease, *, now: datetime) -> bool:
    with transaction.atomic():
        if not end(lease, now=now) or lease.instance.state == State.QUEUED:
            return False
        return reports.record_start_failed(
            instance=lease.instance,
            reason=Reason.NODE_LOST,
            explanation=f"Node {lease.node.name} went silent before it was ready.",
            now=now,
        )


def _overdue_starts(now: datetime) -> list[Lease]:
    overdue = Lease.objects.filter(
        ended_at=None,
        instance__state=State.STARTING,
        started_at__lt=now - settings.START_DEADLINE,
    )
    return list(overdue.select_related("instance", "node"))


def _give_up_start(lease: Lease, *, now: datetime) -> bool:
    minutes = settings.START_DEADLINE // timedelta(minutes=1)
    hints.send(hints.node_topic(lease.node_id))
    return reports.record_ended(
        instance=lease.instance,
        why=Why(
            Reason.START_TIMEOUT,
            f"Not ready within {minutes} minutes on {lease.node.name}; nothing charged.",
        ),
        now=now,
    )


def _on_lost_nodes(now: datetime) -> list[Lease]:
    lost = Lease.objects.filter(
        ended_at=None,
        node__last_seen_at__lt=now - settings.NODE_LOST_AFTER,
        instance__state__in=(State.RUNNING, State.STOPPING),
    )
    return list(lost.select_related("instance", "node"))


def _give_up_node(lease: Lease, *, now: datetime) -> bool:
    return give_up(lease.instance, node=lease.node, now=now)


def give_up(instance: Instance, *, node: Node, now: datetime) -> bool:
    """End an instance whose node will not come back; it is paid up to its last confirmation."""
    return reports.record_ended(
        instance=instance,
        why=Why(
            Reason.NODE_LOST,
            f"Node {node.name} was lost; charged up to the last sign of life.",
            effective_at=last_confirmed_at(reference=instance.pk),
        ),
        now=now,
    )
