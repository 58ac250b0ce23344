"""What goes wrong on a node: each ends in a state with a reason, and no charge is wrong."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
import time_machine
from django.conf import settings
from django.utils import timezone

from agents.protocol import ErrorCode, Order, Phase, SeenInstance, Want
from billing import funds, ledger, metering
from portal.accounts.models import Member
from portal.instances.models import Instance, Reason, State
from portal.instances.models import Phase as StartPhase
from portal.instances.operations import admission, ending
from scheduler import cycle, fleet, leases
from scheduler.models import Allocation, Lease
from tests.factories import NOON, make_instance, make_member
from tests.nodes import TestNode, enroll_node

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def clock() -> Iterator[time_machine.Traveller]:
    with time_machine.travel(NOON, tick=False) as traveller:
        yield traveller


@pytest.fixture
def actor() -> Member:
    return make_member()


def placed(actor: Member) -> Instance:
    instance = make_instance(actor=actor, now=timezone.now())
    cycle.run(now=timezone.now())
    return instance


def now_of(instance: Instance) -> tuple[str, str]:
    instance.refresh_from_db()
    assert instance.explanation
    return instance.state, instance.reason


def spent(actor: Member) -> int:
    return 100_000_000 - ledger.balance_micros(actor.team.account_id)


def fails(code: ErrorCode, text: str = "It did not work.") -> object:
    def start(order: Order) -> SeenInstance:
        return SeenInstance(
            order.instance, order.generation, Phase.FAILED, error_code=code, error=text
        )

    return start


class TestAnImageThatDoesNotExist:
    def test_fails_the_instance_at_once_and_charges_nothing(self, actor: Member) -> None:
        node = enroll_node()
        node.start = fails(  # type: ignore[assignment]
            ErrorCode.IMAGE_UNAVAILABLE, "manifest for nothing:1 not found"
        )
        instance = placed(actor)

        node.work()

        assert now_of(instance) == (State.FAILED, Reason.IMAGE_UNAVAILABLE)
        assert "nothing:1" in instance.explanation
        assert spent(actor) == 0
        node.work()
        assert not Allocation.objects.filter(released_at=None).exists()


class TestAStartThatFails:
    def test_is_tried_again_and_given_up_after_three_attempts(self, actor: Member) -> None:
        node = enroll_node()
        node.start = fails(ErrorCode.START_FAILED)  # type: ignore[assignment]
        instance = placed(actor)

        seen = []
        for _ in range(settings.START_ATTEMPTS):
            node.work()
            seen.append(now_of(instance))
            node.work()
            cycle.run(now=timezone.now())

        again = (State.QUEUED, Reason.RESTARTED_ELSEWHERE)
        assert seen == [again, again, (State.FAILED, Reason.START_FAILED)]
        assert Lease.objects.filter(instance=instance).count() == 3
        assert spent(actor) == 0

    def test_frees_the_money_that_was_held(self, actor: Member) -> None:
        node = enroll_node()
        node.start = fails(ErrorCode.IMAGE_UNAVAILABLE)  # type: ignore[assignment]
        placed(actor)

        node.work()

        assert funds.balance(actor.team.account_id, now=timezone.now()).held_micros == 0


class TestAContainerThatExitsAtOnce:
    def test_before_it_was_ready_has_failed_and_cost_nothing(self, actor: Member) -> None:
        node = enroll_node()
        node.start = lambda order: SeenInstance(
            order.instance, order.generation, Phase.EXITED, exit_code=127
        )
        instance = placed(actor)

        node.work()

        assert now_of(instance) == (State.FAILED, Reason.CONTAINER_EXITED)
        assert "127" in instance.explanation
        assert spent(actor) == 0

    def test_after_it_ran_is_stopped_and_charged_for_its_seconds(
        self, actor: Member, clock: time_machine.Traveller
    ) -> None:
        node = enroll_node()
        instance = placed(actor)
        node.work()
        clock.shift(30)

        node.say(instance.pk, Phase.EXITED, exit_code=137, oom_killed=True)

        assert now_of(instance) == (State.STOPPED, Reason.CONTAINER_EXITED)
        assert "memory" in instance.explanation
        assert spent(actor) == 30 * 2_490_000 // 3600
        node.work()
        assert Lease.objects.filter(ended_at=None).count() == 0

    def test_in_peace_has_finished(self, actor: Member) -> None:
        node = enroll_node()
        instance = placed(actor)
        node.work()

        node.say(instance.pk, Phase.EXITED, exit_code=0)

        assert now_of(instance) == (State.STOPPED, Reason.FINISHED)


class TestAContainerThatDisappears:
    def test_is_stopped_and_charged_while_it_was_seen(
        self, actor: Member, clock: time_machine.Traveller
    ) -> None:
        node = enroll_node()
        instance = placed(actor)
        node.work()
        clock.shift(20)
        node.sync()
        clock.shift(500)
        node.seen.clear()

        node.work()

        assert now_of(instance) == (State.STOPPED, Reason.CONTAINER_LOST)
        assert spent(actor) == 20 * 2_490_000 // 3600

    def test_is_not_started_anew_behind_the_customers_back(self, actor: Member) -> None:
        node = enroll_node()
        instance = placed(actor)
        node.work()

        [order] = node.sync().orders

        assert order.instance == str(instance.pk)
        assert not order.may_start
        assert order.keeps_running


class TestANodeThatGoesSilent:
    def test_before_a_start_was_ready_gives_it_up_at_the_leases_end(
        self, actor: Member, clock: time_machine.Traveller
    ) -> None:
        enroll_node()
        instance = placed(actor)
        clock.shift(settings.LEASE_DURATION + leases.FENCE_MARGIN + timedelta(seconds=1))

        moved = leases.expire(now=timezone.now())

        assert moved == 1
        assert now_of(instance) == (State.QUEUED, Reason.RESTARTED_ELSEWHERE)
        assert not Allocation.objects.filter(released_at=None).exists()
        assert leases.expire(now=timezone.now()) == 0

    def test_and_comes_back_is_told_to_be_rid_of_the_old_generation(
        self, actor: Member, clock: time_machine.Traveller
    ) -> None:
        node = enroll_node()
        instance = placed(actor)
        node.seen = {
            (str(instance.pk), 1): SeenInstance(str(instance.pk), 1, Phase.PROBING),
        }
        clock.shift(settings.LEASE_DURATION + leases.FENCE_MARGIN + timedelta(seconds=1))
        leases.expire(now=timezone.now())

        orders = node.sync().orders

        assert [(o.instance, o.generation, o.want) for o in orders] == [
            (str(instance.pk), 1, Want.GONE)
        ]

    def test_keeps_what_runs_on_it_and_its_cost_stands_still(
        self, actor: Member, clock: time_machine.Traveller
    ) -> None:
        node = enroll_node()
        instance = placed(actor)
        node.work()
        clock.shift(40)
        node.sync()
        clock.shift(3600)

        leases.expire(now=timezone.now())

        assert now_of(instance)[0] == State.RUNNING
        cost = metering.cost_of(reference=instance.pk, now=timezone.now())
        assert cost.seconds == 40 + settings.CONFIRMATION_TOLERANCE.total_seconds()
        node.sync()
        assert metering.cost_of(reference=instance.pk, now=timezone.now()).seconds == 3640

    def test_for_good_ends_what_ran_and_charges_up_to_the_last_confirmation(
        self, actor: Member, clock: time_machine.Traveller
    ) -> None:
        node = enroll_node()
        instance = placed(actor)
        node.work()
        clock.shift(40)
        node.sync()
        clock.shift(settings.NODE_LOST_AFTER + timedelta(seconds=1))

        leases.expire(now=timezone.now())

        assert now_of(instance) == (State.FAILED, Reason.NODE_LOST)
        assert spent(actor) == 40 * 2_490_000 // 3600
        # Its GPU is given to nobody while the node may still run the container.
        leases.expire(now=timezone.now())
        assert Allocation.objects.filter(released_at=None).count() == 1

    def test_keeps_its_gpus_when_what_ran_there_is_stopped_meanwhile(
        self, actor: Member, clock: time_machine.Traveller
    ) -> None:
        node = enroll_node()
        instance = placed(actor)
        node.work()
        clock.shift(settings.LEASE_DURATION + leases.FENCE_MARGIN + timedelta(seconds=1))
        ending.stop(actor=actor, instance=instance, now=timezone.now())

        leases.expire(now=timezone.now())

        assert now_of(instance) == (State.STOPPING, Reason.USER_STOP)
        assert Allocation.objects.filter(released_at=None).count() == 1
        clock.shift(settings.NODE_LOST_AFTER)
        leases.expire(now=timezone.now())
        assert now_of(instance) == (State.STOPPED, Reason.USER_STOP)
        admission.start(actor=actor, instance=instance, now=timezone.now())
        enroll_node()
        assert cycle.run(now=timezone.now()) == 0
        assert node.name in Instance.objects.get(pk=instance.pk).explanation

    def test_after_a_failed_start_does_not_keep_it_from_another_node(
        self, actor: Member, clock: time_machine.Traveller
    ) -> None:
        node = enroll_node(gpus=1)
        node.start = fails(ErrorCode.START_FAILED)  # type: ignore[assignment]
        instance = placed(actor)
        for order in node.sync().orders:
            node.seen[order.instance, order.generation] = node.start(order)
        node.sync()
        assert now_of(instance)[0] == State.QUEUED
        clock.shift(settings.LEASE_DURATION + leases.FENCE_MARGIN + timedelta(seconds=1))
        enroll_node()

        leases.expire(now=timezone.now())

        assert cycle.run(now=timezone.now()) == 1

    def test_and_is_retired_gives_its_gpus_back(
        self, actor: Member, clock: time_machine.Traveller
    ) -> None:
        node = enroll_node()
        instance = placed(actor)
        node.work()
        clock.shift(settings.NODE_UNREACHABLE_AFTER + timedelta(seconds=1))

        ended = fleet.retire(node=node.row, now=timezone.now())

        assert ended == 1
        assert now_of(instance) == (State.FAILED, Reason.NODE_LOST)
        assert not Allocation.objects.filter(released_at=None).exists()
        assert node.post(node.request().to_json()).status_code == 401


class TestAStartThatHangs:
    def test_is_given_up_after_its_deadline(
        self, actor: Member, clock: time_machine.Traveller
    ) -> None:
        node = enroll_node()
        node.start = lambda order: SeenInstance(
            order.instance, order.generation, Phase.PULLING, percent=40
        )
        instance = placed(actor)
        node.work()
        instance.refresh_from_db()
        assert (instance.phase, instance.phase_percent) == (StartPhase.PULLING, 40)
        clock.shift(settings.START_DEADLINE + timedelta(seconds=1))
        node.sync()

        leases.expire(now=timezone.now())

        assert now_of(instance) == (State.FAILED, Reason.START_TIMEOUT)
        assert spent(actor) == 0
        [order] = node.sync().orders
        assert order.want == Want.GONE


class TestALateReport:
    def test_of_a_stopped_instance_changes_nothing(self, actor: Member) -> None:
        node = enroll_node()
        instance = placed(actor)
        node.work()
        node.say(instance.pk, Phase.EXITED, exit_code=0)

        node.say(instance.pk, Phase.RUNNING)

        assert now_of(instance) == (State.STOPPED, Reason.FINISHED)

    def test_of_an_older_generation_changes_nothing(self, actor: Member) -> None:
        node = enroll_node()
        instance = placed(actor)
        node.work()
        node.say(instance.pk, Phase.EXITED, exit_code=0)
        node.work()
        admission.start(actor=actor, instance=instance, now=timezone.now())
        cycle.run(now=timezone.now())
        node.seen = {(str(instance.pk), 1): SeenInstance(str(instance.pk), 1, Phase.RUNNING)}

        reply = node.sync()

        assert now_of(instance)[0] == State.STARTING
        wants = {(order.generation, order.want) for order in reply.orders}
        assert wants == {(2, Want.RUNNING), (1, Want.GONE)}


class TestTwoNodes:
    def test_do_not_share_what_is_theirs(self, actor: Member) -> None:
        one, two = enroll_node(gpus=1), enroll_node(gpus=1)
        instance = placed(actor)
        holder: TestNode = one if Lease.objects.get().node.name == one.name else two
        other = two if holder is one else one

        assert other.sync().orders == ()
        assert [order.instance for order in holder.sync().orders] == [str(instance.pk)]
