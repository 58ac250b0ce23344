"""A pytest plugin: the embedded PostgreSQL and Valkey serve the tests, unless others are named.

It runs before Django reads its settings. Workers of pytest-xdist inherit the environment, so
one pair of servers serves a whole run.
"""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

# Importing `portal` makes the Celery app, which would choose the production settings.
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

from portal import embedded

# Tests lose nothing with the machine, so the servers need not wait for the disk.
FAST_POSTGRES = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=200")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    if "DATABASE_URL" in os.environ and "REDIS_URL" in os.environ:
        return
    # A socket's path must stay under 104 bytes, hence a short folder of its own.
    folder = Path(tempfile.mkdtemp(prefix="hr-test-"))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if "DATABASE_URL" not in os.environ:
        _serve(embedded.prepare_postgres(folder / "pg", options=FAST_POSTGRES), signal.SIGINT)
        _create_database(folder / "pg")
        os.environ["DATABASE_URL"] = embedded.postgres_url(folder / "pg")
    if "REDIS_URL" not in os.environ:
        _serve(embedded.prepare_valkey(folder / "kv", options=("--save", "")), signal.SIGTERM)
        os.environ["REDIS_URL"] = embedded.valkey_url(folder / "kv")


def _serve(command: embedded.Command, stop_signal: signal.Signals) -> None:
    process = subprocess.Popen(
        command.argv,
        user=command.user,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def stop() -> None:
        process.send_signal(stop_signal)
        process.wait(timeout=10)

    atexit.register(stop)


def _create_database(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            with psycopg.connect(
                host=str(embedded.postgres_sockets(folder)),
                user=embedded.ROLE,
                dbname="postgres",
                autocommit=True,
            ) as connection:
                connection.execute(f"CREATE DATABASE {embedded.DATABASE}")
                return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
