"""Out of use: stop and terminate, by a member, by an operator, or because the money is gone."""

from dataclasses import replace
from datetime import datetime

from django.db import transaction

from billing import funds, metering
from portal.accounts.models import Member, Team, User
from portal.accounts.roles import Permission
from portal.errors import Conflict, DomainError, Forbidden
from portal.instances import lifecycle
from portal.instances.lifecycle import Why
from portal.instances.models import END_STATES, Instance, Reason, State, Wanted


class AlreadyEnded(Conflict):
    code = "already_ended"


class ExplanationMissing(DomainError):
    code = "explanation_missing"


@transaction.atomic
def stop(*, actor: Member, instance: Instance, now: datetime) -> Instance:
    """Ask for an instance to be stopped; its meter closes now. It can be started again.

    A queued one is stopped at once; one that is stopping or stopped is left as it is. Raises
    Forbidden, or AlreadyEnded.
    """
    actor.require(Permission.OPERATE)
    why = Why(Reason.USER_STOP, f"Stopped by {actor.user}.", actor.user, effective_at=now)
    return _take_out(_lock(instance), Wanted.STOPPED, why, now=now)


@transaction.atomic
def terminate(*, actor: Member, instance: Instance, now: datetime) -> Instance:
    """Ask for an instance to end for good; its meter closes now. Raises as `stop` does."""
    actor.require(Permission.OPERATE)
    why = Why(Reason.USER_TERMINATE, f"Terminated by {actor.user}.", actor.user, effective_at=now)
    return _take_out(_lock(instance), Wanted.TERMINATED, why, now=now)


@transaction.atomic
def end_by_operator(
    *, operator: User, instance: Instance, wanted: Wanted, because: str, now: datetime
) -> Instance:
    """Stop or terminate any team's instance; the team reads `because`. Its meter closes now.

    Raises Forbidden for who is no operator, ExplanationMissing, or AlreadyEnded.
    """
    if not operator.is_staff:
        raise Forbidden("Only an operator may do this.")
    if not because.strip():
        raise ExplanationMissing("Say why.", next_step="The team reads it.")
    terminates = wanted == Wanted.TERMINATED
    reason = Reason.OPERATOR_TERMINATE if terminates else Reason.OPERATOR_STOP
    why = Why(reason, f"{reason.label}: {because.strip()}", operator, effective_at=now)
    return _take_out(_lock(instance), wanted, why, now=now)


def stop_unfunded(*, now: datetime, limit: int = 1000) -> int:
    """Stop what an account can no longer pay for; its meter closes at the computed second.

    Returns how many were stopped. Each is its own transaction, so one failure keeps no other.
    """
    stopped = 0
    for exhausted in funds.unfunded(now)[:limit]:
        with transaction.atomic():
            instance = _lock(Instance(pk=exhausted.reference))
            if instance.state != State.RUNNING:
                continue
            why = Why(
                Reason.OUT_OF_FUNDS,
                "The team's credit is used up. Top up, then start it again.",
                effective_at=exhausted.exhaust_at,
            )
            _take_out(instance, Wanted.STOPPED, why, now=now)
            stopped += 1
    return stopped


def stop_team(*, team: Team, by: User, now: datetime) -> int:
    """Stop all that a suspended team has in use; returns how many."""
    stopped = 0
    for instance in Instance.objects.for_team(team).live():
        with transaction.atomic():
            why = Why(Reason.SUSPENDED, "The team was suspended.", by, effective_at=now)
            locked = _lock(instance)
            if locked.state not in END_STATES:
                _take_out(locked, Wanted.STOPPED, why, now=now)
                stopped += 1
    return stopped


def _lock(instance: Instance) -> Instance:
    return Instance.objects.select_for_update(of=("self",), no_key=True).get(pk=instance.pk)


def _take_out(instance: Instance, wanted: Wanted, why: Why, *, now: datetime) -> Instance:
    """Close the meter of a locked instance at `why.effective_at`, and move it to `wanted`."""
    state = State(instance.state)
    if state in END_STATES:
        if state == State.TERMINATED and wanted == Wanted.TERMINATED:
            return instance
        raise AlreadyEnded(
            f"“{instance.name}” has ended ({instance.get_state_display().lower()}).",
            next_step="Launch a new instance.",
        )
    closed = metering.close_intervals(ends={instance.pk: why.effective_at or now}, now=now)
    if instance.pk in closed:
        why = replace(why, effective_at=closed[instance.pk])
    end = State.TERMINATED if wanted == Wanted.TERMINATED else State.STOPPED
    if state in (State.STARTING, State.RUNNING):
        lifecycle.advance([instance.pk], to=State.STOPPING, why=why, at=now, wanted=wanted)
    elif state == State.QUEUED or (state == State.STOPPED and end == State.TERMINATED):
        lifecycle.advance([instance.pk], to=end, why=why, at=now, wanted=wanted)
    elif state == State.STOPPING and wanted == Wanted.TERMINATED:
        Instance.objects.filter(pk=instance.pk).update(wanted=wanted)
    instance.refresh_from_db()
    return instance
