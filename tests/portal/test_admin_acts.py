"""What an operator does in the console: each act calls its operation, each refusal is shown."""

import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from agents.protocol import EnrollRequest
from billing import funds, metering
from billing.models import LedgerEntry
from portal.accounts.models import PriorityClass, Team, User
from portal.catalog.models import Image, Plan
from portal.errors import Forbidden
from portal.instances.models import Instance, Reason, State, Wanted
from portal.instances.operations import ending, reports
from scheduler import cycle, fleet
from scheduler.models import JoinToken, Lease, Node
from tests.factories import (
    NOON,
    make_instance,
    make_member,
    make_node,
    make_plan,
    make_team,
    make_user,
)
from tests.nodes import inventory
from tests.portal.console import page

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]
DOLLAR = 1_000_000


def make_running_instance() -> Instance:
    instance = make_instance()
    make_node(gpus=1)
    cycle.run(now=NOON)
    reports.record_started({instance.pk: {}}, now=NOON)
    instance.refresh_from_db()
    return instance


class TestEveryAct:
    def test_asks_before_it_does_anything(self, console: Client) -> None:
        team, node, instance = make_team(), make_node(), make_instance()
        asked = [
            *(page(team, name, team.pk) for name in ("set_quota", "set_priority", "grant_credit")),
            *(page(team, name, team.pk) for name in ("suspend", "unsuspend")),
            *(page(node, name, node.pk) for name in ("cordon", "uncordon", "retire")),
            *(page(instance, name, instance.pk) for name in ("stop", "terminate")),
            *(page(instance.plan, "retire", instance.plan_id), page(Node, "join_token")),
            *(
                page(Plan, "publish_prices"),
                page(Plan, "publish_plan"),
                page(Image, "publish_image"),
            ),
        ]

        assert {console.get(path).status_code for path in asked} == {200}
        assert not Team.objects.exclude(suspended_at=None).exists()
        assert not Node.objects.exclude(cordoned_at=None).exists()
        assert not JoinToken.objects.exists()
        assert not LogEntry.objects.exists()

    def test_says_what_it_would_be_done_to(self, console: Client) -> None:
        team = make_team()

        assert f"Suspend {team.name}</h1>" in console.get(page(team, "suspend", team.pk)).text

    def test_is_refused_without_a_token_against_forgery(self, operator: User) -> None:
        client, team = Client(enforce_csrf_checks=True), make_team(gpu_quota=1)
        client.force_login(operator)

        response = client.post(page(team, "set_quota", team.pk), {"gpu_quota": 9})

        team.refresh_from_db()
        assert (response.status_code, team.gpu_quota) == (403, 1)

    def test_stays_in_the_history_of_what_it_was_done_to(
        self, console: Client, operator: User
    ) -> None:
        team = make_team()

        console.post(page(team, "set_quota", team.pk), {"gpu_quota": 9})

        noted = LogEntry.objects.get()
        assert (noted.user, noted.object_id) == (operator, str(team.pk))
        assert "9 GPUs (before: 8)" in noted.change_message

    def test_about_what_does_not_exist_is_not_found(self, console: Client) -> None:
        assert console.post(page(Team, "suspend", 999_999)).status_code == 404


