"""A stack of several processes, for the flows that are about processes."""

from collections.abc import Iterator

import pytest

from tests.flows.burst import NODES, SIMULATED, Burst
from tests.stack.customer import Customer
from tests.stack.processes import eventually
from tests.stack.stack import Stack, running_stack


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two web and two worker processes, beat, and three simulated nodes."""
    with running_stack(tmp_path_factory.mktemp("stack"), webs=2, workers=2) as stack:
        for name in NODES:
            stack.new_agent(name, SIMULATED).start()
        eventually(
            lambda: all(map(stack.has_enrolled, NODES)), within_seconds=60, what="all nodes enrol"
        )
        yield stack


@pytest.fixture
def burst(stack: Stack) -> Iterator[Burst]:
    burst = Burst(stack, Customer.sign_up(stack))
    yield burst
    burst.leave_nothing()
