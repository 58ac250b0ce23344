"""What a node's operator says in the environment, checked once at the start."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from agents.protocol import MAX_INTEGER


class Refused(ValueError):
    """The environment does not make sense; the sentence names the variable."""


class RuntimeChoice(StrEnum):
    """Which runtime makes the containers."""

    AUTO = "auto"  # Docker when its engine answers at the first start, else the simulation
    DOCKER = "docker"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """Some GPUs of one model that a machine pretends to have."""

    count: int
    model: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Everything that differs between two agents. Sizes in MiB, ports as numbers."""

    url: str  # of the portal, without a slash at its end
    state: Path  # the agent's folder; two agents cannot share one
    node_name: str
    join_token: str = ""
    runtime: RuntimeChoice = RuntimeChoice.AUTO
    simulated_gpus: tuple[SimulatedModel, ...] = ()
    simulated_vcpus: int = 16
    simulated_memory_mib: int = 229_376
    docker_host: str = ""  # empty: Docker's own default
    advertise_address: str = "127.0.0.1"  # where published ports are bound and announced
    first_port: int = 20_000
    last_port: int = 24_999


DEFAULT_PORTS = "20000-24999"
# What a machine has for each of its GPUs, where it only pretends to have them.
VCPUS_FOR_EACH_GPU, MEMORY_MIB_FOR_EACH_GPU = 16, 224 * 1024
MAX_GPUS = 64
LOWEST_PORT, HIGHEST_PORT = 1024, 65_535
NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")


def read(environment: Mapping[str, str]) -> AgentConfig:
    """Raises Refused with one sentence about the first variable that does not make sense."""
    first_port, last_port = _ports(environment.get("HEADRACE_PORTS") or DEFAULT_PORTS)
    models = _models(environment.get("HEADRACE_SIMULATED_GPUS", ""))
    gpus = max(1, sum(model.count for model in models))
    return AgentConfig(
        url=_url(environment.get("HEADRACE_URL", "")),
        state=_state(environment.get("HEADRACE_STATE", "")),
        node_name=_node_name(environment.get("HEADRACE_NODE_NAME") or socket.gethostname()),
        join_token=environment.get("HEADRACE_JOIN_TOKEN", ""),
        runtime=_runtime(environment.get("HEADRACE_RUNTIME") or RuntimeChoice.AUTO),
        simulated_gpus=models,
        simulated_vcpus=_positive(
            environment, "HEADRACE_SIMULATED_VCPUS", default=gpus * VCPUS_FOR_EACH_GPU
        ),
        simulated_memory_mib=_positive(
            environment, "HEADRACE_SIMULATED_MEMORY_MIB", default=gpus * MEMORY_MIB_FOR_EACH_GPU
        ),
        docker_host=environment.get("DOCKER_HOST", ""),
        advertise_address=environment.get("HEADRACE_ADVERTISE_ADDRESS") or "127.0.0.1",
        first_port=first_port,
        last_port=last_port,
    )


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise Refused("HEADRACE_URL must be the portal's address, like https://gpu.example.org.")
    return text.rstrip("/")


def _state(text: str) -> Path:
    if not text:
        raise Refused("HEADRACE_STATE must name a folder that the agent may keep its state in.")
    return Path(text)


def _node_name(text: str) -> str:
    if not NODE_NAME.fullmatch(text):
        raise Refused(
            f"HEADRACE_NODE_NAME: “{text[:80]}” cannot be a node's name; use letters, digits, "
            "dots and hyphens, at most 63."
        )
    return text


def _runtime(text: str) -> RuntimeChoice:
    try:
        return RuntimeChoice(text)
    except ValueError as error:
        choices = ", ".join(RuntimeChoice)
        raise Refused(f"HEADRACE_RUNTIME must be one of {choices}, not “{text}”.") from error


def _models(text: str) -> tuple[SimulatedModel, ...]:
    """`8xNVIDIA H100 80GB HBM3:81559,…`: count, model as NVML says it, memory in MiB."""
    found = [_model(item.strip()) for item in text.split(",") if item.strip()]
    if sum(item.count for item in found) > MAX_GPUS:
        raise Refused(f"HEADRACE_SIMULATED_GPUS: a node has at most {MAX_GPUS} GPUs.")
    return tuple(found)


def _model(text: str) -> SimulatedModel:
    match = re.fullmatch(r"([1-9]\d{0,3})x(.{1,80}):([1-9]\d{0,8})", text, re.ASCII)
    if match is None:
        raise Refused(
            "HEADRACE_SIMULATED_GPUS must be a list like “8xNVIDIA H100 80GB HBM3:81559” "
            f"(count x model : memory in MiB), but it has “{text[:80]}”."
        )
    return SimulatedModel(int(match[1]), match[2].strip(), int(match[3]))


def _positive(environment: Mapping[str, str], variable: str, *, default: int) -> int:
    text = environment.get(variable) or str(default)
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or not 0 < int(text) <= MAX_INTEGER:
        raise Refused(f"{variable} must be a positive whole number, not “{text[:40]}”.")
    return int(text)


def _ports(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text, re.ASCII)
    if match is None or not (LOWEST_PORT <= int(match[1]) <= int(match[2]) <= HIGHEST_PORT):
        raise Refused("HEADRACE_PORTS must be a range like 20000-24999, within 1024-65535.")
    return int(match[1]), int(match[2])
