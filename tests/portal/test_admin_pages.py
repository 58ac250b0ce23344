"""The operator's console: who gets in, what opens, what it costs, and that nothing is edited."""

from collections.abc import Callable
from uuid import uuid4

import pytest
from django.db.models import Model
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from billing.models import Account, LedgerEntry, PriceBook, Statement, UsageInterval
from portal.accounts.models import Team, User
from portal.catalog.models import Image, Plan
from portal.instances.models import Instance, State
from portal.instances.operations import reports
from scheduler import cycle, fleet
from scheduler.models import Gpu, JoinToken, Lease, Node
from tests.factories import NOON, make_instance, make_member, make_node, make_user
from tests.portal.console import page

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("at_noon")]
LISTED = [
    *(Account, Image, Instance, Gpu, JoinToken, Lease, LedgerEntry, Node, Plan),
    *(PriceBook, Statement, Team, UsageInterval, User),
]


def make_house() -> None:
    """A row of every kind: a running, a queued and a stopped instance, and a node."""
    make_node(gpus=2)
    running, _ = make_instance(), make_instance()
    fleet.create_join_token(by=None, now=NOON)
    cycle.run(now=NOON)
    reports.record_started({running.pk: {}}, now=NOON)
    Statement.objects.create(
        account=running.team.account,
        month=NOON.date(),
        opening_micros=0,
        closing_micros=0,
        line_count=0,
        issued_at=NOON,
    )


class TestConsole:
    @pytest.mark.parametrize("model", LISTED)
    def test_opens_each_list_its_search_and_each_row(
        self, console: Client, model: type[Model]
    ) -> None:
        make_house()
        rows = list(model._default_manager.all())
        assert rows

        listed = console.get(page(model, "changelist"))
        found = console.get(page(model, "changelist"), {"q": "h100 %_' gpu-1"})
        opened = [console.get(page(model, "change", row.pk)) for row in rows]

        assert (listed.status_code, found.status_code) == (200, 200)
        assert {response.status_code for response in opened} == {200}

    @pytest.mark.parametrize("model", LISTED)
    def test_costs_a_fixed_number_of_queries_to_list(
        self,
        console: Client,
        model: type[Model],
        django_assert_max_num_queries: DjangoAssertNumQueries,
        django_assert_num_queries: DjangoAssertNumQueries,
    ) -> None:
        make_house()
        with django_assert_max_num_queries(10) as first:
            console.get(page(model, "changelist"))
        make_house()
        make_member()

        with django_assert_num_queries(len(first)):
            console.get(page(model, "changelist"))

    def test_costs_a_fixed_number_of_queries_to_open(
        self,
        console: Client,
        django_assert_max_num_queries: DjangoAssertNumQueries,
        django_assert_num_queries: DjangoAssertNumQueries,
    ) -> None:
        make_house()
        console.get(reverse("admin:index"))  # opens the house's own account of revenue
        with django_assert_max_num_queries(20) as first:
            console.get(reverse("admin:index"))
        make_house()

        with django_assert_num_queries(len(first)):
            console.get(reverse("admin:index"))

    @pytest.mark.parametrize("model", LISTED)
    def test_shows_a_member_nothing(self, model: type[Model]) -> None:
        client = Client()
        client.force_login(make_member().user)

        assert client.get(page(model, "changelist")).status_code in (302, 403)
        assert client.get(reverse("admin:index"), follow=True).status_code == 403

    def test_shows_staff_without_permissions_no_list_and_no_act(self) -> None:
        client = Client()
        client.force_login(make_user(staff=True))
        team = make_member().team

        assert client.get(page(Team, "changelist")).status_code == 403
        assert client.post(page(Team, "suspend", team.pk)).status_code == 403
        team.refresh_from_db()
        assert team.suspended_at is None

    def test_has_no_log_in_of_its_own(self) -> None:
        response = Client().get(reverse("admin:index"), follow=True)

        assert response.redirect_chain[-1][0].startswith("/accounts/login/?next=")

    def test_alone_may_evaluate_expressions(self, console: Client) -> None:
        policy = console.get(reverse("admin:index")).headers["Content-Security-Policy"]
        elsewhere = console.get("/accounts/login/").headers["Content-Security-Policy"]

        assert "script-src 'self' 'unsafe-eval'" in policy
        assert "unsafe" not in elsewhere

    def test_finds_an_instance_by_the_beginning_of_its_id_its_name_and_its_team(
        self, console: Client
    ) -> None:
        wanted, other = make_instance(), make_instance()

        for term in (str(wanted.pk)[:9], wanted.name, wanted.team.name):
            response = console.get(page(Instance, "changelist"), {"q": term})
            assert str(wanted.pk) in response.text, term
            assert str(other.pk) not in response.text, term

    def test_shows_no_secret_of_a_join_token(self, console: Client) -> None:
        token, _ = fleet.create_join_token(by=None, now=NOON)

        assert token.digest not in console.get(page(token, "change", token.pk)).text


def entry() -> LedgerEntry:
    make_member()
    return LedgerEntry.objects.latest("posted_at")


def running_interval() -> UsageInterval:
    make_house()
    return UsageInterval.objects.get()


def statement() -> Statement:
    make_house()
    return Statement.objects.get()


EDITS: dict[str, tuple[Callable[[], Model], dict[str, object]]] = {
    "a ledger entry": (entry, {"amount_micros": 1, "note": "edited"}),
    "a usage interval": (running_interval, {"charged_micros": 1, "micros_per_hour": 0}),
    "a statement": (statement, {"closing_micros": 1}),
    "an instance's state": (make_instance, {"state": State.RUNNING, "wanted": "stopped"}),
    "an instance's price": (make_instance, {"micros_per_hour": 0}),
}


class TestNothingIsEdited:
    @pytest.mark.parametrize("edit", EDITS)
    def test_by_a_posted_form(self, console: Client, edit: str) -> None:
        make, fields = EDITS[edit]
        row = make()
        before = type(row)._default_manager.filter(pk=row.pk).values().get()

        edited = console.post(page(row, "change", row.pk), fields)
        deleted = console.post(page(row, "delete", row.pk), {"post": "yes"})
        added = console.post(page(row, "add"), fields)

        assert [r.status_code for r in (edited, deleted, added)] == [403, 403, 403]
        assert type(row)._default_manager.filter(pk=row.pk).values().get() == before

    @pytest.mark.parametrize("model", LISTED)
    def test_in_a_list_or_by_an_action_on_many(self, console: Client, model: type[Model]) -> None:
        make_house()
        keys = list(model._default_manager.values_list("pk", flat=True))

        console.post(
            page(model, "changelist"),
            {"action": "delete_selected", "_selected_action": keys, "post": "yes"},
        )

        assert list(model._default_manager.values_list("pk", flat=True)) == keys

    def test_and_a_hold_has_no_page(self, console: Client) -> None:
        assert console.get(f"/admin/billing/hold/{uuid4()}/").status_code == 404
