"""The hands of the agent: carries out actions, and keeps the facts about what came of them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace

from agents.backoff import Backoff
from agents.containers import Container, Runtime, RuntimeAway, StartRefused, State
from agents.facts import DECISIVE, Fact, Key, gone
from agents.protocol import ContainerSpec, ErrorCode, Order, Phase
from agents.reconcile import Action, Adopt, Gone, Start, Stop

logger = logging.getLogger(__name__)

# Generations known to be gone that are remembered against late replies.
FENCES_KEPT = 10_000


class Crew:
    """One worker for each instance at a time, and what is known about every container.

    `changed` is called at each new fact; its argument tells whether the portal acts upon it.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        changed: Callable[[bool], None],
        sleep: Callable[[float], Awaitable[object]],
    ) -> None:
        self.facts: dict[Key, Fact] = {}
        self.gone_up_to: dict[str, int] = {}
        self.look_again = asyncio.Event()
        self._runtime = runtime
        self._changed = changed
        self._sleep = sleep
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._changes: dict[str, int] = {}  # by instance, to tell a listing that is out of date
        self._passed_over: set[str] = set()

    def carry_out(self, action: Action) -> None:
        """Begin an action that `reconcile.plan` chose; a fact tells at once that it began."""
        match action:
            case Gone(instance, generation):
                self._put(gone((instance, generation)))
            case Stop(instance, generation):
                fact = self.facts[instance, generation]
                self._put(replace(fact, phase=Phase.STOPPING, found=False))
                self._employ(instance, self._end(action))
            case Start(order):
                self._put(_begun(order, Phase.PULLING))
                self._employ(order.instance, self._begin(order))
            case Adopt(order):
                self._adopt(order)

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop facts that the portal has taken in; those with a container stay."""
        for key in keys:
            fact = self.facts.get(key)
            if fact is not None and not fact.has_container:
                del self.facts[key]
                self._changes.pop(fact.instance, None)

    async def look(self) -> None:
        """Compare the facts with the containers that exist. Raises RuntimeAway.

        Instances that a worker was busy with meanwhile are left out: the listing may be older
        than what the worker did. Another look follows when the worker is done.
        """
        changes = dict(self._changes)
        containers = {item.key: item for item in await self._runtime.containers()}
        for key in {*containers, *self.facts}:
            instance = key[0]
            if instance in self._workers:
                self._passed_over.add(instance)
                continue
            if self._changes.get(instance) != changes.get(instance):
                self.look_again.set()
                continue
            before = self.facts.get(key)
            now = _judged(before, containers.get(key), key)
            if now is not None and now != before:
                logger.info("%s generation %s is found %s", *key, now.phase)
                self._put(now)

    async def aclose(self) -> None:
        """Let go of all work; containers stay as they are."""
        workers = list(self._workers.values())
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    def _adopt(self, order: Order) -> None:
        key = order.instance, order.generation
        fact = replace(self.facts[key], found=False)
        if order.keeps_running and fact.phase == Phase.PROBING:
            # It was ready before this agent started; the portal has said so.
            self._put(replace(fact, phase=Phase.RUNNING))
            return
        self._put(fact)
        goes_on = fact.phase == Phase.PROBING
        self._employ(order.instance, self._go_on(order) if goes_on else self._begin(order))

    def _employ(self, instance: str, work: Coroutine[None, None, None]) -> None:
        """Give the instance a new worker; the former one stops first, wherever it is."""
        former = self._workers.get(instance)
        if former is not None:
            former.cancel()
        worker = asyncio.create_task(self._relieve(former, work))
        self._workers[instance] = worker
        worker.add_done_callback(lambda task: self._dismiss(instance, task))

    async def _relieve(
        self, former: "asyncio.Task[None] | None", work: Coroutine[None, None, None]
    ) -> None:
        try:
            if former is not None:
                await asyncio.wait([former])
            await work
        finally:
            work.close()  # where this worker was cancelled before it began

    def _dismiss(self, instance: str, worker: "asyncio.Task[None]") -> None:
        if self._workers.get(instance) is worker:
            del self._workers[instance]
            self._changes[instance] = self._changes.get(instance, 0) + 1
            if instance in self._passed_over:
                self._passed_over.discard(instance)
                self.look_again.set()
        if not worker.cancelled() and (error := worker.exception()) is not None:
            logger.error("work on %s failed", instance, exc_info=error)

    async def _begin(self, order: Order) -> None:
        """From an order to a running container, or to the reason why there is none."""
        try:
            await self._insist(lambda: self._start(order))
        except StartRefused as refusal:
            await self._fail(order, refusal)

    async def _start(self, order: Order) -> None:
        key, spec = (order.instance, order.generation), _spec_of(order)

        def progress(percent: int) -> None:
            fact = self.facts.get(key)
            if fact is not None and fact.phase == Phase.PULLING and fact.percent != percent:
                self._put(replace(fact, percent=percent))

        try:
            if self.facts[key].phase == Phase.PULLING:
                await self._runtime.pull(spec.image, progress=progress)
                self._put(_begun(order, Phase.CREATING))
            container = await self._runtime.start(*key, spec)
            await self._probe(order, container)
        except (StartRefused, RuntimeAway):
            raise
        except Exception as fault:
            logger.exception("start of %s generation %s", *key)
            raise StartRefused(ErrorCode.START_FAILED, "The agent failed to start it.") from fault

    async def _fail(self, order: Order, refusal: StartRefused) -> None:
        key = order.instance, order.generation
        logger.info("%s generation %s not started: %s", *key, refusal)
        await self._insist(lambda: self._runtime.remove(*key))
        failed = _begun(order, Phase.FAILED)
        self._put(replace(failed, error_code=refusal.code, error=str(refusal)))

    async def _go_on(self, order: Order) -> None:
        """Judge a running container that an earlier run of the agent made."""

        async def probe() -> None:
            if (container := await self._find(order)) is not None:
                await self._probe(order, container)
            else:
                self._put(gone((order.instance, order.generation)))

        try:
            await self._insist(probe)
        except StartRefused as refusal:
            await self._fail(order, refusal)

    async def _probe(self, order: Order, container: Container) -> None:
        probing = replace(_begun(order, Phase.PROBING), endpoints=container.endpoints)
        self._put(probing)
        if await self._runtime.probe(container, _spec_of(order)):
            self._put(replace(probing, phase=Phase.RUNNING))
        else:
            ended = _judged(probing, await self._find(order), probing.key)
            self._put(ended or gone(probing.key))

    async def _find(self, order: Order) -> Container | None:
        key = order.instance, order.generation
        return next((item for item in await self._runtime.containers() if item.key == key), None)

    async def _end(self, stop: Stop) -> None:
        key = stop.instance, stop.generation

        async def stop_and_remove() -> None:
            await self._runtime.stop(*key, grace_seconds=stop.grace_seconds)
            await self._runtime.remove(*key)

        await self._insist(stop_and_remove)
        if stop.is_final:
            self._put(gone(key))
        else:
            del self.facts[key]
            self._changed(False)

    async def _insist(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do it until it is done or refused.

        Every step may be repeated: containers are known by name, and absent is as good as
        removed. A fault of our own is tried again too, since a container that was not removed
        must not be reported as gone.
        """
        backoff = Backoff()
        while True:
            try:
                return await step()
            except StartRefused:
                raise
            except RuntimeAway as away:
                logger.warning("the engine does not answer: %s", away)
            except Exception:
                logger.exception("a step failed and is tried again")
            await self._sleep(backoff.next_seconds())

    def _put(self, fact: Fact) -> None:
        before = self.facts.get(fact.key)
        self.facts[fact.key] = fact
        self._changes[fact.instance] = self._changes.get(fact.instance, 0) + 1
        if fact.phase == Phase.GONE:
            self._fence(fact)
        decisive = fact.phase in DECISIVE and (before is None or before.phase != fact.phase)
        self._changed(decisive)

    def _fence(self, fact: Fact) -> None:
        known = self.gone_up_to.pop(fact.instance, 0)
        self.gone_up_to[fact.instance] = max(known, fact.generation)
        if len(self.gone_up_to) > FENCES_KEPT:
            del self.gone_up_to[next(iter(self.gone_up_to))]


