"""The contract of `agents.containers.Runtime`, kept by the simulation and by a real engine."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from docker import DockerClient

from agents import runtime as docker_runtime
from agents.containers import Container, Host, Runtime, StartRefused, State
from agents.ports import PortRange
from agents.protocol import ContainerSpec, ErrorCode
from agents.runtime import DockerRuntime
from agents.simulated import SimulatedRuntime
from tests.agents.orders import spec
from tests.docker.conftest import GPU_0, GPU_1, Rig, gpu_nodes, output_of, rig

__all__ = ["rig"]  # the fixture

NODE = "contract-test"
type Make = Callable[[], Runtime]


def simulated(state: Path) -> Runtime:
    host = Host("simulated", 8, 65_536)
    return SimulatedRuntime(state, host=host, ports=PortRange("127.0.0.1", 20_000, 20_099))


def with_docker(rig: Rig) -> DockerRuntime:
    return DockerRuntime(
        lambda: docker_runtime.connect(rig.docker_host),
        node=NODE,
        ports=PortRange(rig.address, 20_000, 20_099),
    )


@pytest.fixture(params=["simulated", pytest.param("docker", marks=pytest.mark.docker)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes a runtime, as each start of the agent does; all see the same containers."""
    if request.param == "simulated":
        yield lambda: simulated(tmp_path)
        return
    found: Rig = request.getfixturevalue("rig")
    sweep(found)
    yield lambda: with_docker(found)
    sweep(found)


def sweep(rig: Rig) -> None:
    client = rig.client()
    for container in client.containers.list(all=True, filters={"label": f"headrace.node={NODE}"}):
        container.remove(force=True, v=True)
    client.close()


def ignore(_: object) -> None:
    """Progress that nobody looks at."""


async def start(runtime: Runtime, wanted: ContainerSpec, instance: str = "i1") -> Container:
    await runtime.pull(wanted.image, progress=ignore)
    return await runtime.start(instance, 1, wanted)


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)


FOREVER = spec(command=("sleep", "600"))


