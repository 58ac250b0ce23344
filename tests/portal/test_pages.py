"""The pages beside those of instances: the door, the catalogue, money, settings, fleet, errors."""

import hashlib
import re
from datetime import UTC, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.template.loader import render_to_string
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.accounts import operations as accounts
from portal.accounts.models import ApiToken, Member, SshKey, User
from portal.accounts.roles import Role, Scope
from portal.catalog.models import Availability, Plan
from portal.wallet import formats
from scheduler.models import Allocation, Gpu, JoinToken, Lease, Node
from tests.factories import (
    make_instance,
    make_member,
    make_node,
    make_plan,
    make_team,
    make_user,
)

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8g"


@pytest.fixture
def member() -> Member:
    return make_member()


@pytest.fixture
def operator() -> User:
    return make_member_of_staff().user


def make_member_of_staff() -> Member:
    return Member.objects.create(user=make_user(staff=True), team=make_team(), role=Role.OWNER)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def this_month() -> str:
    return f"{timezone.now().astimezone(UTC):%Y-%m}"


class TestTheDoor:
    @pytest.mark.parametrize(
        "address", ["/", "/instances/", "/instances/launch", "/money/", "/settings/", "/fleet/"]
    )
    def test_sends_who_is_not_signed_in_to_sign_in(self, address: str) -> None:
        answer = Client().get(address)

        assert answer["Location"] == f"{reverse('account_login')}?next={address}"

    @pytest.mark.parametrize("name", ["account_login", "account_signup", "account_reset_password"])
    def test_has_our_look_and_a_form(self, name: str) -> None:
        page = Client().get(reverse(name)).text

        assert "GPUs on tap" in page
        assert "csrfmiddlewaretoken" in page

    @pytest.mark.parametrize("name", ["account_email", "account_change_password"])
    def test_shows_ones_own_account_pages(self, member: Member, name: str) -> None:
        member.user.set_password("only for this test")
        member.user.save(update_fields=["password"])

        page = signed_in(member.user).get(reverse(name)).text

        assert "Headrace" in page
        assert "csrfmiddlewaretoken" in page

    def test_tells_who_is_in_no_team(self, member: Member) -> None:
        client = signed_in(member.user)
        member.delete()

        answer = client.get("/")

        assert answer.status_code == 403
        assert "You are in no team yet" in answer.text

    def test_allows_no_script_or_style_but_our_own_files(self, member: Member) -> None:
        policy = signed_in(member.user).get("/")["Content-Security-Policy"]

        assert "default-src 'self'" in policy
        assert "unsafe" not in policy


class TestCatalogue:
    def test_shows_anyone_prices_and_what_is_free(self) -> None:
        plan = make_plan(micros_per_hour=4_980_000, gpu_count=2)
        Availability.objects.create(
            plan=plan, free_now=3, total=4, simulated=True, updated_at=timezone.now()
        )

        page = Client().get(reverse("catalog:list")).text

        assert "$4.98" in page
        assert "3 free now" in page
        assert "Simulated" in page
        assert f"?plan={plan.sku}" in page

    def test_leaves_out_what_is_retired_or_has_no_price(self) -> None:
        retired, unpriced = make_plan(), make_plan(micros_per_hour=None)
        Plan.objects.filter(pk=retired.pk).update(retired_at=timezone.now())

        page = Client().get(reverse("catalog:list")).text

        assert retired.sku not in page
        assert unpriced.sku not in page

    def test_costs_as_many_queries_for_four_plans_as_for_one(
        self, django_assert_num_queries: Any
    ) -> None:
        make_plan()
        with django_assert_num_queries(2):  # the rates, the plans
            Client().get(reverse("catalog:list"))
        for _ in range(3):
            make_plan(gpu_model="NVIDIA L4")
        with django_assert_num_queries(2):
            Client().get(reverse("catalog:list"))


class TestMoney:
    def test_shows_what_is_available_and_what_is_held(self) -> None:
        member = make_member(make_team(credit_micros=10_000_000))
        make_instance(actor=member)

        page = signed_in(member.user).get(reverse("wallet:overview")).text

        assert "$7.51" in page
        assert "$2.49" in page

    def test_shows_the_running_month_as_a_statement_that_is_not_final(self) -> None:
        member = make_member(make_team(credit_micros=10_000_000))

        page = signed_in(member.user).get(f"/money/{this_month()}").text

        assert "Still running: not final" in page
        assert "$10.000000" in page

    @pytest.mark.parametrize("month", ["2001-01", "2999-01", "2026-13", "2026-00", "0000-01"])
    def test_has_no_statement_of_another_month(self, member: Member, month: str) -> None:
        assert signed_in(member.user).get(f"/money/{month}").status_code == 404


