"""What goes wrong around an agent: the portal, the engine, a late answer, a fault of ours."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from agents import state_folder
from agents.client import Rejected, Unreachable
from agents.containers import Container, RuntimeAway, StartRefused
from agents.loop import TokenRefused
from agents.protocol import (
    ContainerSpec,
    ErrorCode,
    Phase,
    SyncReply,
    SyncRequest,
)
from agents.simulated import SimulatedRuntime
from tests.agents.machines import FOREVER, Node, ScriptedPortal, play, until
from tests.agents.orders import gone, reply, running, spec


class TestAPortalThatIsAway:
    def test_does_not_end_what_runs_and_is_told_all_when_it_is_back(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            async with node.working():
                node.portal.order(
                    running("i1", spec=FOREVER), running("i2", spec=spec(command=("sleep", "0.2")))
                )
                await until(lambda: node.portal.phase() == Phase.RUNNING)
                node.portal.fault = Unreachable("connection refused")
                await asyncio.sleep(0.4)
                assert len(await node.runtime.containers()) == 2
                node.portal.fault = None
                await until(lambda: node.portal.phase("i2") == Phase.EXITED)

            assert node.portal.phase("i1") == Phase.RUNNING

        play(tmp_path, scenario)

    def test_is_asked_again_without_haste(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            node.portal.fault = Unreachable("connection refused")
            async with node.working():
                await asyncio.sleep(0.5)

            assert 2 < len(node.portal.requests) < 60

        play(tmp_path, scenario)

    def test_lets_a_start_whose_lease_ends_be_given_up(self, tmp_path: Path) -> None:
        class Slow(SimulatedRuntime):
            async def probe(self, container: Container, spec: ContainerSpec) -> bool:
                await asyncio.Event().wait()
                return True

        async def scenario(node: Node) -> None:
            node.runtime = node.make_runtime(Slow)
            async with node.working():
                node.portal.order(running(spec=FOREVER))
                await until(lambda: node.portal.phase() == Phase.PROBING)
                node.portal.fault = Unreachable("connection refused")
                node.clock.seconds += 119.0
                await asyncio.sleep(0.2)
                assert len(await node.runtime.containers()) == 1
                node.clock.seconds += 1.5
                await until(lambda: node.portal.phase() == Phase.GONE)

            assert await node.runtime.containers() == []

        play(tmp_path, scenario)

    def test_lets_what_was_promised_to_keep_running_run(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            async with node.working():
                order = running(spec=FOREVER)
                node.portal.order(order)
                await until(lambda: node.portal.phase() == Phase.RUNNING)
                count = len(node.portal.requests)
                node.portal.order(replace(order, may_start=False, keeps_running=True))
                await until(lambda: len(node.portal.requests) > count)
                node.portal.fault = Unreachable("connection refused")
                node.clock.seconds += 86_400.0
                await asyncio.sleep(0.2)
                assert len(await node.runtime.containers()) == 1

        play(tmp_path, scenario)


class TestAPortalThatRefuses:
    def test_the_nodes_secret_ends_the_agent(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            node.portal.fault = Rejected(401, "node_token_refused", "It opens nothing here.")

            with pytest.raises(TokenRefused, match="opens nothing"):
                await asyncio.wait_for(node.agent().run(asyncio.Event()), 5.0)

        play(tmp_path, scenario)

    def test_one_sync_is_asked_again(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            node.portal.fault = Rejected(409, "gpu_claimed", "Another node has it.")
            async with node.working():
                await until(lambda: len(node.portal.requests) > 2)
                node.portal.fault = None
                node.portal.order(running(spec=FOREVER))
                await until(lambda: node.portal.phase() == Phase.RUNNING)

        play(tmp_path, scenario)


class TestEpochs:
    def test_orders_of_an_earlier_one_are_refused(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario(node: Node) -> None:
            node.identity = replace(node.identity, epoch=5)
            node.portal.order(running(spec=FOREVER), epoch=4)
            async with node.working():
                await until(lambda: len(node.portal.requests) > 3)

            assert await node.runtime.containers() == []

        play(tmp_path, scenario)

        assert "refused orders of epoch 4, since epoch 5 is known" in caplog.text

    def test_a_later_one_is_remembered_beyond_a_restart(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            node.portal.order(epoch=7)
            async with node.working():
                await until(lambda: state_folder.load(node.state) is not None)

        play(tmp_path, scenario)

        identity = state_folder.load(tmp_path)
        assert identity is not None
        assert identity.epoch == 7


class TestAReplyThatComesLate:
    ORDER = running("i1", spec=FOREVER)
    PROMISED = replace(ORDER, may_start=False, keeps_running=True)

    def test_does_not_replace_newer_orders(self, tmp_path: Path) -> None:
        """A report's answer, computed before a held sync's, arrives after it."""
        promised = self.PROMISED

        class Overtaken(ScriptedPortal):
            is_overtaken = False

            async def sync(self, request: SyncRequest) -> SyncReply:
                if request.wait_seconds == 0.0 and not self.is_overtaken:
                    self.is_overtaken, stale = True, self.reply
                    self.requests.append(request)
                    self.order(promised)
                    await asyncio.sleep(0.1)  # the next sync is held by now
                    return stale
                return await super().sync(request)

        async def scenario(node: Node) -> None:
            node.portal = Overtaken()
            async with node.working():
                await until(lambda: node.portal.requests)
                node.portal.order(self.ORDER)
                await until(lambda: node.portal.phase() == Phase.RUNNING)
                await asyncio.sleep(0.2)
                node.portal.fault = Unreachable("connection refused")
                node.clock.seconds += 86_400.0
                await asyncio.sleep(0.2)
                assert len(await node.runtime.containers()) == 1

        play(tmp_path, scenario)

    def test_is_not_passed_over_where_it_is_the_newer_one(self, tmp_path: Path) -> None:
        """The portal ends no held sync for orders that a report was answered with."""
        promised = self.PROMISED

        class Telling(ScriptedPortal):
            has_told = False

            async def sync(self, request: SyncRequest) -> SyncReply:
                if request.wait_seconds == 0.0 and not self.has_told:
                    self.has_told = True
                    self.order(promised)
                    await asyncio.sleep(0.1)  # the next sync is held by now
                    self.reply = reply(promised, running("i2", spec=FOREVER))
                    return self.reply
                return await super().sync(request)

        async def scenario(node: Node) -> None:
            node.portal = Telling()
            async with node.working():
                await until(lambda: node.portal.requests)
                node.portal.order(self.ORDER)
                await until(lambda: node.portal.phase("i2") == Phase.RUNNING, seconds=2.0)

        play(tmp_path, scenario)

    def test_does_not_start_again_what_was_reported_gone(self, tmp_path: Path) -> None:
        async def scenario(node: Node) -> None:
            order = running(spec=FOREVER)
            async with node.working():
                node.portal.order(gone())
                await until(lambda: node.portal.phase() == Phase.GONE)
                node.portal.order()
                await until(lambda: node.portal.seen() is None)
                node.portal.order(order)
                await until(lambda: node.portal.phase() == Phase.GONE)

            assert await node.runtime.containers() == []

        play(tmp_path, scenario)


class TestAnEngineThatDoesNotAnswer:
    def test_is_asked_again_until_a_container_is_really_gone(self, tmp_path: Path) -> None:
        class Stuck(SimulatedRuntime):
            refusals = 3

            async def remove(self, instance: str, generation: int) -> None:
                if self.refusals:
                    self.refusals -= 1
                    raise RuntimeAway("timed out")
                await super().remove(instance, generation)

        async def scenario(node: Node) -> None:
            node.runtime = stuck = node.make_runtime(Stuck)
            async with node.working():
                node.portal.order(running(spec=FOREVER))
                await until(lambda: node.portal.phase() == Phase.RUNNING)
                node.portal.order(gone())
                await until(lambda: node.portal.phase() == Phase.GONE)

                assert stuck.refusals == 0  # type: ignore[attr-defined]
                assert await stuck.containers() == []

        play(tmp_path, scenario)

    def test_does_not_make_containers_count_as_gone(self, tmp_path: Path) -> None:
        class Blinking(SimulatedRuntime):
            blind = False

            async def containers(self) -> list[Container]:
                if self.blind:
                    raise RuntimeAway("timed out")
                return await super().containers()

        async def scenario(node: Node) -> None:
            node.runtime = blinking = node.make_runtime(Blinking)
            async with node.working():
                node.portal.order(running(spec=FOREVER))
                await until(lambda: node.portal.phase() == Phase.RUNNING)
                blinking.blind = True  # type: ignore[attr-defined]
                assert blinking._noticed is not None
                blinking._noticed()
                await asyncio.sleep(0.2)

                assert node.portal.phase() == Phase.RUNNING

        play(tmp_path, scenario)


class TestAFaultOfOurOwn:
    def test_in_one_start_harms_no_other(self, tmp_path: Path) -> None:
        class Faulty(SimulatedRuntime):
            async def start(self, instance: str, generation: int, spec: ContainerSpec) -> Container:
                if instance == "i1":
                    raise ZeroDivisionError
                if instance == "i2":
                    raise StartRefused(ErrorCode.START_FAILED, "No.")
                return await super().start(instance, generation, spec)

        async def scenario(node: Node) -> None:
            node.runtime = node.make_runtime(Faulty)
            async with node.working():
                node.portal.order(*(running(name, spec=FOREVER) for name in ("i1", "i2", "i3")))
                await until(lambda: node.portal.phase("i3") == Phase.RUNNING)
                await until(lambda: node.portal.phase("i1") == Phase.FAILED)
                await until(lambda: node.portal.phase("i2") == Phase.FAILED)

        play(tmp_path, scenario)
