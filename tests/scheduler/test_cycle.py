from datetime import timedelta

import pytest
from pytest_django import DjangoAssertNumQueries

from portal.accounts.models import PriorityClass, Team
from portal.catalog.models import Availability
from portal.instances.models import Reason, State
from scheduler import availability, cycle, fleet
from scheduler.capacity import free_nodes
from scheduler.models import Allocation, Lease
from scheduler.placement.place import place
from tests.factories import (
    NOON,
    make_instance,
    make_member,
    make_node,
    make_plan,
    make_team,
)

pytestmark = pytest.mark.django_db
MOMENT = timedelta(seconds=5)


class TestRun:
    def test_gives_a_queued_instance_its_gpus_and_a_lease(self) -> None:
        node = make_node(gpus=4)
        instance = make_instance(plan=make_plan(gpu_count=2))

        placed = cycle.run(now=NOON)

        instance.refresh_from_db()
        lease = Lease.objects.get(instance=instance)
        assert placed == 1
        assert (instance.state, instance.reason) == (State.STARTING, Reason.PLACED)
        assert (lease.node, lease.generation) == (node, 1)
        assert Allocation.objects.filter(lease=lease, released_at=None).count() == 2

    def test_keeps_what_does_not_fit_queued_with_its_reason(self) -> None:
        make_node(gpus=1)
        instance = make_instance(plan=make_plan(gpu_count=2))

        cycle.run(now=NOON)

        instance.refresh_from_db()
        assert (instance.state, instance.reason) == (State.QUEUED, Reason.WAITING_FOR_CAPACITY)
        assert "1 is free in all" in instance.explanation

    def test_places_what_waited_once_room_is_there(self) -> None:
        instance = make_instance()
        cycle.run(now=NOON)
        make_node(gpus=1)

        placed = cycle.run(now=NOON + MOMENT)

        instance.refresh_from_db()
        assert placed == 1
        assert instance.state == State.STARTING

    def test_serves_the_higher_priority_class_first_and_then_the_older(self) -> None:
        make_node(gpus=2)
        plan = make_plan()
        old = make_instance(plan=plan)
        young = make_instance(plan=plan, now=NOON + MOMENT)
        urgent_team = make_team(priority_class=PriorityClass.CRITICAL)
        urgent = make_instance(plan=plan, actor=make_member(urgent_team), now=NOON + 2 * MOMENT)

        cycle.run(now=NOON + 2 * MOMENT)

        served = set(Lease.objects.values_list("instance_id", flat=True))
        assert served == {urgent.pk, old.pk}
        assert young.pk not in served

    def test_obeys_a_priority_that_was_changed_while_it_waited(self) -> None:
        plan = make_plan()
        make_instance(plan=plan)
        later = make_instance(plan=plan, now=NOON + MOMENT)
        make_node(gpus=1, seen_at=NOON + MOMENT)

        Team.objects.filter(pk=later.team_id).update(priority_class=PriorityClass.CRITICAL)
        cycle.run(now=NOON + MOMENT)

        assert Lease.objects.get().instance_id == later.pk

    def test_gives_nothing_to_a_cordoned_or_an_unseen_node(self) -> None:
        fleet.cordon(node=make_node(gpus=1), now=NOON)
        make_node(gpus=1, seen_at=NOON - timedelta(hours=1))
        make_instance()

        assert cycle.run(now=NOON) == 0

    def test_waits_until_the_last_lease_of_an_instance_has_ended(self) -> None:
        node = make_node(gpus=2)
        instance = make_instance()
        Lease.objects.create(
            instance=instance,
            node=node,
            generation=1,
            started_at=NOON,
            expires_at=NOON + MOMENT,
        )

        assert cycle.run(now=NOON) == 0

    def test_publishes_how_many_of_each_plan_would_start_now(self) -> None:
        make_node(gpus=5)
        plan = make_plan(gpu_count=2)
        make_instance(plan=plan)

        cycle.run(now=NOON)
        availability.publish(now=NOON)

        row = Availability.objects.get(plan=plan)
        assert (row.free_now, row.total) == (1, 2)

    def test_costs_a_fixed_number_of_queries_when_nothing_fits(
        self, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        for _ in range(3):
            make_node(gpus=1)
        plan = make_plan(gpu_count=8)
        for _ in range(5):
            make_instance(plan=plan)
        cycle.run(now=NOON)

        with django_assert_num_queries(5):
            cycle.run(now=NOON)

    def test_costs_two_queries_when_nothing_waits(
        self, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        make_node(gpus=8)

        with django_assert_num_queries(2):
            cycle.run(now=NOON)


class TestCommit:
    def test_changes_nothing_where_the_node_was_cordoned_meanwhile(self) -> None:
        node = make_node(gpus=1)
        instance = make_instance()
        [assignment] = place(cycle.queued_demands(limit=9), free_nodes(now=NOON)).assignments
        fleet.cordon(node=node, now=NOON)

        committed = cycle.commit(assignment, now=NOON)

        instance.refresh_from_db()
        assert not committed
        assert instance.state == State.QUEUED
        assert not Allocation.objects.exists()
