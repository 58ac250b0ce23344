"""The folder in which one `make up` keeps its state, and its claim to it."""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from portal.up import Refused

# What `make up`, the benchmarks and `bin/services` keep in a folder; anything else is not ours.
OURS = {"agent", "beat", "bench", "kv", "lock", "log", "pg", "secret_key"}
NEEDS = "needs.json"
DEMO_LOGINS = "demo.json"
OURS |= {DEMO_LOGINS, NEEDS, "services", "static"}
GUARD_SECONDS = 10  # a killed supervisor's guard is done by then


class Folder:
    """The state of one installation."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def claim(self) -> None:
        """Make the folder where it is missing, and hold it until this process ends.

        Raises Refused where it cannot be used: not a folder, not writable, not ours, or held by
        another `make up`.
        """
        try:
            self._make()
            # Never closed: the lock goes with the process, and with the guard that outlives it.
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            self._wait_for_lock()
        except OSError as error:
            raise Refused(
                f"{self.path} cannot hold the state of Headrace ({error.strerror}): "
                "name a folder that can be written to, make up VAR=/a/folder."
            ) from error

    @property
    def logs(self) -> Path:
        return self.path / "log"

    def secret_key(self) -> str:
        """Django's secret, made once: sessions and links in mails outlive a restart."""
        path = self.path / "secret_key"
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(50))
        secret = path.read_text().strip()
        if not secret:
            raise Refused(f"{path} is empty: remove it, and a new one is made.")
        return secret

    def demo_logins(self) -> Mapping[str, str]:
        """E-mail address → password of the log-ins that the seed wrote down; empty without."""
        try:
            logins = json.loads((self.path / DEMO_LOGINS).read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise Refused(f"{self.path / DEMO_LOGINS} is broken: remove it.") from None
        return {str(address): str(password) for address, password in logins.items()}

    def take_needs(self) -> Mapping[str, Any]:
        """What the preparation found out for the agent; once, since a secret is among it."""
        path = self.path / NEEDS
        needs: Mapping[str, Any] = json.loads(path.read_text())
        path.unlink()
        return needs

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        present = {entry.name for entry in self.path.iterdir()}
        foreign = sorted(name for name in present - OURS if not name.startswith("."))
        if foreign and "secret_key" not in present:
            raise Refused(
                f"{self.path} holds other things ({', '.join(foreign[:3])}): name an empty "
                "folder for the state of Headrace, make up VAR=/a/folder."
            )
        if os.geteuid() == 0:
            # PostgreSQL runs as another user then, and must pass through.
            self.path.chmod(self.path.stat().st_mode | 0o001)
        self.logs.mkdir(mode=0o700, exist_ok=True)
        (self.path / "static").mkdir(exist_ok=True)

    def _wait_for_lock(self) -> None:
        deadline = time.monotonic() + GUARD_SECONDS
        while not self._locked():
            holder = os.pread(self._lock, 20, 0).decode().strip()
            if _runs(holder) or time.monotonic() > deadline:
                raise Refused(
                    f"Headrace already runs in {self.path} (process {holder}): "
                    "stop it first, or run a second one with another PORT and VAR."
                )
            time.sleep(0.05)  # it was killed, and its guard is ending what it left
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _locked(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _runs(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
