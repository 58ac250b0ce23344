"""A machine for tests of the loop: simulated containers, and a portal that follows a script."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from agents.config import AgentConfig, RuntimeChoice
from agents.containers import Host
from agents.loop import Agent
from agents.ports import PortRange
from agents.protocol import (
    Inventory,
    Order,
    Phase,
    SeenInstance,
    SyncReply,
    SyncRequest,
)
from agents.simulated import Pace, SimulatedRuntime
from agents.state_folder import NodeIdentity
from tests.agents.orders import reply, spec

QUICK = Pace(pull=0.0, create=0.0, settle=0.0, stop=0.0)
FOREVER = spec(command=("sleep", "600"))


class ScriptedPortal:
    """Answers as the portal does: at once where its orders are not the known ones, else it holds.

    `fault` is raised instead, while it is set.
    """

    def __init__(self) -> None:
        self.reply = reply()
        self.requests: list[SyncRequest] = []
        self.fault: Exception | None = None
        self._changed = asyncio.Event()

    def order(self, *orders: Order, **fields: Any) -> None:
        self.reply = reply(*orders, **fields)
        self._changed.set()
        self._changed = asyncio.Event()

    async def sync(self, request: SyncRequest) -> SyncReply:
        self.requests.append(request)
        if self.fault is not None:
            raise self.fault
        if request.wait_seconds > 0 and request.known_digest == self.reply.digest:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), request.wait_seconds)
        return self.reply

    def seen(self, instance: str = "i1") -> SeenInstance | None:
        """What was told last of an instance."""
        if not self.requests:
            return None
        items = self.requests[-1].instances
        return next((item for item in items if item.instance == instance), None)

    def phase(self, instance: str = "i1") -> Phase | None:
        item = self.seen(instance)
        return item.phase if item else None


class Stock:
    def __init__(self) -> None:
        self.inventory = Inventory(8, 65_536, (), simulated=True)

    async def read(self) -> Inventory:
        return self.inventory


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Node:
    """One machine, on which agents can be started one after the other."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.portal = ScriptedPortal()
        self.clock = Clock()
        self.runtime = self.make_runtime()
        self.identity = NodeIdentity("rack-1", "secret", 1, RuntimeChoice.SIMULATED)

    def make_runtime(self, kind: type[SimulatedRuntime] = SimulatedRuntime) -> SimulatedRuntime:
        ports = PortRange("127.0.0.1", 20_000, 20_099)
        return kind(self.state, host=Host("simulated", 8, 65_536), ports=ports, pace=QUICK)

    def agent(self) -> Agent:
        config = AgentConfig("http://portal", self.state, "rack-1")
        return Agent(
            config, self.runtime, Stock(), self.portal, identity=self.identity, clock=self.clock
        )

    @asynccontextmanager
    async def working(self) -> Any:
        stop = asyncio.Event()
        work = asyncio.create_task(self.agent().run(stop))
        try:
            yield work
        finally:
            stop.set()
            await asyncio.wait_for(work, 5.0)


async def until(condition: Callable[[], object], *, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def play(tmp_path: Path, scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Node(tmp_path))

    asyncio.run(main())
