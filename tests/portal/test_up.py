import asyncio
import doctest
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from portal.up import Refused, supervisor
from portal.up.folder import Folder
from portal.up.guard import dying_with_parent
from portal.up.supervisor import Program, Supervisor, next_pause

PROCESSES = ("server", "grandchild", "stubborn", "store")


class Listening:
    """A terminal that remembers what it was told."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.heard: list[tuple[str, str]] = []

    def hear(self, name: str, line: str) -> None:
        self.heard.append((name, line))

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)


class Unguarded:
    """In place of the guard, which a test with threads must not fork."""

    def tying(self, stop_signal: signal.Signals) -> Callable[[], None]:
        return dying_with_parent(stop_signal)

    def forget(self, pid: int) -> None:
        pass


def python(code: str, *, name: str = "stand-in", once: bool = False) -> Program:
    return Program(name, (sys.executable, "-S", "-c", code), once=once)


def supervise(folder: Path, terminal: Listening) -> Supervisor:
    return Supervisor(Unguarded(), terminal, folder / "log", grace_seconds=0.3)


def runs(pid: int) -> bool:
    """Whether the process exists and is more than an entry that nobody has collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(holds: Callable[[], bool], *, within_seconds: float = 5) -> bool:
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return False


class TestNextPause:
    def test_doubles_up_to_fifteen_seconds(self) -> None:
        pauses = [0.0]
        for _ in range(7):
            pauses.append(next_pause(pauses[-1], ran_seconds=1))

        assert pauses[1:] == [0.5, 1, 2, 4, 8, 15, 15]

    def test_is_short_again_after_a_good_run(self) -> None:
        assert next_pause(15, ran_seconds=10) == 0.5


def test_examples_in_docstrings_hold() -> None:
    assert doctest.testmod(supervisor).failed == 0


class TestSupervisor:
    def test_starts_a_dead_program_again_and_says_so(self, tmp_path: Path) -> None:
        terminal = Listening()
        starts = tmp_path / "starts"
        dies = python(f"import time; print(time.monotonic(), file=open({str(starts)!r}, 'a')); 1/0")

        async def until_third_start() -> None:
            async with supervise(tmp_path, terminal) as running:
                child = running.start(dies)
                while child.restarts < 2:
                    await asyncio.sleep(0.02)

        asyncio.run(until_third_start())

        first, second, third, *_ = [*map(float, starts.read_text().split()), float("inf")]
        assert second - first >= 0.5
        assert third - second >= 1.0
        assert "stand-in ended (exit 1) and starts again in 0.5 s" in terminal.sentences[0]
        assert "ZeroDivisionError" in (tmp_path / "log" / "stand-in.log").read_text()

    def test_does_not_start_again_what_it_was_told_to_stop(self, tmp_path: Path) -> None:
        terminal = Listening()

        async def start_and_leave() -> None:
            async with supervise(tmp_path, terminal) as running:
                running.start(python("import time; print('up', flush=True); time.sleep(60)"))
                while not terminal.heard:
                    await asyncio.sleep(0.02)

        asyncio.run(start_and_leave())

        assert terminal.sentences == []

    def test_kills_what_a_dead_program_leaves_behind(self, tmp_path: Path) -> None:
        terminal = Listening()
        leaves = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"

        async def until_restart() -> None:
            async with supervise(tmp_path, terminal) as running:
                running.start(python(leaves))
                while not terminal.sentences:
                    await asyncio.sleep(0.02)

        asyncio.run(until_restart())

        assert not runs(int(terminal.heard[0][1]))

    def test_refuses_with_the_last_words_of_a_step_that_failed(self, tmp_path: Path) -> None:
        async def run_step() -> None:
            async with supervise(tmp_path, Listening()) as running:
                await running.ended(
                    running.start(python("raise SystemExit('no such table')", once=True))
                )

        with pytest.raises(Refused, match="stand-in failed:\nno such table"):
            asyncio.run(run_step())

    def test_waits_no_longer_for_a_program_that_keeps_dying(self, tmp_path: Path) -> None:
        async def never() -> bool:
            return False

        async def wait() -> None:
            async with supervise(tmp_path, Listening()) as running:
                child = running.start(python("raise SystemExit('address in use')"))
                await running.ready(child, never, within_seconds=60)

        with pytest.raises(Refused, match="stand-in does not come up:\naddress in use"):
            asyncio.run(wait())

    def test_takes_a_line_longer_than_any_buffer(self, tmp_path: Path) -> None:
        terminal = Listening()

        async def run_step() -> None:
            async with supervise(tmp_path, terminal) as running:
                await running.ended(
                    running.start(python("print('x' * 300_000); print('end')", once=True))
                )

        asyncio.run(run_step())

        assert sum(line.count("x") for _, line in terminal.heard) == 300_000
        assert terminal.heard[-1] == ("stand-in", "end")


