"""The rig of tests/rig, started once for these tests, and its engine, empty for each of them."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from docker import DockerClient
from docker.models.containers import Container
from docker.types import DeviceRequest

COMMAND = Path(__file__).parent.parent / "rig" / "rig"

BUSYBOX, CUDA = "rig/bb:1", "rig/bb-cuda:1"

# From tests/rig/gpus.conf: the device node of each is /dev/nvidia<index>.
GPU_0 = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
GPU_1 = "GPU-bbbbbbbb-0001-4000-8000-000000000001"
SLICE_OF_GPU_3 = "MIG-11111111-0003-5000-8000-000000000000"


@dataclass(frozen=True)
class Rig:
    """Where a started rig is found."""

    docker_host: str
    address: str  # where the ports that its containers publish answer
    state: Path  # the folder of the inventory and of the faults to inject

    def client(self, *, timeout_seconds: float = 60) -> DockerClient:
        # docker-py takes fractions, but its types know whole seconds alone.
        return DockerClient(base_url=self.docker_host, timeout=timeout_seconds)  # type: ignore[arg-type]


def run_rig(*arguments: str, env: dict[str, str] | None = None) -> str:
    """What `rig` printed. It says itself why it refuses, so its errors go through to pytest."""
    done = subprocess.run(
        [COMMAND, *arguments], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def find_rig(*, env: dict[str, str] | None = None) -> Rig | None:
    """The rig that `env` names, or None where it is not up."""
    done = subprocess.run([COMMAND, "env"], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    values = dict(line.split("=", 1) for line in done.stdout.splitlines())
    return Rig(
        docker_host=values["DOCKER_HOST"],
        address=values["HEADRACE_ADVERTISE_ADDRESS"],
        state=Path(values["RIG_STATE"]),
    )


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """A rig that was up before stays up; one that these tests started ends with them."""
    was_up = find_rig() is not None
    run_rig("start")
    found = find_rig()
    assert found is not None
    yield found
    if not was_up:
        run_rig("stop")


@pytest.fixture
def engine(rig: Rig) -> Iterator[DockerClient]:
    """The rig's engine; what a killed run left in it is swept first, what a test leaves, after."""
    client = rig.client()
    _sweep(rig, client)
    yield client
    _sweep(rig, client)
    client.close()


def _sweep(rig: Rig, client: DockerClient) -> None:
    for fault in rig.state.glob("hook_*"):
        fault.unlink()
    for container in client.containers.list(all=True):
        container.remove(force=True, v=True)


def gpus(*uuids: str) -> list[DeviceRequest]:
    return [DeviceRequest(device_ids=list(uuids), capabilities=[["gpu"]])]


type Start = Callable[..., Container]


@pytest.fixture
def start(engine: DockerClient) -> Start:
    """Starts a container that waits; keywords are those of docker-py's `run`."""

    def start_container(
        command: list[str] | None = None, *, image: str = BUSYBOX, **options: object
    ) -> Container:
        waits = ["sleep", "600"]
        return engine.containers.run(image, command or waits, detach=True, init=True, **options)  # type: ignore[call-overload, no-any-return]

    return start_container


def output_of(container: Container, script: str) -> str:
    """What a shell script prints inside a running container, errors included."""
    output = container.exec_run(["sh", "-c", script]).output
    assert isinstance(output, bytes)
    return output.decode()


def gpu_nodes(container: Container) -> set[str]:
    """The GPUs that a container really has. Its environment may name others."""
    names = output_of(container, "ls /dev").split()
    return {name for name in names if name.startswith("nvidia") and name[6:].isdigit()}
