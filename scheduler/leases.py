"""What a node is told to run, and how its rights to do so are renewed and ended."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.postgres.expressions import ArraySubquery
from django.db import transaction
from django.db.models import OuterRef, Q, QuerySet

from agents.protocol import ContainerSpec, Order, Want
from billing.metering import last_confirmed_at
from database.compiled import Compiled, param
from portal import hints
from portal.instances.lifecycle import Why
from portal.instances.models import Reason, State
from portal.instances.operations import reports
from portal.instances.operations.reports import Ended, StartFailed
from scheduler.models import Allocation, Lease, Node

# A renewal is written only where it adds this much, so that a busy node's syncs stay cheap.
RENEWAL_STEP = timedelta(seconds=5)
# How long after a lease's end its node may still be putting it into effect.
FENCE_MARGIN = timedelta(seconds=30)


@dataclass(slots=True)
class LiveLease:
    """A lease that has not ended, with all that an order needs, as it was when read."""

    pk: int
    instance_id: UUID
    generation: int
    expires_at: datetime
    state: State
    progress: tuple[str, int | None]
    spec: ContainerSpec


_COLUMNS = (
    *("pk", "instance_id", "generation", "expires_at"),
    *("instance__state", "instance__phase", "instance__phase_percent"),
    *("instance__name", "instance__command", "instance__env"),
    *("instance__ports", "instance__ssh_keys"),
    *("instance__plan__vcpus", "instance__plan__memory_gib", "instance__plan__disk_gib"),
    *("instance__image__reference", "instance__image__command", "instance__image__ready_port"),
)
_LIVE = Compiled(
    lambda: (
        Lease.objects.filter(node=param("node"), ended_at=None)
        .order_by("instance_id")
        .values_list(
            *_COLUMNS,
            ArraySubquery(
                Allocation.objects.filter(lease=OuterRef("pk"))
                .order_by("gpu__uuid")
                .values("gpu__uuid")
            ),
        )
    )
)


def live_leases(node: Node) -> list[LiveLease]:
    """The leases a node has, in one query."""
    rows = [dict(zip((*_COLUMNS, "gpus"), row, strict=True)) for row in _LIVE(node=node.pk)]
    return [
        LiveLease(
            pk=row["pk"],
            instance_id=row["instance_id"],
            generation=row["generation"],
            expires_at=row["expires_at"],
            state=State(row["instance__state"]),
            progress=(row["instance__phase"], row["instance__phase_percent"]),
            spec=_spec(row),
        )
        for row in rows
    ]


def _spec(row: Mapping[str, Any]) -> ContainerSpec:
    return ContainerSpec(
        image=row["instance__image__reference"],
        gpu_uuids=tuple(row["gpus"]),
        vcpus=row["instance__plan__vcpus"],
        memory_mib=row["instance__plan__memory_gib"] * 1024,
        disk_gib=row["instance__plan__disk_gib"],
        hostname=row["instance__name"],
        command=tuple(row["instance__command"] or row["instance__image__command"]),
        env=row["instance__env"],
        ports=tuple(row["instance__ports"]),
        ssh_keys=tuple(row["instance__ssh_keys"]),
        ready_port=row["instance__image__ready_port"],
    )


def renew(leases: Collection[LiveLease], *, now: datetime) -> None:
    """Let the leases of a node that was heard of last on.

    It waits for nobody: one that another worker holds is renewed or ended by that.
    """
    expires_at = now + settings.LEASE_DURATION
    due = [lease for lease in leases if lease.expires_at < expires_at - RENEWAL_STEP]
    if due:
        live = Lease.objects.filter(pk__in=[lease.pk for lease in due], ended_at=None)
        with transaction.atomic():
            unlocked = live.select_for_update(no_key=True, skip_locked=True)
            Lease.objects.filter(pk__in=unlocked.values("pk")).update(expires_at=expires_at)
    for lease in due:
        lease.expires_at = expires_at


def order_for(lease: LiveLease, *, now: datetime) -> Order:
    """What the node is to do about one lease: run its instance, or be rid of it."""
    runs = lease.state in (State.STARTING, State.RUNNING)
    return Order(
        instance=str(lease.instance_id),
        generation=lease.generation,
        want=Want.RUNNING if runs else Want.GONE,
        expires_in_seconds=(lease.expires_at - now).total_seconds(),
        may_start=lease.state == State.STARTING,
        keeps_running=lease.state == State.RUNNING,
        spec=lease.spec if runs else None,
    )


def withdrawal(instance_id: UUID, generation: int) -> Order:
    """Tells a node to be rid of a generation whose lease has ended."""
    return Order(
        instance=str(instance_id), generation=generation, want=Want.GONE, expires_in_seconds=0.0
    )


@transaction.atomic(savepoint=False)
def end(lease_ids: Collection[int], *, now: datetime) -> int:
    """Give the GPUs of leases back. Returns how many had not ended before.

    They are locked in the order of their ids, so that two workers who end the same ones wait for
    each other only once.
    """
    live = Lease.objects.filter(pk__in=lease_ids, ended_at=None).order_by("pk")
    locked = live.select_for_update(no_key=True)
    ended = Lease.objects.filter(pk__in=locked.values("pk")).update(ended_at=now)
    if ended:
        held = Allocation.objects.filter(lease__in=lease_ids, released_at=None)
        held.update(released_at=now)
        hints.send_task(hints.SCHEDULER_CYCLE)
    return ended


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


def _unrenewed_starts(now: datetime) -> QuerySet[Lease]:
    """Leases whose node removes the container by itself at their end: it never ran.

    One that ran is kept running by a node that is cut off, whatever was wished meanwhile, so its
    GPUs stay given.
    """
    never_ran = Q(instance__state=State.STARTING) | Q(
        instance__state=State.QUEUED, instance__start_attempts__gt=0
    )
    ended = Lease.objects.filter(never_ran, ended_at=None, expires_at__lt=now - FENCE_MARGIN)
    return ended.select_related("node")


def _expire_start(lease: Lease, *, now: datetime) -> bool:
    with transaction.atomic():
        # Its node may have come back since: what it renewed meanwhile, it keeps.
        locked = _unrenewed_starts(now).select_for_update(of=("self",), no_key=True)
        if not locked.filter(pk=lease.pk) or not end([lease.pk], now=now):
            return False
        silent = f"Node {lease.node.name} went silent before it was ready."
        told = {lease.instance_id: StartFailed(Reason.NODE_LOST, silent)}
        return bool(reports.record_over(told, now=now))


def _overdue_starts(now: datetime) -> list[Lease]:
    overdue = Lease.objects.filter(
        ended_at=None,
        instance__state=State.STARTING,
        started_at__lt=now - settings.START_DEADLINE,
    )
    return list(overdue.select_related("node"))


def _give_up_start(lease: Lease, *, now: datetime) -> bool:
    minutes = settings.START_DEADLINE // timedelta(minutes=1)
    hints.send(hints.node_topic(lease.node_id))
    why = Why(
        Reason.START_TIMEOUT,
        f"Not ready within {minutes} minutes on {lease.node.name}; nothing charged.",
    )
    return bool(reports.record_over({lease.instance_id: Ended(why)}, now=now))


def _on_lost_nodes(now: datetime) -> list[Lease]:
    lost = Lease.objects.filter(
        ended_at=None,
        node__last_seen_at__lt=now - settings.NODE_LOST_AFTER,
        instance__state__in=(State.RUNNING, State.STOPPING),
    )
    return list(lost.select_related("node"))


def _give_up_node(lease: Lease, *, now: datetime) -> bool:
    return give_up(lease.instance_id, node=lease.node, now=now)


def give_up(instance_id: UUID, *, node: Node, now: datetime) -> bool:
    """End an instance whose node will not come back; it is paid up to its last confirmation."""
    why = Why(
        Reason.NODE_LOST,
        f"Node {node.name} was lost; charged up to the last sign of life.",
        effective_at=last_confirmed_at(reference=instance_id),
    )
    return bool(reports.record_over({instance_id: Ended(why)}, now=now))
