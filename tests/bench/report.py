"""What a bench found: printed as a table, and kept as JSON in var/bench."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
KIB_PER_GIB = 1024 * 1024


@dataclass(frozen=True)
class Peer:
    """What another program needs for the same, in this run or as published."""

    name: str
    value: float


@dataclass(frozen=True)
class Result:
    """One measure: its value, the bar it should stay under, how often it ran and how it spread."""

    measure: str
    value: float
    unit: str
    bar: float | None
    runs: int
    spread: str
    peer: Peer | None = None

    @property
    def meets_its_bar(self) -> bool:
        return self.bar is None or self.value <= self.bar


def percentile(values: Sequence[float], percent: int) -> float:
    """By linear interpolation between the closest ranks."""
    return statistics.quantiles(sorted(values), n=100, method="inclusive")[percent - 1]


def spread(values: Sequence[float]) -> str:
    return (
        f"min {min(values):.1f}, median {statistics.median(values):.1f}, "
        f"p90 {percentile(values, 90):.1f}, max {max(values):.1f}"
    )


def machine(database: str) -> dict[str, object]:
    memory = next(
        line for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line
    )
    return {
        "cpus": os.cpu_count(),
        "memory_gib": round(int(memory.split()[1]) / KIB_PER_GIB),
        "python": platform.python_version(),
        "database": database,
    }


def publish(name: str, results: Sequence[Result], *, database: str) -> None:
    """Print the table and write var/bench/<name>.json."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    about = machine(database)
    folder = ROOT / "var" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(
        json.dumps(
            {"commit": commit, "machine": about, "results": [asdict(r) for r in results]}, indent=2
        )
    )
    say(", ".join(f"{key} {value}" for key, value in about.items()))
    for result in results:
        bar = "" if result.bar is None else f"bar {result.bar:g} {result.unit}"
        verdict = "ok  " if result.meets_its_bar else "MISS"
        say(f"{verdict} {result.measure:40} {result.value:9.2f} {result.unit:3} {bar}")
        peer = f"; {result.peer.name}: {result.peer.value:.2f}" if result.peer else ""
        say(f"       {result.runs} runs: {result.spread}{peer}")


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a bench talks to a person
