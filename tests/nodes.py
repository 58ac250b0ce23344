"""A node in a test: enrols and syncs through the real door, and does at once what it is told."""

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import httpx
from django.utils import timezone

from agents.protocol import (
    PROTOCOL,
    EnrollReply,
    EnrollRequest,
    Inventory,
    Order,
    Phase,
    SeenGpu,
    SeenInstance,
    SyncReply,
    SyncRequest,
    Want,
)
from portal.asgi import application
from scheduler import fleet
from scheduler.models import Node
from tests.factories import H100

_serial = itertools.count(1)
type Key = tuple[str, int]


def inventory(name: str, *, gpus: int = 8, model: str = H100) -> Inventory:
    return Inventory(
        vcpus=256,
        memory_mib=2_048_000,
        gpus=tuple(SeenGpu(f"GPU-{name}-{index}", model, 81_559) for index in range(gpus)),
    )


def knock(at: str, body: Any, *, token: str = "") -> httpx.Response:
    """What the nodes' door answers, without a server before it."""
    return asyncio.run(knock_async(at, body, token=token))


async def knock_async(at: str, body: Any, *, token: str = "") -> httpx.Response:
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://portal") as client:
        return await client.post(
            f"/agent/v1/{at}",
            content=body if isinstance(body, str | bytes) else json.dumps(body),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=None,
        )


def ready(order: Order) -> SeenInstance:
    return SeenInstance(order.instance, order.generation, Phase.RUNNING)


@dataclass
class TestNode:
    """The facts a node would report, and the wire to the server."""

    __test__ = False

    name: str
    token: str
    inventory: Inventory
    seen: dict[Key, SeenInstance] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: str(uuid4()))
    seq: int = 0
    # What becomes of an order to run: by default it is ready at once.
    start: Callable[[Order], SeenInstance] = ready

    @property
    def row(self) -> Node:
        return Node.objects.get(name=self.name)

    def post(self, body: Any, *, token: str | None = None) -> httpx.Response:
        return knock("sync", body, token=token or self.token)

    def request(self, **changes: Any) -> SyncRequest:
        self.seq += 1
        request = SyncRequest(
            protocol=PROTOCOL,
            run_id=self.run_id,
            seq=self.seq,
            inventory=self.inventory,
            instances=tuple(self.seen.values()),
        )
        return replace(request, **changes)

    def sync(self) -> SyncReply:
        """Report once; nothing is done about the answer."""
        response = self.post(self.request().to_json())
        assert response.status_code == 200, response.content
        return SyncReply.from_json(response.json())

    def work(self) -> SyncReply:
        """Report, do what the answer says, and report that."""
        for order in self.sync().orders:
            self._obey(order)
        reply = self.sync()
        told = {(order.instance, order.generation) for order in reply.orders}
        self.seen = {
            key: item for key, item in self.seen.items() if item.phase != Phase.GONE or key in told
        }
        return reply

    def _obey(self, order: Order) -> None:
        key = (order.instance, order.generation)
        if order.want == Want.GONE:
            self.seen[key] = SeenInstance(order.instance, order.generation, Phase.GONE)
        elif key not in self.seen:
            if order.may_start:
                self.seen[key] = self.start(order)
            else:
                self.seen[key] = SeenInstance(order.instance, order.generation, Phase.GONE)

    def say(self, instance_id: UUID, phase: Phase, **facts: Any) -> SyncReply:
        """Report one instance in this phase, as whatever generation is known of it."""
        [key] = [key for key in self.seen if key[0] == str(instance_id)]
        self.seen[key] = SeenInstance(*key, phase, **facts)
        return self.sync()


def enroll_request(secret: str, name: str, *, gpus: int = 8, model: str = H100) -> dict[str, Any]:
    return EnrollRequest(PROTOCOL, secret, name, inventory(name, gpus=gpus, model=model)).to_json()


def enroll_node(*, gpus: int = 8, model: str = H100, name: str = "") -> TestNode:
    """A new node, by a join token through the real door."""
    _, secret = fleet.create_join_token(by=None, now=timezone.now())
    name = name or f"rack-{next(_serial)}"
    response = knock("enroll", enroll_request(secret, name, gpus=gpus, model=model))
    assert response.status_code == 201, response.content
    reply = EnrollReply.from_json(response.json())
    return TestNode(name, reply.node_token, inventory(name, gpus=gpus, model=model))