def _spec_of(order: Order) -> ContainerSpec:
    if order.spec is None:
        raise StartRefused(ErrorCode.START_FAILED, "The order does not say what to run.")
    return order.spec


def _begun(order: Order, phase: Phase) -> Fact:
    spec = order.spec
    return Fact(
        instance=order.instance,
        generation=order.generation,
        phase=phase,
        spec_digest=spec.digest() if spec else "",
        gpu_uuids=spec.gpu_uuids if spec else (),
    )


def _judged(before: Fact | None, container: Container | None, key: Key) -> Fact | None:
    """What to believe of one generation, given what was believed and what is there now."""
    if container is None:
        # A container that was there and is not any more will not be started again.
        return gone(key) if before is not None and before.has_container else before
    if before is None or (before.has_container and _is_news(before, container)):
        return _found(container)
    return replace(before, oom_killed=before.oom_killed or container.oom_killed)


def _is_news(before: Fact, container: Container) -> bool:
    has_run = before.phase in (Phase.PROBING, Phase.RUNNING)
    return not (has_run and container.state == State.RUNNING)


def _found(container: Container) -> Fact:
    phases = {
        State.CREATED: Phase.CREATING,
        State.RUNNING: Phase.PROBING,
        State.EXITED: Phase.EXITED,
    }
    return Fact(
        instance=container.instance,
        generation=container.generation,
        phase=phases[container.state],
        spec_digest=container.spec_digest,
        gpu_uuids=container.gpu_uuids,
        found=container.state != State.EXITED,
        exit_code=container.exit_code,
        oom_killed=container.oom_killed,
        endpoints=container.endpoints,
    )
