"""Bad input at the API's door: each is refused with a code and a sentence, and nothing is written.

Every kind of it, field by field, is the matter of `tests/portal/test_api_input.py` and
`test_api_access.py`; at the nodes' door, of `test_the_nodes_door.py`.
"""

from collections.abc import Iterator

import pytest
import time_machine
from rest_framework.test import APIClient

from portal.accounts.models import Member
from portal.accounts.operations import add_ssh_key
from portal.accounts.roles import Role
from portal.instances.models import State
from scheduler import cycle
from tests.factories import NOON, make_image, make_instance, make_member, make_plan, make_team
from tests.flows.written import nothing_is_written
from tests.nodes import enroll_node
from tests.portal.callers import ED25519, by_token, problem

pytestmark = pytest.mark.django_db(transaction=True)
INSTANCES = "/api/v1/instances"


@pytest.fixture(autouse=True)
def _clock() -> Iterator[None]:
    with time_machine.travel(NOON, tick=False):
        yield


@pytest.fixture
def body() -> dict[str, object]:
    """A launch that would be admitted."""
    return {"plan": make_plan().sku, "image": make_image().slug}


def caller(member: Member | None = None) -> APIClient:
    """Calls with a token whose use is noted already."""
    client = by_token(member)
    assert client.get("/api/v1/me").status_code == 200
    return client


class TestAMalformedBody:
    def test_is_refused_and_leaves_its_key_to_a_better_one(self, body: dict[str, object]) -> None:
        client, keyed = caller(), {"Idempotency-Key": "once"}

        with nothing_is_written():
            refused = client.post(
                INSTANCES, b'{"plan": ', content_type="application/json", headers=keyed
            )

        assert problem(refused) == (400, "parse_error")
        assert client.post(INSTANCES, body, headers=keyed).status_code == 201


class TestAnUnknownField:
    def test_is_named_and_never_passed_over(self, body: dict[str, object]) -> None:
        client = caller()

        with nothing_is_written():
            refused = client.post(INSTANCES, body | {"gpus": 8})

        assert problem(refused) == (400, "invalid")
        assert refused.json()["errors"] == {"gpus": ["Unknown field."]}


class TestAForeignId:
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("get", ""),
            ("get", "/events"),
            ("get", "/cost"),
            ("post", "/stop"),
            ("post", "/start"),
            ("post", "/terminate"),
        ],
    )
    def test_of_an_instance_is_like_one_that_is_not_there(self, method: str, path: str) -> None:
        node, instance, client = enroll_node(), make_instance(), caller()
        cycle.run(now=NOON)
        node.work()
        instance.refresh_from_db()
        assert instance.state == State.RUNNING

        with nothing_is_written():
            refused = getattr(client, method)(f"{INSTANCES}/{instance.pk}{path}")

        assert problem(refused) == (404, "not_found")

    def test_of_a_key_lets_nobody_in(self, body: dict[str, object]) -> None:
        stranger, client = make_member(), caller()
        key = add_ssh_key(user=stranger.user, name="laptop", public_key=ED25519, now=NOON)

        with nothing_is_written():
            refused = client.post(INSTANCES, body | {"ssh_keys": [key.pk]})

        assert problem(refused) == (400, "invalid")
        assert refused.json()["errors"] == {"ssh_keys": ["You have no such key."]}


class TestATokenOfAnotherTeam:
    def test_neither_stops_nor_launches_though_its_person_might(
        self, body: dict[str, object]
    ) -> None:
        here = make_member()
        there = Member.objects.create(user=here.user, team=make_team(), role=Role.OWNER)
        instance, client = make_instance(actor=there), caller(here)

        with nothing_is_written():
            stopped = client.post(f"{INSTANCES}/{instance.pk}/stop")
            launched = client.post(INSTANCES, body | {"team": there.team_id})

        assert problem(stopped) == problem(launched) == (404, "not_found")
