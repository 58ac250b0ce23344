"""What the scheduler tells of instances: placed, getting on, started, over.

Many instances are told of at once, and take as many statements as one. A late or repeated report
changes nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from billing import metering
from database.compiled import Compiled, param
from portal import hints
from portal.instances import lifecycle
from portal.instances.lifecycle import Why
from portal.instances.models import Instance, Phase, Reason, State, Wanted


@dataclass(frozen=True, slots=True)
class Progress:
    """What happens inside "starting"; `percent` of an image that is pulled."""

    phase: Phase
    percent: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The container ended by itself, could not be started, or its node is lost.

    An instance that ran is stopped and can be started again, unless its node is lost; one that
    never became ready has failed, unless it finished in peace. The meter closes at
    `why.effective_at`, or now.
    """

    why: Why


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A start came to nothing: try again elsewhere, or give up after `START_ATTEMPTS`."""

    reason: Reason
    explanation: str


@dataclass(frozen=True, slots=True)
class Gone:
    """No container is left, and none will be started."""

    node_name: str


type Over = Ended | StartFailed | Gone


@dataclass(frozen=True, slots=True)
class _Standing:
    """How an instance stands, read under its lock."""

    pk: UUID
    state: State
    wanted: Wanted
    reason: Reason
    explanation: str
    start_attempts: int


@dataclass(frozen=True, slots=True)
class _Move:
    to: State
    why: Why
    fields: Mapping[str, Any] = field(default_factory=dict)


@transaction.atomic(savepoint=False)
def record_waiting(*, sentence: str, instance_ids: Collection[UUID]) -> None:
    """Say of queued instances what they wait for.

    One that somebody moves just now is passed over: no worker waits for a sentence.
    """
    queued = Instance.objects.filter(pk__in=instance_ids, state=State.QUEUED)
    unlocked = queued.select_for_update(no_key=True, skip_locked=True)
    Instance.objects.filter(pk__in=unlocked.values("pk")).update(
        reason=Reason.WAITING_FOR_CAPACITY, explanation=sentence
    )


def record_placed(
    *, instance_ids: Collection[UUID], node_name: str, simulated: bool, now: datetime
) -> bool:
    """Queued instances start on a node together. Raises `lifecycle.Outrun` where only some can."""
    return lifecycle.advance(
        instance_ids,
        to=State.STARTING,
        why=Why(Reason.PLACED, f"Placed on {node_name}."),
        at=now,
        phase=Phase.WAITING_FOR_NODE,
        simulated=simulated,
    )


@transaction.atomic(savepoint=False)
def record_progress(told: Mapping[UUID, Progress]) -> None:
    """Say how far instances that start have got: shown, never decided upon.

    It waits for nobody: what another worker moves just now has got further anyway.
    """
    alike: dict[Progress, list[UUID]] = defaultdict(list)
    for pk, progress in told.items():
        alike[progress].append(pk)
    for progress, pks in alike.items():
        starting = Instance.objects.filter(pk__in=pks, state=State.STARTING)
        unlocked = starting.select_for_update(no_key=True, skip_locked=True)
        Instance.objects.filter(pk__in=unlocked.values("pk")).update(
            phase=progress.phase, phase_percent=progress.percent
        )


@transaction.atomic(savepoint=False)
def record_started(
    told: Mapping[UUID, Mapping[str, str]], *, now: datetime
) -> Mapping[UUID, State]:
    """Probes passed: from now on, these instances are metered. Each comes with its endpoints.

    An event counts from its meter's first second, which is later than `now` where the last run
    ended within this second. Returns the new state of each that moved.
    """
    starting = [pk for pk, standing in _lock(told).items() if standing.state == State.STARTING]
    first_seconds = metering.open_intervals(references=starting, now=now) if starting else {}
    return _make(
        {
            pk: _Move(
                State.RUNNING,
                Why(
                    Reason.READY,
                    "Ready: the container runs and answers.",
                    effective_at=first_second,
                ),
                {"endpoints": dict(told[pk])},
            )
            for pk, first_second in first_seconds.items()
        },
        now=now,
    )


@transaction.atomic(savepoint=False)
def record_over(told: Mapping[UUID, Over], *, now: datetime) -> Mapping[UUID, State]:
    """Starts came to nothing, or containers ended. Returns the new state of each that moved."""
    standings = _lock(told)
    moves = {
        pk: move
        for pk, standing in standings.items()
        if (move := _move_after(standing, told[pk])) is not None
    }
    # A stopping one's meter closed when it was asked to stop; one that is tried again keeps what
    # is held for it.
    closing = {
        pk: move.why.effective_at or now
        for pk, move in moves.items()
        if standings[pk].state != State.STOPPING and move.to != State.QUEUED
    }
    last_seconds = metering.close_intervals(ends=closing, now=now) if closing else {}
    for pk, last_second in last_seconds.items():
        moves[pk] = replace(moves[pk], why=replace(moves[pk].why, effective_at=last_second))
    if any(move.to == State.QUEUED for move in moves.values()):
        hints.send_task(hints.SCHEDULER_CYCLE)
    return _make(moves, now=now)


_LOCK = Compiled(
    lambda: (
        Instance.objects.filter(pk__any=param("pks"))
        .order_by("pk")
        .select_for_update(no_key=True)
        .values_list("pk", "state", "wanted", "reason", "explanation", "start_attempts")
    )
)


def _lock(pks: Iterable[UUID]) -> dict[UUID, _Standing]:
    """In the order of their ids, so that of two reports at once one waits for the other."""
    return {
        pk: _Standing(pk, State(state), Wanted(wanted), Reason(reason), *rest)
        for pk, state, wanted, reason, *rest in _LOCK(pks=list(pks))
    }


def _move_after(standing: _Standing, over: Over) -> _Move | None:
    """What becomes of an instance; None where the report is old or comes twice."""
    match standing.state:
        case State.STARTING:
            return _after_start(standing, over)
        case State.RUNNING if not isinstance(over, StartFailed):
            return _after_run(standing, over)
        case State.STOPPING if not isinstance(over, StartFailed):
            terminated = standing.wanted == Wanted.TERMINATED
            to = State.TERMINATED if terminated else State.STOPPED
            return _Move(to, Why(standing.reason, standing.explanation))
    return None


def _after_start(standing: _Standing, over: Over) -> _Move:
    match over:
        case Ended(why):
            to = State.STOPPED if why.reason == Reason.FINISHED else State.FAILED
            return _Move(to, why, {"wanted": Wanted.STOPPED})
        case StartFailed(reason, explanation):
            return _after_failed_start(standing, reason, explanation)
        case Gone(node_name):
            given_up = f"Node {node_name} gave its start up."
            return _after_failed_start(standing, Reason.START_FAILED, given_up)


def _after_run(standing: _Standing, over: Ended | Gone) -> _Move:
    if isinstance(over, Gone):
        why = Why(
            Reason.CONTAINER_LOST,
            "The container disappeared from its node; charged while it was seen.",
            effective_at=metering.last_confirmed_at(reference=standing.pk),
        )
    else:
        why = over.why
    to = State.FAILED if why.reason == Reason.NODE_LOST else State.STOPPED
    return _Move(to, why, {"wanted": Wanted.STOPPED})


def _after_failed_start(standing: _Standing, reason: Reason, explanation: str) -> _Move:
    attempts, most = standing.start_attempts + 1, settings.START_ATTEMPTS
    if attempts < most:
        again = f"{explanation} Trying again ({attempts + 1} of {most})."
        why = Why(Reason.RESTARTED_ELSEWHERE, again)
        return _Move(State.QUEUED, why, {"start_attempts": attempts})
    given_up = f"{explanation} Given up after {attempts} attempts; nothing was charged."
    return _Move(State.FAILED, Why(reason, given_up), {"wanted": Wanted.STOPPED})


def _make(moves: Mapping[UUID, _Move], *, now: datetime) -> Mapping[UUID, State]:
    """Make the moves of locked instances; those that move alike, together."""
    alike: list[tuple[_Move, list[UUID]]] = []
    for pk, move in moves.items():
        for known, pks in alike:
            if known == move:
                pks.append(pk)
                break
        else:
            alike.append((move, [pk]))
    for move, pks in alike:
        lifecycle.advance(pks, to=move.to, why=move.why, at=now, **move.fields)
    return {pk: move.to for pk, move in moves.items()}
