"""`python -m tests.bench.nodes URL FOLDER TOKEN…`: one simulated node for each join token."""

import asyncio
import signal
import sys
from pathlib import Path

from agents import node
from agents.config import AgentConfig, RuntimeChoice, SimulatedModel

GPUS_EACH = 8
MODEL = "Bench GPU"
PORTS_EACH = 100


def config(url: str, folder: Path, token: str, number: int) -> AgentConfig:
    first_port = 30_000 + number * PORTS_EACH
    return AgentConfig(
        url=url,
        state=folder / f"node-{number}",
        node_name=f"bench-{number}",
        join_token=token,
        runtime=RuntimeChoice.SIMULATED,
        simulated_gpus=(SimulatedModel(GPUS_EACH, MODEL, 81_559),),
        simulated_vcpus=64,
        simulated_memory_mib=524_288,
        first_port=first_port,
        last_port=first_port + PORTS_EACH - 1,
    )


async def main(url: str, folder: str, *tokens: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    configs = [config(url, Path(folder), token, i) for i, token in enumerate(tokens)]
    await asyncio.gather(*(node.serve(each, stop) for each in configs))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
