"""What a node says: instances move, GPUs are released, the inventory is kept."""

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from uuid import UUID

from django.db import transaction

from agents.protocol import ErrorCode, Order, Phase, SeenInstance, SyncRequest
from billing import metering
from portal.errors import Forbidden
from portal.instances.lifecycle import Why
from portal.instances.models import Phase as StartPhase
from portal.instances.models import Reason, State
from portal.instances.operations import reports
from scheduler import fleet, leases
from scheduler.models import Lease, Node

logger = logging.getLogger(__name__)

START_PHASES: Mapping[Phase, StartPhase] = {
    Phase.PULLING: StartPhase.PULLING,
    Phase.CREATING: StartPhase.CREATING,
    Phase.PROBING: StartPhase.PROBING,
}
START_FAILURES: Mapping[ErrorCode, Reason] = {
    ErrorCode.IMAGE_UNAVAILABLE: Reason.IMAGE_UNAVAILABLE,
    ErrorCode.START_FAILED: Reason.START_FAILED,
    ErrorCode.NOT_READY: Reason.START_TIMEOUT,
    ErrorCode.GPU_UNAVAILABLE: Reason.GPU_FAULT,
}


class ForeignLease(Forbidden):
    """A node spoke of an instance that another node has the lease for."""

    code = "foreign_lease"


def receive(node: Node, request: SyncRequest, *, now: datetime) -> tuple[list[Lease], list[Order]]:
    """Take in one sync; returns the node's leases as they stand then, and withdrawals: orders
    for containers seen here whose leases have ended.

    Saying the same twice changes nothing. Raises ForeignLease before anything is written.
    """
    live = {(lease.instance_id, lease.generation): lease for lease in leases.live_leases(node)}
    seen = {key: item for item in request.instances if (key := _key(item)) is not None}
    withdrawals = _withdrawals(node, (key for key in seen if key not in live), seen)
    fleet.record_sight(node, request.inventory, now=now)
    leases.renew(live.values(), now=now)
    for key, item in seen.items():
        if key in live and _take_in(live[key], item, now=now):
            live[key].instance.refresh_from_db(fields=["state"])
    metering.confirm(
        references=[
            key[0] for key, item in seen.items() if key in live and item.phase == Phase.RUNNING
        ],
        now=now,
    )
    return [lease for lease in live.values() if lease.ended_at is None], withdrawals


def _key(item: SeenInstance) -> tuple[UUID, int] | None:
    """The lease a report is about; None for a container that no lease of ours can have made."""
    try:
        return UUID(item.instance), item.generation
    except ValueError:
        return None


def _withdrawals(
    node: Node, unknown: Iterable[tuple[UUID, int]], seen: Mapping[tuple[UUID, int], SeenInstance]
) -> list[Order]:
    unknown = list(unknown)
    if not unknown:
        return []
    past = Lease.objects.filter(instance__in=[instance for instance, _ in unknown])
    by_key = {(lease.instance_id, lease.generation): lease for lease in past}
    orders = []
    for key in unknown:
        lease = by_key.get(key)
        if lease is None:
            logger.warning("unknown container", extra={"node": node.name, "instance": str(key[0])})
        elif lease.node_id != node.pk:
            raise ForeignLease(f"Instance {key[0]} is not this node's to speak of.")
        elif seen[key].phase != Phase.GONE:
            orders.append(leases.withdrawal(*key))
    return orders


@transaction.atomic
def _take_in(lease: Lease, item: SeenInstance, *, now: datetime) -> bool:
    """Move one instance as far as the facts about it go. Returns False where they are no news."""
    instance = lease.instance
    state = State(instance.state)
    match item.phase:
        case Phase.PULLING | Phase.CREATING | Phase.PROBING if state == State.STARTING:
            reports.record_progress(
                instance=instance, phase=START_PHASES[item.phase], percent=item.percent
            )
        case Phase.RUNNING if state == State.STARTING:
            reports.record_started(instance=instance, endpoints=item.endpoints, now=now)
        case Phase.EXITED if state in (State.STARTING, State.RUNNING):
            _exited(lease, item, now=now)
        case Phase.FAILED if state == State.STARTING:
            _failed(lease, item, now=now)
        case Phase.GONE:
            _gone(lease, now=now)
        case _:
            return False
    return True


def _exited(lease: Lease, item: SeenInstance, *, now: datetime) -> None:
    if item.exit_code == 0:
        reason, sentence = Reason.FINISHED, "The container's command finished."
    elif item.oom_killed:
        reason, sentence = Reason.CONTAINER_EXITED, "The container ran out of memory."
    else:
        reason = Reason.CONTAINER_EXITED
        sentence = f"The container's command ended with exit code {item.exit_code}."
    reports.record_ended(instance=lease.instance, why=Why(reason, sentence), now=now)


def _failed(lease: Lease, item: SeenInstance, *, now: datetime) -> None:
    reason = START_FAILURES[item.error_code or ErrorCode.START_FAILED]
    sentence = item.error or reason.label
    if reason == Reason.IMAGE_UNAVAILABLE:
        # Another node would ask the same registry: no second attempt.
        reports.record_ended(instance=lease.instance, why=Why(reason, sentence), now=now)
        return
    reports.record_start_failed(
        instance=lease.instance, reason=reason, explanation=sentence, now=now
    )


def _gone(lease: Lease, *, now: datetime) -> None:
    """No container is left and none will be started: the GPUs are free."""
    instance = lease.instance
    leases.end(lease, now=now)
    if instance.state == State.STOPPING:
        reports.record_gone(instance=instance, now=now)
    elif instance.state == State.STARTING:
        reports.record_start_failed(
            instance=instance,
            reason=Reason.START_FAILED,
            explanation=f"Node {lease.node.name} gave its start up.",
            now=now,
        )
    elif instance.state == State.RUNNING:
        reports.record_ended(
            instance=instance,
            why=Why(
                Reason.CONTAINER_LOST,
                "The container disappeared from its node; charged while it was seen.",
                effective_at=metering.last_confirmed_at(reference=instance.pk),
            ),
            now=now,
        )
