"""Stand-ins with behaviour for what lies outside: a Docker Engine and the NVML library."""

import itertools
import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from docker.errors import APIError, NotFound
from requests import Response

MIB = 1024 * 1024


def refusal(status: int, text: str) -> APIError:
    """What docker-py raises for an engine's answer."""
    response = Response()
    response.status_code = status
    kind = NotFound if status == 404 else APIError
    return kind(text, response=response, explanation=text)


@dataclass
class FakeContainer:
    """One container of FakeDocker, as `docker inspect` tells of it."""

    id: str
    name: str
    image: str
    config: dict[str, Any]
    host_config: dict[str, Any]
    status: str = "created"
    exit_code: int = 0
    oom_killed: bool = False
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.config["labels"])

    @property
    def host_ports(self) -> set[tuple[str, int]]:
        return set(self.host_config["port_bindings"].values())

    def inspect(self) -> dict[str, Any]:
        return {
            "Id": self.id,
            "Config": {"Labels": self.labels},
            "State": {
                "Status": self.status,
                "Running": self.status == "running",
                "ExitCode": self.exit_code,
                "OOMKilled": self.oom_killed,
            },
            "NetworkSettings": {"Networks": {"headrace": {"IPAddress": "127.0.0.1"}}},
        }


class FakeDocker:
    """The calls of docker-py's low-level client that the agent makes, on containers in memory.

    `faults` maps a call's name to errors that its next calls raise, one each. `after` maps it to
    errors that are raised once the call has had its effect: the answer that never arrived.
    `slow` is how many seconds a call takes.
    """

    def __init__(self, *, images: set[str] | None = None) -> None:
        self.images = images if images is not None else {"rig/bb:1"}
        self.registry: dict[str, list[dict[str, Any]]] = {}
        self.made: dict[str, FakeContainer] = {}
        self.networks_made: list[dict[str, Any]] = []
        self.faults: dict[str, list[Exception]] = {}
        self.after: dict[str, list[Exception]] = {}
        self.slow: dict[str, float] = {}
        self.taken_ports: set[tuple[str, int]] = set()
        self.calls: list[str] = []
        self._serial = itertools.count(1)
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def info(self) -> dict[str, Any]:
        self._begin("info")
        return {"ServerVersion": "28.5.2", "NCPU": 4, "MemTotal": 16_384 * MIB}

    def inspect_image(self, image: str) -> dict[str, Any]:
        self._begin("inspect_image")
        if image not in self.images:
            raise refusal(404, f"No such image: {image}")
        return {"Id": image}

    def pull(self, image: str, *, stream: bool, decode: bool) -> Iterator[dict[str, Any]]:
        assert stream
        assert decode
        self._begin("pull")
        if image not in self.registry:
            raise refusal(404, f"manifest for {image} not found: manifest unknown")
        yield from self.registry[image]
        self.images.add(image)

    def networks(self, names: list[str]) -> list[dict[str, Any]]:
        return [network for network in self.networks_made if network["Name"] in names]

    def create_network(self, name: str, **options: Any) -> None:
        self._begin("create_network")
        self.networks_made.append({"Name": name, **options})

    def create_host_config(self, **limits: Any) -> dict[str, Any]:
        return limits

    def create_container(
        self, image: str, *, name: str, host_config: dict[str, Any], **config: Any
    ) -> dict[str, Any]:
        self._begin("create_container")
        if image not in self.images:
            raise refusal(404, f"No such image: {image}")
        if name in self.made:
            raise refusal(409, f"Conflict. The container name {name} is already in use")
        container = FakeContainer(f"id-{next(self._serial)}", name, image, config, host_config)
        self.made[name] = container
        self._end("create_container")
        return {"Id": container.id}

    def start(self, identifier: str) -> None:
        container = self._get(identifier)
        self._begin("start")
        if container.host_ports & self._ports_in_use():
            raise refusal(
                500, "driver failed programming external connectivity: port is already allocated"
            )
        container.status = "running"
        self._end("start")

    def inspect_container(self, identifier: str) -> dict[str, Any]:
        self._begin("inspect_container")
        return self._get(identifier).inspect()

    def containers(self, *, all: bool, filters: dict[str, str]) -> list[dict[str, Any]]:
        assert all
        self._begin("containers")
        name, _, value = filters["label"].partition("=")
        return [{"Id": c.id} for c in self.made.values() if c.labels.get(name) == value]

    def stop(self, identifier: str, *, timeout: int) -> None:
        container = self._get(identifier)
        self._begin("stop")
        assert timeout >= 0
        self.end(container.name, exit_code=143)
        self._end("stop")

    def remove_container(self, identifier: str, *, v: bool, force: bool) -> None:
        assert v
        assert force
        container = self._get(identifier)
        self._begin("remove_container")
        del self.made[container.name]
        self._end("remove_container")

    def get_archive(self, identifier: str, path: str) -> tuple[Iterator[bytes], dict[str, Any]]:
        files = self._get(identifier).files
        if path not in files:
            raise refusal(404, f"Could not find the file {path}")
        return iter([files[path]]), {}

    def put_archive(self, identifier: str, path: str, data: bytes) -> None:
        self._begin("put_archive")
        self._get(identifier).files[path] = data

    def events(self, *, filters: dict[str, Any], decode: bool) -> "FakeEvents":
        assert decode
        self._begin("events")
        return FakeEvents(self._events)

    def end(self, name: str, *, exit_code: int = 0, oom_killed: bool = False) -> None:
        """A container ends by itself."""
        container = self.made[name]
        container.status, container.exit_code = "exited", exit_code
        container.oom_killed = oom_killed
        self.tell(name, "die")

    def tell(self, name: str, action: str) -> None:
        """An event about a container."""
        attributes = self.made[name].labels
        self._events.put({"Action": action, "Actor": {"Attributes": attributes}})

    def hang_up(self) -> None:
        """The stream of events ends, as when an engine is restarted."""
        self._events.put(None)

    def _get(self, identifier: str) -> FakeContainer:
        for container in self.made.values():
            if identifier in (container.id, container.name):
                return container
        raise refusal(404, f"No such container: {identifier}")

    def _ports_in_use(self) -> set[tuple[str, int]]:
        running = (c for c in self.made.values() if c.status == "running")
        return {port for container in running for port in container.host_ports} | self.taken_ports

    def _begin(self, call: str) -> None:
        self.calls.append(call)
        time.sleep(self.slow.get(call, 0.0))
        if faults := self.faults.get(call):
            raise faults.pop(0)

    def _end(self, call: str) -> None:
        if faults := self.after.get(call):
            raise faults.pop(0)


