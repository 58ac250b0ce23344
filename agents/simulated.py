"""Containers that only pretend: the contract of Docker without Docker, for demos and tests.

What pretends to run survives a restart of the agent, as real containers do: it stands in a file
of the state folder. There is never anything to log in to.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from agents.containers import Container, Host, StartRefused, State
from agents.facts import Key
from agents.ports import PortRange, PortsExhausted
from agents.protocol import ContainerSpec, ErrorCode
from agents.state_folder import write_whole


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the steps of a pretended start take, in seconds."""

    pull: float = 0.06  # an image that is here already takes none of it
    create: float = 0.03
    settle: float = 0.03
    stop: float = 0.02


@dataclass(frozen=True, slots=True)
class _Pretended:
    """A container as the state file keeps it. Moments are of the wall clock: a restart or a
    reboot of the machine must not stretch its life."""

    instance: str
    generation: int
    spec_digest: str
    gpu_uuids: tuple[str, ...]
    endpoints: dict[str, str]
    ends_at: float | None  # None: runs until it is stopped
    exit_code: int

    def has_ended(self, now: float) -> bool:
        return self.ends_at is not None and self.ends_at <= now


class SimulatedRuntime:
    """Keeps the contract of `agents.containers.Runtime` in memory and in one small file."""

    simulated = True

    def __init__(
        self,
        state: Path,
        *,
        host: Host,
        ports: PortRange,
        pace: Pace | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = state / "simulated.json"
        self._host = host
        self._ports = ports
        self._pace = pace or Pace()
        self._wall_clock = wall_clock
        self._images: set[str] = set()
        self._noticed: Callable[[], None] | None = None
        self._containers: dict[Key, _Pretended] = {}
        for item in _load(self._file):
            self._containers[item.instance, item.generation] = item
            self._ports.hold(item.endpoints.values())

    async def host(self) -> Host:
        return self._host

    async def containers(self) -> list[Container]:
        now = self._wall_clock()
        return [_described(item, now) for item in self._containers.values()]

    async def pull(self, image: str, *, progress: Callable[[int], None]) -> None:
        """Images named `…/missing:…`, or with the tag `does-not-exist`, do not exist."""
        if re.search(r"(^|/)missing(:|$)", image) or image.endswith(":does-not-exist"):
            await asyncio.sleep(self._pace.pull)
            raise StartRefused(
                ErrorCode.IMAGE_UNAVAILABLE, f"Image {image} cannot be pulled: manifest unknown."
            )
        if image in self._images:
            return
        for percent in (0, 50, 100):
            progress(percent)
            await asyncio.sleep(self._pace.pull / 3)
        self._images.add(image)

    async def start(self, instance: str, generation: int, spec: ContainerSpec) -> Container:
        await asyncio.sleep(self._pace.create)
        now = self._wall_clock()
        there = self._containers.get((instance, generation))
        if there is not None and there.spec_digest == spec.digest():
            return _described(there, now)
        self._forget(instance, generation)
        self._check_gpus(spec, now)
        lifetime, exit_code = _course_of(spec.command)
        made = _Pretended(
            instance=instance,
            generation=generation,
            spec_digest=spec.digest(),
            gpu_uuids=spec.gpu_uuids,
            endpoints=self._publish(spec),
            ends_at=None if lifetime is None else now + lifetime,
            exit_code=exit_code,
        )
        self._containers[instance, generation] = made
        self._save()
        self._notice_end_of(made)
        return _described(made, now)

    async def probe(self, container: Container, spec: ContainerSpec) -> bool:
        await asyncio.sleep(self._pace.settle)
        there = self._containers.get(container.key)
        return there is not None and not there.has_ended(self._wall_clock())

    async def stop(self, instance: str, generation: int, *, grace_seconds: float) -> None:
        if (instance, generation) in self._containers:
            await asyncio.sleep(min(self._pace.stop, grace_seconds))

    async def remove(self, instance: str, generation: int) -> None:
        self._forget(instance, generation)
        self._save()

    async def watch(self, noticed: Callable[[], None]) -> None:
        self._noticed = noticed
        for item in self._containers.values():
            self._notice_end_of(item)
        await asyncio.Event().wait()

    def _notice_end_of(self, item: _Pretended) -> None:
        if self._noticed is not None and item.ends_at is not None:
            delay = max(0.0, item.ends_at - self._wall_clock())
            asyncio.get_running_loop().call_later(delay, self._noticed)

    def _check_gpus(self, spec: ContainerSpec, now: float) -> None:
        held = {
            uuid
            for item in self._containers.values()
            if not item.has_ended(now)
            for uuid in item.gpu_uuids
        }
        if taken := held.intersection(spec.gpu_uuids):
            raise StartRefused(
                ErrorCode.GPU_UNAVAILABLE, f"GPU {min(taken)} is in use by another container."
            )

    def _publish(self, spec: ContainerSpec) -> dict[str, str]:
        try:
            return self._ports.take(spec.ports)
        except PortsExhausted as error:
            raise StartRefused(ErrorCode.START_FAILED, str(error)) from error

    def _forget(self, instance: str, generation: int) -> None:
        there = self._containers.pop((instance, generation), None)
        if there is not None:
            self._ports.give_back(there.endpoints.values())

    def _save(self) -> None:
        write_whole(self._file, json.dumps([asdict(item) for item in self._containers.values()]))


def _load(path: Path) -> list[_Pretended]:
    """What pretended to run before; a file that makes no sense counts as none."""
    try:
        items = json.loads(path.read_text())
        return [_Pretended(**{**item, "gpu_uuids": tuple(item["gpu_uuids"])}) for item in items]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _described(item: _Pretended, now: float) -> Container:
    ended = item.has_ended(now)
    return Container(
        instance=item.instance,
        generation=item.generation,
        state=State.EXITED if ended else State.RUNNING,
        spec_digest=item.spec_digest,
        gpu_uuids=item.gpu_uuids,
        endpoints=dict(item.endpoints),
        exit_code=item.exit_code if ended else None,
    )


def _course_of(command: tuple[str, ...]) -> tuple[float | None, int]:
    """How long a command pretends to run (None: until stopped), and its exit code.

    >>> _course_of(("exit", "3")), _course_of(("sleep", "2.5")), _course_of(("python", "x.py"))
    ((0.0, 3), (2.5, 0), (None, 0))
    >>> _course_of(("sh", "-c", "exit 7"))
    (0.0, 7)
    """
    words = command[2].split() if command[:2] == ("sh", "-c") else list(command)
    match words:
        case ["exit", code] if re.fullmatch(r"\d{1,3}", code, re.ASCII):
            return 0.0, int(code) % 256
        case ["sleep", seconds] if re.fullmatch(r"\d{1,9}(\.\d+)?", seconds, re.ASCII):
            return float(seconds), 0
    return None, 0
