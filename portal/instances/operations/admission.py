"""Into the queue: launch, and start again."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from billing import holds, locking, prices
from billing.ledger import InsufficientFunds
from billing.locking import LockedAccount
from billing.prices import Price, UnknownPrice
from database.compiled import Compiled, param
from database.refusals import violated_constraint
from portal import hints
from portal.accounts.models import Member, Team, User
from portal.accounts.roles import Permission
from portal.catalog.models import Image, Plan
from portal.errors import Conflict, DomainError, Forbidden
from portal.instances import lifecycle
from portal.instances.lifecycle import Why
from portal.instances.models import (
    Instance,
    InstanceEvent,
    Pricing,
    Reason,
    State,
    Wanted,
)

MAX_PORTS = 16
MAX_PORT = 65_535
MAX_ENV = 64
MAX_ENV_CHARACTERS = 32_768  # Docker passes it on a command line's terms
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# These decide which devices a container sees; only the lease may.
RESERVED_ENV = re.compile(r"(NVIDIA|CUDA_VISIBLE|HEADRACE|AMD_VISIBLE)_?.*")
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class PlanRetired(Conflict):
    code = "plan_retired"


class ImageRetired(Conflict):
    code = "image_retired"


class QuotaExceeded(DomainError):
    code = "quota_exceeded"


class FundsTooLow(DomainError):
    code = "funds_too_low"

    def __init__(self, refusal: InsufficientFunds) -> None:
        super().__init__(str(refusal), next_step="Top up, or choose a smaller plan.")


class NotPriced(Conflict):
    code = "not_priced"

    def __init__(self, sku: str) -> None:
        super().__init__(
            f"Plan {sku} has no price yet.",
            next_step="Choose another plan, or ask your operator.",
        )


class TeamSuspended(Forbidden):
    code = "team_suspended"


class InvalidLaunch(DomainError):
    code = "invalid_launch"


class NotStopped(Conflict):
    code = "not_stopped"


@dataclass(frozen=True)
class LaunchRequest:
    """What a member asks for. Empty `name` and `command` mean: one of ours, and the image's."""

    plan: Plan
    image: Image
    name: str = ""
    pricing: Pricing = Pricing.ON_DEMAND
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    ssh_keys: tuple[str, ...] = ()


@transaction.atomic(savepoint=False)
def launch(
    *, actor: Member, request: LaunchRequest, launch_key: str, now: datetime
) -> tuple[Instance, bool]:
    """Admit a launch request: check it, set money aside, and put the instance in the queue.

    Returns the instance and whether this call created it. The same `launch_key` always yields
    the same instance, so a client may retry until it gets an answer.

    Raises Forbidden, TeamSuspended, InvalidLaunch, PlanRetired, ImageRetired, NotPriced,
    QuotaExceeded or FundsTooLow; nothing is written then, by the caller's transaction neither.
    """
    actor.require(Permission.LAUNCH)
    check_request(request)
    price = current_price(request.plan, now=now)
    # Written before the lock, and taken back by a refusal: the team's launches take turns for as
    # short as can be.
    instance = None if price is None else _write(actor, request, price, launch_key, now=now)
    account = locking.lock(actor.team.account_id)
    standing = standing_of(actor.team, launch_key=launch_key)
    if standing.launched is not None and instance is None:
        return Instance.objects.select_related("plan", "image").get(pk=standing.launched), False

    check_allowed(standing, request.plan, request.image)
    if price is None or instance is None:
        raise NotPriced(request.plan.sku)
    _hold(account, instance, price, now=now)
    hints.send_task(hints.SCHEDULER_CYCLE)
    return instance, True


def _write(
    actor: Member, request: LaunchRequest, price: Price, launch_key: str, *, now: datetime
) -> Instance | None:
    """The instance and its first event; None: `launch_key` has launched one before."""
    instance = Instance(
        team=actor.team,
        launched_by=actor,
        name=request.name or request.plan.sku,
        plan=request.plan,
        image=request.image,
        pricing=request.pricing,
        micros_per_hour=price.micros_per_hour,
        command=list(request.command),
        env=dict(request.env),
        ports=sorted(set(request.ports) | set(request.image.ports)),
        ssh_keys=list(request.ssh_keys),
        launch_key=launch_key,
        queued_at=now,
        state_changed_at=now,
        reason=Reason.LAUNCHED,
        explanation="Waiting for the next scheduling cycle.",
    )
    event = InstanceEvent(
        instance=instance,
        state=State.QUEUED,
        reason=Reason.LAUNCHED,
        explanation=f"Launched by {actor.user}.",
        actor=actor.user,
        at=now,
        effective_at=now,
    )
    try:
        with transaction.atomic():
            instance.save(force_insert=True)
            event.save(force_insert=True)
    except IntegrityError as error:
        if violated_constraint(error) != "instance_launch_key_once_per_team":
            raise
        return None
    return instance


