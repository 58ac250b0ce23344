"""Bad input at the nodes' door: each is refused with a code, and nothing is written."""

from typing import Any

import pytest
from django.utils import timezone

from agents.protocol import Phase, SeenInstance
from scheduler import cycle, fleet
from scheduler.models import Gpu, JoinToken, Lease, Node
from tests.factories import make_instance
from tests.flows.written import nothing_is_written
from tests.nodes import enroll_node, enroll_request, knock
from tests.portal.callers import problem

pytestmark = pytest.mark.django_db(transaction=True)


def enroll(body: Any) -> Any:
    return knock("enroll", body)


class TestEnroll:
    def test_makes_a_node_with_its_gpus(self) -> None:
        node = enroll_node(gpus=3)

        assert node.row.gpus.count() == 3
        assert node.row.vcpus == 256

    def test_refuses_an_expired_join_token(self) -> None:
        _, secret = fleet.create_join_token(by=None, now=timezone.now())
        JoinToken.objects.update(expires_at=timezone.now())

        assert enroll(enroll_request(secret, "late")).json()["code"] == "join_token_refused"

    def test_refuses_a_name_that_is_none_and_keeps_the_token_good(self) -> None:
        _, secret = fleet.create_join_token(by=None, now=timezone.now())

        refused = enroll(enroll_request(secret, "a b"))

        assert refused.json()["code"] == "node_name_refused"
        assert enroll(enroll_request(secret, "a-b")).status_code == 201

    def test_refuses_the_gpus_of_another_node(self) -> None:
        node = enroll_node(gpus=1)
        _, secret = fleet.create_join_token(by=None, now=timezone.now())
        body = enroll_request(secret, "thief", gpus=1)
        body["inventory"] = node.inventory.to_json()

        response = enroll(body)

        assert (response.status_code, response.json()["code"]) == (409, "gpu_claimed")
        assert not Node.objects.filter(name="thief").exists()
        assert Gpu.objects.get().node == node.row

    def test_of_a_known_name_changes_its_secret_and_raises_its_epoch(self) -> None:
        node = enroll_node(name="again")
        before = node.row.epoch

        enroll_node(name="again")

        assert node.row.epoch == before + 1
        assert node.post(node.request().to_json()).status_code == 401


class TestAReplayedJoinToken:
    def test_makes_no_second_node(self) -> None:
        _, secret = fleet.create_join_token(by=None, now=timezone.now())
        enroll(enroll_request(secret, "first"))

        with nothing_is_written():
            response = enroll(enroll_request(secret, "second"))

        assert problem(response) == (422, "join_token_refused")


class TestANodeTokenOfAnotherNode:
    def test_says_nothing_of_what_that_node_runs(self) -> None:
        owner, stranger = enroll_node(gpus=1), enroll_node(gpus=1, model="NVIDIA L4")
        instance = make_instance(now=timezone.now())
        cycle.run(now=timezone.now())
        assert Lease.objects.get().node == owner.row
        stranger.seen = {(str(instance.pk), 1): SeenInstance(str(instance.pk), 1, Phase.RUNNING)}

        with nothing_is_written():
            response = stranger.post(stranger.request().to_json())

        assert problem(response) == (403, "foreign_lease")


class TestSync:
    @pytest.mark.parametrize(
        "body",
        [
            "",
            "nonsense",
            "[]",
            "null",
            b"\xff\xfe",
            '{"protocol": 1}',
            '{"protocol": "one"}',
            "[" * 100_000,
        ],
    )
    def test_refuses_a_malformed_body(self, body: str | bytes) -> None:
        response = enroll_node().post(body)

        assert (response.status_code, response.json()["code"]) == (400, "malformed")
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["detail"]

    def test_refuses_numbers_that_no_column_holds(self) -> None:
        node = enroll_node(gpus=1)
        body = node.request().to_json()
        body["inventory"]["vcpus"] = 2**70

        assert node.post(body).status_code == 400

    def test_ignores_fields_of_a_newer_agent(self) -> None:
        node = enroll_node()
        body = node.request().to_json() | {"colour": "blue"}

        assert node.post(body).status_code == 200

    def test_refuses_a_protocol_it_does_not_speak(self) -> None:
        node = enroll_node()

        response = node.post(node.request(protocol=99).to_json())

        assert (response.status_code, response.json()["code"]) == (409, "protocol_not_spoken")

    @pytest.mark.parametrize("token", ["hrn_nonsense", "x" * 5000])
    def test_refuses_an_unknown_secret(self, token: str) -> None:
        node = enroll_node()

        response = node.post(node.request().to_json(), token=token)

        assert (response.status_code, response.json()["code"]) == (401, "node_token_refused")

    def test_leaves_a_container_alone_that_no_lease_explains(self) -> None:
        node = enroll_node()
        stray = SeenInstance("6f9619ff-8b86-4d01-b42d-00cf4fc964ff", 1, Phase.RUNNING)
        node.seen = {(stray.instance, 1): stray, ("not-ours", 1): SeenInstance("x", 1, stray.phase)}

        assert node.sync().orders == ()

    def test_twice_changes_nothing_more(self) -> None:
        node = enroll_node()
        make_instance(now=timezone.now())
        cycle.run(now=timezone.now())
        node.work()

        first, second = node.sync(), node.sync()

        assert first.digest == second.digest

    def test_marks_a_gpu_that_is_no_longer_there(self) -> None:
        node = enroll_node(gpus=2)
        body = node.request().to_json()
        [lost, _] = body["inventory"]["gpus"]
        body["inventory"]["gpus"] = [body["inventory"]["gpus"][1]]

        node.post(body)

        assert not Gpu.objects.get(uuid=lost["uuid"]).present
        assert Gpu.objects.free().count() == 1
