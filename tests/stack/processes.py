"""One program of Headrace under a test, which may kill, freeze and start it again."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from portal.up.guard import dying_with_parent, kill_group

STOP_SECONDS = 15
POLL_SECONDS = 0.05


def eventually[T](probe: Callable[[], T], *, within_seconds: float, what: str) -> T:
    """The first true answer of `probe`, asked again and again. Fails the test where none comes."""
    deadline = time.monotonic() + within_seconds
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what}: not within {within_seconds:g} s"
        time.sleep(POLL_SECONDS)


class Process:
    """One program: its arguments, its environment, its process now, and all that it has said."""

    def __init__(self, name: str, argv: tuple[str, ...], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self._argv = argv
        self._env = env
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def words(self) -> str:
        """All that it has written, over all its starts."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        assert not self.runs, f"{self.name} runs already"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv,
                env={**os.environ, **self._env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A group of its own: a worker is killed with its children, as the supervisor
                # and the kernel's memory killer of a container do it.
                process_group=0,
                # What it calls between fork and exec takes no lock, so threads do it no harm.
                preexec_fn=dying_with_parent(signal.SIGTERM),  # noqa: PLW1509
            )

    def kill(self) -> None:
        """SIGKILL, to it and to what it has started: no last word, no clean-up."""
        kill_group(self.pid)
        assert self._process is not None
        self._process.wait(timeout=STOP_SECONDS)

    def freeze(self) -> None:
        kill_group(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        kill_group(self.pid, signal.SIGCONT)

    def ask_to_stop(self) -> None:
        if self.runs:
            self.thaw()
            os.kill(self.pid, signal.SIGTERM)

    def wait_or_kill(self) -> None:
        """After `ask_to_stop`: nothing of it is left when this returns."""
        if self._process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=STOP_SECONDS)
        kill_group(self._process.pid)
        self._process.wait(timeout=STOP_SECONDS)
