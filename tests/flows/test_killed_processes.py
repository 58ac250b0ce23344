"""Several web, worker and agent processes at one thing, and any of them killed in the middle."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.flows.burst import GPUS_OF_A_NODE, NODES, PLAN, Burst
from tests.stack.processes import Process, eventually
from tests.stack.stack import Stack

pytestmark = pytest.mark.services
LAUNCHES = 40
LAUNCHES_UNDER_FAULTS = 24
UNANSWERED = "SELECT count(*) FROM accounts_idempotentreply WHERE status IS NULL"
BLOCKED = (
    "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    " AND query LIKE 'UPDATE \"accounts_idempotentreply\"%%'"
)


def processes_of(stack: Stack, kind: str) -> list[Process]:
    return {
        "web": stack.webs,
        "worker": stack.workers,
        "beat": [stack.beat],
        "agent": stack.agents,
    }[kind]


def kill_and_start(processes: list[Process]) -> None:
    """All of a kind at once: nobody is left who could cover for the dead."""
    for process in processes:
        process.kill()
    for process in processes:
        process.start()


class TestManyLaunches:
    def test_all_run_once_and_stop_with_every_second_paid(self, burst: Burst) -> None:
        with burst.launching(LAUNCHES):
            pass

        burst.check_that_all_run_once()
        burst.stop_all()
        burst.check_charges()

    def test_beyond_what_fits_wait_and_follow_as_places_come_free(self, burst: Burst) -> None:
        places = GPUS_OF_A_NODE * len(NODES)
        with burst.launching(places + 4):
            pass
        burst.wait_until_some_run(places)
        assert burst.counts() == {"running": places, "queued": 4}

        stopped = burst.running()[:4]
        for instance in stopped:
            burst.customer.stop(instance)
        waiting = [each for each in burst.instances if each not in stopped]
        for instance in waiting:
            burst.customer.wait_for(instance, "running")

        burst.stop_all()
        burst.check_charges()


class TestAKilledProcess:
    @pytest.mark.parametrize("kind", ["web", "worker", "beat", "agent"])
    def test_loses_nothing_runs_nothing_twice_and_charges_nothing_wrong(
        self, stack: Stack, burst: Burst, kind: str
    ) -> None:
        victims = processes_of(stack, kind)

        with burst.launching(LAUNCHES_UNDER_FAULTS):
            # While launches are answered and the first instances start, …
            burst.wait_until_some_are_launched(LAUNCHES_UNDER_FAULTS // 4)
            kill_and_start(victims)
        burst.check_that_all_run_once()
        # … and while they stop.
        for instance in burst.instances[: LAUNCHES_UNDER_FAULTS // 2]:
            burst.customer.stop(instance)
        kill_and_start(victims)

        burst.stop_all()
        burst.check_charges()


class TestAnAnswerThatDiesWithItsServer:
    def test_is_given_to_the_retry_which_launches_nothing_more(
        self, stack: Stack, burst: Burst
    ) -> None:
        database_url = stack.stores.database_url
        with (
            psycopg.connect(database_url) as teams,
            psycopg.connect(database_url) as replies,
            ThreadPoolExecutor(1) as client,
        ):
            # The launch waits for its team, so that we are there before it commits, …
            teams.execute("SELECT 1 FROM accounts_team FOR UPDATE")
            answer = client.submit(burst.customer.launch, PLAN)
            eventually(
                lambda: stack.stores.number(UNANSWERED) == 1, within_seconds=30, what="a claim"
            )
            # … and then for us before it can keep its answer.
            replies.execute("LOCK TABLE accounts_idempotentreply IN EXCLUSIVE MODE")
            teams.rollback()
            burst.wait_until_some_are_launched(1)
            eventually(
                lambda: stack.stores.number(f"SELECT count(*) {BLOCKED}") == 1,
                within_seconds=30,
                what="a server that would keep its answer",
            )
            kill_and_start(stack.webs)
            # The database would still do what a dead client asked of it last.
            stack.stores.number(f"SELECT count(pg_terminate_backend(pid)) {BLOCKED}")
            replies.rollback()
            burst.instances = [answer.result()]

        burst.check_that_all_run_once()
        burst.stop_all()
        burst.check_charges()


class TestAnEmptiedRedis:
    def test_loses_nothing_in_the_middle_of_launches(self, stack: Stack, burst: Burst) -> None:
        with burst.launching(LAUNCHES_UNDER_FAULTS):
            burst.wait_until_some_are_launched(LAUNCHES_UNDER_FAULTS // 4)
            stack.stores.empty_redis()
            burst.wait_until_some_run(LAUNCHES_UNDER_FAULTS // 2)
            stack.stores.empty_redis()

        burst.check_that_all_run_once()
        stack.stores.empty_redis()
        burst.stop_all()
        burst.check_charges()
