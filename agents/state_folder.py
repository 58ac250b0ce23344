"""The agent's own folder: who this node is, and a lock so that one agent at a time is it."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from agents.config import RuntimeChoice


class StateFolderUnusable(Exception):
    """The folder cannot be used; the sentence says why and what to do."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """What a node keeps of its enrolment."""

    name: str
    token: str
    epoch: int
    # Chosen once: an engine that is down for a minute must not turn a node into a simulated one,
    # which would report its customers' containers as gone.
    runtime: RuntimeChoice


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for one agent. Raises StateFolderUnusable where another one has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = (folder / "lock").open("w")
    except OSError as error:
        raise StateFolderUnusable(f"The state folder {folder} cannot be used: {error}.") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateFolderUnusable(
                f"Another agent uses the state folder {folder}; give each its own HEADRACE_STATE."
            ) from error
        yield


def load(folder: Path) -> NodeIdentity | None:
    """None before the first enrolment. Raises StateFolderUnusable for a damaged file."""
    path = folder / "node.json"
    try:
        data = json.loads(path.read_text())
        return NodeIdentity(
            name=str(data["name"]),
            token=str(data["token"]),
            epoch=int(data["epoch"]),
            runtime=RuntimeChoice(data["runtime"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateFolderUnusable(
            f"{path} is damaged ({error}); remove it and enrol this node anew with a join token."
        ) from error


def save(folder: Path, identity: NodeIdentity) -> None:
    """Whole or not at all, readable by the agent alone, and on the disk before this returns."""
    write_whole(folder / "node.json", json.dumps(asdict(identity)), durable=True)


def write_whole(path: Path, text: str, *, durable: bool = False) -> None:
    """Replace a file at once, so that a reader or a crash never meets half of it."""
    draft = path.with_suffix(".draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    draft.replace(path)