class TestAHouse:
    """The supervisor as a process of its own, which can be told to stop or be killed."""

    @pytest.fixture
    def house(self, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.portal.small_house", str(tmp_path)],
            stdout=subprocess.DEVNULL,
        )
        files = [tmp_path / "log" / f"{name}.pid" for name in PROCESSES]
        assert eventually(lambda: all(file.exists() and file.read_text() for file in files))
        yield process
        process.kill()
        process.wait()

    def pids(self, folder: Path) -> list[int]:
        return [int((folder / "log" / f"{name}.pid").read_text()) for name in PROCESSES]

    def test_stops_in_order_and_exits_with_zero(
        self, house: subprocess.Popen[bytes], tmp_path: Path
    ) -> None:
        pids = self.pids(tmp_path)
        started = time.monotonic()

        house.terminate()

        assert house.wait(timeout=5) == 0
        assert time.monotonic() - started < 3
        assert [pid for pid in pids if runs(pid)] == []
        # The store was asked when the others had ended, and could end by itself.
        assert (tmp_path / "log" / "store.end").exists()

    def test_leaves_no_orphan_when_killed(
        self, house: subprocess.Popen[bytes], tmp_path: Path
    ) -> None:
        pids = self.pids(tmp_path)
        assert all(map(runs, pids))

        house.kill()

        assert eventually(lambda: not any(map(runs, pids)))

    def test_leaves_no_orphan_when_killed_as_it_starts_one(self, tmp_path: Path) -> None:
        killed = subprocess.run(
            [sys.executable, "-m", "tests.portal.small_house", str(tmp_path), "assassin"],
            stdout=subprocess.DEVNULL,
            timeout=10,
            check=False,
        )

        assert killed.returncode == -signal.SIGKILL
        assassin = int((tmp_path / "log" / "assassin.pid").read_text())
        assert eventually(lambda: not runs(assassin))

    def test_can_be_followed_at_once_by_another_when_killed(
        self, house: subprocess.Popen[bytes], tmp_path: Path
    ) -> None:
        pids = self.pids(tmp_path)
        house.kill()
        house.wait()

        Folder(tmp_path).claim()

        assert [pid for pid in pids if runs(pid)] == []

    def test_is_alone_in_its_folder(self, house: subprocess.Popen[bytes], tmp_path: Path) -> None:
        started = time.monotonic()

        refusal = refused("--var", str(tmp_path), "--port", str(free_port()))

        assert time.monotonic() - started < 5  # at once, rather than after waiting for a guard
        assert f"Headrace already runs in {tmp_path} (process {house.pid})" in refusal


class TestTheCommand:
    def test_names_the_busy_port_and_the_way_out(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as busy:
            port = busy.getsockname()[1]
            refusal = refused("--var", str(tmp_path / "var"), "--port", str(port))

        assert re.fullmatch(rf"make up: port {port} cannot be used .*PORT=9000\.\n", refusal)
        assert not (tmp_path / "var").exists()

    def test_says_what_is_wrong_with_a_folder_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "var").write_text("")

        refusal = refused("--var", str(tmp_path / "var"), "--port", str(free_port()))

        assert "cannot hold the state of Headrace" in refusal
        assert refusal.count("\n") == 1

    def test_does_not_spread_over_a_folder_of_other_things(self, tmp_path: Path) -> None:
        (tmp_path / "holiday.jpg").write_text("")

        refusal = refused("--var", str(tmp_path), "--port", str(free_port()))

        assert "holds other things (holiday.jpg)" in refusal
        assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]

    def test_refuses_a_database_of_another_postgresql(self, tmp_path: Path) -> None:
        data = tmp_path / "pg" / "data"
        data.mkdir(parents=True)
        (data / "PG_VERSION").write_text("12\n")

        refusal = refused("--var", str(tmp_path), "--port", str(free_port()))

        assert "was written by PostgreSQL 12 and cannot be read by" in refusal


class TestFolder:
    def test_keeps_one_secret_that_only_its_owner_reads(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path)

        secret = folder.secret_key()

        assert len(secret) >= 50
        assert folder.secret_key() == secret
        assert (tmp_path / "secret_key").stat().st_mode & 0o777 == 0o600

    def test_refuses_an_empty_secret(self, tmp_path: Path) -> None:
        (tmp_path / "secret_key").write_text("")

        with pytest.raises(Refused, match="is empty"):
            Folder(tmp_path).secret_key()

    def test_knows_the_log_ins_that_the_seed_wrote(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path)
        assert folder.demo_logins() == {}

        (tmp_path / "demo.json").write_text('{"demo@headrace.local": "river"}')

        assert folder.demo_logins() == {"demo@headrace.local": "river"}


def refused(*arguments: str) -> str:
    """What `make up` says on its way out."""
    done = subprocess.run(
        [sys.executable, "-m", "portal.up", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "DATABASE_URL"},
    )
    assert done.returncode == 1
    return done.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class TestManage:
    def test_refuses_a_folder_without_an_installation(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "portal.up.manage", str(tmp_path), "check"],
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.returncode == 1
        assert done.stderr == f"{tmp_path} holds no installation: run make up first.\n"

    def test_hands_the_command_the_secret_and_the_stores(self, tmp_path: Path) -> None:
        Folder(tmp_path).secret_key()
        show = "from django.conf import settings as s; print(s.SECRET_KEY, s.REDIS_URL)"

        done = subprocess.run(
            [sys.executable, "-m", "portal.up.manage", str(tmp_path), "shell", "-v0", "-c", show],
            capture_output=True,
            text=True,
            check=True,
            env={k: v for k, v in os.environ.items() if k not in ("SECRET_KEY", "REDIS_URL")},
        )

        assert Folder(tmp_path).secret_key() in done.stdout
        assert "unix:///" in done.stdout
