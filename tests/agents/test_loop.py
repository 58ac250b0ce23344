"""The agent as a whole, between a scripted portal and simulated containers."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.containers import Container, RuntimeAway
from agents.protocol import (
    ErrorCode,
    Phase,
)
from agents.simulated import SimulatedRuntime
from tests.agents.machines import FOREVER, Node, play, until
from tests.agents.orders import gone, running, spec


class TestAnAgent:
    def test_starts_what_is_ordered_and_tells_that_it_runs(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            async with node.working():
                await until(lambda: node.portal.requests)
                node.portal.order(running(spec=replace(FOREVER, ports=(22,))))
                await until(lambda: node.portal.phase() == Phase.RUNNING)

            seen = node.portal.seen()
            assert seen is not None
            assert seen.endpoints == {"22": "127.0.0.1:20000"}

        play(tmp_path, scenario)

    def test_stops_and_says_gone_until_the_order_has_disappeared(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            async with node.working():
                node.portal.order(running(spec=FOREVER))
                await until(lambda: node.portal.phase() == Phase.RUNNING)
                node.portal.order(gone())
                await until(lambda: node.portal.phase() == Phase.GONE)
                node.portal.order()
                await until(lambda: node.portal.seen() is None)

            assert await node.runtime.containers() == []

        play(tmp_path, scenario)

    def test_tells_the_exit_code_of_what_ended_by_itself(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            async with node.working():
                node.portal.order(running(spec=spec(command=("sleep", "0.05"))))
                await until(lambda: node.portal.phase() == Phase.EXITED)

            seen = node.portal.seen()
            assert seen is not None
            assert seen.exit_code == 0

        play(tmp_path, scenario)

    def test_tells_why_a_start_failed_and_leaves_nothing(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            async with node.working():
                node.portal.order(running(spec=spec(image="example.org/missing:1")))
                await until(lambda: node.portal.phase() == Phase.FAILED)

            seen = node.portal.seen()
            assert seen is not None
            assert seen.error_code == ErrorCode.IMAGE_UNAVAILABLE
            assert "example.org/missing:1" in seen.error
            assert await node.runtime.containers() == []

        play(tmp_path, scenario)

    def test_cancels_a_start_that_is_taken_back(self, tmp_path: Path) -> None:
        class Endless(SimulatedRuntime):
            async def pull(self, image: str, *, progress: Callable[[int], None]) -> None:
                progress(7)
                await asyncio.Event().wait()

        async def scenario(node: Node) -> None:
            node.runtime = node.make_runtime(Endless)
            async with node.working():
                node.portal.order(running(spec=FOREVER))
                await until(lambda: node.portal.phase() == Phase.PULLING)
                node.portal.order(gone())
                await until(lambda: node.portal.phase() == Phase.GONE)

            first = next(r.instances[0] for r in node.portal.requests if r.instances)
            assert first.percent == 7

        play(tmp_path, scenario)

    def test_tells_a_burst_of_facts_in_few_reports(self, tmp_path: Path) -> None:
        orders = [running(f"i{number}", spec=FOREVER) for number in range(50)]

        async def scenario(node: Node) -> None:
            async with node.working():
                await until(lambda: node.portal.requests)
                node.portal.order(*orders)
                await until(
                    lambda: (
                        {item.phase for item in node.portal.requests[-1].instances}
                        == {Phase.RUNNING}
                    )
                )

            assert len(node.portal.requests) < 20

        play(tmp_path, scenario)

    def test_tells_a_pull_of_many_steps_in_few_reports(self, tmp_path: Path) -> None:
        class InSteps(SimulatedRuntime):
            async def pull(self, image: str, *, progress: Callable[[int], None]) -> None:
                for percent in range(100):
                    progress(percent)
                    await asyncio.sleep(0.003)

        async def scenario(node: Node) -> None:
            node.runtime = node.make_runtime(InSteps)
            async with node.working():
                await until(lambda: node.portal.requests)
                node.portal.order(running(spec=FOREVER))
                await until(lambda: node.portal.phase() == Phase.RUNNING)

            assert len(node.portal.requests) < 12

        play(tmp_path, scenario)

    def test_leaves_containers_alone_when_it_is_told_to_stop(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            async with node.working():
                node.portal.order(running(spec=FOREVER))
                await until(lambda: node.portal.phase() == Phase.RUNNING)

            assert len(await node.runtime.containers()) == 1

        play(tmp_path, scenario)

    def test_reports_a_container_that_disappeared_and_does_not_start_it_again(
        self, tmp_path: Path
    ) -> None:
        async def scenario(node: Node) -> None:
            async with node.working():
                node.portal.order(running(spec=FOREVER))
                await until(lambda: node.portal.phase() == Phase.RUNNING)
                await node.runtime.remove("i1", 1)
                notice = node.runtime._noticed  # as the engine's event would
                assert notice is not None
                notice()
                await until(lambda: node.portal.phase() == Phase.GONE)

            assert await node.runtime.containers() == []

        play(tmp_path, scenario)


class TestAfterARestart:
    def test_an_agent_adopts_what_runs_without_touching_it(self, tmp_path: Path) -> None:
        class Untouchable(SimulatedRuntime):
            async def start(self, *_: Any, **__: Any) -> Container:
                raise AssertionError("a running container was started")

            async def probe(self, *_: Any, **__: Any) -> bool:
                raise AssertionError("a container that the portal calls running was probed")

        async def scenario(node: Node) -> None:
            order = running(spec=FOREVER)
            async with node.working():
                node.portal.order(order)
                await until(lambda: node.portal.phase() == Phase.RUNNING)
            node.portal.requests.clear()
            node.portal.order(replace(order, may_start=False, keeps_running=True))
            node.runtime = node.make_runtime(Untouchable)
            async with node.working():
                await until(lambda: node.portal.phase() == Phase.RUNNING)

            phases = {item.phase for r in node.portal.requests for item in r.instances}
            assert phases <= {Phase.PROBING, Phase.RUNNING}

        play(tmp_path, scenario)

    def test_an_agent_tells_how_a_container_ended_meanwhile(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            await node.runtime.start("i1", 1, spec(command=("exit", "4")))
            node.portal.order(running(may_start=False, spec=spec(command=("exit", "4"))))
            async with node.working():
                await until(lambda: node.portal.phase() == Phase.EXITED)

            seen = node.portal.seen()
            assert seen is not None
            assert seen.exit_code == 4

        play(tmp_path, scenario)

    def test_an_agent_says_nothing_before_it_knows_what_exists(self, tmp_path: Path) -> None:
        class Hidden(SimulatedRuntime):
            away = True

            async def containers(self) -> list[Container]:
                if self.away:
                    raise RuntimeAway("not up yet")
                return await super().containers()

        async def scenario(node: Node) -> None:
            node.runtime = hidden = node.make_runtime(Hidden)
            async with node.working():
                await asyncio.sleep(0.2)
                assert node.portal.requests == []
                hidden.away = False  # type: ignore[attr-defined]
                await until(lambda: node.portal.requests)

        play(tmp_path, scenario)
