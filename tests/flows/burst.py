"""Many launches at once, and what must be true of them whatever happened meanwhile."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.stack.customer import Customer
from tests.stack.processes import eventually
from tests.stack.stack import Stack

NODES = ("rack-a", "rack-b", "rack-c")
GPUS_OF_A_NODE = 16
GPUS = f"{GPUS_OF_A_NODE}xNVIDIA L4:23034"
SIMULATED = {"HEADRACE_RUNTIME": "simulated", "HEADRACE_SIMULATED_GPUS": GPUS}
PLAN = "l4-small"
MICROS_PER_SECOND = 1000
CLIENTS = 8
# A killed worker's message comes back after six seconds; all processes take longer to come up.
SETTLE_SECONDS = 120
LIVE_LEASES = """
    SELECT instance_id FROM scheduler_lease
    WHERE ended_at IS NULL AND instance_id = ANY(%s::uuid[])
"""
HELD_GPUS = """
    SELECT l.instance_id FROM scheduler_allocation a JOIN scheduler_lease l ON l.id = a.lease_id
    WHERE a.released_at IS NULL AND l.instance_id = ANY(%s::uuid[])
"""
MOVES_TO_RUNNING = """
    SELECT instance_id FROM instances_instanceevent
    WHERE state = 'running' AND instance_id = ANY(%s::uuid[])
"""


class Burst:
    """The instances of one customer, launched by several clients at once."""

    def __init__(self, stack: Stack, customer: Customer) -> None:
        self.stack = stack
        self.customer = customer
        self.instances: list[str] = []

    @contextmanager
    def launching(self, count: int) -> Iterator[None]:
        """Launch while the body goes on; every launch has its answer on leaving."""
        with ThreadPoolExecutor(CLIENTS) as clients:
            answers = [clients.submit(self.customer.launch, PLAN) for _ in range(count)]
            yield
            self.instances += [answer.result() for answer in answers]

    def counts(self) -> Counter[str]:
        """How many instances of the customer's team there are in each state."""
        rows = self.stack.stores.rows(
            "SELECT i.state FROM instances_instance i JOIN accounts_member m USING (team_id)"
            " JOIN accounts_user u ON u.id = m.user_id WHERE u.email = %s",
            self.customer.email,
        )
        return Counter(state for (state,) in rows)

    def running(self) -> list[str]:
        """The instances that the customer sees running."""
        instances = self.customer.get("/instances?page_size=200")["results"]
        return [each["id"] for each in instances if each["state"] == "running"]

    def wait_until_some_are_launched(self, count: int) -> None:
        """Back in the middle of the launches, when so many stand in the database."""
        eventually(
            lambda: self.counts().total() >= count,
            within_seconds=SETTLE_SECONDS,
            what=f"{count} instances are launched",
        )

    def wait_until_some_run(self, count: int) -> None:
        eventually(
            lambda: self.counts()["running"] >= count,
            within_seconds=SETTLE_SECONDS,
            what=f"{count} instances run",
        )

    def wait_until_all_cost_something(self) -> None:
        eventually(
            lambda: all(self._cost(instance)["seconds"] for instance in self.instances),
            within_seconds=SETTLE_SECONDS,
            what="every instance has run for a second",
        )

    def check_to_the_last_second(self) -> None:
        """All run once; and once they are stopped, every second of that is paid."""
        self.check_that_all_run_once()
        self.wait_until_all_cost_something()
        self.stop_all()
        self.check_charges()

    def check_that_all_run_once(self) -> None:
        """Every launch is one instance that came to run once, by one lease, in one container on a
        GPU of its own.
        """
        expected = Counter(running=len(self.instances))
        eventually(
            lambda: self.counts() == expected,
            within_seconds=SETTLE_SECONDS,
            what=f"{len(self.instances)} instances run",
        )
        assert len(set(self.instances)) == len(self.instances)
        containers = self.containers()
        gpus = [gpu for container in containers for gpu in container["gpu_uuids"]]
        once = Counter(self.instances)
        assert Counter(container["instance"] for container in containers) == once
        assert len(set(gpus)) == len(gpus) == len(self.instances)
        assert self._instances_of(LIVE_LEASES) == once
        assert self._instances_of(HELD_GPUS) == once
        assert self._instances_of(MOVES_TO_RUNNING) == once

    def stop_all(self) -> None:
        """Stop every instance; back when no container and no allocation of them is left."""
        self.ask_to_stop()
        expected = Counter(stopped=len(self.instances))
        eventually(
            lambda: (
                self.counts() == expected
                and not self.containers()
                and not self._instances_of(HELD_GPUS)
            ),
            within_seconds=SETTLE_SECONDS,
            what="all instances are stopped and their GPUs free",
        )

    def ask_to_stop(self) -> None:
        """Back when the stop of every instance is accepted; one that was before stays so."""
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(self.customer.stop, self.instances))

    def check_charges(self) -> None:
        """Each second between running and stop is paid once, and the ledger agrees."""
        for instance in self.instances:
            cost = self._cost(instance)
            seconds = self.customer.paid_seconds(instance)
            assert cost["seconds"] == seconds
            assert cost["cost"]["amount_micros"] == seconds * MICROS_PER_SECOND
        self.stack.check_ledger()

    def leave_nothing(self) -> None:
        """After a test that failed half-way: the next one finds every GPU free."""
        listed = self.customer.get("/instances?page_size=200")["results"]
        self.instances = [each["id"] for each in listed]
        self.stop_all()

    def containers(self) -> list[dict[str, Any]]:
        """The containers that have not ended, on all nodes."""
        return [
            container
            for node in NODES
            for container in _containers(self.stack, node)
            if container["ends_at"] is None or container["ends_at"] > time.time()
        ]

    def _cost(self, instance: str) -> dict[str, Any]:
        return dict(self.customer.get(f"/instances/{instance}/cost"))

    def _instances_of(self, rows: str) -> Counter[str]:
        """How many of these rows there are for each instance of this burst."""
        found = self.stack.stores.rows(rows, self.instances)
        return Counter(str(instance) for (instance,) in found)


def _containers(stack: Stack, node: str) -> list[dict[str, Any]]:
    path = stack.state_of(node) / "simulated.json"
    return list(json.loads(path.read_text())) if path.exists() else []
