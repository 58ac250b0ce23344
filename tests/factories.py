"""Smallest valid rows. A test names only what it is about."""

import itertools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from billing import accounts, prices
from portal.accounts.models import Member, PriorityClass, Team, User
from portal.accounts.roles import Role
from portal.catalog.models import Image, Plan
from portal.instances.models import Instance
from portal.instances.operations.admission import LaunchRequest, launch
from scheduler.fleet import digest
from scheduler.models import Gpu, Node

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
H100 = "NVIDIA H100 80GB HBM3"
H100_MICROS = 2_490_000
_serial = itertools.count(1)


def make_team(
    *,
    credit_micros: int = 100_000_000,
    gpu_quota: int = 8,
    priority_class: PriorityClass = PriorityClass.NORMAL,
) -> Team:
    n = next(_serial)
    account = accounts.open_account(code=f"team:{uuid4()}")
    if credit_micros:
        accounts.grant_trial_credit(account_id=account.pk, amount_micros=credit_micros, now=NOON)
    return Team.objects.create(
        name=f"team-{n}",
        account_id=account.pk,
        gpu_quota=gpu_quota,
        priority_class=priority_class,
        created_at=NOON,
    )


def make_user(*, staff: bool = False) -> User:
    return User.objects.create_user(f"user-{next(_serial)}@example.org", is_staff=staff)


def make_member(team: Team | None = None, *, role: Role = Role.OWNER) -> Member:
    return Member.objects.create(user=make_user(), team=team or make_team(), role=role)


def make_plan(
    *,
    gpu_model: str = H100,
    gpu_count: int = 1,
    vcpus: int = 1,
    memory_gib: int = 1,
    micros_per_hour: int | None = H100_MICROS,
) -> Plan:
    plan = Plan.objects.create(
        sku=f"plan-{next(_serial)}",
        gpu_model=gpu_model,
        gpu_count=gpu_count,
        gpu_memory_gib=80,
        vcpus=vcpus,
        memory_gib=memory_gib,
        disk_gib=10,
    )
    if micros_per_hour is not None:
        prices.publish(
            prices={plan.sku: micros_per_hour}, effective_from=NOON, note="test", now=NOON
        )
    return plan


def make_image(**fields: Any) -> Image:
    n = next(_serial)
    return Image.objects.create(
        **({"slug": f"image-{n}", "name": f"Image {n}", "reference": f"image:{n}"} | fields)
    )


def make_node(
    *,
    gpus: int | Mapping[str, int] = 1,
    vcpus: int = 64,
    memory_gib: int = 512,
    seen_at: datetime = NOON,
    secret: str = "",
) -> Node:
    n = next(_serial)
    node = Node.objects.create(
        name=f"node-{n}",
        token_digest=digest(secret or str(uuid4())),
        enrolled_at=seen_at,
        last_seen_at=seen_at,
        vcpus=vcpus,
        memory_mib=memory_gib * 1024,
    )
    models = gpus if isinstance(gpus, Mapping) else {H100: gpus}
    for model, count in models.items():
        for _ in range(count):
            Gpu.objects.create(uuid=f"GPU-{uuid4()}", node=node, model=model, memory_mib=81_559)
    return node


def make_instance(
    *,
    actor: Member | None = None,
    plan: Plan | None = None,
    now: datetime = NOON,
    ports: Sequence[int] = (),
    image: Image | None = None,
) -> Instance:
    """A queued instance, launched as a member would."""
    request = LaunchRequest(
        plan=plan or make_plan(), image=image or make_image(), ports=tuple(ports)
    )
    instance, _ = launch(
        actor=actor or make_member(), request=request, launch_key=str(uuid4()), now=now
    )
    return instance
