"""The suite for the servers that an operator runs: PostgreSQL and Redis over TCP.

`pytest -m services`, with DATABASE_URL and REDIS_URL naming such servers, runs the flows over a
stack of several processes, and again those tests of other folders that lean on what a database
or a Redis does.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

TESTS = Path(__file__).parent.parent
AGAIN = (
    TESTS / "flows",
    TESTS / "scheduler" / "test_races.py",
    TESTS / "scheduler" / "test_held_sync.py",
)


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
