"""A supervisor with three stand-ins, as a program of its own so that a test can kill it.

`python -m tests.portal.small_house FOLDER`: each process writes its number to a file in FOLDER.
With `assassin` behind it, a fourth stand-in kills the supervisor as the first thing it does.
"""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from portal.up.folder import Folder
from portal.up.guard import Guard
from portal.up.supervisor import Program, Supervisor
from portal.up.terminal import Terminal

# A server with a child of its own; one that will not hear; a store that must outlive both.
WITH_CHILD = "sleep 600 & echo $! > log/grandchild.pid; echo $$ > log/server.pid; wait"
STUBBORN = "trap '' TERM INT; echo $$ > log/stubborn.pid; while :; do sleep 600; done"
STORE = """
    trap 'kill -0 $(cat log/stubborn.pid) 2>/dev/null || touch log/store.end; exit' TERM
    echo $$ > log/store.pid; sleep 600 & wait
"""


ASSASSIN = "trap '' TERM; echo $$ > log/assassin.pid; kill -KILL $PPID; while :; do sleep 600; done"


def shell(name: str, script: str, folder: Path, *, stops_last: bool = False) -> Program:
    here = f"cd '{folder}'; {script}"
    return Program(name, ("/bin/sh", "-c", here), stops_last=stops_last)


async def main(folder: Folder, guard: Guard, *, assassin: bool) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with Supervisor(guard, Terminal(), folder.logs, grace_seconds=0.5) as supervisor:
        supervisor.start(shell("store", STORE, folder.path, stops_last=True))
        supervisor.start(shell("server", WITH_CHILD, folder.path))
        supervisor.start(shell("stubborn", STUBBORN, folder.path))
        if assassin:
            supervisor.start(shell("assassin", ASSASSIN, folder.path))
        await stopping.wait()


if __name__ == "__main__":
    with contextlib.suppress(asyncio.CancelledError):
        held = Folder(Path(sys.argv[1]))
        held.claim()
        (held.path / "log" / "supervisor.pid").write_text(str(os.getpid()))
        asyncio.run(main(held, Guard(grace_seconds=0.5), assassin="assassin" in sys.argv))
