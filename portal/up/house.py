"""What one machine runs: the stores, the steps that prepare them, and Headrace's processes."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from portal import embedded
from portal.up.folder import Folder
from portal.up.supervisor import Child, Program, Supervisor
from portal.up.terminal import Terminal

HOST = "127.0.0.1"
PYTHON = sys.executable
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
START_SECONDS = 60
# What the preparation prints when the tables are there.
MIGRATED = "migrated"


@dataclass(frozen=True)
class House:
    """One installation on one machine: where it keeps its state and where it is reached.

    `environment` is what the person set: it goes before every default of ours.
    """

    folder: Folder
    port: int
    environment: Mapping[str, str]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def node(self) -> Path:
        """What the agent remembers of its enrolment; absent until it has enrolled."""
        return self.folder.path / "agent" / "node.json"

    def runtime(self) -> str:
        """What makes the containers of this machine's node: the agent chose once, or was told."""
        told = self.environment.get("HEADRACE_RUNTIME", "auto")
        return told if told != "auto" else str(json.loads(self.node.read_text())["runtime"])

    @property
    def postgres(self) -> Path:
        """Where the embedded PostgreSQL lives."""
        return embedded.reachable(self.folder.path / "pg")

    @property
    def valkey(self) -> Path:
        """Where the embedded Valkey lives."""
        return self.folder.path / "kv"

    def settings(self) -> dict[str, str]:
        """What every process of Headrace is told. The stores are ours unless the person's."""
        environment = {
            "DEMO": "1",
            "PUBLIC_URL": self.url,
            "PYTHONUNBUFFERED": "1",
            "SECRET_KEY": self.folder.secret_key(),
            "STATIC_ROOT": str(self.folder.path / "static"),
            **self.environment,
        }
        if "DATABASE_URL" not in environment:
            environment["DATABASE_URL"] = embedded.postgres_url(self.postgres)
        if "REDIS_URL" not in environment:
            environment["REDIS_URL"] = embedded.valkey_url(self.valkey)
        return environment


def preparation(house: House, env: Mapping[str, str]) -> Program:
    """The step that makes the database ready and finds out what the agent needs."""
    join = () if house.node.exists() else ("--join",)
    argv = (PYTHON, "-m", "portal.up.prepare", str(house.folder.path), *join)
    return Program("prepare", argv, env, once=True)


def simulated(runtime: str, gpus: str) -> str:
    """What is simulated, in words for the summary; `gpus` as the agent is told to offer them."""
    if runtime == "docker" and NVIDIA_DRIVER.exists():
        return "nothing: real containers on real GPUs"
    offered = (offer.rpartition(":")[0].split("x", 1) for offer in gpus.split(","))
    models = ", ".join(f"{count} × {model}" for count, model in offered)
    if runtime == "docker":
        return f"the GPUs ({models}); containers are real ones"
    return f"GPUs and containers, as no Docker engine answered ({models})"


def web(house: House, env: Mapping[str, str]) -> Program:
    """The pages, the API and the door for nodes, on one port."""
    server = ("uvicorn", "portal.asgi:application", "--host", HOST, "--port", str(house.port))
    # Streams and held syncs never end by themselves.
    quiet = ("--log-level", "warning", "--timeout-graceful-shutdown", "2", "--no-server-header")
    return Program("web", (PYTHON, "-m", *server, *quiet), env)


def background(house: House, env: Mapping[str, str]) -> list[Program]:
    """Worker and beat: what happens by itself."""
    celery = (PYTHON, "-m", "celery", "--quiet", "-A", "portal")
    # A worker without neighbours would only wait for them.
    alone = ("--without-mingle", "--without-gossip", "--without-heartbeat")
    timetable = ("--schedule", str(house.folder.path / "beat"), "--pidfile", "")
    return [
        Program("worker", (*celery, "worker", "-c2", "-lWARNING", *alone), env),
        Program("beat", (*celery, "beat", "-lWARNING", *timetable), env),
    ]


def agent(house: House, env: Mapping[str, str], needs: Mapping[str, Any]) -> Program:
    """This machine's node agent: it offers the simulated GPUs where the machine has none."""
    told = {
        **needs["simulated_node"],
        "HEADRACE_STATE": str(house.node.parent),
        "HEADRACE_URL": house.url,
        **env,
    }
    if "join_token" in needs:
        told["HEADRACE_JOIN_TOKEN"] = needs["join_token"]
    return Program("agent", (PYTHON, "-m", "agents"), told)


