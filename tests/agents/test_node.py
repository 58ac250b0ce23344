"""A node from its environment to its first sync, and how its program ends."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from agents import __main__, node, state_folder
from agents.client import Rejected, Unreachable
from agents.config import AgentConfig, RuntimeChoice, SimulatedModel
from agents.containers import RuntimeAway
from agents.protocol import EnrollReply, EnrollRequest, SyncReply, SyncRequest
from agents.runtime import DockerRuntime
from tests.agents.machines import ScriptedPortal, until

TOKEN_REFUSED = Rejected(401, "node_token_refused", "This node token opens nothing here.")


class WholePortal:
    """Stands where `client.Client` does: takes join tokens, and knows the secrets it gave."""

    enrolled: ClassVar[list[EnrollRequest]] = []
    synced: ClassVar[list[SyncRequest]] = []
    fault: ClassVar[Exception | None] = None

    def __init__(self, _url: str, *, node_token: str = "") -> None:
        self._node_token = node_token
        self._script = ScriptedPortal()

    async def enroll(self, request: EnrollRequest) -> EnrollReply:
        if self.fault is not None:
            raise self.fault
        if request.join_token != "hrj_good":
            raise Rejected(422, "join_token_refused", "This join token is unknown.")
        self.enrolled.append(request)
        return EnrollReply("hrn_secret", request.node_name, 1)

    async def sync(self, request: SyncRequest) -> SyncReply:
        if self._node_token != "hrn_secret":
            raise TOKEN_REFUSED
        self.synced.append(request)
        return await self._script.sync(request)

    async def aclose(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def portal(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[WholePortal]]:
    monkeypatch.setattr(node, "Client", WholePortal)
    yield WholePortal
    WholePortal.enrolled.clear()
    WholePortal.synced.clear()
    WholePortal.fault = None


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    return AgentConfig(
        "http://portal",
        tmp_path,
        "rack-1",
        join_token="hrj_good",
        runtime=RuntimeChoice.SIMULATED,
        simulated_gpus=(SimulatedModel(2, "NVIDIA L4", 23_034),),
    )


def serve_until_first_sync(config: AgentConfig) -> None:
    async def scenario() -> None:
        stop = asyncio.Event()
        serving = asyncio.create_task(node.serve(config, stop))
        before = len(WholePortal.synced)
        await until(lambda: serving.done() or len(WholePortal.synced) > before)
        stop.set()
        await asyncio.wait_for(serving, 5.0)

    asyncio.run(scenario())


class TestServe:
    def test_enrols_once_and_then_syncs_under_its_own_secret(
        self, config: AgentConfig, portal: type[WholePortal]
    ) -> None:
        serve_until_first_sync(config)
        serve_until_first_sync(replace(config, join_token=""))

        [request] = portal.enrolled
        assert [gpu.model for gpu in request.inventory.gpus] == ["NVIDIA L4"] * 2
        assert request.inventory == portal.synced[-1].inventory
        assert portal.synced[0].run_id != portal.synced[-1].run_id

    def test_says_what_to_do_where_there_is_no_join_token(self, config: AgentConfig) -> None:
        with pytest.raises(node.NotEnrolled, match="HEADRACE_JOIN_TOKEN"):
            serve_until_first_sync(replace(config, join_token=""))

    def test_keeps_nothing_of_a_join_token_that_is_refused(self, config: AgentConfig) -> None:
        with pytest.raises(Rejected, match="unknown"):
            serve_until_first_sync(replace(config, join_token="hrj_used"))

        assert state_folder.load(config.state) is None

    def test_waits_for_a_portal_that_is_away(
        self, config: AgentConfig, portal: type[WholePortal]
    ) -> None:
        portal.fault = Unreachable("connection refused")

        async def scenario() -> None:
            stop = asyncio.Event()
            serving = asyncio.create_task(node.serve(config, stop))
            await asyncio.sleep(0.2)
            portal.fault = None
            await until(lambda: portal.synced)
            stop.set()
            await serving

        asyncio.run(scenario())

    def test_can_be_stopped_while_it_waits(
        self, config: AgentConfig, portal: type[WholePortal]
    ) -> None:
        portal.fault = Unreachable("connection refused")

        async def scenario() -> None:
            stop = asyncio.Event()
            serving = asyncio.create_task(node.serve(config, stop))
            await asyncio.sleep(0.1)
            stop.set()
            await asyncio.wait_for(serving, 2.0)

        asyncio.run(scenario())

        assert state_folder.load(config.state) is None

    def test_lets_two_nodes_live_in_one_process_but_not_in_one_folder(
        self, config: AgentConfig, portal: type[WholePortal]
    ) -> None:
        async def scenario() -> None:
            stop = asyncio.Event()
            other = replace(config, state=config.state / "other", node_name="rack-2")
            both = [asyncio.create_task(node.serve(each, stop)) for each in (config, other)]
            await until(lambda: len({request.run_id for request in portal.synced}) == 2)
            with pytest.raises(state_folder.StateFolderUnusable):
                await node.serve(config, asyncio.Event())
            stop.set()
            await asyncio.gather(*both)

        asyncio.run(scenario())


class TestTheRuntime:
    def test_once_chosen_does_not_change_with_the_weather(
        self, config: AgentConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An engine that is down at one start must not make customers' containers "gone"."""

        async def is_away(_: DockerRuntime) -> None:
            raise RuntimeAway("no such file")

        monkeypatch.setattr(DockerRuntime, "host", is_away)
        automatic = replace(config, runtime=RuntimeChoice.AUTO)

        serve_until_first_sync(automatic)
        first = state_folder.load(config.state)
        assert first is not None
        assert first.runtime == RuntimeChoice.SIMULATED

        state_folder.save(config.state, replace(first, runtime=RuntimeChoice.DOCKER))

        async def scenario() -> None:
            stop = asyncio.Event()
            before = len(WholePortal.synced)
            serving = asyncio.create_task(node.serve(automatic, stop))
            await asyncio.sleep(0.3)
            # It waits for its engine, and says nothing meanwhile.
            assert len(WholePortal.synced) == before
            stop.set()
            await serving

        asyncio.run(scenario())


