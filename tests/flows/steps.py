"""Steps of an instance's life at which a fault may come: each stands there while its body runs.

A step leaves nothing to chance where it can hold something that the next one needs.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import psycopg

from scheduler.cycle import CYCLE_LOCK
from tests.flows.burst import GPUS_OF_A_NODE, SETTLE_SECONDS, Burst
from tests.stack.processes import Process, eventually
from tests.stack.stack import Stack

type Step = Callable[[Burst], AbstractContextManager[None]]
MANY, FEW = 24, 6
ALL_NODES_BUT_THE_FIRST = """
    SELECT 1 FROM scheduler_node WHERE id > (SELECT min(id) FROM scheduler_node) FOR UPDATE
"""
# A cycle holds this lock from its beginning to its end.
WAITING_CYCLES = f"""
    SELECT count(*) FROM pg_stat_activity JOIN pg_locks USING (pid)
    WHERE datname = current_database() AND wait_event_type = 'Lock'
    AND locktype = 'advisory' AND granted AND objid = {CYCLE_LOCK}
"""  # noqa: S608 - a number of ours
WAITING_STOPS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
    AND query LIKE '%%"billing_account"%%'
"""


@contextmanager
def held(stack: Stack, statement: str) -> Iterator[None]:
    """Whoever needs what `statement` locks waits meanwhile."""
    with psycopg.connect(stack.stores.database_url) as connection:
        connection.execute(statement.encode())
        yield


@contextmanager
def frozen(processes: Sequence[Process]) -> Iterator[None]:
    """They do nothing meanwhile, and go on afterwards as if no time had passed."""
    for process in processes:
        process.freeze()
    try:
        yield
    finally:
        for process in processes:
            process.thaw()


@contextmanager
def launches_are_answered(burst: Burst) -> Iterator[None]:
    """Some stand in the database, some were not asked for yet, and the first ones start."""
    with burst.launching(MANY):
        burst.wait_until_some_are_launched(MANY // 4)
        yield


@contextmanager
def a_cycle_is_half_committed(burst: Burst) -> Iterator[None]:
    """The first node is full; the next assignment is decided, and waits for its node's row."""
    with held(burst.stack, ALL_NODES_BUT_THE_FIRST):
        with burst.launching(GPUS_OF_A_NODE + FEW):
            pass
        eventually(
            lambda: burst.stack.stores.number(WAITING_CYCLES) > 0,
            within_seconds=SETTLE_SECONDS,
            what="a cycle waits for a node",
        )
        yield


@contextmanager
def containers_are_not_reported(burst: Burst) -> Iterator[None]:
    """Nodes have made containers, and no meter could be opened for them yet."""
    with held(burst.stack, "LOCK TABLE billing_usageinterval IN EXCLUSIVE MODE"):
        # A report holds the account while it waits for us, and a launch would wait for that.
        with frozen(burst.stack.agents), burst.launching(FEW):
            pass
        eventually(burst.containers, within_seconds=SETTLE_SECONDS, what="a container is made")
        assert burst.counts()["running"] == 0
        yield


@contextmanager
def syncs_are_held(burst: Burst) -> Iterator[None]:
    """All is told, so every node waits in an open sync. What comes next finds it broken."""
    with burst.launching(FEW):
        pass
    burst.check_that_all_run_once()
    yield
    with burst.launching(FEW):
        pass


@contextmanager
def stops_are_not_charged(burst: Burst) -> Iterator[None]:
    """The stops are asked for, and wait for the account that they are to be charged to."""
    with ThreadPoolExecutor(1) as customer:
        with held(burst.stack, "SELECT 1 FROM billing_account FOR UPDATE"):
            asked = customer.submit(burst.ask_to_stop)
            eventually(
                lambda: burst.stack.stores.number(WAITING_STOPS) > 0,
                within_seconds=SETTLE_SECONDS,
                what="a stop waits for its account",
            )
            yield
        asked.result()


@contextmanager
def ends_are_not_reported(burst: Burst) -> Iterator[None]:
    """Nodes have removed containers, and no GPU of them could be given back yet."""
    with held(burst.stack, "LOCK TABLE scheduler_allocation IN EXCLUSIVE MODE"):
        burst.ask_to_stop()
        eventually(
            lambda: len(burst.containers()) < len(burst.instances),
            within_seconds=SETTLE_SECONDS,
            what="a container is gone",
        )
        assert burst.counts() == {"stopping": len(burst.instances)}
        yield


TO_RUNNING: tuple[Step, ...] = (
    launches_are_answered,
    a_cycle_is_half_committed,
    containers_are_not_reported,
    syncs_are_held,
)
TO_STOPPED: tuple[Step, ...] = (stops_are_not_charged, ends_are_not_reported)
