"""What ends the children when the supervisor itself is killed and can end nothing any more."""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def dying_with_parent(stop_signal: signal.Signals) -> Callable[[], None]:
    """A `preexec_fn`: Linux sends the child `stop_signal` when we, its parent, die."""
    parent = os.getpid()
    libc = _libc()  # loaded here, as little as possible being safe in a forked child

    def tie() -> None:
        tie_to(parent, stop_signal, libc)

    return tie


def tie_to(parent: int, stop_signal: signal.Signals, libc: ctypes.CDLL | None = None) -> None:
    """Have Linux send this process `stop_signal` when `parent` dies, or at once if it has."""
    libc = libc or _libc()
    if libc is not None:
        libc.prctl(PR_SET_PDEATHSIG, int(stop_signal))
        if os.getppid() != parent:
            os.kill(os.getpid(), stop_signal)


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


class Guard:
    """A forked process that outlives a killed supervisor for as long as its children do.

    Every child tells it through a pipe. When the pipe closes, it asks the children that are
    left to stop and kills their whole process groups after `grace_seconds`: a signal at the
    death of the parent reaches neither grandchildren nor programs that ignore it, and is
    unknown outside Linux. Fork it before any thread or event loop exists.
    """

    def __init__(self, *, grace_seconds: float = 5) -> None:
        reading, self._writing = os.pipe()
        if os.fork() == 0:
            os.close(self._writing)
            _watch(reading, grace_seconds)
        os.close(reading)

    def tying(self, stop_signal: signal.Signals) -> Callable[[], None]:
        """A `preexec_fn`: the child, the leader of its own group, must not be left behind.

        The child itself tells the guard, before it becomes the program: told by the supervisor,
        the guard would never hear of a child in whose first moment the supervisor is killed.
        """
        tie = dying_with_parent(stop_signal)

        def tell_and_tie() -> None:
            os.write(self._writing, f"{os.getpid()} {int(stop_signal)}\n".encode())
            tie()

        return tell_and_tie

    def forget(self, pid: int) -> None:
        os.write(self._writing, f"{pid} 0\n".encode())


def kill_group(pid: int, with_signal: signal.Signals = signal.SIGKILL) -> None:
    """Signal the process group that `pid` leads, where any of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, with_signal)


def _watch(reading: int, grace_seconds: float) -> NoReturn:
    try:
        # Neither Ctrl-C nor the end of a terminal or a pipe may end the guard first.
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        _end(_left_behind(reading), grace_seconds)
    finally:
        os._exit(0)


def _left_behind(reading: int) -> dict[int, signal.Signals]:
    """Every child still watched when the supervisor is gone, and how it is asked to stop."""
    watched: dict[int, signal.Signals] = {}
    with os.fdopen(reading) as lines:
        for line in lines:
            pid, number = map(int, line.split())
            watched.pop(pid, None)
            if number:
                watched[pid] = signal.Signals(number)
    return watched


def _end(watched: dict[int, signal.Signals], grace_seconds: float) -> None:
    for pid, stop_signal in watched.items():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, stop_signal)
    _wait_until_gone(watched, grace_seconds)
    for pid in watched:
        kill_group(pid)
    # Until then they hold ports and files that the next house needs.
    _wait_until_gone(watched, grace_seconds)


def _wait_until_gone(pids: Collection[int], at_most_seconds: float) -> None:
    deadline = time.monotonic() + at_most_seconds
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True