class TestARuntime:
    def test_starts_a_container_that_is_ready_once_it_runs(self, make: Make) -> None:
        async def scenario() -> tuple[Container, bool, list[Container]]:
            runtime = make()
            container = await start(runtime, FOREVER)
            return container, await runtime.probe(container, FOREVER), await runtime.containers()

        container, is_ready, listed = asyncio.run(scenario())

        assert (container.key, container.state) == (("i1", 1), State.RUNNING)
        assert container.spec_digest == FOREVER.digest()
        assert is_ready
        assert listed == [container]

    def test_tells_how_a_container_ended(self, make: Make) -> None:
        short = spec(command=("sh", "-c", "exit 3"))

        async def scenario() -> tuple[bool, Container]:
            runtime = make()
            container = await start(runtime, short)
            is_ready = await runtime.probe(container, short)
            [ended] = await runtime.containers()
            return is_ready, ended

        is_ready, ended = asyncio.run(scenario())

        assert not is_ready
        assert (ended.state, ended.exit_code) == (State.EXITED, 3)

    def test_starts_a_container_once_however_often_it_is_asked(self, make: Make) -> None:
        async def scenario() -> tuple[Container, Container, list[Container]]:
            runtime = make()
            first = await start(runtime, FOREVER)
            # As an agent does that was killed in between.
            again = await start(make(), FOREVER)
            return first, again, await runtime.containers()

        first, again, listed = asyncio.run(scenario())

        assert again == first
        assert listed == [first]

    def test_does_not_start_an_ended_container_again(self, make: Make) -> None:
        short = spec(command=("sh", "-c", "exit 3"))

        async def scenario() -> Container:
            runtime = make()
            container = await start(runtime, short)
            await runtime.probe(container, short)
            return await start(runtime, short)

        assert asyncio.run(scenario()).state == State.EXITED

    def test_replaces_a_container_with_another_spec(self, make: Make) -> None:
        other = spec(command=("sleep", "601"))

        async def scenario() -> list[Container]:
            runtime = make()
            await start(runtime, FOREVER)
            await start(runtime, other)
            return await runtime.containers()

        [listed] = asyncio.run(scenario())

        assert listed.spec_digest == other.digest()

    def test_stops_and_removes_and_does_no_harm_when_nothing_is_there(self, make: Make) -> None:
        async def scenario() -> list[Container]:
            runtime = make()
            await start(runtime, FOREVER)
            for _ in range(2):
                await runtime.stop("i1", 1, grace_seconds=0.0)
                await runtime.remove("i1", 1)
            return await runtime.containers()

        assert asyncio.run(scenario()) == []

    def test_knows_its_containers_after_a_restart_of_the_agent(self, make: Make) -> None:
        wanted = spec(command=("sleep", "600"), gpu_uuids=(), ports=(8080, 22))

        async def scenario() -> tuple[Container, list[Container]]:
            made = await start(make(), wanted)
            return made, await make().containers()

        made, listed = asyncio.run(scenario())

        assert listed == [made]
        assert set(made.endpoints) == {"8080", "22"}

    def test_gives_no_port_to_two_containers(self, make: Make) -> None:
        wanted = spec(command=("sleep", "600"), ports=(8080,))

        async def scenario() -> list[Container]:
            runtime = make()
            await start(runtime, wanted, "i1")
            later = make()
            await later.containers()
            await start(later, wanted, "i2")
            return await later.containers()

        one, other = asyncio.run(scenario())

        assert one.endpoints["8080"] != other.endpoints["8080"]

    def test_notices_within_a_second_that_a_container_ended(self, make: Make) -> None:
        async def scenario() -> float:
            runtime = make()
            noticed = asyncio.Event()
            watching = asyncio.create_task(runtime.watch(noticed.set))
            await start(runtime, spec(command=("sleep", "0.7")))
            loop = asyncio.get_running_loop()
            begun = loop.time()

            async with asyncio.timeout(10.0):
                while all(item.state != State.EXITED for item in await runtime.containers()):
                    await noticed.wait()
                    noticed.clear()
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            return loop.time() - begun

        assert asyncio.run(scenario()) < 0.7 + 1.0

    def test_refuses_an_image_that_does_not_exist(self, make: Make) -> None:
        async def scenario() -> None:
            await start(make(), spec(image="localhost:1/missing:1"))

        with pytest.raises(StartRefused, match="missing:1 cannot be pulled") as refusal:
            asyncio.run(scenario())

        assert refusal.value.code in (ErrorCode.IMAGE_UNAVAILABLE, ErrorCode.START_FAILED)

    def test_tells_what_machine_it_works_on(self, make: Make) -> None:
        host = asyncio.run(make().host())

        assert host.vcpus > 0
        assert host.memory_mib > 0


class TestTheSimulation:
    def test_refuses_a_gpu_that_another_container_holds(self, tmp_path: Path) -> None:
        wanted = spec(command=("sleep", "600"), gpu_uuids=("GPU-1",))

        async def scenario() -> None:
            runtime = simulated(tmp_path)
            await start(runtime, wanted, "i1")
            await start(runtime, wanted, "i2")

        with pytest.raises(StartRefused, match="GPU-1 is in use") as refusal:
            asyncio.run(scenario())

        assert refusal.value.code == ErrorCode.GPU_UNAVAILABLE

    def test_starts_in_less_than_a_fifth_of_a_second(self, tmp_path: Path) -> None:
        async def scenario() -> float:
            runtime, loop = simulated(tmp_path), asyncio.get_running_loop()
            begun = loop.time()
            await runtime.probe(await start(runtime, FOREVER), FOREVER)
            return loop.time() - begun

        assert asyncio.run(scenario()) < 0.2

    def test_tells_how_far_a_pull_has_come(self, tmp_path: Path) -> None:
        told: list[int] = []

        asyncio.run(simulated(tmp_path).pull("ubuntu:24.04", progress=told.append))

        assert told == [0, 50, 100]

    def test_begins_with_nothing_where_its_file_is_damaged(self, tmp_path: Path) -> None:
        (tmp_path / "simulated.json").write_text('[{"instance": 3')

        assert asyncio.run(simulated(tmp_path).containers()) == []