@transaction.atomic
def start(*, actor: Member, instance: Instance, now: datetime) -> Instance:
    """Put a stopped instance back in the queue, with its id and name, at today's price.

    An instance that is queued, starting or running already is left as it is. Raises Forbidden,
    NotStopped where it is stopping or has ended, and what `launch` raises.
    """
    actor.require(Permission.OPERATE)
    instance = Instance.objects.select_for_update(of=("self",), no_key=True).get(pk=instance.pk)
    if instance.state in (State.QUEUED, State.STARTING, State.RUNNING):
        return instance
    if instance.state != State.STOPPED:
        raise NotStopped(
            f"“{instance.name}” is {instance.get_state_display().lower()}.",
            next_step="Wait until it has stopped."
            if instance.state == State.STOPPING
            else "Launch a new instance.",
        )
    account = locking.lock(actor.team.account_id)
    check_allowed(standing_of(actor.team), instance.plan, instance.image)
    price = current_price(instance.plan, now=now)
    if price is None:
        raise NotPriced(instance.plan.sku)
    lifecycle.advance(
        [instance.pk],
        to=State.QUEUED,
        why=Why(Reason.STARTED_AGAIN, "Waiting for the next scheduling cycle.", actor=actor.user),
        at=now,
        wanted=Wanted.RUNNING,
        queued_at=now,
        start_attempts=0,
        micros_per_hour=price.micros_per_hour,
    )
    _hold(account, instance, price, now=now)
    hints.send_task(hints.SCHEDULER_CYCLE)
    instance.refresh_from_db()
    return instance


def check_request(request: LaunchRequest) -> None:
    """Raises InvalidLaunch with what is wrong and how to mend it."""
    if request.name and not NAME.fullmatch(request.name):
        raise InvalidLaunch(
            f"“{request.name}” cannot be an instance's name.",
            next_step="Use lower-case letters, digits and hyphens, at most 63.",
        )
    if len(request.ports) > MAX_PORTS or not all(0 < port <= MAX_PORT for port in request.ports):
        raise InvalidLaunch(
            "The ports cannot be opened.",
            next_step=f"Name at most {MAX_PORTS} ports between 1 and 65535.",
        )
    _check_env(request.env)
    if "\0" in "".join((*request.command, *request.env.values())):
        raise InvalidLaunch("Commands and variables cannot contain NUL characters.")


def _check_env(env: Mapping[str, str]) -> None:
    for name in env:
        if not ENV_NAME.fullmatch(name):
            raise InvalidLaunch(
                f"“{name}” cannot be a variable's name.",
                next_step="Use letters, digits and underscores.",
            )
        if RESERVED_ENV.fullmatch(name):
            raise InvalidLaunch(
                f"{name} is set by Headrace.", next_step="Leave it out of the variables."
            )
    size = sum(len(name) + len(value) for name, value in env.items())
    if len(env) > MAX_ENV or size > MAX_ENV_CHARACTERS:
        raise InvalidLaunch(
            "These are too many or too long variables.",
            next_step=f"Pass at most {MAX_ENV} and {MAX_ENV_CHARACTERS} characters in all.",
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """What a team may launch, and what it has launched.

    `gpus_in_use` count against its quota: held, or waited for. `launched` is what a launch key
    made, which is not counted.
    """

    suspended_at: datetime | None
    gpu_quota: int
    gpus_in_use: int
    launched: UUID | None


def _standing() -> QuerySet[Team, tuple[Any, ...]]:
    instances = Instance.objects.filter(team=OuterRef("pk"))
    launched = Q(launch_key=param("launch_key"))
    live = instances.live().exclude(launched).values("team")
    return Team.objects.filter(pk=param("team")).values_list(
        "suspended_at",
        "gpu_quota",
        Coalesce(Subquery(live.annotate(gpus=Sum("plan__gpu_count")).values("gpus")), 0),
        Subquery(instances.filter(launched).values("pk")),
    )


_STANDING = Compiled(_standing)


def standing_of(team: Team, *, launch_key: str = "") -> Standing:
    """How `team` stands now.

    Under its account's lock this is how it stands until the transaction ends: each admission
    takes that lock, so no two see room for the last GPU of the quota, and so does a suspension.
    """
    [row] = _STANDING(team=team.pk, launch_key=launch_key)
    return Standing(*row)


def check_allowed(standing: Standing, plan: Plan, image: Image) -> None:
    """Raises TeamSuspended, PlanRetired, ImageRetired or QuotaExceeded."""
    if standing.suspended_at is not None:
        raise TeamSuspended("This team is suspended.", next_step="Ask your operator why.")
    if plan.retired_at is not None:
        raise PlanRetired(
            f"Plan {plan.sku} is no longer offered.", next_step="Choose another plan."
        )
    if image.retired_at is not None:
        raise ImageRetired(
            f"Image {image.slug} is no longer offered.", next_step="Choose another image."
        )
    if standing.gpus_in_use + plan.gpu_count > standing.gpu_quota:
        raise QuotaExceeded(
            f"{standing.gpus_in_use} of your team's {standing.gpu_quota} GPUs are in use, "
            f"and {plan.sku} needs {plan.gpu_count}.",
            next_step="Stop an instance, or ask your operator for a larger quota.",
        )


def _hold(account: LockedAccount, instance: Instance, price: Price, *, now: datetime) -> None:
    """Set the first hour's money aside, at a price that this pins."""
    try:
        holds.place(
            account,
            price=price,
            reference=instance.pk,
            runway=settings.LAUNCH_RUNWAY,
            now=now,
        )
    except InsufficientFunds as refusal:
        raise FundsTooLow(refusal) from refusal


def current_price(plan: Plan, *, now: datetime) -> Price | None:
    """What a launch of `plan` would be quoted now; None: not priced."""
    try:
        return prices.price_at(plan.sku, now)
    except UnknownPrice:
        return None


def actor_of(instance: Instance, user: User) -> Member:
    """`user` as a member of the instance's team; Member.DoesNotExist for a stranger."""
    return Member.objects.select_related("team", "user").get(team=instance.team_id, user=user)
