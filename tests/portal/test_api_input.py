import json
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError
from rest_framework.test import APIClient

from portal.accounts.models import SshKey
from portal.instances import queue
from portal.instances.models import Instance
from tests.factories import make_image, make_instance, make_member, make_plan
from tests.portal.callers import ED25519, by_token, problem

INSTANCES = "/api/v1/instances"


def post_raw(client: APIClient, body: bytes, kind: str = "application/json") -> Any:
    return client.post(INSTANCES, body, content_type=kind)


def launch_body(**changes: object) -> dict[str, object]:
    return {"plan": make_plan().sku, "image": make_image().slug} | changes


@pytest.mark.django_db
class TestABody:
    @pytest.mark.parametrize(
        "body",
        [
            b"{",
            b"\xff\xfe",
            b'{"plan": NaN}',
            b'{"plan": Infinity}',
            b'{"plan": ' + b"1" * 5_000 + b"}",
            b"[" * 100_000,
            b'{"plan": "a\\u0000b"}',
            b'{"a\\u0000b": 1}',
            b'{"plan": "\\ud800"}',
            b'{"\\udfff": 1}',
        ],
    )
    def test_that_is_no_json_we_could_store_is_refused(self, body: bytes) -> None:
        assert problem(post_raw(by_token(), body)) == (400, "parse_error")

    def test_may_say_backslash_u0000_in_words(self) -> None:
        response = post_raw(by_token(), json.dumps(launch_body(name="\\u0000")).encode())

        assert problem(response) == (422, "invalid_launch")

    def test_of_more_than_a_mebibyte_is_refused_unread(self) -> None:
        body = b'{"plan": "' + b"x" * 1_048_576 + b'"}'

        assert problem(post_raw(by_token(), body)) == (413, "too_large")

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
    def test_in_another_format_is_refused(self, kind: str) -> None:
        assert problem(post_raw(by_token(), b"{}", kind)) == (415, "unsupported_media_type")

    @pytest.mark.parametrize("body", [b"[]", b'"x"', b"1", b"null"])
    def test_that_is_no_object_is_refused(self, body: bytes) -> None:
        assert problem(post_raw(by_token(), body)) == (400, "invalid")

    def test_with_unknown_fields_names_each_and_launches_nothing(self) -> None:
        response = by_token().post(INSTANCES, launch_body(volums=[], gpu=1))

        assert problem(response) == (400, "invalid")
        assert response.json()["errors"] == {
            "gpu": ["Unknown field."],
            "volums": ["Unknown field."],
        }
        assert not Instance.objects.exists()

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("plan", 1),
            ("plan", ""),
            ("plan", "no-such-plan"),
            ("plan", "x" * 61),
            ("image", True),
            ("image", None),
            ("team", "1"),
            ("team", 1.0),
            ("team", True),
            ("team", 10**30),
            ("name", "x" * 64),
            ("pricing", "spot"),
            ("ports", "80"),
            ("ports", [0]),
            ("ports", [65_536]),
            ("ports", ["80"]),
            ("ports", list(range(1, 40))),
            ("env", []),
            ("env", {"A": 1}),
            ("env", {"A": {"B": "C"}}),
            ("ssh_keys", [1]),
            ("ssh_keys", [2**63]),
            ("command", "sleep 1"),
            ("command", [1]),
            ("command", ["x" * 401]),
        ],
    )
    def test_with_a_wrong_field_says_which_and_launches_nothing(
        self, field: str, value: object
    ) -> None:
        response = by_token().post(INSTANCES, launch_body(**{field: value}))

        assert problem(response) == (400, "invalid")
        assert list(response.json()["errors"]) == [field]
        assert not Instance.objects.exists()

    @pytest.mark.parametrize("verb", ["stop", "start", "terminate"])
    def test_where_none_is_needed_must_be_empty(self, verb: str) -> None:
        member = make_member()
        instance = make_instance(actor=member)

        response = by_token(member).post(f"{INSTANCES}/{instance.pk}/{verb}", {"force": True})

        assert problem(response) == (400, "invalid")


@pytest.mark.django_db
class TestAnAddress:
    @pytest.mark.parametrize(
        "path",
        ["/", "/nothing", "/instances/", "/instances/1", "/instances/x/stop", "/plans/h100"],
    )
    def test_that_leads_nowhere_is_a_problem_too(self, path: str) -> None:
        assert problem(by_token().get(f"/api/v1{path}")) == (404, "not_found")

    def test_of_an_instance_that_is_not_there(self) -> None:
        assert problem(by_token().get(f"{INSTANCES}/{uuid4()}")) == (404, "not_found")

    @pytest.mark.parametrize("pk", ["0", "9" * 30, "-1", "x"])
    def test_of_a_key_that_is_not_there(self, pk: str) -> None:
        assert problem(by_token().delete(f"/api/v1/ssh-keys/{pk}")) == (404, "not_found")

    @pytest.mark.parametrize(
        ("method", "path"), [("put", "/instances"), ("delete", "/plans"), ("post", "/me")]
    )
    def test_asked_by_the_wrong_method(self, method: str, path: str) -> None:
        response = getattr(by_token(), method)(f"/api/v1{path}")

        assert problem(response) == (405, "method_not_allowed")
        assert response.headers["Allow"]


@pytest.mark.django_db
class TestACursor:
    def test_goes_forth_and_back_through_all(self) -> None:
        client = by_token()
        for _ in range(5):
            make_plan()

        first = client.get("/api/v1/plans?page_size=2").json()
        second = client.get(first["next"]).json()
        third = client.get(second["next"]).json()
        back = client.get(third["previous"]).json()

        skus = [plan["sku"] for page in (first, second, third) for plan in page["results"]]
        assert skus == sorted(skus)
        assert len(skus) == 5
        assert (first["previous"], third["next"]) == (None, None)
        assert back["results"] == second["results"]

    @pytest.mark.parametrize(
        "cursor", ["x", "cD1ub3QrYStkYXRl", "cj14", "bz0tMQ==", "cD0lMDA=", "%C3%A9"]
    )
    def test_that_is_forged_is_refused(self, cursor: str) -> None:
        assert problem(by_token().get(f"{INSTANCES}?cursor={cursor}")) == (400, "parse_error")


@pytest.mark.django_db
class TestAFaultOfOurs:
    def test_tells_nothing_of_its_inside(self, monkeypatch: pytest.MonkeyPatch) -> None:
        client = by_token()
        client.raise_request_exception = False
        monkeypatch.setattr(queue, "seen_by", lambda team: 1 / 0)

        response = client.get("/api/v1/queue")

        assert problem(response) == (500, "fault")
        assert "division" not in response.content.decode()

    def test_reaches_whoever_listens_for_faults(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queue, "seen_by", lambda team: 1 / 0)

        with pytest.raises(ZeroDivisionError):
            by_token().get("/api/v1/queue")

    def test_that_a_constraint_stopped_is_a_conflict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(**_: object) -> None:
            raise IntegrityError

        monkeypatch.setattr("portal.accounts.operations.add_ssh_key", refuse)

        response = by_token().post("/api/v1/ssh-keys", {"name": "x", "public_key": ED25519})

        assert problem(response) == (409, "conflict")
        assert not SshKey.objects.exists()
