import contextlib
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from portal import embedded
from portal.embedded import BrokenStore, prepare_postgres, prepare_valkey


@pytest.fixture
def short_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that PostgreSQL's user can reach, unlike pytest's own under root."""
    folder = Path(f"/tmp/hr-{os.getpid()}-{time.monotonic_ns() % 10**9}")  # noqa: S108
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


class TestPrepareValkey:
    @pytest.mark.parametrize("name", ["kv", "long" * 30, "with space & more"])
    def test_serves_on_a_socket_wherever_its_folder_lies(self, tmp_path: Path, name: str) -> None:
        folder = tmp_path / name
        command = prepare_valkey(folder, options=("--save", ""))
        process = subprocess.Popen(command.argv, stdout=subprocess.DEVNULL)
        try:
            client = redis.Redis.from_url(embedded.valkey_url(folder))
            assert answers(client)
            assert client.config_get("dir") == {"dir": str(folder)}
        finally:
            process.terminate()
            process.wait()

        socket = embedded.valkey_socket(folder)
        mode = stat.S_IMODE(socket.parent.stat().st_mode)
        socket.parent.rmdir()  # it may lie under /tmp, where nobody else would remove it
        assert len(os.fsencode(socket)) <= 103
        assert mode == 0o700

    def test_refuses_a_socket_folder_of_somebody_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

        with pytest.raises(BrokenStore, match="belongs to somebody else"):
            prepare_valkey(tmp_path)


class TestPreparePostgres:
    def test_makes_a_cluster_once_and_serves_it_again(self, short_folder: Path) -> None:
        folder = short_folder / "pg"
        first = prepare_postgres(folder)
        made = (folder / "data" / "PG_VERSION").stat().st_mtime_ns

        again = prepare_postgres(folder)

        assert again == first
        assert (folder / "data" / "PG_VERSION").stat().st_mtime_ns == made
        with serving(again):
            assert row(folder, "show listen_addresses") == ""
            assert row(folder, "show server_encoding") == "UTF8"

    def test_never_serves_half_a_cluster(self, short_folder: Path) -> None:
        folder = short_folder / "pg"
        (folder / "unfinished").mkdir(parents=True)
        (folder / "unfinished" / "PG_VERSION").write_text("18\n")

        prepare_postgres(folder)

        assert not (folder / "unfinished").exists()
        assert (folder / "data" / "global").is_dir()

    def test_refuses_data_of_another_major_version(self, short_folder: Path) -> None:
        data = short_folder / "data"
        data.mkdir()
        (data / "PG_VERSION").write_text("12\n")

        with pytest.raises(BrokenStore, match="written by PostgreSQL 12 and cannot be read by"):
            prepare_postgres(short_folder)

    def test_refuses_a_folder_that_holds_something_else(self, short_folder: Path) -> None:
        (short_folder / "data").mkdir()
        (short_folder / "data" / "novel.txt").write_text("")

        with pytest.raises(BrokenStore, match="holds no PostgreSQL database"):
            prepare_postgres(short_folder)


class TestReachable:
    def test_is_the_folder_itself_where_everybody_may_pass(self, short_folder: Path) -> None:
        assert embedded.reachable(short_folder / "pg") == short_folder / "pg"

    def test_moves_out_of_a_closed_folder_of_root(
        self, short_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(embedded, "service_user", lambda: "nobody")
        monkeypatch.setattr(embedded, "REACHABLE", short_folder / "elsewhere")
        closed = short_folder / "closed"
        closed.mkdir(mode=0o700)

        moved = embedded.reachable(closed / "pg")

        assert moved.parent == short_folder / "elsewhere"
        assert (closed / "pg").resolve() == moved
        assert embedded.reachable(closed / "pg") == moved
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700


def answers(client: "redis.Redis") -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            time.sleep(0.02)
    return False


@contextlib.contextmanager
def serving(command: embedded.Command) -> Iterator[None]:
    process = subprocess.Popen(command.argv, user=command.user, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def row(folder: Path, query: str) -> object:
    """The one value that `query` gives on the cluster of `folder`, when it answers."""
    deadline = time.monotonic() + 5
    while True:
        try:
            with psycopg.connect(
                host=str(embedded.postgres_sockets(folder)), user=embedded.ROLE, dbname="postgres"
            ) as connection:
                [value] = connection.execute(query).fetchone() or [None]
                return value
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
