"""The cluster as one scheduling cycle sees it, and what the cycle decides. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Shape:
    """What an instance needs of one node."""

    gpu_model: str
    gpu_count: int
    vcpus: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Demand:
    """One queued instance, reduced to what placement needs to know."""

    instance_id: UUID
    shape: Shape


@dataclass(frozen=True, slots=True)
class FreeNode:
    """What is free on one node that takes work: whole GPUs by model, vCPUs and memory."""

    node_id: int
    gpu_uuids: Mapping[str, tuple[str, ...]]
    vcpus: int
    memory_mib: int

    def gpus_of(self, model: str) -> tuple[str, ...]:
        return self.gpu_uuids.get(model, ())


@dataclass(frozen=True, slots=True)
class Assignment:
    """A decision: this instance, on this node, on exactly these GPUs."""

    instance_id: UUID
    shape: Shape
    node_id: int
    gpu_uuids: tuple[str, ...]


class Blocker(StrEnum):
    """What keeps a demand in the queue."""

    NO_SUCH_GPU = "no_such_gpu"  # no node that takes work has the model
    FRAGMENTATION = "fragmentation"  # enough GPUs are free, but not on one node
    CAPACITY = "capacity"  # too few GPUs of the model are free
    CPU_OR_MEMORY = "cpu_or_memory"  # GPUs are free where vCPUs or memory are not


@dataclass(frozen=True, slots=True)
class Blocked:
    """Demands of one shape that fit nowhere now, and the figures that say why."""

    instance_ids: tuple[UUID, ...]
    shape: Shape
    blocker: Blocker
    free: int  # GPUs of the model that are free in all
    most_on_one_node: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What one cycle decided: every demand is in exactly one of the two."""

    assignments: tuple[Assignment, ...]
    blocked: tuple[Blocked, ...]