class TestTheProgram:
    @pytest.fixture
    def environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADRACE_URL", "http://127.0.0.1:1")
        monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
        monkeypatch.setenv("HEADRACE_NODE_NAME", "rack-1")
        monkeypatch.setenv("HEADRACE_RUNTIME", "simulated")

    @pytest.mark.usefixtures("environment")
    def test_ends_with_2_and_a_sentence_where_a_variable_makes_no_sense(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("HEADRACE_RUNTIME", "podman")

        assert __main__.main() == 2
        assert "HEADRACE_RUNTIME must be one of" in caplog.text

    @pytest.mark.usefixtures("environment")
    def test_ends_with_2_where_the_node_is_not_enrolled(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert __main__.main() == 2
        assert "make a join token" in caplog.text

    @pytest.mark.usefixtures("environment")
    def test_ends_with_3_where_the_join_token_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("HEADRACE_JOIN_TOKEN", "hrj_used")

        assert __main__.main() == 3
        assert "This join token is unknown." in caplog.text

    @pytest.mark.usefixtures("environment")
    def test_ends_with_3_where_the_node_was_retired(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        retired = state_folder.NodeIdentity("rack-1", "hrn_old", 1, RuntimeChoice.SIMULATED)
        state_folder.save(tmp_path, retired)

        assert __main__.main() == 3
        assert "start it with a new join token" in caplog.text

    @pytest.mark.usefixtures("environment")
    def test_ends_cleanly_when_it_is_told_to(self, tmp_path: Path) -> None:
        program = subprocess.Popen(
            [sys.executable, "-m", "agents"],
            env=os.environ | {"HEADRACE_JOIN_TOKEN": "hrj_good"},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert program.stderr is not None
        said = program.stderr.readline()
        program.send_signal(signal.SIGTERM)

        rest = program.communicate(timeout=10)[1]

        assert "waits to enrol" in said
        assert "containers run on" in rest
        assert program.returncode == 0
