"""Which node runs what: the loop over feasible and score. Pure."""

from collections.abc import Iterable, Sequence

from scheduler.placement.feasible import fits, why_blocked
from scheduler.placement.score import tightness
from scheduler.placement.snapshot import Assignment, Blocked, Decision, Demand, FreeNode, Shape


def place(demands: Sequence[Demand], nodes: Iterable[FreeNode]) -> Decision:
    """Assign demands to nodes, in the order given; each ends up assigned or blocked.

    Best fit: of the nodes that can take the demand, the one left with the fewest free GPUs of
    the model wins. GPUs are whole: none is shared. Cost O(shapes × nodes) for what is blocked
    and O(nodes) for each assignment.

    Source: best fit as in Johnson, "Near-optimal bin packing algorithms" (MIT, 1973). Later
    demands may overtake one that does not fit, so a large one can starve under constant load.
    """
    free = {node.node_id: node for node in nodes}
    assignments: list[Assignment] = []
    blocked: list[Blocked] = []
    hopeless: set[Shape] = set()  # free capacity only shrinks within one plan
    for demand in demands:
        shape = demand.shape
        fitting = [] if shape in hopeless else [n for n in free.values() if fits(shape, n)]
        if not fitting:
            hopeless.add(shape)
            blocked.append(why_blocked(demand, free.values()))
            continue
        best = min(fitting, key=lambda node: tightness(shape, node))
        taken = best.gpus_of(shape.gpu_model)[: shape.gpu_count]
        free[best.node_id] = _without(best, shape)
        assignments.append(Assignment(demand.instance_id, best.node_id, taken))
    return Decision(tuple(assignments), tuple(blocked))


def _without(node: FreeNode, shape: Shape) -> FreeNode:
    left = node.gpus_of(shape.gpu_model)[shape.gpu_count :]
    return FreeNode(
        node_id=node.node_id,
        gpu_uuids={**node.gpu_uuids, shape.gpu_model: left},
        vcpus=node.vcpus - shape.vcpus,
        memory_mib=node.memory_mib - shape.memory_mib,
    )
