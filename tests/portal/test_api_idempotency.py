import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from threading import Event
from typing import Any, Self

import pytest
from django.db import connection

from portal import hints
from portal.accounts import idempotency
from portal.accounts.models import ApiToken, IdempotentReply, Member, SshKey, Team
from portal.accounts.operations import add_ssh_key
from portal.accounts.roles import Role
from portal.instances.models import Instance
from portal.instances.operations import admission
from tests.factories import make_image, make_member, make_plan, make_team
from tests.portal.callers import ED25519, by_secret, by_session, by_token, problem, secret_of
from tests.races import at_once

INSTANCES = "/api/v1/instances"
KEYED = {"Idempotency-Key": "once"}


def launch(client: Any, body: dict[str, Any], **headers: str) -> Any:
    return client.post(INSTANCES, body, headers=KEYED | headers)


@pytest.fixture
def body(db: None) -> dict[str, Any]:
    return {"plan": make_plan().sku, "image": make_image().slug}


class TestARetry:
    def test_gets_the_first_answer_and_launches_nothing_more(self, body: dict[str, Any]) -> None:
        client = by_token()

        first, second = launch(client, body), launch(client, body)

        assert (first.status_code, second.status_code) == (201, 201)
        assert first.json() == second.json()
        assert Instance.objects.count() == 1

    def test_gets_the_first_answer_though_the_instance_has_moved_on(
        self, body: dict[str, Any]
    ) -> None:
        client = by_token()
        first = launch(client, body)
        client.post(f"{INSTANCES}/{first.json()['id']}/stop")

        assert launch(client, body).json() == first.json()

    def test_may_order_its_fields_differently(self, body: dict[str, Any]) -> None:
        client = by_token()

        first, second = launch(client, body), launch(client, dict(reversed(body.items())))

        assert first.json() == second.json()

    def test_with_another_body_is_a_conflict(self, body: dict[str, Any]) -> None:
        client = by_token()
        launch(client, body)

        response = launch(client, body | {"name": "other"})

        assert problem(response) == (409, "idempotency_key_reused")
        assert Instance.objects.count() == 1

    def test_at_another_address_is_a_conflict(self, body: dict[str, Any]) -> None:
        client = by_token()
        launch(client, body)

        response = client.post("/api/v1/ssh-keys", body, headers=KEYED)

        assert problem(response) == (409, "idempotency_key_reused")

    def test_for_another_team_is_a_conflict(self, body: dict[str, Any]) -> None:
        member = make_member()
        other = Member.objects.create(user=member.user, team=make_team(), role=Role.OWNER)
        launch(by_token(member), body)

        response = launch(by_token(other), body)

        assert problem(response) == (409, "idempotency_key_reused")

    def test_of_a_refusal_gets_the_refusal_again(self, body: dict[str, Any]) -> None:
        member = make_member(make_team(gpu_quota=0))
        client = by_token(member)
        first = launch(client, body)
        Team.objects.update(gpu_quota=8)

        second = launch(client, body)

        assert problem(first) == problem(second) == (422, "quota_exceeded")
        assert first.json() == second.json()
        assert not Instance.objects.exists()

    def test_under_the_same_key_by_somebody_else_is_none(self, body: dict[str, Any]) -> None:
        first, second = launch(by_token(), body), launch(by_token(), body)

        assert first.json()["id"] != second.json()["id"]

    def test_without_a_key_is_a_new_request(self, body: dict[str, Any]) -> None:
        client = by_token()

        first, second = client.post(INSTANCES, body), client.post(INSTANCES, body)

        assert first.json()["id"] != second.json()["id"]
        assert not IdempotentReply.objects.exists()

    def test_of_adding_a_key_adds_it_once(self, db: None) -> None:
        client = by_token()
        key = {"name": "laptop", "public_key": ED25519}

        first, second = (client.post("/api/v1/ssh-keys", key, headers=KEYED) for _ in range(2))

        assert (first.status_code, second.status_code) == (201, 201)
        assert first.json() == second.json()
        assert SshKey.objects.count() == 1


class TestASecret:
    def test_is_in_the_first_answer_alone_and_kept_nowhere(self, db: None) -> None:
        client = by_session(make_member())
        wanted = {"name": "laptop", "scopes": ["read"]}

        first = client.post("/api/v1/tokens", wanted, headers=KEYED).json()
        second = client.post("/api/v1/tokens", wanted, headers=KEYED).json()

        assert first["secret"].startswith("hr_")
        assert second == first | {"secret": None}
        assert ApiToken.objects.count() == 1
        assert first["secret"] not in str(IdempotentReply.objects.values().get())