class Start:
    """One start of a House: everything in order, as much of it at once as can be."""

    def __init__(self, house: House, supervisor: Supervisor, terminal: Terminal) -> None:
        self._house = house
        self._supervisor = supervisor
        self._terminal = terminal
        self._env = house.settings()

    async def run(self) -> None:
        """Return when a person can use it. Raises Refused or BrokenStore."""
        async with asyncio.TaskGroup() as stores:
            preparing = self._supervisor.start(preparation(self._house, self._env))
            if "REDIS_URL" not in self._house.environment:
                stores.create_task(self._valkey(self._house.valkey))
            if "DATABASE_URL" not in self._house.environment:
                stores.create_task(self._postgres(self._house.postgres))
        await self._ready(preparing, _said(preparing, MIGRATED))
        self._terminal.done("the tables are there")
        # Web first: a person sees it, and imports are most of what the start costs.
        portal = self._supervisor.start(web(self._house, self._env))
        await self._supervisor.ended(preparing)
        self._terminal.done("the catalogue is seeded")
        for program in background(self._house, self._env):
            self._supervisor.start(program)
        await self._ready(portal, lambda: _answers(self._house.port))
        self._terminal.done("the portal answers")
        gpus = await self._join()
        self._terminal.summary(self._summary(simulated(self._house.runtime(), gpus)))

    async def _ready(self, child: Child, probe: Callable[[], Awaitable[bool]]) -> None:
        await self._supervisor.ready(child, probe, within_seconds=START_SECONDS)

    async def _valkey(self, folder: Path) -> None:
        durable = ("--appendonly", "yes", "--save", "", "--loglevel", "warning")
        command = embedded.prepare_valkey(folder, options=durable)
        program = Program("valkey", command.argv, user=command.user, stops_last=True)
        socket = embedded.valkey_socket(folder)
        await self._ready(self._supervisor.start(program), lambda: _listens(socket))
        self._terminal.done("Valkey answers")

    async def _postgres(self, folder: Path) -> None:
        # A thread: making a cluster takes a second or more, in which Ctrl-C must be heard.
        command = await asyncio.to_thread(embedded.prepare_postgres, folder)
        # SIGINT is its fast stop; at SIGTERM it would wait for every client to leave.
        child = self._supervisor.start(
            Program(
                "postgres",
                command.argv,
                user=command.user,
                stop_signal=signal.SIGINT,
                stops_last=True,
            )
        )
        sockets = embedded.postgres_sockets(folder)
        await self._ready(child, lambda: _has_database(sockets))
        self._terminal.done("PostgreSQL answers")

    async def _join(self) -> str:
        """Start this machine's agent and see it join; the GPUs it was told to pretend."""
        needs = self._house.folder.take_needs()
        child = self._supervisor.start(agent(self._house, self._env, needs))
        await self._ready(child, _exists(self._house.node))
        self._terminal.done("this machine's node has joined")
        return str(needs["simulated_node"]["HEADRACE_SIMULATED_GPUS"])

    def _summary(self, simulated: str) -> list[tuple[str, str]]:
        logins = self._house.folder.demo_logins() or {"none": "the seed made no demo log-ins"}
        width = max(map(len, logins))
        rows = [("Address", self._house.url)]
        rows += [
            ("" if row else "Log in as", f"{address:<{width}}  {password}")
            for row, (address, password) in enumerate(logins.items())
        ]
        return [
            *rows,
            ("Simulated", simulated),
            ("Mail", "is shown here and sent to nobody"),
            ("State", f"{self._house.folder.path} (what each process says: log/)"),
            *self._moved_database(),
            ("Stop", "Ctrl-C; the next make up goes on where this one stops"),
        ]

    def _moved_database(self) -> list[tuple[str, str]]:
        """Where the database lies when its user could not enter the folder of the rest."""
        if "DATABASE_URL" in self._house.environment:
            return []
        lies = self._house.postgres
        inside = lies.is_relative_to(self._house.folder.path.resolve())
        return [] if inside else [("", f"{lies} (the database: its user cannot enter there)")]


def _said(child: Child, line: str) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        return line in child.last_lines

    return probe


def _exists(path: Path) -> Callable[[], Awaitable[bool]]:
    async def probe() -> bool:
        return path.exists()

    return probe


async def _listens(socket: Path) -> bool:
    _, writer = await asyncio.open_unix_connection(socket)
    writer.close()
    return True


async def _answers(port: int) -> bool:
    """Whether the portal answers a request, be it with a refusal."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(f"GET / HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode())
    with contextlib.closing(writer):
        status = await reader.readline()
    return status.startswith(b"HTTP/1.") and status.split()[1] < b"500"


async def _has_database(sockets: Path) -> bool:
    """Whether the cluster answers and has our database, which is created where missing."""
    try:
        connection = await psycopg.AsyncConnection.connect(
            host=str(sockets), user=embedded.ROLE, dbname="postgres", autocommit=True
        )
    except psycopg.OperationalError:  # it is still starting
        return False
    async with connection:
        with contextlib.suppress(psycopg.errors.DuplicateDatabase):
            await connection.execute(f"CREATE DATABASE {embedded.DATABASE}")
    return True