class TestSettings:
    def test_adds_and_removes_an_ssh_key(self, member: Member) -> None:
        client = signed_in(member.user)

        client.post(
            reverse("accounts:add_ssh_key"), {"name": "laptop", "public_key": f"{KEY} me@here"}
        )
        key = SshKey.objects.get()
        page = client.get(reverse("accounts:settings")).text
        client.post(reverse("accounts:remove_ssh_key", args=[key.pk]))

        assert key.public_key == KEY
        assert key.fingerprint in page
        assert not SshKey.objects.exists()

    def test_says_what_is_wrong_with_a_key(self, member: Member) -> None:
        answer = signed_in(member.user).post(
            reverse("accounts:add_ssh_key"), {"name": "laptop", "public_key": "nonsense"}
        )

        assert answer.status_code == 422
        assert "A public key begins with" in answer.text

    def test_removes_nobody_elses_key(self, member: Member) -> None:
        theirs = accounts.add_ssh_key(
            user=make_member().user, name="theirs", public_key=OTHER_KEY, now=timezone.now()
        )

        answer = signed_in(member.user).post(reverse("accounts:remove_ssh_key", args=[theirs.pk]))

        assert answer.status_code == 404
        assert SshKey.objects.filter(pk=theirs.pk).exists()

    def test_shows_a_new_token_once_and_never_again(self, member: Member) -> None:
        client = signed_in(member.user)

        answer = client.post(
            reverse("accounts:issue_token"), {"name": "ci", "scopes": ["read"], "days": "30"}
        )

        [secret] = re.findall(r'id="new-token"[^>]*>(hr_[\w-]+)<', answer.text)
        token = ApiToken.objects.get()
        assert token.digest == hashlib.sha256(secret.encode()).hexdigest()
        assert token.scopes == ["read"]
        assert "no-store" in answer["Cache-Control"]
        assert secret not in client.get(reverse("accounts:settings")).text

    def test_makes_no_token_without_a_scope(self, member: Member) -> None:
        answer = signed_in(member.user).post(
            reverse("accounts:issue_token"), {"name": "ci", "days": "30"}
        )

        assert answer.status_code == 422
        assert not ApiToken.objects.exists()

    def test_makes_no_token_for_a_role_that_may_not(self) -> None:
        member = make_member(role=Role.BILLING)

        answer = signed_in(member.user).post(
            reverse("accounts:issue_token"), {"name": "ci", "scopes": ["read"], "days": "30"}
        )

        assert answer.status_code == 422
        assert not ApiToken.objects.exists()

    def test_revokes_ones_own_token_and_no_other(self, member: Member) -> None:
        client, now = signed_in(member.user), timezone.now()
        ours, theirs = (
            accounts.issue_token(
                actor=actor, name="ci", scopes=[Scope.READ], expires_at=None, now=now
            )[0]
            for actor in (member, make_member())
        )

        answers = [
            client.post(reverse("accounts:revoke_token", args=[token.pk])).status_code
            for token in (ours, theirs)
        ]

        assert answers == [302, 404]
        assert list(ApiToken.objects.filter(revoked_at=None)) == [theirs]