@pytest.mark.docker
class TestDocker:
    @pytest.fixture
    def engine(self, rig: Rig) -> Iterator[DockerClient]:
        sweep(rig)
        client = rig.client()
        yield client
        client.close()
        sweep(rig)

    def test_gives_exactly_the_gpus_of_the_spec(self, rig: Rig, engine: DockerClient) -> None:
        wanted = spec(command=("sleep", "600"), gpu_uuids=(GPU_0, GPU_1))
        none = spec(image="rig/bb-cuda:1", command=("sleep", "600"))

        async def scenario() -> None:
            runtime = with_docker(rig)
            await start(runtime, wanted, "i1")
            await start(runtime, none, "i2")

        asyncio.run(scenario())

        assert gpu_nodes(engine.containers.get("hr-i1-g1")) == {"nvidia0", "nvidia1"}
        assert gpu_nodes(engine.containers.get("hr-i2-g1")) == set()

    def test_refuses_a_gpu_that_is_not_there_and_leaves_nothing(
        self, rig: Rig, engine: DockerClient
    ) -> None:
        with pytest.raises(StartRefused) as refusal:
            asyncio.run(start(with_docker(rig), spec(gpu_uuids=("GPU-unknown",))))

        assert refusal.value.code == ErrorCode.GPU_UNAVAILABLE
        assert asyncio.run(with_docker(rig).containers()) == []

    def test_waits_until_the_port_answers(self, rig: Rig, engine: DockerClient) -> None:
        script = "sleep 1; exec httpd -f -p 8080 -h /etc"
        wanted = spec(command=("sh", "-c", script), ports=(8080,), ready_port=8080)

        async def scenario() -> float:
            runtime, loop = with_docker(rig), asyncio.get_running_loop()
            container = await start(runtime, wanted)
            begun = loop.time()
            assert await runtime.probe(container, wanted)
            return loop.time() - begun

        assert 0.5 < asyncio.run(scenario()) < 3.0

    def test_says_so_when_it_does_not_answer_in_time(self, rig: Rig, engine: DockerClient) -> None:
        wanted = spec(
            command=("sleep", "600"), ports=(8080,), ready_port=8080, ready_timeout_seconds=0.6
        )

        async def scenario() -> None:
            runtime = with_docker(rig)
            await runtime.probe(await start(runtime, wanted), wanted)

        with pytest.raises(StartRefused, match=r"within 0\.6 seconds") as refusal:
            asyncio.run(scenario())

        assert refusal.value.code == ErrorCode.NOT_READY

    def test_keeps_the_containers_apart_from_each_other(
        self, rig: Rig, engine: DockerClient
    ) -> None:
        serving = spec(command=("httpd", "-f", "-p", "8080", "-h", "/etc"))

        async def scenario() -> None:
            runtime = with_docker(rig)
            await start(runtime, serving, "i1")
            await start(runtime, FOREVER, "i2")

        asyncio.run(scenario())

        server = engine.containers.get("hr-i1-g1")
        address = server.attrs["NetworkSettings"]["Networks"]["headrace"]["IPAddress"]
        knock = f"nc -w 2 {address} 8080 </dev/null && echo open"
        assert "open" in output_of(server, knock)
        assert "open" not in output_of(engine.containers.get("hr-i2-g1"), knock)

    def test_tells_of_a_main_process_killed_for_memory(
        self, rig: Rig, engine: DockerClient
    ) -> None:
        hungry = spec(command=("dd", "if=/dev/zero", "of=/dev/null", "bs=200M"))

        async def scenario() -> Container:
            runtime = with_docker(rig)

            async def has_ended() -> bool:
                [container] = await runtime.containers()
                return container.state == State.EXITED

            await start(runtime, hungry)
            await until(has_ended)
            [container] = await runtime.containers()
            return container

        ended = asyncio.run(scenario())

        assert (ended.exit_code, ended.oom_killed) == (137, True)
