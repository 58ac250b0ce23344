"""What is best: the key by which fitting nodes are compared. Pure."""

from scheduler.placement.snapshot import FreeNode, Shape


def tightness(shape: Shape, node: FreeNode) -> tuple[int, int, int]:
    """Smaller is better: least GPUs of the model left, then least vCPUs left, then the id.

    Whole nodes stay free for large demands; the id makes the same snapshot give the same plan.
    """
    left = len(node.gpus_of(shape.gpu_model)) - shape.gpu_count
    return (left, node.vcpus - shape.vcpus, node.node_id)
