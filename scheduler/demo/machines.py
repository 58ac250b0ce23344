"""Nodes of the story: what they would report, handed in at the moments of the story."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from agents.protocol import (
    PROTOCOL,
    EnrollRequest,
    ErrorCode,
    Inventory,
    Order,
    Phase,
    SeenGpu,
    SeenInstance,
    SyncRequest,
    Want,
)
from portal.accounts.models import User
from scheduler import fleet, leases, reports
from scheduler.demo.story import Machine

RUN = "demo-data"
SECOND = timedelta(seconds=1)
# From an order to a container that answers, and to one that is gone.
STARTS_WITHIN = 23 * SECOND
ENDS_WITHIN = 4 * SECOND
KILLED = 137
PULL_FAILED = "Pulling the image failed: the registry did not answer."


class StoryNode:
    """One machine of the story as a node, without an agent: its secret is thrown away."""

    def __init__(self, machine: Machine, *, operator: User, at: datetime) -> None:
        self._inventory = Inventory(
            vcpus=machine.vcpus,
            memory_mib=machine.memory_gib * 1024,
            gpus=tuple(
                SeenGpu(f"GPU-demo-{machine.name}-{slot}", model, memory_mib)
                for slot, (model, memory_mib) in enumerate(
                    (model, memory_mib)
                    for count, model, memory_mib in machine.gpus
                    for _ in range(count)
                )
            ),
            agent_version="demo",
            runtime="demo data",
            simulated=True,
        )
        _, secret = fleet.create_join_token(by=operator, now=at)
        request = EnrollRequest(PROTOCOL, secret, machine.name, self._inventory)
        self.node, _ = fleet.enroll(request, now=at)
        self._seen: dict[tuple[str, int], SeenInstance] = {}
        self._seq = 0

    @property
    def is_idle(self) -> bool:
        return not self._seen

    def sync(self, *, at: datetime) -> Sequence[Order]:
        """Report what is seen; returns what is to be done."""
        self._seq += 1
        told = tuple(self._seen.values())
        held, _ = reports.receive(
            self.node, SyncRequest(PROTOCOL, RUN, self._seq, self._inventory, told), now=at
        )
        orders = [leases.order_for(lease, now=at) for lease in held]
        listed = {(order.instance, order.generation) for order in orders}
        self._seen = {
            key: seen
            for key, seen in self._seen.items()
            if seen.phase != Phase.GONE or key in listed
        }
        return orders

    def see(self, *, at: datetime) -> None:
        """Be there, and have what it has: so a node is kept that has nothing to tell."""
        fleet.record_sight(self.node, self._inventory, now=at)

    def start(self, *, at: datetime, fails: bool = False) -> None:
        """Start what is ordered; it is ready, or has failed, `STARTS_WITHIN` later."""
        for order in self.sync(at=at):
            key = (order.instance, order.generation)
            if order.want == Want.RUNNING and key not in self._seen:
                ready = SeenInstance(*key, Phase.RUNNING)
                self._seen[key] = _failed(ready) if fails else ready
        if fails:
            self.clear(at=at + STARTS_WITHIN)
        else:
            self.sync(at=at + STARTS_WITHIN)

    def exit(self, instance_id: UUID, *, exit_code: int, at: datetime) -> None:
        """A container ends by itself: with 137 it ran out of memory."""
        for key, seen in self._seen.items():
            if key[0] == str(instance_id):
                self._seen[key] = replace(
                    seen, phase=Phase.EXITED, exit_code=exit_code, oom_killed=exit_code == KILLED
                )
        self.clear(at=at)

    def clear(self, *, at: datetime) -> None:
        """Report, and remove every container that is not to run."""
        for order in self.sync(at=at):
            key = (order.instance, order.generation)
            if order.want == Want.GONE and key in self._seen:
                self._seen[key] = SeenInstance(*key, Phase.GONE)
        self.sync(at=at + ENDS_WITHIN)


def _failed(seen: SeenInstance) -> SeenInstance:
    return replace(
        seen, phase=Phase.FAILED, error_code=ErrorCode.IMAGE_UNAVAILABLE, error=PULL_FAILED
    )
