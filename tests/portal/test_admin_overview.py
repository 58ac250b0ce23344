"""The page the operator's console opens with, and the figures on it."""

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from billing import charging, metering
from billing.revenue import revenue
from portal.instances.models import Instance
from portal.instances.operations import ending, reports
from scheduler import cycle, dashboard, fleet
from scheduler.models import Gpu, Node, NodeState
from tests.factories import (
    H100_MICROS,
    NOON,
    make_instance,
    make_member,
    make_node,
    make_plan,
    make_team,
)

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def make_running_instance() -> Instance:
    instance = make_instance(actor=make_member())
    cycle.run(now=NOON)
    reports.record_started({instance.pk: {}}, now=NOON)
    return instance


class TestStateAt:
    @pytest.mark.parametrize(
        ("unseen", "state"),
        [
            (timedelta(seconds=45), NodeState.READY),
            (timedelta(seconds=46), NodeState.SUSPECT),
            (timedelta(seconds=121), NodeState.UNREACHABLE),
        ],
    )
    def test_follows_when_the_node_was_last_seen(self, unseen: timedelta, state: NodeState) -> None:
        assert make_node().state_at(NOON + unseen) == state

    def test_tells_a_cordoned_and_a_retired_node(self) -> None:
        cordoned, retired = make_node(), make_node()
        fleet.cordon(node=cordoned, now=NOON)
        fleet.retire(node=retired, now=NOON)

        states = [Node.objects.get(pk=node.pk).state_at(NOON) for node in (cordoned, retired)]

        assert states == [NodeState.CORDONED, NodeState.RETIRED]


class TestLook:
    def test_counts_gpus_in_use_free_and_unusable(self) -> None:
        node = make_node(gpus=4)
        make_running_instance()
        broken = Gpu.objects.free().filter(node=node)[:1].get()
        Gpu.objects.filter(pk=broken.pk).update(healthy=False, problem="Xid 79")

        seen = dashboard.look(now=NOON)

        assert (seen.gpus_held, seen.gpus_free, seen.gpus_broken, seen.gpus) == (1, 2, 1, 4)
        assert any("Xid 79" in alarm for alarm in seen.alarms)

    def test_calls_no_gpu_free_on_a_node_that_takes_no_work(self) -> None:
        fleet.cordon(node=make_node(gpus=4), now=NOON)

        seen = dashboard.look(now=NOON)

        assert (seen.gpus_free, seen.gpus, seen.nodes_seen) == (0, 4, 0)

    def test_tells_how_many_wait_and_how_long_the_oldest(self) -> None:
        make_instance()
        make_instance(now=NOON + HOUR)

        seen = dashboard.look(now=NOON + 2 * HOUR)

        assert (seen.queue_length, seen.oldest_wait_text) == (2, "2 h 0 min")

    def test_raises_an_alarm_for_a_node_that_is_not_seen(self) -> None:
        node = make_node()

        [alarm] = dashboard.look(now=NOON + HOUR).alarms

        assert alarm == f"Node {node.name} is unreachable: last seen 1\N{NO-BREAK SPACE}hour ago."

    def test_raises_an_alarm_for_a_plan_that_nobody_can_pay(self) -> None:
        plan = make_plan(micros_per_hour=None)

        [alarm] = dashboard.look(now=NOON).alarms

        assert plan.sku in alarm

    def test_raises_none_where_all_is_well(self) -> None:
        make_node(gpus=1)
        make_running_instance()

        assert dashboard.look(now=NOON).alarms == []

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(42, "42 s"), (185, "3 min 5 s"), (7_800, "2 h 10 min"), (100_800, "1 d 4 h")],
    )
    def test_writes_a_wait_in_its_two_largest_units(self, seconds: int, text: str) -> None:
        assert dashboard.duration(seconds) == text


class TestRevenue:
    def test_counts_what_runs_before_and_after_it_is_charged_alike(self) -> None:
        make_node(gpus=1)
        instance = make_running_instance()
        metering.confirm(references=[instance.pk], now=NOON + HOUR)

        before = revenue(now=NOON + HOUR)
        charged = charging.charge_due(now=NOON + HOUR)
        after = revenue(now=NOON + HOUR)

        assert charged == H100_MICROS
        assert before == after
        assert after.today_micros == after.month_micros == H100_MICROS
        assert after.burn_micros_per_hour == H100_MICROS

    def test_begins_anew_at_midnight_and_with_the_month(self) -> None:
        make_node(gpus=1)
        instance = make_running_instance()
        ending.stop(
            actor=make_member(instance.team), instance=Instance.objects.get(), now=NOON + HOUR
        )

        tomorrow = revenue(now=NOON + timedelta(days=1))
        next_month = revenue(now=NOON + timedelta(days=31))

        assert (tomorrow.today_micros, tomorrow.month_micros) == (0, H100_MICROS)
        assert (next_month.today_micros, next_month.month_micros) == (0, 0)

    def test_splits_what_runs_uncharged_at_midnight(self) -> None:
        make_node(gpus=1)
        instance = make_running_instance()
        metering.confirm(references=[instance.pk], now=NOON + 13 * HOUR)

        earned = revenue(now=NOON + 13 * HOUR)

        assert (earned.today_micros, earned.month_micros) == (H100_MICROS, 13 * H100_MICROS)


@pytest.mark.usefixtures("at_noon")
class TestOverview:
    def test_shows_the_figures_and_the_fleet(self, console: Client) -> None:
        node = make_node(gpus=2)
        make_running_instance()
        team = make_team()

        shown = console.get(reverse("admin:index"))

        assert shown.context["dashboard"].running == 1
        assert node.name in shown.text
        assert "1 of 2 in use" in shown.text
        assert team.name not in shown.text  # it uses nothing

    def test_says_how_to_begin_where_there_is_no_node(self, console: Client) -> None:
        shown = console.get(reverse("admin:index")).text

        assert reverse("admin:scheduler_node_join_token") in shown