class TestAFaultOfOurs:
    def test_is_not_kept_and_may_be_tried_again(
        self, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = by_token()
        client.raise_request_exception = False
        with monkeypatch.context() as broken:
            broken.setattr(admission, "launch", lambda **_: 1 / 0)
            assert problem(launch(client, body)) == (500, "fault")

        assert not IdempotentReply.objects.exists()
        assert launch(client, body).status_code == 201


@pytest.mark.django_db
class TestARefusal:
    def test_takes_back_all_that_the_request_did_and_is_kept(
        self, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        member = make_member()
        client = by_token(member)

        def write_and_refuse(*, now: datetime, **_: Any) -> None:
            add_ssh_key(user=member.user, name="laptop", public_key=ED25519, now=now)
            raise admission.QuotaExceeded("Too late.")

        with monkeypatch.context() as late:
            late.setattr(admission, "launch", write_and_refuse)
            assert problem(launch(client, body)) == (422, "quota_exceeded")

        assert not SshKey.objects.exists()
        assert problem(launch(client, body)) == (422, "quota_exceeded")


class StuckLaunch:
    """A launch that waits in the middle of its transaction, in a thread of its own."""

    def __init__(self, secret: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun, self._go_on = Event(), Event()
        self._secret, self._body = secret, body
        self._launch = admission.launch
        self.backend_pid = 0
        monkeypatch.setattr(admission, "launch", self._stick)

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(1)
        self._answer = self._pool.submit(self._ask)
        assert self._begun.wait(timeout=10)
        return self

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._pool.shutdown()

    def go_on(self) -> Any:
        """Its answer."""
        self._go_on.set()
        return self._answer.result(timeout=10)

    def _ask(self) -> Any:
        client = by_secret(self._secret)
        client.raise_request_exception = False
        try:
            return launch(client, self._body)
        finally:
            connection.close()

    def _stick(self, **wanted: Any) -> Any:
        if not self._begun.is_set():
            self.backend_pid = connection.connection.info.backend_pid
            self._begun.set()
            assert self._go_on.wait(timeout=10)
        return self._launch(**wanted)


@pytest.mark.django_db(transaction=True)
class TestARequestThatIsNotAnsweredYet:
    @pytest.fixture
    def secret(self) -> str:
        return secret_of(make_member())

    @pytest.fixture
    def stuck(
        self, secret: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[StuckLaunch]:
        with StuckLaunch(secret, body, monkeypatch) as stuck:
            yield stuck

    def test_sends_a_second_one_away_for_a_moment(
        self, secret: str, body: dict[str, Any], stuck: StuckLaunch
    ) -> None:
        early = launch(by_secret(secret), body)
        first, late = stuck.go_on(), launch(by_secret(secret), body)

        assert problem(early) == (409, "in_progress")
        assert early.headers["Retry-After"] == "1"
        assert first.status_code == late.status_code == 201
        assert first.json() == late.json()

    def test_frees_its_key_when_its_process_dies(
        self, secret: str, body: dict[str, Any], stuck: StuckLaunch
    ) -> None:
        with connection.cursor() as cursor:
            # What PostgreSQL does when a client's connection breaks.
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [stuck.backend_pid])

        retried = launch(by_secret(secret), body)

        assert stuck.go_on().status_code == 500
        assert retried.status_code == 201
        assert Instance.objects.count() == 1


@pytest.mark.django_db(transaction=True)
class TestHints:
    def test_go_out_once_and_for_what_landed_alone(
        self, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent: list[str] = []
        monkeypatch.setattr("portal.hints._send_task", sent.append)
        client = by_token(make_member(make_team(gpu_quota=1)))

        answers = [launch(client, body).status_code for _ in range(2)]
        refused = launch(client, body, **{"Idempotency-Key": "another"})

        assert answers == [201, 201]
        assert refused.status_code == 422
        assert sent == [hints.SCHEDULER_CYCLE]


class TestAKey:
    @pytest.mark.parametrize("key", ["", "x" * 101, "caf\u00e9", "a\x7fb"])
    def test_must_be_printable_and_not_long(self, body: dict[str, Any], key: str) -> None:
        response = launch(by_token(), body, **{"Idempotency-Key": key})

        assert problem(response) == (400, "invalid_idempotency_key")
        assert not Instance.objects.exists()


@pytest.mark.django_db(transaction=True)
class TestManyAtOnce:
    def test_under_one_key_launch_one_instance(self) -> None:
        body = {"plan": make_plan().sku, "image": make_image().slug}
        secret = secret_of(make_member())

        def try_to_launch() -> tuple[int, str]:
            response = launch(by_secret(secret), body)
            return response.status_code, response.json().get("id") or response.json()["code"]

        answers = at_once(try_to_launch)

        assert Instance.objects.count() == 1
        launched = {answer for answer in answers if answer[0] == 201}
        assert launched == {(201, str(Instance.objects.get().pk))}
        assert set(answers) - launched <= {(409, "in_progress")}

    def test_without_their_lock_still_do_the_work_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(idempotency, "_lock_of", lambda _: secrets.randbits(63))
        member = make_member()
        wanted = {"name": "laptop", "scopes": ["read"]}

        def issue() -> tuple[int, int]:
            response = by_session(member).post("/api/v1/tokens", wanted, headers=KEYED)
            return response.status_code, response.json()["id"]

        answers = at_once(issue)

        assert set(answers) == {(201, ApiToken.objects.get().pk)}