class FakeEvents:
    """A stream of events that another thread may close."""

    def __init__(self, events: "queue.Queue[dict[str, Any] | None]") -> None:
        self._events = events

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (event := self._events.get()) is not None:
            yield event

    def close(self) -> None:
        self._events.put(None)


@dataclass
class FakeGpu:
    """One device of FakeNvml; `fault` is raised by every call about it but for its UUID."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    memory_mib: int = 81_559
    fault: Exception | None = None


class NvmlFault(Exception):
    """NVMLError."""


class NvmlMismatch(Exception):
    """NVMLLibraryMismatchError, which is none of NVMLError's."""


class FakeNvml(ModuleType):
    """The functions of pynvml that the agent calls. Without a driver, `nvmlInit` fails."""

    NVMLError = NvmlFault
    NVMLLibraryMismatchError = NvmlMismatch
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *gpus: FakeGpu, driver: str = "550.127.05") -> None:
        super().__init__("fake_nvml")
        self.gpus = list(gpus)
        self.driver = driver
        self.init_fault: Exception | None = None

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_fault is not None:
            raise self.init_fault

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Nothing is held."""

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return self.driver

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:  # noqa: N802
        return str(self._answer(gpu, gpu.name))

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=self._answer(gpu, gpu.memory_mib * MIB))

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, _: int) -> int:  # noqa: N802
        return int(self._answer(gpu, 34))

    def _answer[T](self, gpu: FakeGpu, value: T) -> T:
        if gpu.fault is not None:
            raise gpu.fault
        return value
