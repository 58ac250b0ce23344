"""What the crew believes while it works and looks at the same time."""

import asyncio
from pathlib import Path

from agents.containers import Container, State
from agents.crew import Crew
from agents.facts import Fact
from agents.protocol import Order, Phase
from agents.reconcile import Start, Stop
from agents.simulated import SimulatedRuntime
from tests.agents.machines import FOREVER, Node, until
from tests.agents.orders import running, spec

ORDER = running(spec=FOREVER)


class Paused(SimulatedRuntime):
    """Probes, and lists of containers, are answered when the test says so."""

    def pause(self) -> None:
        self.probe_may_end = asyncio.Event()
        self.list_may_arrive = asyncio.Event()
        self.list_may_arrive.set()

    async def probe(self, container: Container, spec: object) -> bool:
        await self.probe_may_end.wait()
        return True

    async def containers(self) -> list[Container]:
        listed = await super().containers()
        await self.list_may_arrive.wait()
        return listed


def crew_on(state: Path) -> tuple[Crew, Paused]:
    runtime = Node(state).make_runtime(Paused)
    assert isinstance(runtime, Paused)
    runtime.pause()
    return Crew(runtime, changed=lambda _: None, sleep=asyncio.sleep), runtime


async def begin(crew: Crew, order: Order) -> None:
    crew.carry_out(Start(order))
    await until(lambda: crew.facts["i1", 1].phase == Phase.PROBING)


class TestCrew:
    def test_leaves_what_a_worker_is_busy_with_to_the_worker(self, tmp_path: Path) -> None:
        async def scenario() -> Fact:
            crew, _ = crew_on(tmp_path)
            await begin(crew, ORDER)
            # As by an event of another container; this one is not to be taken for a foundling.
            await crew.look()
            fact = crew.facts["i1", 1]
            await crew.aclose()
            return fact

        assert asyncio.run(scenario()) == Fact("i1", 1, Phase.PROBING, spec_digest=FOREVER.digest())

    def test_looks_again_at_what_it_left_out(self, tmp_path: Path) -> None:
        """The end of a container, noticed while its worker believes that it runs."""
        short = running(spec=spec(command=("sleep", "0.02")))

        async def scenario() -> Phase:
            crew, runtime = crew_on(tmp_path)
            await begin(crew, short)
            await asyncio.sleep(0.05)
            await crew.look()
            assert not crew.look_again.is_set()
            runtime.probe_may_end.set()
            await asyncio.wait_for(crew.look_again.wait(), 2.0)
            await crew.look()
            return crew.facts["i1", 1].phase

        assert asyncio.run(scenario()) == Phase.EXITED

    def test_does_not_believe_a_list_that_is_older_than_its_own_work(self, tmp_path: Path) -> None:
        async def scenario() -> tuple[bool, bool]:
            crew, runtime = crew_on(tmp_path)
            runtime.probe_may_end.set()
            crew.carry_out(Start(ORDER))
            await until(lambda: crew.facts["i1", 1].phase == Phase.RUNNING)
            runtime.list_may_arrive.clear()
            looking = asyncio.create_task(crew.look())
            await asyncio.sleep(0.01)
            crew.carry_out(Stop("i1", 1, 0.0, "ordered", is_final=False))
            await until(lambda: ("i1", 1) not in crew.facts)
            await asyncio.sleep(0.01)
            crew.look_again.clear()
            runtime.list_may_arrive.set()
            await looking
            return ("i1", 1) in crew.facts, crew.look_again.is_set()

        believed, looks_again = asyncio.run(scenario())

        assert not believed
        assert looks_again

    def test_takes_up_what_it_finds(self, tmp_path: Path) -> None:
        async def scenario() -> Fact:
            crew, runtime = crew_on(tmp_path)
            made = await runtime.start("i1", 1, FOREVER)
            assert made.state == State.RUNNING
            await crew.look()
            return crew.facts["i1", 1]

        fact = asyncio.run(scenario())

        assert (fact.phase, fact.found) == (Phase.PROBING, True)

    def test_remembers_the_highest_generation_that_is_gone(self, tmp_path: Path) -> None:
        async def scenario() -> dict[str, int]:
            crew, runtime = crew_on(tmp_path)
            runtime.probe_may_end.set()
            crew.carry_out(Start(ORDER))
            await until(lambda: crew.facts["i1", 1].phase == Phase.RUNNING)
            crew.carry_out(Stop("i1", 1, 0.0, "ordered"))
            await until(lambda: crew.facts["i1", 1].phase == Phase.GONE)
            crew.forget([("i1", 1)])
            assert crew.facts == {}
            return crew.gone_up_to

        assert asyncio.run(scenario()) == {"i1": 1}
