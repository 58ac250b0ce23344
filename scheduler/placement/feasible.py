"""What can: whether a shape fits a node, and what keeps it from fitting anywhere. Pure."""

from collections.abc import Collection
from uuid import UUID

from scheduler.placement.snapshot import Blocked, Blocker, FreeNode, Shape


def fits(shape: Shape, node: FreeNode) -> bool:
    return (
        len(node.gpus_of(shape.gpu_model)) >= shape.gpu_count
        and node.vcpus >= shape.vcpus
        and node.memory_mib >= shape.memory_mib
    )


def how_many_fit(shape: Shape, node: FreeNode) -> int:
    """How many instances of `shape` would fit on the node together."""
    return min(
        len(node.gpus_of(shape.gpu_model)) // shape.gpu_count,
        node.vcpus // shape.vcpus,
        node.memory_mib // shape.memory_mib,
    )


def why_blocked(
    shape: Shape, instance_ids: Collection[UUID], nodes: Collection[FreeNode]
) -> Blocked:
    """The blocker of demands whose shape fits on none of `nodes`."""
    free = [len(node.gpus_of(shape.gpu_model)) for node in nodes]
    most = max(free, default=0)
    if not any(shape.gpu_model in node.gpu_uuids for node in nodes):
        blocker = Blocker.NO_SUCH_GPU
    elif most >= shape.gpu_count:
        blocker = Blocker.CPU_OR_MEMORY
    elif sum(free) >= shape.gpu_count:
        blocker = Blocker.FRAGMENTATION
    else:
        blocker = Blocker.CAPACITY
    return Blocked(tuple(instance_ids), shape, blocker, sum(free), most)
