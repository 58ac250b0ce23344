"""From a spec to the arguments of `docker create`: what customers ask, within what we allow.

Pure. The forms are those of docker-py's low-level client, as plain values.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from agents.containers import Host
from agents.protocol import ContainerSpec

# A bridge of our own on which containers cannot speak to each other.
NETWORK = "headrace"

# Everything is dropped but what the commonest images cannot do without.
CAPABILITIES = (
    "CHOWN",  # package managers and entry points hand files to their users
    "DAC_OVERRIDE",  # root in the container reads and writes its users' files
    "FOWNER",  # and changes their modes
    "FSETID",  # apt keeps set-group-id bits of the files it unpacks
    "KILL",  # an init process ends children of other users
    "SETGID",  # sshd and su become the user
    "SETUID",
    "SYS_CHROOT",  # sshd confines the part of it that speaks before log-in
    "NET_BIND_SERVICE",  # servers listen on 22, 80 and 443
)
PIDS = 8192  # a training job with many loaders stays far below; a fork bomb does not pass
LOG_CONFIG = {"type": "json-file", "config": {"max-size": "10m", "max-file": "3"}}
# No device and, unlike an unset variable, no default of the image either: with NVIDIA's runtime
# every CUDA image asks for all GPUs.
NO_GPUS = "void"


def environment_for(spec: ContainerSpec, *, real_gpus: Iterable[str]) -> dict[str, str]:
    """The customer's variables and ours; ours win."""
    environment = dict(spec.env)
    if spec.ssh_keys:
        environment["AUTHORIZED_KEYS"] = "\n".join(spec.ssh_keys)
    environment["NVIDIA_VISIBLE_DEVICES"] = ",".join(real_gpus) or NO_GPUS
    return environment


def host_config_for(
    spec: ContainerSpec, *, host: Host, endpoints: Mapping[str, str], real_gpus: Iterable[str]
) -> dict[str, Any]:
    """The limits of one container. No namespace of the host is ever shared."""
    memory = f"{spec.memory_mib}m"
    return {
        "cap_drop": ["ALL"],
        "cap_add": list(CAPABILITIES),
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": PIDS,
        "mem_limit": memory,
        "memswap_limit": memory,  # the same: no swap
        # The engine refuses more than the machine has.
        "nano_cpus": min(spec.vcpus, host.vcpus) * 1_000_000_000,
        # Data loaders pass batches through it; it counts against the memory limit all the same.
        "shm_size": f"{max(64, spec.memory_mib // 2)}m",
        "init": True,  # reaps zombies, and passes TERM on to commands that ignore it as PID 1
        "ipc_mode": "private",
        "network_mode": NETWORK,
        "log_config": LOG_CONFIG,
        "restart_policy": {"Name": "no"},  # the agent decides what runs
        "port_bindings": {port: _binding(endpoint) for port, endpoint in endpoints.items()},
        "device_requests": _device_requests(list(real_gpus)),
    }


def _binding(endpoint: str) -> tuple[str, int]:
    address, _, port = endpoint.rpartition(":")
    return address, int(port)


def _device_requests(gpu_uuids: list[str]) -> list[dict[str, Any]]:
    """One request with every GPU: of two the engine heeds only the last, and one without
    identifiers starts without any GPU. Both without a word."""
    if not gpu_uuids:
        return []
    return [{"device_ids": gpu_uuids, "capabilities": [["gpu"]]}]


def login_environment(existing: str, variables: Mapping[str, str]) -> str:
    """What /etc/environment should hold, so that SSH sessions see what the container sees.

    sshd gives a session none of the container's variables. A value that spans lines cannot be
    written there and is left out.

    >>> print(login_environment('LANG="C"', {"HF_HOME": "/data/hf", "TWO": "a\\nb"}), end="")
    LANG="C"
    HF_HOME="/data/hf"
    """
    lines = [line for line in existing.splitlines() if line.strip()]
    for name, value in variables.items():
        if name != "AUTHORIZED_KEYS" and not any(sign in value for sign in '\n\r"'):
            lines.append(f'{name}="{value}"')
    return "\n".join([*lines, ""])
