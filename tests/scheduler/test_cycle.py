from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from portal.accounts.models import PriorityClass, Team
from portal.catalog.models import Availability
from portal.instances.models import Instance, Reason, State
from portal.instances.operations import ending
from scheduler import availability, cycle, fleet, tasks
from scheduler.capacity import free_nodes
from scheduler.models import Allocation, Lease, Node
from scheduler.placement.place import place
from scheduler.placement.snapshot import Assignment
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

    def test_says_which_node_an_instance_still_waits_for(self) -> None:
        node = make_node(gpus=2)
        instance = make_instance()
        Lease.objects.create(
            instance=instance,
            node=node,
            generation=1,
            started_at=NOON,
            expires_at=NOON + MOMENT,
        )

        cycle.run(now=NOON)

        instance.refresh_from_db()
        assert instance.explanation == (
            f"Waits until node {node.name} has removed its last container."
        )

    def test_counts_the_generations_of_an_instance(self) -> None:
        node = make_node(gpus=1)
        instance = make_instance()
        for generation in (1, 2):
            Lease.objects.create(
                instance=instance,
                node=node,
                generation=generation,
                started_at=NOON,
                expires_at=NOON,
                ended_at=NOON,
            )

        cycle.run(now=NOON)

        assert Lease.objects.get(ended_at=None).generation == 3


class TestStatements:
    """How many statements a cycle costs: a savepoint's here stand for BEGIN and COMMIT."""

    @pytest.fixture
    def now(self) -> datetime:
        return timezone.now()

    def test_three_where_nothing_waits(
        self, now: datetime, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        make_node(gpus=8, seen_at=now)

        with django_assert_num_queries(3):
            tasks.run_cycle()

    @pytest.mark.parametrize("instances", [1, 8])
    def test_fifteen_for_all_that_one_node_is_given(
        self, instances: int, now: datetime, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        make_node(gpus=8, seen_at=now)
        plan = make_plan()
        for _ in range(instances):
            make_instance(plan=plan)

        with django_assert_num_queries(15):
            tasks.run_cycle()

        assert Lease.objects.count() == instances

    def test_five_where_nothing_fits_and_that_is_said_already(
        self, now: datetime, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        make_node(gpus=1, seen_at=now)
        plan = make_plan(gpu_count=8)
        for _ in range(5):
            make_instance(plan=plan)
        tasks.run_cycle()

        with django_assert_num_queries(5):
            tasks.run_cycle()

    def test_one_for_each_new_sentence_however_many_wait(
        self, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        make_node(gpus=1)
        for plan in (make_plan(gpu_count=4), make_plan(gpu_count=8)):
            for _ in range(3):
                make_instance(plan=plan)

        with django_assert_num_queries(3 + 2):
            cycle.run(now=NOON)

        assert Instance.objects.filter(explanation__contains="1 is free in all").count() == 6

    def test_four_to_publish_what_did_not_change(
        self, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        make_node(gpus=8)
        make_plan()
        availability.publish(now=NOON)

        with django_assert_num_queries(4):
            availability.publish(now=NOON)


class TestCommit:
    def test_changes_nothing_where_the_node_was_cordoned_meanwhile(self) -> None:
        node = make_node(gpus=1)
        instance = make_instance()
        assignments = planned()
        fleet.cordon(node=node, now=NOON)

        committed = cycle.commit(assignments, now=NOON)

        instance.refresh_from_db()
        assert not committed
        assert instance.state == State.QUEUED
        assert not Allocation.objects.exists()

    def test_places_the_others_where_one_was_cancelled_meanwhile(self) -> None:
        actor, plan = make_member(), make_plan()
        make_node(gpus=3)
        cancelled, *others = [make_instance(actor=actor, plan=plan) for _ in range(3)]
        assignments = planned()
        ending.terminate(actor=actor, instance=cancelled, now=NOON)

        committed = cycle.commit(assignments, now=NOON)

        cancelled.refresh_from_db()
        assert committed == 2
        assert cancelled.state == State.TERMINATED
        assert set(Lease.objects.values_list("instance", flat=True)) == {o.pk for o in others}
        assert Allocation.objects.count() == 2

    def test_places_the_others_where_one_gpu_was_taken_meanwhile(self) -> None:
        plan = make_plan()
        make_node(gpus=3)
        for _ in range(3):
            make_instance(plan=plan)
        assignments = planned()
        [beaten, *_] = assignments
        taker = make_instance(plan=plan)
        cycle.commit([replace(beaten, instance_id=taker.pk)], now=NOON)

        committed = cycle.commit(assignments, now=NOON)

        assert committed == 2
        assert Instance.objects.get(state=State.QUEUED).pk == beaten.instance_id
        assert Allocation.objects.filter(released_at=None).count() == 3

    def test_gives_no_more_memory_than_is_left_meanwhile(self) -> None:
        plan = make_plan(memory_gib=4)
        node = make_node(gpus=3, memory_gib=12)
        for _ in range(3):
            make_instance(plan=plan)
        assignments = planned()
        Node.objects.filter(pk=node.pk).update(memory_mib=9 * 1024)

        assert cycle.commit(assignments, now=NOON) == 2


def planned() -> list[Assignment]:
    """What a cycle would commit now."""
    demands = [queued.demand for queued in cycle.read_queue(limit=9)]
    return list(place(demands, free_nodes(now=NOON)).assignments)
