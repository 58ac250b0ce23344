"""Which node runs what: the loop over feasible and score. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from uuid import UUID

from scheduler.placement.feasible import fits, why_blocked
from scheduler.placement.score import tightness
from scheduler.placement.snapshot import Assignment, Decision, Demand, FreeNode, Shape


def place(demands: Sequence[Demand], nodes: Iterable[FreeNode]) -> Decision:
    """Assign demands to nodes, in the order given; each ends up assigned or blocked.

    Best fit: of the nodes that can take the demand, the one left with the fewest free GPUs of
    the model wins. GPUs are whole: none is shared. What is blocked is explained by what is free
    once all is assigned. Cost O(nodes) for each assignment and each shape that is blocked.

    Source: best fit as in Johnson, "Near-optimal bin packing algorithms" (MIT, 1973). Later
    demands may overtake one that does not fit, so a large one can starve under constant load.
    """
    free = {node.node_id: node for node in nodes}
    assignments: list[Assignment] = []
    waiting: defaultdict[Shape, list[UUID]] = defaultdict(list)
    for demand in demands:
        shape = demand.shape
        # Free capacity only shrinks within one plan: what did not fit before does not now.
        best = None if shape in waiting else _best(shape, free.values())
        if best is None:
            waiting[shape].append(demand.instance_id)
            continue
        taken = best.gpus_of(shape.gpu_model)[: shape.gpu_count]
        free[best.node_id] = _without(best, shape)
        assignments.append(Assignment(demand.instance_id, shape, best.node_id, taken))
    blocked = (why_blocked(shape, ids, free.values()) for shape, ids in waiting.items())
    return Decision(tuple(assignments), tuple(blocked))


def _best(shape: Shape, nodes: Iterable[FreeNode]) -> FreeNode | None:
    fitting = (node for node in nodes if fits(shape, node))
    return min(fitting, key=lambda node: tightness(shape, node), default=None)


def _without(node: FreeNode, shape: Shape) -> FreeNode:
    left = node.gpus_of(shape.gpu_model)[shape.gpu_count :]
    return FreeNode(
        node_id=node.node_id,
        gpu_uuids={**node.gpu_uuids, shape.gpu_model: left},
        vcpus=node.vcpus - shape.vcpus,
        memory_mib=node.memory_mib - shape.memory_mib,
    )
