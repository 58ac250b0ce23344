"""Nodes: how they join, what they have, and whether they take work."""

import hashlib
import re
import secrets
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from agents.protocol import EnrollRequest, Inventory, SeenGpu, digest_of
from portal import hints
from portal.accounts.models import User
from portal.errors import Conflict, DomainError
from scheduler import leases
from scheduler.models import Allocation, Gpu, JoinToken, Lease, Node

NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
# A sight is written only where it adds this much; liveness is judged in tens of seconds.
SIGHT_STEP = timedelta(seconds=2)


class JoinTokenRefused(DomainError):
    code = "join_token_refused"


class NodeNameRefused(DomainError):
    code = "node_name_refused"


class GpuClaimed(Conflict):
    """A GPU that another live node has."""

    code = "gpu_claimed"


class NodeInUse(Conflict):
    code = "node_in_use"


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def join_command(secret: str) -> str:
    """What a machine runs, once, to become a node."""
    return f"HEADRACE_URL={settings.PUBLIC_URL} HEADRACE_JOIN_TOKEN={secret} python -m agents"


def create_join_token(*, by: User | None, now: datetime) -> tuple[JoinToken, str]:
    """A one-use secret for one machine; only its digest is kept, so it is shown once."""
    secret = f"hrj_{secrets.token_urlsafe(32)}"
    token = JoinToken.objects.create(
        digest=digest(secret),
        created_by=by,
        created_at=now,
        expires_at=now + settings.JOIN_TOKEN_LIFETIME,
    )
    return token, secret


@transaction.atomic
def enroll(request: EnrollRequest, *, now: datetime) -> tuple[Node, str]:
    """Make a machine a node; returns it and its secret, which is sent once.

    A name that is known is the same machine set up anew: its secret changes and its epoch grows.
    Raises JoinTokenRefused (unknown, used or expired), NodeNameRefused or GpuClaimed.
    """
    used = JoinToken.objects.filter(
        digest=digest(request.join_token), used_at=None, expires_at__gt=now
    ).update(used_at=now)
    if not used:
        raise JoinTokenRefused(
            "This join token is unknown, used or expired.",
            next_step="Make a new one on the fleet page, or with manage.py enroll_node.",
        )
    if not NODE_NAME.fullmatch(request.node_name):
        raise NodeNameRefused(
            f"“{request.node_name[:80]}” cannot be a node's name.",
            next_step="Use letters, digits, dots and hyphens, at most 63.",
        )
    secret = f"hrn_{secrets.token_urlsafe(32)}"
    node = Node.objects.select_for_update().filter(name=request.node_name).first()
    if node is None:
        node = Node(name=request.node_name, epoch=0)
    node.epoch += 1
    node.token_digest = digest(secret)
    node.enrolled_at = now
    node.retired_at = None
    node.inventory_digest = ""
    node.save()
    JoinToken.objects.filter(digest=digest(request.join_token)).update(node=node)
    record_sight(node, request.inventory, now=now)
    return node, secret


def record_sight(node: Node, inventory: Inventory, *, now: datetime) -> None:
    """The node is there, and has this. An unchanged inventory costs one comparison."""
    inventory_digest = digest_of(inventory.to_json())
    changed = node.inventory_digest != inventory_digest
    fresh = node.last_seen_at is not None and now - node.last_seen_at < SIGHT_STEP
    if fresh and not changed:
        return
    was_away = node.last_seen_at is None or now - node.last_seen_at > settings.NODE_SUSPECT_AFTER
    node.last_seen_at = now
    if not changed:
        node.save(update_fields=["last_seen_at"])
    else:
        _record_inventory(node, inventory, inventory_digest)
    if changed or was_away:
        hints.send_task(hints.SCHEDULER_CYCLE)


@transaction.atomic
def _record_inventory(node: Node, inventory: Inventory, inventory_digest: str) -> None:
    node.inventory_digest = inventory_digest
    node.vcpus = inventory.vcpus
    node.memory_mib = inventory.memory_mib
    node.driver_version = inventory.driver_version[:40]
    node.agent_version = inventory.agent_version[:40]
    node.runtime = inventory.runtime[:80]
    node.simulated = inventory.simulated
    node.simulated_gpus = inventory.simulated_gpus
    node.save()
    uuids = [gpu.uuid for gpu in inventory.gpus]
    known = {gpu.uuid: gpu for gpu in Gpu.objects.filter(uuid__in=uuids).select_related("node")}
    for seen in inventory.gpus:
        _record_gpu(node, seen, known.get(seen.uuid))
    node.gpus.exclude(uuid__in=uuids).filter(present=True).update(present=False)


def _record_gpu(node: Node, seen: SeenGpu, known: Gpu | None) -> None:
    if known is not None and known.node_id != node.pk and not _may_move(known):
        raise GpuClaimed(
            f"GPU {seen.uuid} belongs to node {known.node.name}.",
            next_step="Retire that node first.",
        )
    fields = {
        "node": node,
        "model": seen.model[:40],
        "memory_mib": seen.memory_mib,
        "present": True,
        "healthy": seen.healthy,
        "problem": seen.problem[:200],
    }
    Gpu.objects.update_or_create(uuid=seen.uuid, defaults=fields)


def _may_move(gpu: Gpu) -> bool:
    """A card may turn up in another machine once its old one is retired and nothing runs on it."""
    held = Allocation.objects.filter(gpu=gpu, released_at=None).exists()
    return gpu.node.retired_at is not None and not held


def cordon(*, node: Node, now: datetime) -> None:
    """Take no new work; what runs, runs on."""
    Node.objects.filter(pk=node.pk, cordoned_at=None).update(cordoned_at=now)
    hints.send_task(hints.SCHEDULER_CYCLE)


def uncordon(*, node: Node) -> None:
    Node.objects.filter(pk=node.pk).update(cordoned_at=None)
    hints.send_task(hints.SCHEDULER_CYCLE)


@transaction.atomic
def retire(*, node: Node, now: datetime) -> int:
    """Give a node up for good: its secret opens nothing any more, and its instances end.

    Refused while the node is seen and runs something (drain it first). Returns how many
    instances were ended as lost.
    """
    node = Node.objects.select_for_update().get(pk=node.pk)
    held = Lease.objects.filter(node=node, ended_at=None)
    alive = node.last_seen_at and now - node.last_seen_at < settings.NODE_UNREACHABLE_AFTER
    if alive and held.exists():
        raise NodeInUse(
            f"{node.name} still runs instances.", next_step="Cordon it and wait until it is empty."
        )
    ended = 0
    for lease in held:
        leases.give_up(lease.instance_id, node=node, now=now)
        leases.end([lease.pk], now=now)
        ended += 1
    Node.objects.filter(pk=node.pk).update(retired_at=now, cordoned_at=now)
    return ended
