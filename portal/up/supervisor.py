"""Keeps programs running: starts them, starts them again when they die, stops them in order."""

import asyncio
import contextlib
import logging
import logging.handlers
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from portal.embedded import as_user
from portal.up import Refused
from portal.up.guard import kill_group

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 15.0
# A program that ran this long was well: its next pause is the first one again.
SETTLED_SECONDS = 10.0
LAST_WORDS_SECONDS = 1.0
LOG_BYTES = 10 * 1024 * 1024
LINE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Program:
    """One program: its arguments, what it adds to our environment, its user and how it stops."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    once: bool = False  # a step that ends, rather than a server that should not
    stops_last: bool = False  # a store: it outlives all that may use it


class Watch(Protocol):
    """Who ends the processes tied to it when we are killed."""

    def tying(self, stop_signal: signal.Signals) -> Callable[[], None]:
        """The `preexec_fn` by which a child is tied to it from its first moment."""

    def forget(self, pid: int) -> None: ...


class Terminal(Protocol):
    """Where a person is told what happens."""

    def hear(self, name: str, line: str) -> None:
        """One line that the program `name` wrote."""

    def say(self, sentence: str) -> None:
        """One sentence of our own."""


def next_pause(pause: float, *, ran_seconds: float) -> float:
    """How long to wait before a program is started again, given its last pause (0: none yet).

    >>> next_pause(0, ran_seconds=1), next_pause(0.5, ran_seconds=1)
    (0.5, 1.0)
    >>> next_pause(12, ran_seconds=1), next_pause(12, ran_seconds=60)
    (15.0, 0.5)
    """
    if pause == 0 or ran_seconds >= SETTLED_SECONDS:
        return FIRST_PAUSE_SECONDS
    return min(pause * 2, LONGEST_PAUSE_SECONDS)


class Child:
    """A Program under the supervisor: the process that runs it now, and its last lines."""

    def __init__(self, program: Program, guard: Watch, terminal: Terminal, logs: Path) -> None:
        self.program = program
        self.last_lines: deque[str] = deque(maxlen=20)
        self.restarts = 0
        self.process: asyncio.subprocess.Process | None = None
        self._guard = guard
        self._terminal = terminal
        self._log = _log_file(logs / f"{program.name}.log")
        self._stopping = asyncio.Event()

    @property
    def words(self) -> str:
        """What it said last."""
        return "\n".join(self.last_lines) or "It said nothing."

    @property
    def failed(self) -> bool:
        """Whether it ended so badly, or so often, that waiting for it makes no sense."""
        if self.program.once and self.process is not None:
            return self.process.returncode not in (None, 0)
        return self.restarts > 1

    async def run_once(self) -> int:
        """Run the program to its end; its exit code, negative where a signal ended it."""
        async with _pipe() as (stream, writing):
            self.process = process = await asyncio.create_subprocess_exec(
                *self.program.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                env={**os.environ, **self.program.env},
                # A group of its own: Ctrl-C reaches the supervisor alone, and what the program
                # leaves behind can be found.
                process_group=0,
                preexec_fn=self._guard.tying(self.program.stop_signal),
                **as_user(self.program.user),
            )
            writing.close()
            listening = asyncio.create_task(self._listen(_lines(stream)))
            try:
                return await process.wait()
            finally:
                # Children of a program that died would go on working unseen.
                kill_group(process.pid)
                self._guard.forget(process.pid)
                # A process outside the group may hold the pipe for longer than we care.
                await asyncio.wait({listening}, timeout=LAST_WORDS_SECONDS)
                listening.cancel()

    async def run(self) -> None:
        """Run the program until `stop`, with a growing pause after each end."""
        pause = 0.0
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self.run_once()
            if self._stopping.is_set() or self.program.once:
                return
            pause = next_pause(pause, ran_seconds=time.monotonic() - started)
            self._terminal.say(
                f"{self.program.name} ended ({how_it_ended(code)}) and starts again in "
                f"{pause:g} s; its words are in {self._log.baseFilename}."
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            self.restarts += 1

    async def stop(self, *, grace_seconds: float) -> None:
        """Ask the program to stop and start it no more; after the grace, kill its group."""
        self._stopping.set()
        process = self.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(self.program.stop_signal)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), grace_seconds)
        kill_group(process.pid)

    async def _listen(self, lines: AsyncIterator[str]) -> None:
        with contextlib.closing(self._log):
            async for line in lines:
                self._log.emit(logging.makeLogRecord({"msg": line}))
                self.last_lines.append(line)
                self._terminal.hear(self.program.name, line)


class Supervisor:
    """The children that run now. Leaving the context stops them, the stores last."""

    def __init__(
        self, guard: Watch, terminal: Terminal, logs: Path, *, grace_seconds: float = 4
    ) -> None:
        self._guard = guard
        self._terminal = terminal
        self._logs = logs
        self._grace_seconds = grace_seconds
        self._children: dict[Child, asyncio.Task[None]] = {}

    async def __aenter__(self) -> "Supervisor":
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop([child for child in self._children if not child.program.stops_last])
        await self._stop([child for child in self._children if child.program.stops_last])

    def start(self, program: Program) -> Child:
        """Run `program`, and keep it running where it is a server."""
        child = Child(program, self._guard, self._terminal, self._logs)
        self._children[child] = asyncio.create_task(child.run())
        return child

    async def ended(self, child: Child) -> None:
        """Wait for the end of a step. Raises Refused where it failed."""
        await asyncio.wait({self._children[child]})
        if child.failed:
            raise Refused(f"{child.program.name} failed:\n{child.words}")

    async def ready(
        self, child: Child, probe: Callable[[], Awaitable[bool]], *, within_seconds: float
    ) -> None:
        """Wait until `probe` holds. Raises Refused where the child fails or the time runs out."""
        deadline = time.monotonic() + within_seconds
        while True:
            with contextlib.suppress(OSError):
                if await probe():
                    return
            if child.failed or time.monotonic() > deadline:
                raise Refused(f"{child.program.name} does not come up:\n{child.words}")
            await asyncio.sleep(0.03)

    async def _stop(self, children: Sequence[Child]) -> None:
        await asyncio.gather(*(child.stop(grace_seconds=self._grace_seconds) for child in children))
        tasks = [self._children[child] for child in children]
        if tasks:
            await asyncio.wait(tasks, timeout=2 * LAST_WORDS_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def how_it_ended(code: int) -> str:
    """A process's exit code in words.

    >>> how_it_ended(3), how_it_ended(-9)
    ('exit 3', 'SIGKILL')
    """
    return f"exit {code}" if code >= 0 else signal.Signals(-code).name


@contextlib.asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, BinaryIO]]:
    """A pipe: what we read, and the end for a child.

    Not asyncio's own: with that, a process is not over before its grandchildren let go of it.
    """
    reading, writing = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb")
    )
    try:
        with os.fdopen(writing, "wb") as child_end:
            yield stream, child_end
    finally:
        transport.close()


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines of `stream`; one that is longer than LINE_BYTES comes in pieces."""
    rest = b""
    while chunk := await stream.read(LINE_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r")
        if len(rest) >= LINE_BYTES:
            yield rest.decode(errors="replace")
            rest = b""
    if rest:
        yield rest.decode(errors="replace")


def _log_file(path: Path) -> logging.handlers.RotatingFileHandler:
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8", delay=True
    )
    formatter = logging.Formatter("%(asctime)s %(message)s")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    return handler
