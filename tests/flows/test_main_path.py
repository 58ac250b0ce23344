"""The main job: launch, run on a node, metered by the second, on a statement."""

from datetime import timedelta

import pytest
import time_machine
from django.core.management import call_command
from django.utils import timezone

from billing import charging, ledger, metering
from portal.instances.models import Instance, Reason, State
from portal.instances.operations import admission, ending
from scheduler import cycle
from scheduler.models import Allocation, Lease
from tests.factories import NOON, make_instance, make_member, make_plan
from tests.nodes import enroll_node

pytestmark = pytest.mark.django_db(transaction=True)


def run_cycle() -> int:
    return cycle.run(now=timezone.now())


def cost(instance: Instance) -> tuple[int, int]:
    """Seconds and micros so far."""
    so_far = metering.cost_of(reference=instance.pk, now=timezone.now())
    return so_far.seconds, so_far.total_micros


def test_an_instance_is_placed_run_metered_stopped_started_and_terminated() -> None:
    with time_machine.travel(NOON, tick=False) as clock:
        actor, node = make_member(), enroll_node(gpus=4)
        instance = make_instance(actor=actor, plan=make_plan(gpu_count=2))

        run_cycle()
        node.work()

        instance.refresh_from_db()
        assert instance.state == State.RUNNING
        [order] = node.sync().orders
        held = Allocation.objects.filter(instance=instance, released_at=None)
        assert order.spec is not None
        assert set(order.spec.gpu_uuids) == {allocation.gpu.uuid for allocation in held}

        clock.shift(90)
        node.sync()
        assert cost(instance) == (90, 62_250)

        clock.shift(10)
        ending.stop(actor=actor, instance=instance, now=timezone.now())
        clock.shift(60)  # the container takes its time to end; that costs nothing
        node.work()

        instance.refresh_from_db()
        assert (instance.state, instance.reason) == (State.STOPPED, Reason.USER_STOP)
        assert not Allocation.objects.filter(released_at=None).exists()
        assert cost(instance) == (100, 69_166)
        assert ledger.balance_micros(actor.team.account_id) == 100_000_000 - 69_166

        admission.start(actor=actor, instance=instance, now=timezone.now())
        run_cycle()
        node.work()
        clock.shift(7)
        assert Lease.objects.get(instance=instance, ended_at=None).generation == 2
        ending.terminate(actor=actor, instance=instance, now=timezone.now())
        node.work()

        instance.refresh_from_db()
        assert instance.state == State.TERMINATED
        assert cost(instance) == (107, 69_166 + 4_841)
        call_command("audit_ledger")


def test_gpus_are_held_until_the_node_says_that_the_container_is_gone() -> None:
    actor, node = make_member(), enroll_node(gpus=1)
    first = make_instance(actor=actor)
    run_cycle()
    node.work()
    second = make_instance(actor=actor)

    ending.stop(actor=actor, instance=first, now=timezone.now())

    assert run_cycle() == 0
    node.work()
    assert run_cycle() == 1
    assert Instance.objects.get(pk=second.pk).state == State.STARTING


def test_credit_used_up_stops_the_instance_at_the_computed_second() -> None:
    node = enroll_node()
    actor = make_member()
    instance = make_instance(actor=actor)
    run_cycle()
    node.work()
    account = actor.team.account
    account.refresh_from_db()
    exhaust_at = account.exhaust_at
    assert exhaust_at is not None
    long_after = exhaust_at + timedelta(minutes=7)
    metering.confirm(references=[instance.pk], now=long_after)
    charging.charge_due(now=long_after)

    stopped = ending.stop_unfunded(now=long_after)

    instance.refresh_from_db()
    [line] = metering.cost_of(reference=instance.pk, now=long_after).lines
    left = ledger.balance_micros(actor.team.account_id)
    assert stopped == 1
    assert (instance.state, instance.reason) == (State.STOPPING, Reason.OUT_OF_FUNDS)
    assert line.ended_at == exhaust_at
    # One more second would have cost more than was left.
    assert 0 <= left < 2_490_000 // 3600 + 1
    node.work()
    instance.refresh_from_db()
    assert instance.state == State.STOPPED
    assert ending.stop_unfunded(now=long_after) == 0
