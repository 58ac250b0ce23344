"""One plain sentence for every shape that waits. Pure."""

from scheduler.placement.snapshot import Blocked, Blocker


def sentence(blocked: Blocked) -> str:
    """Why they wait, in words a customer can act on; never empty.

    No place in the queue stands here: that changes with every launch, and pages compute it.
    """
    shape = blocked.shape
    wanted = f"{shape.gpu_count} × {shape.gpu_model}"
    match blocked.blocker:
        case Blocker.NO_SUCH_GPU:
            return f"No node that takes work has a {shape.gpu_model} at the moment."
        case Blocker.CAPACITY:
            return f"Needs {wanted} on one node; {_free(blocked.free)}."
        case Blocker.FRAGMENTATION:
            return (
                f"Needs {wanted} on one node; {_free(blocked.free)}, "
                f"but at most {blocked.most_on_one_node} on the same node."
            )
        case Blocker.CPU_OR_MEMORY:
            return (
                f"Needs {wanted} with {shape.vcpus} vCPUs and {shape.memory_mib // 1024} GiB of "
                "memory; the nodes with free GPUs have too little of these left."
            )


def _free(count: int) -> str:
    return {0: "none is free", 1: "1 is free in all"}.get(count, f"{count} are free in all")
