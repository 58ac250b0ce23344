"""Sync, plan, act, report. The only file of the agent that reads the clock and that sleeps."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Protocol

from agents import reconcile, state_folder
from agents.backoff import Backoff
from agents.client import Rejected, Unreachable
from agents.config import AgentConfig
from agents.containers import Runtime, RuntimeAway
from agents.crew import Crew
from agents.facts import Key
from agents.protocol import PROTOCOL, Inventory, Phase, SyncReply, SyncRequest
from agents.state_folder import NodeIdentity

logger = logging.getLogger(__name__)

# How long a sync asks to be held at most; the portal's own interval shortens it, since a held
# sync is also the heartbeat.
HOLD_SECONDS = 25.0
# A portal that answers every held sync at once, for whatever reason, is asked no more often.
HELD_SYNC_SPACING_SECONDS = 0.05
# Progress waits this long for company; what moves an instance is told at once.
PROGRESS_DELAY_SECONDS = 0.25
# After a report, the next waits this many times as long as that one took: a portal that is busy
# is told much at once, and an idle one at once.
REST_AFTER_REPORT = 2.0
LOOK_SECONDS = 30.0  # a full list, should the runtime's watch have missed something
STOCK_SECONDS = 30.0  # how often GPUs are looked at
PLAN_SECONDS = 1.0  # the longest time between two plans


class TokenRefused(Exception):
    """The portal does not know this node's secret: it was retired or enrolled anew."""


class Portal(Protocol):
    """What the loop needs of `agents.client.Client`."""

    async def sync(self, request: SyncRequest) -> SyncReply: ...


class Stock(Protocol):
    """What the loop needs of `agents.inventory.NodeInventory`."""

    async def read(self) -> Inventory: ...


