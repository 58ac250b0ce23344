"""The smallest valid orders and facts; a test names only what it is about."""

from typing import Any

from agents.facts import Fact
from agents.protocol import ContainerSpec, Order, Phase, SyncReply, Want, orders_digest
from agents.reconcile import Lease

LEASE_SECONDS = 120.0


def spec(**fields: Any) -> ContainerSpec:
    smallest: dict[str, Any] = {
        "image": "rig/bb:1",
        "gpu_uuids": (),
        "vcpus": 1,
        "memory_mib": 64,
        "disk_gib": 1,
        "hostname": "blue-fox",
    }
    return ContainerSpec(**(smallest | fields))


def running(instance: str = "i1", generation: int = 1, **fields: Any) -> Order:
    """To be run, and not started before."""
    content: dict[str, Any] = {"may_start": True, "spec": spec()} | fields
    return Order(instance, generation, Want.RUNNING, LEASE_SECONDS, **content)


def gone(instance: str = "i1", generation: int = 1, **fields: Any) -> Order:
    return Order(instance, generation, Want.GONE, 0.0, **fields)


def lease(order: Order, *, expires_at: float = LEASE_SECONDS) -> Lease:
    return Lease(order, expires_at)


def fact(
    instance: str = "i1", generation: int = 1, phase: Phase = Phase.RUNNING, **more: Any
) -> Fact:
    return Fact(instance, generation, phase, **more)


def reply(*orders: Order, epoch: int = 1, sync_within_seconds: float = 10.0) -> SyncReply:
    return SyncReply(1, epoch, orders_digest(orders), orders, sync_within_seconds)
