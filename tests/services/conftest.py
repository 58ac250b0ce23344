"""The suite for the servers that an operator runs: PostgreSQL and Redis over TCP.

`pytest -m services`, with DATABASE_URL and REDIS_URL naming such servers, runs the tests of this
folder over a stack of several processes, and again those tests of other folders that lean on
what a database or a Redis does.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.stack.processes import eventually
from tests.stack.stack import Stack, running_stack

TESTS = Path(__file__).parent.parent
AGAIN = (
    TESTS / "flows",
    TESTS / "scheduler" / "test_races.py",
    TESTS / "scheduler" / "test_held_sync.py",
)
NODES = ("rack-a", "rack-b", "rack-c")
GPUS_OF_A_NODE = 16
GPUS = f"{GPUS_OF_A_NODE}xNVIDIA L4:23034"
SIMULATED = {"HEADRACE_RUNTIME": "simulated", "HEADRACE_SIMULATED_GPUS": GPUS}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("markexpr") != "services":
        return
    for variable in ("DATABASE_URL", "REDIS_URL"):
        if not urlsplit(os.environ[variable]).hostname:
            raise pytest.UsageError(
                f"The suite marked services needs {variable} to name a server over TCP: "
                'eval "$(bin/services start)".'
            )
    for item in items:
        if any(item.path.is_relative_to(place) for place in AGAIN):
            item.add_marker("services")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two web and two worker processes, beat, and three simulated nodes."""
    with running_stack(tmp_path_factory.mktemp("stack"), webs=2, workers=2) as stack:
        for name in NODES:
            stack.new_agent(name, SIMULATED).start()
        eventually(
            lambda: all(map(stack.has_enrolled, NODES)), within_seconds=60, what="all nodes enrol"
        )
        yield stack
