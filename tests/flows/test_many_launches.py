"""More launches at once than one process answers, places or starts."""

import pytest

from tests.flows.burst import GPUS_OF_A_NODE, NODES, Burst

pytestmark = pytest.mark.services
LAUNCHES = 40


class TestManyLaunches:
    def test_all_run_once_and_stop_with_every_second_paid(self, burst: Burst) -> None:
        with burst.launching(LAUNCHES):
            pass

        burst.check_to_the_last_second()

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
