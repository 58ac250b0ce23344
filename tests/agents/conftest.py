"""What all tests of the agent share."""

import pytest

from agents import backoff, loop


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for in tens of seconds on a node, a test need not wait for."""
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.02)
    monkeypatch.setattr(backoff, "LONGEST_SECONDS", 0.05)
    monkeypatch.setattr(loop, "PLAN_SECONDS", 0.05)
