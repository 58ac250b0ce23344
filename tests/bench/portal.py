"""A portal of its own for a bench: `make up` in a temporary folder, and a client of it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString
from uuid import uuid4

import httpx
import psycopg

from portal import embedded
from tests.bench.report import ROOT

START_SECONDS = 60
LEASED = "SELECT 1 FROM scheduler_lease WHERE instance_id = %s"
RUNS_NOW = "SELECT 1 FROM instances_instanceevent WHERE instance_id = %s AND state = 'running'"
GONE = "SELECT 1 FROM scheduler_lease WHERE instance_id = %s AND ended_at IS NOT NULL"
UNTHROTTLED = {"API_RATE_ANY": "1000000/min", "API_RATE_LAUNCH": "1000000/min"}


@dataclass(frozen=True)
class Portal:
    """Where it answers, its database, and a token of its demo member."""

    url: str
    var: Path
    token: str
    database: psycopg.Connection[Any]

    def client(self, token: str = "") -> httpx.Client:
        """Of the demo member, or of who has `token`."""
        return httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers={"Authorization": f"Bearer {token or self.token}"},
            timeout=30,
        )

    def launch(self, client: httpx.Client, plan: str, *, image: str = "ubuntu", **more: Any) -> str:
        """The id of a new instance."""
        body = {"plan": plan, "image": image, **more}
        reply = client.post("/instances", json=body, headers={"Idempotency-Key": str(uuid4())})
        reply.raise_for_status()
        instance: str = reply.json()["id"]
        return instance

    def until(self, query: LiteralString, instance: str) -> float:
        """When the query first finds a row for the instance, to within four milliseconds.

        Looking more often would keep a core busy that the portal needs.
        """
        deadline = time.perf_counter() + 60
        while self.database.execute(query, [instance]).fetchone() is None:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{query} never found {instance}")
            time.sleep(0.004)
        return time.perf_counter()

    def count(self, query: LiteralString) -> int:
        row = self.database.execute(query).fetchone()
        assert row is not None
        return int(row[0])

    def environment(self) -> dict[str, str]:
        """What a process needs to work beside this portal."""
        return {
            **os.environ,
            "DATABASE_URL": embedded.postgres_url(self.var / "pg"),
            "REDIS_URL": embedded.valkey_url(self.var / "kv"),
            "SECRET_KEY": (self.var / "secret_key").read_text(),
        }

    def manage(self, script: str) -> str:
        """Run a piece of Django in a process of its own; returns what it prints."""
        done = subprocess.run(
            [sys.executable, "manage.py", "shell", "--no-imports", "-c", script],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()


@contextlib.contextmanager
def running(environment: Mapping[str, str] | None = None) -> Iterator[Portal]:
    """Start it, log in, and stop it again whatever happens."""
    with tempfile.TemporaryDirectory(prefix="hr-bench-") as folder:
        Path(folder).chmod(0o755)
        var = Path(folder) / "var"
        port = _free_port()
        log = Path(folder) / "up.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "portal.up", "--port", str(port), "--var", str(var)],
                cwd=ROOT,
                env={**os.environ, **UNTHROTTLED, **(environment or {})},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            yield _log_in(f"http://127.0.0.1:{port}", var, process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def _log_in(url: str, var: Path, process: subprocess.Popen[bytes], log: Path) -> Portal:
    deadline = time.monotonic() + START_SECONDS
    while "Headrace is up" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the portal does not come up:\n{log.read_text()}")
        time.sleep(0.1)
    [(email, password), *_] = json.loads((var / "demo.json").read_text()).items()
    body = {"email": email, "password": password, "token_name": "bench"}
    reply = httpx.post(f"{url}/api/v1/auth/login", json=body, timeout=30)
    reply.raise_for_status()
    database = psycopg.connect(embedded.postgres_url(var / "pg"), autocommit=True)
    return Portal(url, var, reply.json()["token"]["secret"], database)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
