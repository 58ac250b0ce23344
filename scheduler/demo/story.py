"""Who ran what on which machines: the story that demo data tells. Pure data.

Hours count from midnight UTC of a day; days count from the first day of the story.
"""

from dataclasses import dataclass
from enum import StrEnum

H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
A100, L40S = "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"
RTX4090, L4 = "NVIDIA GeForce RTX 4090", "NVIDIA L4"

US = "demo"
NORTHLIGHT, FJORD = "Northlight Labs", "Fjord Robotics"


class Ending(StrEnum):
    """How a run of an instance came to its end."""

    STOPPED = "stopped"
    TERMINATED = "terminated"
    FINISHED = "finished"
    OUT_OF_MEMORY = "out_of_memory"
    NEVER_STARTED = "never_started"  # its image could not be pulled


@dataclass(frozen=True)
class Machine:
    """A node of the story, and its GPUs: (count, model, MiB of one)."""

    name: str
    gpus: tuple[tuple[int, str, int], ...]
    vcpus: int
    memory_gib: int


@dataclass(frozen=True)
class Work:
    """The same run again and again: on every n-th day, from an hour on, for some hours.

    `again` starts the one instance anew each time; otherwise each run is an instance of its own.
    """

    team: str
    name: str
    sku: str
    image: str
    every_days: int
    first_day: int
    hour: float
    hours: float
    ending: Ending
    again: bool = False


@dataclass(frozen=True)
class Launch:
    """What is launched at the end of the story, and goes on for real."""

    team: str
    name: str
    sku: str


MACHINES = (
    Machine("rack-a1", ((8, H100, 81_559),), 192, 2_048),
    Machine("rack-a2", ((4, H200, 143_771), (4, A100, 81_920)), 192, 2_048),
    Machine("rack-b1", ((4, L40S, 46_068), (4, RTX4090, 24_564), (4, L4, 23_034)), 128, 1_024),
)
# Goes silent some days before the end, with one instance on it.
LOST_MACHINE = "rack-b1"
LOST_WORK = Launch(NORTHLIGHT, "render-farm", "rtx4090-2x")

# Of each team beside ours, its owner.
NEIGHBOURS = {NORTHLIGHT: "ada@northlight.example", FJORD: "lin@fjord.example"}
QUOTA_GPUS = 24
# Day → dollars that the house gives each team.
GRANTS_USD = {0: 1_500, 14: 1_200, 28: 1_000, 42: 800}

WORKS = (
    Work(US, "notebook", "l4-1x", "jupyter", 3, 0, 7.5, 9.25, Ending.STOPPED, again=True),
    Work(US, "train-vision", "h100-2x", "pytorch", 4, 1, 18.1, 7.6, Ending.FINISHED),
    Work(US, "finetune-8b", "h200-4x", "pytorch", 12, 3, 20.0, 5.4, Ending.FINISHED),
    Work(US, "eval-nightly", "rtx4090-1x", "pytorch", 4, 0, 1.2, 1.7, Ending.FINISHED),
    Work(US, "serve-preview", "l40s-1x", "vllm", 9, 5, 8.2, 30.0, Ending.TERMINATED),
    Work(US, "big-batch", "a100-2x", "pytorch", 17, 8, 14.0, 0.6, Ending.OUT_OF_MEMORY),
    Work(US, "first-try", "h100-1x", "pytorch", 60, 0, 9.0, 0.0, Ending.NEVER_STARTED),
    Work(NORTHLIGHT, "aurora-sim", "a100-2x", "pytorch", 5, 2, 6.3, 12.0, Ending.FINISHED),
    Work(NORTHLIGHT, "train-weather", "h100-4x", "pytorch", 8, 4, 3.0, 6.5, Ending.STOPPED),
    Work(FJORD, "grasp-rl", "rtx4090-2x", "pytorch", 4, 1, 10.4, 8.0, Ending.TERMINATED),
    Work(FJORD, "perception", "l40s-2x", "pytorch", 5, 6, 12.6, 10.0, Ending.FINISHED),
)

# The small image: where a real engine serves this machine, a look at pages pulls no gigabytes.
# The last of them fits nowhere while the first holds some of the H100s.
LAUNCHES_IMAGE = "ubuntu"
LAUNCHES = (
    Launch(US, "train-vision", "h100-2x"),
    Launch(US, "finetune-8b", "h200-4x"),
    Launch(US, "notebook-lena", "l4-1x"),
    Launch(US, "serve-preview", "l40s-1x"),
    Launch(FJORD, "grasp-rl", "rtx4090-2x"),
    Launch(NORTHLIGHT, "aurora-sim", "a100-4x"),
    Launch(NORTHLIGHT, "train-weather", "h100-8x"),
)
