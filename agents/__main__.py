"""The agent of one node: reads the environment, and runs until it is told to stop."""

import asyncio
import logging
import os
import signal
import sys
from urllib.parse import urlsplit

from agents import config, node
from agents.client import Rejected
from agents.loop import TokenRefused
from agents.state_folder import StateFolderUnusable

logger = logging.getLogger("agents")

# What a supervisor learns: 2 will not get better by itself, 3 needs a new join token.
MISCONFIGURED, REFUSED = 2, 3
LOCAL = {"localhost", "127.0.0.1", "::1"}


async def _run(settings: config.AgentConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await node.serve(settings, stop)


def main() -> int:
    # Whoever keeps the lines (journald, Docker, `make up`) writes the time before each.
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(levelname)s agent: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each sync tells nothing
    try:
        settings = config.read(os.environ)
        address = urlsplit(settings.url)
        if address.scheme == "http" and address.hostname not in LOCAL:
            logger.warning("HEADRACE_URL is not https: the node's secret travels in the clear")
        asyncio.run(_run(settings))
    except (config.Refused, StateFolderUnusable, node.NotEnrolled) as error:
        return _say(str(error), MISCONFIGURED)
    except Rejected as refusal:
        return _say(f"The portal refused to enrol this node: {refusal}", REFUSED)
    except TokenRefused:
        return _say(
            "The portal does not know this node's secret: it was retired or enrolled anew. "
            "Remove node.json from its HEADRACE_STATE and start it with a new join token.",
            REFUSED,
        )
    logger.info("stopped; containers run on")
    return 0


def _say(sentence: str, status: int) -> int:
    logger.error("%s", sentence)
    return status


if __name__ == "__main__":
    sys.exit(main())
