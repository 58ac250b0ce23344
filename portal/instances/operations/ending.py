"""Out of use: stop and terminate, by a member, by an operator, or because the money is gone."""

from dataclasses import dataclass, replace
from datetime import datetime

from django.db import transaction

from billing import funds, holds, metering
from portal.accounts.models import Member, Team, User
from portal.accounts.roles import Permission
from portal.errors import Conflict
from portal.instances import lifecycle
from portal.instances.models import END_STATES, Instance, Reason, State, Wanted


class AlreadyEnded(Conflict):
    code = "already_ended"


@dataclass(frozen=True)
class _Cause:
    """Why an instance is taken out of use, by whom, and from which moment it costs nothing."""

    reason: Reason
    explanation: str
    at: datetime
    meter_closes_at: datetime
    actor: User | None = None


@transaction.atomic
def stop(*, actor: Member, instance: Instance, now: datetime) -> Instance:
    """Ask for an instance to be stopped; its meter closes now. It can be started again.

    A queued one is stopped at once; one that is stopping or stopped is left as it is. Raises
    Forbidden, or AlreadyEnded.
    """
    actor.require(Permission.OPERATE)
    cause = _Cause(Reason.USER_STOP, f"Stopped by {actor.user}.", now, now, actor.user)
    return _take_out(_lock(instance), Wanted.STOPPED, cause)


@transaction.atomic
def terminate(*, actor: Member, instance: Instance, now: datetime) -> Instance:
    """Ask for an instance to end for good; its meter closes now. Raises as `stop` does."""
    actor.require(Permission.OPERATE)
    cause = _Cause(Reason.USER_TERMINATE, f"Terminated by {actor.user}.", now, now, actor.user)
    return _take_out(_lock(instance), Wanted.TERMINATED, cause)


def stop_unfunded(*, now: datetime, limit: int = 1000) -> int:
    """Stop what an account can no longer pay for; its meter closes at the computed second.

    Returns how many were stopped. Each is its own transaction, so one failure keeps no other.
    """
    stopped = 0
    for usage in funds.unfunded(now)[:limit]:
        with transaction.atomic():
            instance = _lock(Instance(pk=usage.reference))
            if instance.state != State.RUNNING:
                continue
            sentence = "The team's credit is used up. Top up, then start it again."
            _take_out(
                instance,
                Wanted.STOPPED,
                _Cause(Reason.OUT_OF_FUNDS, sentence, now, usage.exhaust_at),
            )
            stopped += 1
    return stopped


def stop_team(*, team: Team, by: User, now: datetime) -> int:
    """Stop all that a suspended team has in use; returns how many."""
    stopped = 0
    for instance in Instance.objects.for_team(team).live():
        with transaction.atomic():
            cause = _Cause(Reason.SUSPENDED, "The team was suspended.", now, now, by)
            locked = _lock(instance)
            if locked.state not in END_STATES:
                _take_out(locked, Wanted.STOPPED, cause)
                stopped += 1
    return stopped


def _lock(instance: Instance) -> Instance:
    return Instance.objects.select_for_update(of=("self",), no_key=True).get(pk=instance.pk)


def _take_out(instance: Instance, wanted: Wanted, cause: _Cause) -> Instance:
    """Move a locked instance towards `wanted`, and stop what it costs."""
    state = State(instance.state)
    if state in END_STATES:
        if state == State.TERMINATED and wanted == Wanted.TERMINATED:
            return instance
        raise AlreadyEnded(
            f"“{instance.name}” has ended ({instance.get_state_display().lower()}).",
            next_step="Launch a new instance.",
        )
    interval = metering.close_interval(reference=instance.pk, ended_at=cause.meter_closes_at)
    holds.release(reference=instance.pk, now=cause.at)
    if interval is not None:
        cause = replace(cause, meter_closes_at=interval.ended_at)
    if state in (State.STARTING, State.RUNNING):
        _move(instance, State.STOPPING, wanted, cause)
    elif state == State.QUEUED or (state == State.STOPPED and wanted == Wanted.TERMINATED):
        end = State.TERMINATED if wanted == Wanted.TERMINATED else State.STOPPED
        _move(instance, end, wanted, cause)
    elif state == State.STOPPING and wanted == Wanted.TERMINATED:
        Instance.objects.filter(pk=instance.pk).update(wanted=wanted)
    instance.refresh_from_db()
    return instance


def _move(instance: Instance, to: State, wanted: Wanted, cause: _Cause) -> None:
    lifecycle.advance(
        instance.pk,
        to=to,
        reason=cause.reason,
        explanation=cause.explanation,
        at=cause.at,
        effective_at=cause.meter_closes_at,
        actor=cause.actor,
        wanted=wanted,
    )
