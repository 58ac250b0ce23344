"""What a node says: instances move, GPUs are released, the inventory is kept."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
from portal.instances.operations.reports import Ended, Gone, Over, Progress, StartFailed
from scheduler import fleet, leases
from scheduler.leases import LiveLease
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


def receive(
    node: Node, request: SyncRequest, *, now: datetime
) -> tuple[list[LiveLease], list[Order]]:
    """Take in one sync; returns the node's leases as they stand then, and withdrawals: orders
    for containers seen here whose leases have ended.

    Saying the same twice changes nothing. Raises ForeignLease before anything is written.
    """
    live = {(lease.instance_id, lease.generation): lease for lease in leases.live_leases(node)}
    seen = {key: item for item in request.instances if (key := _key(item)) is not None}
    withdrawals = _withdrawals(node, (key for key in seen if key not in live), seen)
    fleet.record_sight(node, request.inventory, now=now)
    leases.renew(live.values(), now=now)
    news = _News()
    for key in seen.keys() & live.keys():
        news.sort(live[key], seen[key])
    moved = _write(node, news, now=now)
    held = [lease for lease in live.values() if lease not in news.gone]
    for lease in held:
        lease.state = moved.get(lease.instance_id, lease.state)
    return held, withdrawals


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


@dataclass
class _News:
    """What facts about live leases mean, sorted by what is to be done about them."""

    gone: list[LiveLease] = field(default_factory=list)
    over: dict[UUID, Over] = field(default_factory=dict)
    started: dict[UUID, Mapping[str, str]] = field(default_factory=dict)
    progress: dict[UUID, Progress] = field(default_factory=dict)
    runs_on: list[UUID] = field(default_factory=list)

    def sort(self, lease: LiveLease, item: SeenInstance) -> None:
        """What is known already, or comes too late, goes nowhere."""
        pk = lease.instance_id
        starts, runs = lease.state == State.STARTING, lease.state == State.RUNNING
        match item.phase:
            case Phase.GONE:
                self.gone.append(lease)
            case Phase.EXITED if starts or runs:
                self.over[pk] = Ended(_why_exited(item))
            case Phase.FAILED if starts:
                self.over[pk] = _failed_start(item)
            case Phase.RUNNING if starts:
                self.started[pk] = item.endpoints
            case Phase.RUNNING if runs:
                self.runs_on.append(pk)
            case phase if starts and phase in START_PHASES:
                progress = Progress(START_PHASES[phase], item.percent)
                if (progress.phase, progress.percent) != lease.progress:
                    self.progress[pk] = progress


def _write(node: Node, news: _News, *, now: datetime) -> Mapping[UUID, State]:
    """Move the instances; returns the new state of each that moved.

    Each kind of news is a transaction of its own, which locks many instances and accounts in one
    order. What is over goes first: it frees GPUs and money.
    """
    moved: dict[UUID, State] = {}
    if news.gone:
        with transaction.atomic():
            leases.end([lease.pk for lease in news.gone], now=now)
            gone = {lease.instance_id: Gone(node.name) for lease in news.gone}
            moved |= reports.record_over(gone, now=now)
    if news.over:
        moved |= reports.record_over(news.over, now=now)
    if news.started:
        moved |= reports.record_started(news.started, now=now)
    if news.progress:
        reports.record_progress(news.progress)
    if news.runs_on:
        metering.confirm(references=news.runs_on, now=now)
    return moved


def _failed_start(item: SeenInstance) -> Over:
    reason = START_FAILURES[item.error_code or ErrorCode.START_FAILED]
    sentence = item.error or reason.label
    if reason == Reason.IMAGE_UNAVAILABLE:
        # Another node would ask the same registry: no second attempt.
        return Ended(Why(reason, sentence))
    return StartFailed(reason, sentence)


def _why_exited(item: SeenInstance) -> Why:
    if item.exit_code == 0:
        return Why(Reason.FINISHED, "The container's command finished.")
    if item.oom_killed:
        return Why(Reason.CONTAINER_EXITED, "The container ran out of memory.")
    sentence = f"The container's command ended with exit code {item.exit_code}."
    return Why(Reason.CONTAINER_EXITED, sentence)
