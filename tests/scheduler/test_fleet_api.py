from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from portal.accounts.models import Member
from portal.accounts.roles import Scope
from scheduler.models import JoinToken, Node
from tests.factories import make_instance, make_member, make_node
from tests.portal.callers import by_token, problem

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Member:
    member = make_member()
    member.user.is_staff = True
    member.user.save(update_fields=["is_staff"])
    return member


class TestNodes:
    def test_are_listed_with_their_state_and_gpus(
        self, operator: Member, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        make_node(gpus=3, seen_at=timezone.now())
        make_node(gpus=1, seen_at=timezone.now() - timedelta(hours=1))
        client = by_token(operator)
        client.get("/api/v1/fleet/nodes")

        with django_assert_num_queries(2):
            nodes = client.get("/api/v1/fleet/nodes").json()["results"]

        assert [(node["state"], node["gpus"], node["gpus_in_use"]) for node in nodes] == [
            ("ready", 3, 0),
            ("unreachable", 1, 0),
        ]

    def test_are_cordoned_and_uncordoned(self, operator: Member) -> None:
        node = make_node(seen_at=timezone.now())
        client = by_token(operator)

        cordoned = client.post(f"/api/v1/fleet/nodes/{node.pk}/cordon")
        uncordoned = client.post(f"/api/v1/fleet/nodes/{node.pk}/uncordon")

        assert (cordoned.status_code, cordoned.json()["state"]) == (202, "cordoned")
        assert (uncordoned.status_code, uncordoned.json()["state"]) == (202, "ready")

    def test_are_retired(self, operator: Member) -> None:
        node = make_node(seen_at=timezone.now())

        answer = by_token(operator).post(f"/api/v1/fleet/nodes/{node.pk}/retire")

        assert (answer.status_code, answer.json()["state"]) == (202, "retired")

    def test_are_no_business_of_a_member(self) -> None:
        node = make_node()
        make_instance()

        answer = by_token().post(f"/api/v1/fleet/nodes/{node.pk}/cordon")

        assert problem(answer)[0] == 403
        assert Node.objects.get().cordoned_at is None

    def test_need_the_fleet_scope(self, operator: Member) -> None:
        answer = by_token(operator, Scope.READ).get("/api/v1/fleet/nodes")

        assert problem(answer) == (403, "scope_missing")


class TestGpus:
    def test_are_listed(self, operator: Member) -> None:
        node = make_node(gpus=2)

        gpus = by_token(operator).get("/api/v1/fleet/gpus").json()["results"]

        assert [(gpu["node"], gpu["in_use"]) for gpu in gpus] == [(node.name, False)] * 2


class TestJoinTokens:
    def test_are_made_and_shown_once(self, operator: Member) -> None:
        client = by_token(operator)

        first = client.post("/api/v1/fleet/join-tokens", headers={"idempotency-key": "one"})
        again = client.post("/api/v1/fleet/join-tokens", headers={"idempotency-key": "one"})

        assert first.status_code == 201
        assert first.json()["secret"] in first.json()["command"]
        assert again.json()["secret"] is None
        assert JoinToken.objects.count() == 1