class TestFleet:
    @pytest.mark.parametrize(
        ("method", "address"),
        [
            ("get", "/fleet/"),
            ("post", "/fleet/join-tokens"),
            ("post", "/fleet/nodes/1/cordon"),
            ("post", "/fleet/nodes/1/uncordon"),
        ],
    )
    def test_is_for_operators(self, member: Member, method: str, address: str) -> None:
        answer = getattr(signed_in(member.user), method)(address)

        assert answer.status_code == 403
        assert "This page is for operators." in answer.text
        assert not JoinToken.objects.exists()

    def test_shows_nodes_gpus_and_what_waits(self, operator: User) -> None:
        node = make_node(gpus=2, seen_at=timezone.now())
        instance = make_instance()

        page = signed_in(operator).get(reverse("scheduler:fleet")).text

        assert node.name in page
        assert page.count("H100 80GB HBM3") >= 1
        assert instance.name in page

    def test_tells_apart_what_is_free_held_faulty_and_missing(self, operator: User) -> None:
        node = make_node(gpus=4, seen_at=timezone.now())
        held, faulty, missing, _ = node.gpus.order_by("pk")
        hold(held)
        Gpu.objects.filter(pk=faulty.pk).update(healthy=False, problem="Xid 79")
        Gpu.objects.filter(pk=missing.pk).update(present=False)

        page = signed_in(operator).get(reverse("scheduler:fleet")).text

        shown = re.findall(r'title="GPU-[^:]+: ([^"]+)"', page)
        assert sorted(shown) == ["Xid 79", "free", "in use", "missing"]

    def test_says_when_a_node_is_away(self, operator: User) -> None:
        make_node(seen_at=timezone.now() - timedelta(hours=1))

        assert "unreachable" in signed_in(operator).get(reverse("scheduler:fleet")).text

    def test_cordons_and_uncordons(self, operator: User) -> None:
        client, node = signed_in(operator), make_node()

        answer = client.post(reverse("scheduler:cordon", args=[node.pk]), headers=HTMX)
        cordoned_at = Node.objects.get(pk=node.pk).cordoned_at
        client.post(reverse("scheduler:uncordon", args=[node.pk]))

        assert "Uncordon" in answer.text
        assert cordoned_at is not None
        assert Node.objects.get(pk=node.pk).cordoned_at is None

    def test_gives_a_join_token_that_is_kept_as_a_digest(self, operator: User) -> None:
        answer = signed_in(operator).post(reverse("scheduler:join-token"), headers=HTMX)

        [secret] = re.findall(r"HEADRACE_JOIN_TOKEN=(hrj_[\w-]+)", answer.text)
        token = JoinToken.objects.get()
        assert token.digest == hashlib.sha256(secret.encode()).hexdigest()
        assert token.created_by == operator

    def test_costs_as_many_queries_for_five_nodes_as_for_one(
        self, operator: User, django_assert_num_queries: Any
    ) -> None:
        client = signed_in(operator)
        make_node(gpus=2)
        # Session, user, member, nodes, their GPUs, two counts of GPUs, leases, the queue twice.
        with django_assert_num_queries(10):
            client.get(reverse("scheduler:fleet"))
        for _ in range(4):
            make_node(gpus=2)
        with django_assert_num_queries(10):
            client.get(reverse("scheduler:fleet"))


class TestPlacement:
    def test_names_node_and_gpus_to_the_team_and_to_operators(self, operator: User) -> None:
        member, node = make_member(), make_node()
        instance = make_instance(actor=member)
        gpu = node.gpus.get()
        hold(gpu, instance=instance)

        for user in (member.user, operator):
            page = signed_in(user).get(reverse("scheduler:placement", args=[instance.pk])).text

            assert node.name in page
            assert gpu.uuid in page

    def test_does_not_exist_for_a_stranger(self, member: Member) -> None:
        address = reverse("scheduler:placement", args=[make_instance().pk])

        assert signed_in(member.user).get(address).status_code == 404


class TestErrors:
    def test_a_page_that_is_not_there_says_so_in_our_look(self, member: Member) -> None:
        answer = signed_in(member.user).get(f"/instances/{uuid4()}")

        assert answer.status_code == 404
        assert "There is nothing at this address" in answer.text

    def test_a_fault_of_ours_needs_nothing_to_be_told(self) -> None:
        assert "Something broke on our side" in render_to_string("500.html")


class TestFormats:
    @pytest.mark.parametrize(
        ("written", "expected"),
        [
            (formats.money(None), "–"),
            (formats.money(2_490_000), "$2.49"),
            (formats.available_money(2_499_999), "$2.49"),
            (formats.running_money(0), "$0.00"),
            (formats.running_money(691), "$0.000691"),
            (formats.running_money(3_475_625), "$3.4756"),
            (formats.exact_money(-2_490_000), "-$2.490000"),
            (formats.clock(93_789), "26:03:09"),
            (formats.gib(2_047), "1"),
        ],
    )
    def test_write_what_people_read(self, written: object, expected: str) -> None:
        assert str(written) == expected


def hold(gpu: Gpu, *, instance: Any = None) -> None:
    """Give `gpu` to an instance, as the scheduler would."""
    now = timezone.now()
    instance = instance or make_instance()
    lease = Lease.objects.create(
        instance=instance, node=gpu.node, generation=1, started_at=now, expires_at=now
    )
    Allocation.objects.create(gpu=gpu, lease=lease, instance=instance, allocated_at=now)
