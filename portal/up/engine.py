"""Whether a Docker engine answers here, and what that leaves to be simulated."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_ENGINE = "unix:///var/run/docker.sock"
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
PING_SECONDS = 2.0


async def runtime(env: Mapping[str, str]) -> str:
    """`docker` where the engine of DOCKER_HOST answers, else `simulated`."""
    address = urlsplit(env.get("DOCKER_HOST") or DEFAULT_ENGINE)
    try:
        async with asyncio.timeout(PING_SECONDS):
            if address.scheme == "unix":
                reader, writer = await asyncio.open_unix_connection(address.path)
            else:
                reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            with contextlib.closing(writer):
                status = await reader.readline()
    except (OSError, TimeoutError, ValueError):
        return "simulated"
    return "docker" if b" 200 " in status else "simulated"


def simulated(runtime: str, gpus: str) -> str:
    """What is simulated, in words for the summary; `gpus` as the agent is told to offer them."""
    parts = []
    if not NVIDIA_DRIVER.exists():
        offered = (offer.rpartition(":")[0].split("x", 1) for offer in gpus.split(",") if offer)
        parts.append(f"GPUs ({', '.join(f'{count} × {model}' for count, model in offered)})")
    if runtime == "simulated":
        parts.append("containers (no Docker engine answers here)")
    return " and ".join(parts) or "nothing"