class TestTeam:
    def test_gets_another_quota(self, console: Client) -> None:
        team = make_team(gpu_quota=1)

        console.post(page(team, "set_quota", team.pk), {"gpu_quota": 9})

        team.refresh_from_db()
        assert team.gpu_quota == 9

    @pytest.mark.parametrize("gpu_quota", ["-1", "1000000", "many", ""])
    def test_keeps_its_quota_where_the_new_one_is_none(
        self, console: Client, gpu_quota: str
    ) -> None:
        team = make_team(gpu_quota=1)

        response = console.post(page(team, "set_quota", team.pk), {"gpu_quota": gpu_quota})

        team.refresh_from_db()
        assert (response.status_code, team.gpu_quota) == (422, 1)

    def test_is_served_first_by_the_next_cycle_once_its_priority_is_raised(
        self, console: Client
    ) -> None:
        plan = make_plan()
        earlier = make_instance(plan=plan)
        later = make_instance(plan=plan, now=NOON + timedelta(seconds=5))
        make_node(gpus=1)

        console.post(
            page(Team, "set_priority", later.team_id), {"priority_class": PriorityClass.CRITICAL}
        )
        cycle.run(now=NOON)

        assert Lease.objects.get().instance_id == later.pk
        assert Instance.objects.get(pk=earlier.pk).state == State.QUEUED

    def test_keeps_its_priority_where_the_new_one_is_unknown(self, console: Client) -> None:
        team = make_team()

        response = console.post(page(team, "set_priority", team.pk), {"priority_class": 99})

        team.refresh_from_db()
        assert (response.status_code, team.priority_class) == (422, PriorityClass.NORMAL)

    def test_is_suspended_with_all_that_it_has_in_use(self, console: Client) -> None:
        running = make_running_instance()
        queued = make_instance(actor=running.launched_by)
        team = running.team

        console.post(page(team, "suspend", team.pk))

        for row in (team, running, queued):
            row.refresh_from_db()
        assert team.suspended_at == NOON
        assert (running.state, queued.state) == (State.STOPPING, State.STOPPED)
        assert {running.reason, queued.reason} == {Reason.SUSPENDED}

    def test_may_launch_again_once_the_suspension_is_lifted(self, console: Client) -> None:
        team = make_team()
        console.post(page(team, "suspend", team.pk))

        console.post(page(team, "unsuspend", team.pk))

        team.refresh_from_db()
        assert team.suspended_at is None


class TestGrantCredit:
    def grant(self, console: Client, team: Team, **changes: object) -> Any:
        fields = {"amount": "25.00", "because": "Sorry for Tuesday.", "key": uuid4()} | changes
        return console.post(page(team, "grant_credit", team.pk), fields)

    def balance(self, team: Team) -> int:
        return funds.balance(team.account_id, now=NOON).settled_micros

    def test_is_an_entry_from_goodwill_with_why_and_by_whom(self, console: Client) -> None:
        team = make_team(credit_micros=0)

        self.grant(console, team)

        entry = LedgerEntry.objects.get(kind="adjustment")
        assert self.balance(team) == 25 * DOLLAR
        assert entry.debit.code == "goodwill"
        assert entry.note == "Sorry for Tuesday. (operator@example.org)"

    def test_gives_once_however_often_its_page_is_sent(self, console: Client) -> None:
        team, key = make_team(credit_micros=0), uuid4()

        first = self.grant(console, team, key=key)
        again = self.grant(console, team, key=key)
        another_amount = self.grant(console, team, key=key, amount="1")

        assert [r.status_code for r in (first, again, another_amount)] == [302, 422, 422]
        assert self.balance(team) == 25 * DOLLAR

    @pytest.mark.parametrize(
        "changes",
        [
            {"amount": "0"},
            {"amount": "-5"},
            {"amount": "1e3"},
            {"amount": "1.0000001"},
            {"amount": "100000.01"},
            {"because": " "},
            {"because": "x" * 101},
            {"key": "no-uuid"},
        ],
    )
    def test_is_refused_and_moves_nothing(
        self, console: Client, changes: dict[str, object]
    ) -> None:
        team = make_team(credit_micros=0)

        response = self.grant(console, team, **changes)

        assert response.status_code == 422
        assert not LedgerEntry.objects.filter(kind="adjustment").exists()


class TestPerson:
    def test_is_suspended_and_reinstated(self, console: Client) -> None:
        person, at_the_door = make_member().user, Client()
        at_the_door.force_login(person)

        console.post(page(person, "suspend", person.pk))
        while_suspended = at_the_door.get("/").status_code
        console.post(page(person, "reinstate", person.pk))

        assert while_suspended == 302
        assert at_the_door.get("/").status_code == 200

    def test_cannot_suspend_themselves(self, console: Client, operator: User) -> None:
        response = console.post(page(operator, "suspend", operator.pk))

        operator.refresh_from_db()
        assert response.status_code == 422
        assert "You cannot suspend yourself." in response.text
        assert operator.is_active


