"""The Docker runtime against an engine with faults that a real one cannot be made to have."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agents import archives
from agents.containers import Container, Runtime, RuntimeAway, StartRefused, State
from agents.hardening import CAPABILITIES
from agents.ports import PortRange
from agents.protocol import ErrorCode
from agents.runtime import DockerRuntime
from tests.agents.orders import spec
from tests.fakes import FakeContainer, FakeDocker, refusal

FOREVER = spec(command=("sleep", "600"))


def runtime_for(
    engine: FakeDocker,
    *,
    node: str = "rack-1",
    last_port: int = 20_009,
    pretended_gpus: frozenset[str] = frozenset(),
) -> DockerRuntime:
    ports = PortRange("10.0.0.5", 20_000, last_port)
    return DockerRuntime(lambda: engine, node=node, ports=ports, pretended_gpus=pretended_gpus)


def done[T](work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def started(engine: FakeDocker, wanted: Any = FOREVER, **options: Any) -> FakeContainer:
    done(runtime_for(engine, **options).start("i1", 1, wanted))
    return engine.made["hr-i1-g1"]


class TestWhatACustomerGets:
    def test_is_hardened(self) -> None:
        limits = started(FakeDocker(), spec(memory_mib=4096, vcpus=2)).host_config

        assert limits["cap_drop"] == ["ALL"]
        assert limits["cap_add"] == list(CAPABILITIES)
        assert not {"SYS_ADMIN", "MKNOD", "NET_RAW", "NET_ADMIN", "SYS_PTRACE"} & set(CAPABILITIES)
        assert limits["security_opt"] == ["no-new-privileges:true"]
        assert limits["mem_limit"] == limits["memswap_limit"] == "4096m"
        assert limits["shm_size"] == "2048m"
        assert limits["nano_cpus"] == 2_000_000_000
        assert limits["pids_limit"] > 0
        assert limits["init"] is True
        assert limits["ipc_mode"] == "private"
        assert limits["restart_policy"] == {"Name": "no"}
        assert limits["log_config"]["config"]["max-size"]
        assert not {"pid_mode", "userns_mode", "privileged", "binds", "devices"} & set(limits)

    def test_has_no_more_cpus_than_the_machine(self) -> None:
        assert started(FakeDocker(), spec(vcpus=64)).host_config["nano_cpus"] == 4_000_000_000

    def test_has_its_gpus_by_one_request(self) -> None:
        container = started(FakeDocker(), spec(gpu_uuids=("GPU-a", "GPU-b")))

        assert container.host_config["device_requests"] == [
            {"device_ids": ["GPU-a", "GPU-b"], "capabilities": [["gpu"]]}
        ]

    def test_has_none_where_it_rents_none_whatever_its_image_asks_for(self) -> None:
        container = started(FakeDocker(), spec(env={"NVIDIA_VISIBLE_DEVICES": "all"}))

        assert container.host_config["device_requests"] == []
        assert container.config["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"

    def test_has_pretended_gpus_in_name_only(self) -> None:
        container = started(
            FakeDocker(), spec(gpu_uuids=("GPU-a",)), pretended_gpus=frozenset({"GPU-a"})
        )

        assert container.host_config["device_requests"] == []
        assert container.labels["headrace.gpus"] == "GPU-a"

    def test_has_its_keys_in_the_environment_and_not_in_a_label(self) -> None:
        container = started(FakeDocker(), spec(ssh_keys=("ssh-ed25519 A a", "ssh-ed25519 B b")))

        assert (
            container.config["environment"]["AUTHORIZED_KEYS"] == "ssh-ed25519 A a\nssh-ed25519 B b"
        )
        assert "ssh-ed25519" not in str(container.labels)

    def test_has_its_variables_in_ssh_sessions_too(self) -> None:
        wanted = spec(ssh_keys=("ssh-ed25519 A a",), env={"HF_HOME": "/data"}, gpu_uuids=("GPU-a",))

        written = archives.text_in(started(FakeDocker(), wanted).files["/etc"])

        assert written.splitlines() == ['HF_HOME="/data"', 'NVIDIA_VISIBLE_DEVICES="GPU-a"']

    def test_starts_even_where_its_image_takes_no_variables(self) -> None:
        engine = FakeDocker()
        engine.faults["put_archive"] = [refusal(500, "container rootfs is marked read-only")]

        assert started(engine, spec(ssh_keys=("ssh-ed25519 A a",))).status == "running"

    def test_cannot_speak_to_other_containers(self) -> None:
        engine = FakeDocker()

        container = started(engine)

        [network] = engine.networks_made
        assert network["options"] == {"com.docker.network.bridge.enable_icc": "false"}
        assert container.host_config["network_mode"] == network["Name"] == "headrace"


class TestAFailedStart:
    @pytest.mark.parametrize(
        ("text", "code"),
        [
            (
                "nvidia-container-cli: device error: unknown device",
                ErrorCode.GPU_UNAVAILABLE,
            ),
            ('could not select device driver "" with capabilities', ErrorCode.GPU_UNAVAILABLE),
            ('exec: "nonsense": executable file not found in $PATH', ErrorCode.START_FAILED),
        ],
    )
    def test_leaves_no_container_and_says_why(self, text: str, code: ErrorCode) -> None:
        engine = FakeDocker()
        engine.faults["start"] = [refusal(500, text)]

        with pytest.raises(StartRefused) as caught:
            started(engine)

        assert caught.value.code == code
        assert str(caught.value) == text
        assert engine.made == {}

    def test_for_a_taken_port_is_tried_with_another(self) -> None:
        engine = FakeDocker()
        engine.taken_ports.add(("10.0.0.5", 20_000))

        container = started(engine, spec(ports=(22,)))

        assert container.host_ports == {("10.0.0.5", 20_001)}

    def test_gives_up_where_every_port_is_taken(self) -> None:
        engine = FakeDocker()
        engine.taken_ports |= {("10.0.0.5", port) for port in range(20_000, 20_010)}

        with pytest.raises(StartRefused, match="No free port"):
            started(engine, spec(ports=(22,)))

        assert engine.made == {}

    def test_for_an_image_that_vanished_says_so(self) -> None:
        with pytest.raises(StartRefused, match="gone:1") as caught:
            started(FakeDocker(), spec(image="gone:1"))

        assert caught.value.code == ErrorCode.IMAGE_UNAVAILABLE


class TestAnEndedContainer:
    def test_is_not_started_again(self) -> None:
        engine = FakeDocker()
        started(engine)
        engine.end("hr-i1-g1", exit_code=3)

        container = done(runtime_for(engine).start("i1", 1, FOREVER))

        assert (container.state, container.exit_code) == (State.EXITED, 3)


class TestAnAnswerThatNeverArrives:
    """Time-outs say nothing about what happened, so the crew asks again."""

    @pytest.mark.parametrize("call", ["create_container", "start"])
    def test_is_asked_for_again_and_makes_one_container(self, call: str) -> None:
        engine = FakeDocker()
        engine.after[call] = [ConnectionError("read timed out")]
        runtime = runtime_for(engine)

        with pytest.raises(RuntimeAway):
            done(runtime.start("i1", 1, FOREVER))
        container = done(runtime.start("i1", 1, FOREVER))

        assert container.state == State.RUNNING
        assert len(engine.made) == 1

    def test_to_a_creation_keeps_the_ports_that_it_took(self) -> None:
        engine = FakeDocker()
        engine.after["create_container"] = [ConnectionError("read timed out")]
        runtime = runtime_for(engine, last_port=20_001)
        with pytest.raises(RuntimeAway):
            done(runtime.start("i1", 1, spec(ports=(22,))))

        first = done(runtime.start("i1", 1, spec(ports=(22,))))
        second = done(runtime.start("i2", 1, spec(ports=(22,))))

        assert first.endpoints == {"22": "10.0.0.5:20000"}
        assert second.endpoints == {"22": "10.0.0.5:20001"}
        assert engine.calls.count("start") == 2  # no port was tried in vain

    def test_to_a_removal_is_no_proof_that_it_failed(self) -> None:
        engine = FakeDocker()
        runtime = runtime_for(engine)
        done(runtime.start("i1", 1, FOREVER))
        engine.after["remove_container"] = [ConnectionError("read timed out")]

        with pytest.raises(RuntimeAway):
            done(runtime.remove("i1", 1))
        done(runtime.remove("i1", 1))

        assert engine.made == {}


class TestAName:
    def test_taken_by_another_nodes_container_is_left_to_it(self) -> None:
        engine = FakeDocker()
        done(runtime_for(engine, node="rack-2").start("i1", 1, spec(command=("sleep", "5"))))

        with pytest.raises(StartRefused, match="taken"):
            done(runtime_for(engine).start("i1", 1, FOREVER))

        assert engine.made["hr-i1-g1"].labels["headrace.node"] == "rack-2"


class TestContainers:
    def test_one_with_labels_that_make_no_sense_does_not_hide_the_others(self) -> None:
        engine = FakeDocker()
        started(engine)
        engine.create_container(
            "rig/bb:1", name="odd", host_config={}, labels={"headrace.node": "rack-1"}
        )

        [container] = done(runtime_for(engine).containers())

        assert container.key == ("i1", 1)

    def test_of_another_node_are_none_of_ours(self) -> None:
        engine = FakeDocker()
        started(engine)
        other = runtime_for(engine, node="rack-2")

        assert done(other.containers()) == []

    def test_are_unknown_and_not_absent_while_the_engine_is_away(self) -> None:
        engine = FakeDocker()
        engine.faults["containers"] = [ConnectionError("no such file")]

        with pytest.raises(RuntimeAway):
            done(runtime_for(engine).containers())


class TestPull:
    def test_tells_percents_that_never_fall(self) -> None:
        engine = FakeDocker()
        half = {"current": 1, "total": 2}
        engine.registry["big:1"] = [
            {"status": "Pulling from big", "id": "1"},
            {"status": "Pulling fs layer", "id": "a"},
            {"status": "Downloading", "id": "a", "progressDetail": half},
            {"status": "Pulling fs layer", "id": "b"},
            {"status": "Pull complete", "id": "a"},
            {"status": "Pull complete", "id": "b"},
        ]
        told: list[int] = []

        async def scenario() -> None:
            await runtime_for(engine).pull("big:1", progress=told.append)
            await asyncio.sleep(0)

        done(scenario())

        assert told == sorted(told)
        assert told[-1] == 100
        assert "big:1" in engine.images

    def test_asks_no_registry_for_what_is_here(self) -> None:
        engine = FakeDocker()

        done(runtime_for(engine).pull("rig/bb:1", progress=lambda _: None))

        assert "pull" not in engine.calls

    @pytest.mark.parametrize(
        ("lines", "code"),
        [
            ([{"error": "pull access denied for x"}], ErrorCode.IMAGE_UNAVAILABLE),
            ([{"error": "dial tcp: i/o timeout"}], ErrorCode.START_FAILED),
            (None, ErrorCode.IMAGE_UNAVAILABLE),
        ],
    )
    def test_tells_a_missing_image_from_a_registry_that_is_away(
        self, lines: list[dict[str, Any]] | None, code: ErrorCode
    ) -> None:
        engine = FakeDocker()
        if lines is not None:
            engine.registry["x:1"] = lines

        with pytest.raises(StartRefused, match="Image x:1 cannot be pulled") as caught:
            done(runtime_for(engine).pull("x:1", progress=lambda _: None))

        assert caught.value.code == code


class TestWatch:
    def watched(self, act: Callable[[FakeDocker, Runtime], None], engine: FakeDocker) -> int:
        """How often something was noticed, looking at the start aside."""

        async def scenario() -> int:
            runtime = runtime_for(engine)
            await runtime.start("i1", 1, FOREVER)
            notices: list[None] = []
            watching = asyncio.create_task(runtime.watch(lambda: notices.append(None)))
            while not notices:
                await asyncio.sleep(0.005)
            act(engine, runtime)
            async with asyncio.timeout(2.0):
                while len(notices) < 2:
                    await asyncio.sleep(0.005)
            watching.cancel()
            await asyncio.wait([watching])
            return len(notices) - 1

        return done(scenario())

    def test_notices_an_end(self) -> None:
        assert self.watched(lambda engine, _: engine.end("hr-i1-g1"), FakeDocker()) == 1

    def test_remembers_that_a_child_was_killed_for_memory(self) -> None:
        async def scenario() -> Container:
            engine = FakeDocker()
            runtime = runtime_for(engine)
            await runtime.start("i1", 1, FOREVER)
            notices: list[None] = []
            watching = asyncio.create_task(runtime.watch(lambda: notices.append(None)))
            while not notices:
                await asyncio.sleep(0.005)
            engine.tell("hr-i1-g1", "oom")
            while len(notices) < 2:
                await asyncio.sleep(0.005)
            watching.cancel()
            await asyncio.wait([watching])
            [container] = await runtime.containers()
            return container

        container = done(scenario())

        assert (container.state, container.oom_killed) == (State.RUNNING, True)

    def test_says_so_when_the_engine_ends_it(self) -> None:
        async def scenario() -> None:
            engine = FakeDocker()
            engine.hang_up()
            async with asyncio.timeout(2.0):
                await runtime_for(engine).watch(lambda: None)

        with pytest.raises(RuntimeAway):
            done(scenario())


class TestACancelledCall:
    def test_is_waited_for_so_that_nothing_appears_later(self) -> None:
        engine = FakeDocker()
        engine.slow["create_container"] = 0.1

        async def scenario() -> set[str]:
            work = asyncio.create_task(runtime_for(engine).start("i1", 1, FOREVER))
            while "create_container" not in engine.calls:
                await asyncio.sleep(0.001)
            work.cancel()
            await asyncio.wait([work])
            return set(engine.made)

        assert done(scenario()) == {"hr-i1-g1"}
