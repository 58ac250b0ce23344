"""Processes that are killed, and a Redis that is emptied, at every step of an instance's life.

Whatever the fault, each launch is one instance that ran once, in one container on a GPU of its
own, and was paid for by the second.
"""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.flows.burst import PLAN, Burst
from tests.flows.steps import FEW, TO_RUNNING, TO_STOPPED, Step
from tests.stack.processes import Process, eventually
from tests.stack.stack import Stack

pytestmark = pytest.mark.services
# The last is what a machine without power does.
KINDS = ("worker", "beat", "agent", "web", "everything")
BLOCKED = (
    "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    " AND query LIKE 'INSERT INTO \"accounts_idempotentreply\"%%'"
)

on_the_way_to_running = pytest.mark.parametrize("step", TO_RUNNING, ids=lambda s: s.__name__)
on_the_way_to_stopped = pytest.mark.parametrize("step", TO_STOPPED, ids=lambda s: s.__name__)


def kill_and_start(stack: Stack, kind: str) -> None:
    """All of a kind at once: nobody is left who could cover for the dead."""
    processes: dict[str, list[Process]] = {
        "web": stack.webs,
        "worker": stack.workers,
        "beat": [stack.beat],
        "agent": stack.agents,
        "everything": [*stack.webs, *stack.workers, stack.beat, *stack.agents],
    }
    for process in processes[kind]:
        process.kill()
    for process in processes[kind]:
        process.start()


@pytest.fixture
def running(burst: Burst) -> Burst:
    with burst.launching(FEW):
        pass
    burst.check_that_all_run_once()
    burst.wait_until_all_cost_something()
    return burst


@pytest.mark.parametrize("kind", KINDS)
class TestAKilledProcess:
    @on_the_way_to_running
    def test_loses_nothing_runs_nothing_twice_and_charges_nothing_wrong(
        self, burst: Burst, step: Step, kind: str
    ) -> None:
        with step(burst):
            kill_and_start(burst.stack, kind)

        burst.check_to_the_last_second()

    @on_the_way_to_stopped
    def test_leaves_nothing_running_and_charges_nothing_wrong(
        self, running: Burst, step: Step, kind: str
    ) -> None:
        with step(running):
            kill_and_start(running.stack, kind)

        running.stop_all()
        running.check_charges()


class TestALostAnswer:
    def test_takes_its_launch_with_it_and_the_retry_launches(
        self, stack: Stack, burst: Burst
    ) -> None:
        with (
            psycopg.connect(stack.stores.database_url) as replies,
            ThreadPoolExecutor(1) as client,
        ):
            # The launch waits for us before it can keep its answer.
            replies.execute("LOCK TABLE accounts_idempotentreply IN EXCLUSIVE MODE")
            answer = client.submit(burst.customer.launch, PLAN)
            eventually(
                lambda: stack.stores.number(f"SELECT count(*) {BLOCKED}") == 1,
                within_seconds=30,
                what="a server that would keep its answer",
            )
            kill_and_start(stack, "web")
            # PostgreSQL notices that a client is dead once it has waited to the end.
            stack.stores.number(f"SELECT count(pg_terminate_backend(pid)) {BLOCKED}")
            replies.rollback()
            burst.instances = [answer.result()]

        burst.check_to_the_last_second()


class TestAnEmptiedRedis:
    @on_the_way_to_running
    def test_loses_nothing_runs_nothing_twice_and_charges_nothing_wrong(
        self, burst: Burst, step: Step
    ) -> None:
        with step(burst):
            burst.stack.stores.empty_redis()

        burst.check_to_the_last_second()

    @on_the_way_to_stopped
    def test_leaves_nothing_running_and_charges_nothing_wrong(
        self, running: Burst, step: Step
    ) -> None:
        with step(running):
            running.stack.stores.empty_redis()

        running.stop_all()
        running.check_charges()
