"""What a node says of many instances takes as many statements as what it says of one."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agents.protocol import PROTOCOL, Phase, SeenInstance, SyncRequest
from portal.instances.models import Instance, State
from scheduler import cycle, reports
from scheduler.models import Allocation, Lease, Node
from tests.factories import make_instance, make_member, make_plan
from tests.nodes import enroll_node

pytestmark = pytest.mark.django_db(transaction=True)


class House:
    """A node with `count` instances of one team."""

    def __init__(self, count: int) -> None:
        model = f"GPU for {count}"
        self.node = enroll_node(model=model)
        self.now = timezone.now()
        actor, plan = make_member(), make_plan(gpu_model=model)
        self.instances = [make_instance(actor=actor, plan=plan, now=self.now) for _ in range(count)]
        assert cycle.run(now=self.now) == count

    def say(self, phase: Phase, **facts: Any) -> int:
        """Report every instance in this phase; returns how many statements it took."""
        seen = tuple(SeenInstance(str(i.pk), 1, phase, **facts) for i in self.instances)
        request = SyncRequest(PROTOCOL, "run", 1, self.node.inventory, seen)
        node = Node.objects.get(pk=self.node.row.pk)
        with CaptureQueriesContext(connection) as statements:
            reports.receive(node, request, now=self.now)
        return len(statements)

    def states(self) -> set[str]:
        mine = Instance.objects.filter(pk__in=[instance.pk for instance in self.instances])
        return set(mine.values_list("state", flat=True))


def walk(count: int) -> dict[str, int]:
    """The statements of each sync in the life of `count` instances that go the same way."""
    house, costs = House(count), {}
    costs["progress"] = house.say(Phase.PULLING, percent=50)
    assert house.states() == {State.STARTING}
    costs["started"] = house.say(Phase.RUNNING)
    assert house.states() == {State.RUNNING}
    costs["no news"] = house.say(Phase.RUNNING)
    costs["exited"] = house.say(Phase.EXITED, exit_code=0)
    assert house.states() == {State.STOPPED}
    costs["gone"] = house.say(Phase.GONE)
    assert not Lease.objects.filter(ended_at=None).exists()
    assert not Allocation.objects.filter(released_at=None).exists()
    return costs


def test_a_sync_of_eight_costs_what_a_sync_of_one_does() -> None:
    assert walk(8) == walk(1)


def test_a_sync_stays_within_its_budget() -> None:
    assert walk(1) == {"progress": 4, "started": 14, "no news": 4, "exited": 13, "gone": 6}
