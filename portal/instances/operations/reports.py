"""What the scheduler tells of an instance: placed, getting on, ready, ended, gone.

Each returns whether it changed anything; a late or repeated report changes nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.db import transaction

from billing import holds, metering
from portal import hints
from portal.instances import lifecycle
from portal.instances.lifecycle import Why
from portal.instances.models import Instance, Phase, Reason, State, Wanted


def record_waiting(*, explanations: Mapping[UUID, str]) -> int:
    """Say of queued instances what they wait for; only changed sentences are written."""
    if not explanations:
        return 0
    queued = Instance.objects.filter(pk__in=explanations, state=State.QUEUED)
    changed = 0
    for instance in queued.only("pk", "explanation"):
        sentence = explanations[instance.pk]
        if instance.explanation != sentence:
            changed += Instance.objects.filter(pk=instance.pk, state=State.QUEUED).update(
                reason=Reason.WAITING_FOR_CAPACITY, explanation=sentence
            )
    return changed


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


def record_progress(*, instance: Instance, phase: Phase, percent: int | None) -> bool:
    """What happens inside "starting": shown, never decided upon."""
    if (instance.phase, instance.phase_percent) == (phase, percent):
        return False
    changed = Instance.objects.filter(pk=instance.pk, state=State.STARTING).update(
        phase=phase, phase_percent=percent
    )
    return bool(changed)


@transaction.atomic(savepoint=False)
def record_started(*, instance: Instance, endpoints: Mapping[str, str], now: datetime) -> bool:
    """The probe passed: from now on, the instance is metered.

    Its event counts from the meter's first second, which is later than `now` where the last run
    ended within this second.
    """
    if _lock(instance).state != State.STARTING:
        return False
    interval = metering.open_interval(reference=instance.pk, now=now)
    return lifecycle.advance(
        [instance.pk],
        to=State.RUNNING,
        why=Why(
            Reason.READY,
            "Ready: the container runs and answers.",
            effective_at=interval.started_at,
        ),
        at=now,
        endpoints=dict(endpoints),
    )


def _lock(instance: Instance) -> Instance:
    return Instance.objects.select_for_update(of=("self",), no_key=True).get(pk=instance.pk)


@transaction.atomic(savepoint=False)
def record_ended(*, instance: Instance, why: Why, now: datetime) -> bool:
    """The container ended by itself, could not be started, or its node is lost.

    An instance that ran is stopped and can be started again, unless its node is lost; one that
    never became ready has failed, unless it finished in peace. The meter closes at
    `why.effective_at`, or now.
    """
    state = State(_lock(instance).state)
    if state == State.STOPPING:
        return record_gone(instance=instance, now=now)
    if state not in (State.STARTING, State.RUNNING):
        return False
    interval = metering.close_interval(reference=instance.pk, ended_at=why.effective_at or now)
    holds.release(reference=instance.pk, now=now)
    if interval is not None:
        why = replace(why, effective_at=interval.ended_at)
    ran = state == State.RUNNING and why.reason != Reason.NODE_LOST
    to = State.STOPPED if ran or why.reason == Reason.FINISHED else State.FAILED
    return lifecycle.advance(
        [instance.pk],
        to=to,
        why=why,
        at=now,
        wanted=Wanted.STOPPED,
    )


@transaction.atomic(savepoint=False)
def record_gone(*, instance: Instance, now: datetime) -> bool:
    """The container of a stopping instance is gone, so what was asked for is done."""
    current = _lock(instance)
    if current.state != State.STOPPING:
        return False
    terminated = current.wanted == Wanted.TERMINATED
    return lifecycle.advance(
        [instance.pk],
        to=State.TERMINATED if terminated else State.STOPPED,
        why=Why(Reason(current.reason), current.explanation),
        at=now,
    )


@transaction.atomic(savepoint=False)
def record_start_failed(
    *, instance: Instance, reason: Reason, explanation: str, now: datetime
) -> bool:
    """A start came to nothing: try again elsewhere, or give up after `START_ATTEMPTS`."""
    attempts = instance.start_attempts + 1
    if attempts >= settings.START_ATTEMPTS:
        return record_ended(
            instance=instance,
            why=Why(
                reason,
                f"{explanation} Given up after {attempts} attempts; nothing was charged.",
            ),
            now=now,
        )
    moved = lifecycle.advance(
        [instance.pk],
        to=State.QUEUED,
        why=Why(
            Reason.RESTARTED_ELSEWHERE,
            f"{explanation} Trying again ({attempts + 1} of {settings.START_ATTEMPTS}).",
        ),
        at=now,
        start_attempts=attempts,
    )
    if moved:
        hints.send_task(hints.SCHEDULER_CYCLE)
    return moved