class Agent:
    """One node's agent. Many can live in one process, each with its own state folder."""

    def __init__(
        self,
        config: AgentConfig,
        runtime: Runtime,
        inventory: Stock,
        client: Portal,
        *,
        identity: NodeIdentity,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._stock = inventory
        self._portal = client
        self._identity = identity
        self._clock = clock
        self._run_id = uuid.uuid4().hex
        self._seq = 0
        self._leases: dict[Key, reconcile.Lease] = {}
        self._digest = ""
        self._heard = 0  # answers to held syncs
        self._sync_within_seconds = HOLD_SECONDS
        self._is_away = False
        self._inventory: Inventory | None = None
        self._plan_again = asyncio.Event()
        self._news = asyncio.Event()
        self._urgent_news = asyncio.Event()
        self._crew = Crew(runtime, changed=self._note_change, sleep=asyncio.sleep)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; containers then stay as they are, for the next run to adopt.

        Raises TokenRefused where the portal does not know this node.
        """
        try:
            await work_until(stop, self._work())
        except ExceptionGroup as faults:
            refused = faults.subgroup(TokenRefused)
            raise (refused.exceptions[0] if refused else faults) from None
        finally:
            await self._crew.aclose()

    async def _work(self) -> None:
        await self._get_to_know()
        async with asyncio.TaskGroup() as group:
            for duty in (
                self._listen,
                self._report,
                self._keep_to_plan,
                self._keep_looking,
                self._watch,
                self._take_stock,
            ):
                group.create_task(duty())

    # --- talking to the portal ---

    async def _listen(self) -> None:
        """Keep one sync open: orders arrive the moment they change."""
        backoff = Backoff()
        while True:
            spacing = asyncio.create_task(asyncio.sleep(HELD_SYNC_SPACING_SECONDS))
            # The first one is answered at once, since no digest is known.
            await self._exchange(min(HOLD_SECONDS, self._sync_within_seconds), backoff)
            await spacing

    async def _report(self) -> None:
        """Tell news on a second connection, beside the sync that is held."""
        backoff = Backoff()
        while True:
            await self._news.wait()
            await _wait_at_most(self._urgent_news, PROGRESS_DELAY_SECONDS)
            self._news.clear()
            self._urgent_news.clear()
            began = self._clock()
            if not await self._exchange(0.0, backoff):
                self._note_news()
                continue
            await asyncio.sleep(REST_AFTER_REPORT * (self._clock() - began))

    async def _exchange(self, wait_seconds: float, backoff: Backoff) -> bool:
        """One sync; on failure a pause, and False."""
        request, heard_before = self._request(wait_seconds), self._heard
        reply = await self._ask(request)
        if reply is not None and self._hear(reply, request, heard_before):
            backoff.reset()
            return True
        await asyncio.sleep(backoff.next_seconds())
        return False

    async def _ask(self, request: SyncRequest) -> SyncReply | None:
        """The portal's answer; None, said once in the log, where there is none."""
        try:
            reply = await self._portal.sync(request)
        except Unreachable as away:
            if not self._is_away:
                logger.warning("the portal is away: %s", away)
            self._is_away = True
            return None
        except Rejected as refusal:
            if refusal.is_token_refused:
                raise TokenRefused(str(refusal)) from refusal
            logger.error("the portal refuses (%s): %s", refusal.code, refusal)  # noqa: TRY400
            return None
        if self._is_away:
            logger.info("the portal is back")
        self._is_away = False
        return reply

    def _hear(self, reply: SyncReply, request: SyncRequest, heard_before: int) -> bool:
        """Act on a reply, unless it may be older than one that is acted on already.

        A report can be answered after a held sync that was answered later. Of such two nobody
        can tell which is the newer, so where they differ the portal is asked once more: to act
        on the old orders, or to pass over the new ones, would last as long as the next sync is
        held.
        """
        if request.wait_seconds > 0:
            self._heard += 1
        elif heard_before != self._heard:
            if reply.digest != self._digest:
                self._note_news()
            return True
        return self._take_in(reply, request)

    def _request(self, wait_seconds: float) -> SyncRequest:
        assert self._inventory is not None, "stock is taken before the first sync"  # noqa: S101
        self._seq += 1
        return SyncRequest(
            protocol=PROTOCOL,
            run_id=self._run_id,
            seq=self._seq,
            inventory=self._inventory,
            instances=tuple(fact.to_seen() for fact in self._crew.facts.values()),
            known_digest=self._digest,
            wait_seconds=wait_seconds,
        )

    def _take_in(self, reply: SyncReply, request: SyncRequest) -> bool:
        """Make the reply's orders the ones to act on; False where it is of an earlier epoch."""
        if reply.node_epoch < self._identity.epoch:
            # A restored database, or a second portal: it does not know what was ordered since.
            logger.error(
                "refused orders of epoch %s, since epoch %s is known",
                reply.node_epoch,
                self._identity.epoch,
            )
            return False
        if reply.node_epoch > self._identity.epoch:
            self._identity = replace(self._identity, epoch=reply.node_epoch)
            state_folder.save(self._config.state, self._identity)
        now = self._clock()
        leases = [reconcile.Lease(o, now + o.expires_in_seconds) for o in reply.orders]
        self._leases = {lease.key: lease for lease in leases}
        self._digest = reply.digest
        self._sync_within_seconds = max(1.0, reply.sync_within_seconds)
        over = {
            (seen.instance, seen.generation)
            for seen in request.instances
            if seen.phase in (Phase.GONE, Phase.FAILED)
        }
        self._crew.forget(over - self._leases.keys())
        self._plan_again.set()
        return True

    # --- acting ---

    async def _keep_to_plan(self) -> None:
        while True:
            self._plan_again.clear()
            now = self._clock()
            for action in reconcile.plan(
                self._leases.values(),
                self._crew.facts.values(),
                now=now,
                gone_up_to=self._crew.gone_up_to,
            ):
                logger.info("%s", _told(action))
                self._crew.carry_out(action)
            ends = [lease.expires_at - now for lease in self._leases.values()]
            soon = min([end for end in ends if end > 0] + [PLAN_SECONDS])
            await _wait_at_most(self._plan_again, soon)

    def _note_change(self, decisive: bool) -> None:
        self._plan_again.set()
        self._news.set()
        if decisive:
            self._urgent_news.set()

    def _note_news(self) -> None:
        self._news.set()
        self._urgent_news.set()

    # --- looking ---

    async def _get_to_know(self) -> None:
        """Only what is known to exist may be compared with orders: no sync before this is done."""
        backoff = Backoff()
        while self._inventory is None:
            try:
                await self._crew.look()
                self._inventory = await self._stock.read()
            except RuntimeAway as away:
                logger.warning("the engine does not answer: %s", away)
                await asyncio.sleep(backoff.next_seconds())

    async def _keep_looking(self) -> None:
        backoff = Backoff()
        while True:
            await _wait_at_most(self._crew.look_again, LOOK_SECONDS)
            self._crew.look_again.clear()
            try:
                await self._crew.look()
                backoff.reset()
            except RuntimeAway as away:
                logger.warning("the engine does not answer: %s", away)
                self._crew.look_again.set()
                await asyncio.sleep(backoff.next_seconds())

    async def _watch(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._runtime.watch(self._crew.look_again.set)
            except RuntimeAway as away:
                logger.warning("the engine's events have ended: %s", away)
            await asyncio.sleep(backoff.next_seconds())
            self._crew.look_again.set()

    async def _take_stock(self) -> None:
        while True:
            await asyncio.sleep(STOCK_SECONDS)
            try:
                inventory = await self._stock.read()
            except RuntimeAway:
                continue  # as known before; looking at containers says so in the log
            if inventory != self._inventory:
                logger.info("the inventory has changed: %s GPUs", len(inventory.gpus))
                self._inventory = inventory
                self._note_news()


async def work_until(stop: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    """Do the work until it ends or `stop` is set; what it raises is raised here."""
    tasks = {asyncio.create_task(work), asyncio.create_task(stop.wait())}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set or the time is over, whichever comes first."""
    try:
        await asyncio.wait_for(event.wait(), timeout=seconds)
    except TimeoutError:
        return


def _told(action: reconcile.Action) -> str:
    match action:
        case reconcile.Stop(instance, generation, _, reason):
            return f"stop {instance} generation {generation}: {reason}"
        case reconcile.Gone(instance, generation, reason):
            return f"no container for {instance} generation {generation}: {reason}"
        case reconcile.Adopt(order):
            return f"adopt {order.instance} generation {order.generation}"
        case reconcile.Start(order):
            return f"start {order.instance} generation {order.generation}"
