"""`python -m portal.up`: see `make help`. Ctrl-C or SIGTERM stops everything."""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

from portal.embedded import BrokenStore
from portal.up import Refused
from portal.up.folder import Folder
from portal.up.guard import Guard, tie_to
from portal.up.house import HOST, House, Start
from portal.up.supervisor import Supervisor
from portal.up.terminal import Terminal


def main() -> int:
    arguments = argparse.ArgumentParser(prog="make up", description=__doc__)
    arguments.add_argument("--port", type=int, default=8000, help="where the portal answers")
    arguments.add_argument("--var", type=Path, default=Path("var"), help="where state is kept")
    asked = arguments.parse_args()
    if "MAKELEVEL" in os.environ:
        # Whoever kills make means us.
        tie_to(os.getppid(), signal.SIGTERM)
    code = 0
    try:
        check_port(asked.port)
        house = House(Folder(asked.var), asked.port, dict(os.environ))
        house.folder.claim()
        asyncio.run(run(house, Guard(), Terminal()))
    except* (Refused, BrokenStore) as refusals:
        sys.stderr.write(f"make up: {_first(refusals)}\n")
        code = 1
    return code


def check_port(port: int) -> None:
    """Raises Refused where the portal could not listen on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise Refused(
                f"port {port} cannot be used ({error}): choose another one, make up PORT=9000."
            ) from error


async def run(house: House, guard: Guard, terminal: Terminal) -> None:
    """Start everything, and stop it when told to or when a step of the start fails."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with Supervisor(guard, terminal, house.folder.logs) as supervisor:
        start = asyncio.create_task(Start(house, supervisor, terminal).run())
        told = asyncio.create_task(stopping.wait())
        await asyncio.wait({start, told}, return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            start.result()
            await told
        terminal.say("stopping")
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await start
    terminal.say("everything has stopped")


def _first(refusals: BaseExceptionGroup[BaseException]) -> BaseException:
    first = refusals.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


if __name__ == "__main__":
    sys.exit(main())
