"""Headrace and a real Chromium in front of it, in which nothing may go wrong unseen."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import ConsoleMessage, Page

from portal.catalog.seeds import simulated_node
from tests.stack.processes import Process
from tests.stack.stack import Stack, running_stack

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",  # CI is root, for whom Chromium has no sandbox
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ADMIN = "admin@headrace.local"
# Far above what a page takes: the machine may do much else beside.
PATIENCE_MS = 30_000


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, Any]:
    return {"executable_path": CHROMIUM, "args": FLAGS}


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Headrace with one simulated node that carries all of the catalogue."""
    with running_stack(tmp_path_factory.mktemp("stack")) as stack:
        stack.add_agent("rack-a", {"HEADRACE_RUNTIME": "simulated", **simulated_node()})
        yield stack


@pytest.fixture
def agent(stack: Stack) -> Iterator[Process]:
    """The node's agent, which a test may freeze."""
    yield stack.agents[0]
    stack.agents[0].thaw()


@pytest.fixture(scope="session")
def admin_password(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the member of staff that the seed makes."""
    path = tmp_path_factory.mktemp("seed") / "demo.json"
    seeded = stack.run("manage.py", "seed", "--demo-credentials", str(path))
    assert seeded.returncode == 0, seeded.stderr
    password: str = json.loads(path.read_text())[ADMIN]
    return password


@pytest.fixture
def page(page: Page) -> Iterator[Page]:
    """A tab; what its console says against the page, or against our policy, fails the test."""
    page.set_default_timeout(PATIENCE_MS)
    faults: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            faults.append(f"{page.url}: {message.text}")

    page.on("console", hear)
    page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
    yield page
    assert faults == []


def sign_in(page: Page, stack: Stack, email: str, password: str) -> None:
    page.goto(f"{stack.urls[0]}/accounts/login/")
    page.get_by_label("Email").fill(email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{stack.urls[0]}/")
