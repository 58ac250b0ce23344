"""Several web, worker and agent processes at one thing, and any of them killed in the middle."""

import pytest

from tests.services.burst import Burst
from tests.services.conftest import GPUS_OF_A_NODE, NODES
from tests.stack.customer import Customer
from tests.stack.processes import Process
from tests.stack.stack import Stack

pytestmark = pytest.mark.services
LAUNCHES = 40
LAUNCHES_UNDER_FAULTS = 16


@pytest.fixture
def burst(stack: Stack) -> Burst:
    return Burst(stack, Customer.sign_up(stack))


def processes_of(stack: Stack, kind: str) -> list[Process]:
    """The processes to kill, of which the first serves the first node or takes the next task."""
    return {
        "web": stack.webs,
        "worker": stack.workers,
        "beat": [stack.beat],
        "agent": stack.agents,
    }[kind]


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
            for running in (1, LAUNCHES_UNDER_FAULTS // 2):
                # Each at another step of its work: one while instances start, …
                burst.wait_until_some_run(running)
                for victim in victims:
                    victim.kill()
                for victim in victims:
                    victim.start()

        burst.check_that_all_run_once()
        # … and one while they stop.
        for instance in burst.instances[: LAUNCHES_UNDER_FAULTS // 2]:
            burst.customer.stop(instance)
        for victim in victims:
            victim.kill()
        for victim in victims:
            victim.start()
        burst.stop_all()
        burst.check_charges()


class TestAnEmptiedRedis:
    def test_loses_nothing_in_the_middle_of_launches(self, stack: Stack, burst: Burst) -> None:
        with burst.launching(LAUNCHES_UNDER_FAULTS):
            for running in (0, 1, LAUNCHES_UNDER_FAULTS // 2):
                burst.wait_until_some_run(running)
                stack.stores.empty_redis()

        burst.check_that_all_run_once()
        stack.stores.empty_redis()
        burst.stop_all()
        burst.check_charges()
