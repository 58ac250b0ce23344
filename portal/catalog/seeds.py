"""The first catalogue: real cards at sensible prices, for an operator to change. Pure data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """A GPU model as NVML names it, and what a plan gives with each."""

    slug: str
    model: str
    memory_mib: int
    micros_per_hour: int  # on demand, for one
    vcpus: int
    memory_gib: int
    disk_gib: int
    counts: tuple[int, ...]
    simulated: int  # how many the simulated node has


CARDS = (
    Card("h200", "NVIDIA H200", 143_771, 3_290_000, 16, 224, 400, (1, 2, 4, 8), 8),
    Card("h100", "NVIDIA H100 80GB HBM3", 81_559, 2_490_000, 16, 192, 400, (1, 2, 4, 8), 8),
    Card("a100", "NVIDIA A100-SXM4-80GB", 81_920, 1_390_000, 12, 120, 300, (1, 2, 4), 8),
    Card("l40s", "NVIDIA L40S", 46_068, 860_000, 8, 64, 200, (1, 2), 4),
    Card("rtx4090", "NVIDIA GeForce RTX 4090", 24_564, 440_000, 8, 48, 150, (1, 2), 4),
    Card("l4", "NVIDIA L4", 23_034, 390_000, 4, 32, 100, (1,), 4),
)

# slug, name, reference, description, command, ports, ready_port
IMAGES = (
    (
        "ubuntu",
        "Ubuntu 24.04",
        "ubuntu:24.04",
        "A bare system to install into.",
        ("sleep", "infinity"),
        (),
        None,
    ),
    (
        "pytorch",
        "PyTorch 2.9, CUDA 12.8",
        "pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime",
        "PyTorch with the CUDA libraries it was built for.",
        ("sleep", "infinity"),
        (),
        None,
    ),
    (
        "jupyter",
        "Jupyter with PyTorch",
        "quay.io/jupyter/pytorch-notebook:cuda12-latest",
        "A notebook server on port 8888.",
        (),
        (8888,),
        8888,
    ),
    (
        "vllm",
        "vLLM, OpenAI-compatible",
        "vllm/vllm-openai:v0.11.0",
        "Serves a model on port 8000; name it in the command.",
        (),
        (8000,),
        8000,
    ),
)


def simulated_node() -> dict[str, str]:
    """A node that carries all of the catalogue, in the words of the agent's environment."""
    gpus = ",".join(f"{card.simulated}x{card.model}:{card.memory_mib}" for card in CARDS)
    vcpus = sum(card.simulated * card.vcpus for card in CARDS)
    memory_gib = sum(card.simulated * card.memory_gib for card in CARDS)
    return {
        "HEADRACE_SIMULATED_GPUS": gpus,
        "HEADRACE_SIMULATED_VCPUS": str(vcpus),
        "HEADRACE_SIMULATED_MEMORY_MIB": str(memory_gib * 1024),
    }
