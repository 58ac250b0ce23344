"""What a person sees: the steps of the start, the summary, and of the logs what needs an eye."""

import email
import email.policy
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

# Of the stores only what ends them: a constraint that stops a race is an ERROR to PostgreSQL
# and our daily bread. Nor is it news that a store is asked before it is ready.
STORES = {"postgres", "valkey"}
EARLY = r"the database system is (starting up|shutting down)|database .* does not exist"
FATAL = re.compile(rf"\b(FATAL|PANIC):  (?!{EARLY})")
NOTABLE = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b|^Traceback ")
MAIL_BEGINS = re.compile(r"^(Content-Type|MIME-Version): ")
MAIL_ENDS = "-" * 79  # as Django's console backend writes it
MAIL_LINES = 400


class Notice:
    """Picks out of one program's lines what a person should see: warnings, tracebacks, mails."""

    def __init__(self, notable: re.Pattern[str]) -> None:
        self._notable = notable
        self._mail: list[str] = []
        self._traceback = False

    def hear(self, line: str) -> list[str]:
        """What is to be shown now that `line` was written; mostly nothing."""
        if self._mail or MAIL_BEGINS.match(line):
            return self._hear_mail(line)
        if self._traceback:
            # Indented lines belong to it, and so does the one that names the exception.
            self._traceback = line.startswith((" ", "\t"))
            return [line]
        if not self._notable.search(line):
            return []
        self._traceback = line.startswith("Traceback ")
        return [line]

    def _hear_mail(self, line: str) -> list[str]:
        if line != MAIL_ENDS and len(self._mail) < MAIL_LINES:
            self._mail.append(line)
            return []
        mail, self._mail = self._mail, []
        return read_mail("\n".join(mail))


def read_mail(source: str) -> list[str]:
    """A mail as its reader would see it: its links in one piece, its encoding undone."""
    message = email.message_from_string(source, policy=email.policy.default)
    body = message.get_body(("plain", "html"))
    text = body.get_content() if body is not None else source
    head = f"Mail to {message['To']}: {message['Subject']}"
    return [head, *(f"  {line}" for line in text.strip().splitlines())]


class Terminal:
    """Writes to a person's terminal, in colour where it is one."""

    def __init__(self, out: TextIO = sys.stdout, clock: Callable[[], float] = time.monotonic):
        self._out = out
        self._clock = clock
        self._started = clock()
        self._colour = out.isatty()
        self._notices: dict[str, Notice] = {}

    def hear(self, name: str, line: str) -> None:
        """Show of a program's lines what needs an eye, with the program's name before it."""
        if name not in self._notices:
            self._notices[name] = Notice(FATAL if name in STORES else NOTABLE)
        for shown in self._notices[name].hear(line):
            self._write(f"{self._paint('36', f'{name:>8} │')} {shown}")

    def say(self, sentence: str) -> None:
        self._write(f"{self._paint('36', f'{"up":>8} │')} {sentence}")

    def done(self, step: str) -> None:
        """One step of the start is done."""
        seconds = f"{self._clock() - self._started:5.1f} s"
        self._write(f"  {self._paint('32', '✓')} {step:<44} {self._paint('2', seconds)}")

    def summary(self, rows: Sequence[tuple[str, str]]) -> None:
        """The table that a newcomer reads: a row with an empty name continues the one above."""
        seconds = self._clock() - self._started
        self._write(f"\n  {self._paint('1', 'Headrace is up')}, {seconds:.1f} s after the start.\n")
        for name, value in rows:
            self._write(f"  {self._paint('2', f'{name:<10}')} {value}")
        self._write("")

    def _write(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text
