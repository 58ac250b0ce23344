"""What a runtime is: the contract that Docker and the simulation both keep."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from agents.facts import Key
from agents.protocol import ContainerSpec, ErrorCode


class State(StrEnum):
    """What a container does at this moment."""

    CREATED = "created"  # made, but never started
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Container:
    """One container of ours that exists on this machine."""

    instance: str
    generation: int
    state: State
    spec_digest: str
    gpu_uuids: tuple[str, ...] = ()
    endpoints: dict[str, str] = field(default_factory=dict)  # container port → "host:port"
    exit_code: int | None = None
    oom_killed: bool = False

    @property
    def key(self) -> Key:
        return self.instance, self.generation


@dataclass(frozen=True, slots=True)
class Host:
    """The machine as its runtime describes it. Memory in MiB."""

    runtime: str
    vcpus: int
    memory_mib: int


class StartRefused(Exception):
    """A container could not be started; the sentence is for the customer."""

    def __init__(self, code: ErrorCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class RuntimeAway(Exception):
    """The engine does not answer. Nothing is known about its containers until it does."""


class Runtime(Protocol):
    """Makes, finds and removes containers. Every call may raise RuntimeAway.

    Each call may be cancelled; a step that the engine had begun by then is waited for, so that
    no container appears behind the caller's back.
    """

    simulated: bool

    async def host(self) -> Host: ...

    async def containers(self) -> list[Container]:
        """Every container of this node, whatever its state."""
        ...

    async def pull(self, image: str, *, progress: Callable[[int], None]) -> None:
        """Have the image here; tells percents that never fall. Raises StartRefused."""
        ...

    async def start(self, instance: str, generation: int, spec: ContainerSpec) -> Container:
        """Create and start a container, or take up the one that is there with the same spec.

        Raises StartRefused, and then no container of this name is left.
        """
        ...

    async def probe(self, container: Container, spec: ContainerSpec) -> bool:
        """Wait until it is ready; False where it ended meanwhile. Raises StartRefused."""
        ...

    async def stop(self, instance: str, generation: int, *, grace_seconds: float) -> None:
        """Ask it to end, then make it; returns when nothing of it runs. Absent is as good."""
        ...

    async def remove(self, instance: str, generation: int) -> None:
        """Remove it with its anonymous volumes. Absent is as good."""
        ...

    async def watch(self, noticed: Callable[[], None]) -> None:
        """For ever: call `noticed` whenever a container may have ended or disappeared."""
        ...