class TestInstance:
    def test_is_stopped_with_a_reason_that_its_team_reads(
        self, console: Client, operator: User
    ) -> None:
        instance = make_running_instance()

        console.post(page(instance, "stop", instance.pk), {"because": "It mines."})

        instance.refresh_from_db()
        event = instance.events.get(state=State.STOPPING)
        assert (instance.state, instance.reason) == (State.STOPPING, Reason.OPERATOR_STOP)
        assert instance.explanation == "Stopped by the operator: It mines."
        assert event.actor == operator
        assert metering.cost_of(reference=instance.pk, now=NOON).burn_micros_per_hour == 0

    def test_is_terminated_for_good(self, console: Client) -> None:
        instance = make_instance()

        console.post(page(instance, "terminate", instance.pk), {"because": "Left."})

        instance.refresh_from_db()
        assert (instance.state, instance.reason) == (State.TERMINATED, Reason.OPERATOR_TERMINATE)

    def test_is_not_stopped_without_a_reason(self, console: Client) -> None:
        instance = make_instance()

        response = console.post(page(instance, "stop", instance.pk), {"because": "  "})

        instance.refresh_from_db()
        assert (response.status_code, instance.state) == (422, State.QUEUED)

    def test_that_has_ended_is_not_ended_again(self, console: Client) -> None:
        member = make_member()
        instance = make_instance(actor=member)
        ending.terminate(actor=member, instance=instance, now=NOON)

        response = console.post(page(instance, "stop", instance.pk), {"because": "It mines."})

        assert response.status_code == 422
        assert "has ended" in response.text


class TestNode:
    def test_gets_a_join_token_that_is_shown_once_and_enrols_it(self, console: Client) -> None:
        response = console.post(page(Node, "join_token"))

        command = response.context["command"]
        [secret] = re.findall(r"hrj_[\w-]+", command)
        assert (response.status_code, response.headers["Cache-Control"][:9]) == (201, "max-age=0")
        assert command in response.text
        assert secret not in console.get(page(JoinToken, "changelist")).text
        node, _ = fleet.enroll(EnrollRequest(1, secret, "rack-9", inventory("rack-9")), now=NOON)
        assert node.name == "rack-9"

    def test_is_cordoned_and_uncordoned(self, console: Client) -> None:
        node = make_node()

        console.post(page(node, "cordon", node.pk))
        cordoned = Node.objects.get(pk=node.pk).cordoned_at
        console.post(page(node, "uncordon", node.pk))

        assert cordoned == NOON
        assert Node.objects.get(pk=node.pk).cordoned_at is None

    def test_is_retired_once_nothing_runs_on_it(self, console: Client) -> None:
        node = make_node()

        console.post(page(node, "retire", node.pk))

        assert Node.objects.get(pk=node.pk).retired_at == NOON

    def test_that_runs_something_is_not_retired(self, console: Client) -> None:
        make_running_instance()
        node = Node.objects.get()

        response = console.post(page(node, "retire", node.pk))

        assert response.status_code == 422
        assert "still runs instances" in response.text
        assert Node.objects.get().retired_at is None

    def test_offers_only_the_acts_that_fit_it(self, console: Client) -> None:
        node = make_node()
        fleet.cordon(node=node, now=NOON)

        shown = console.get(page(node, "change", node.pk)).text

        assert page(node, "uncordon", node.pk) in shown
        assert page(node, "cordon", node.pk) not in shown


class TestEndByOperator:
    def test_is_for_operators_alone(self) -> None:
        instance = make_instance()

        with pytest.raises(Forbidden):
            ending.end_by_operator(
                operator=make_user(),
                instance=instance,
                wanted=Wanted.STOPPED,
                because="No.",
                now=NOON,
            )
