from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.accounts import idempotency
from portal.accounts.models import ApiToken, IdempotentReply, Member, SshKey, Team
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


class TestARequestThatIsNotAnsweredYet:
    @pytest.fixture
    def pending(self, body: dict[str, Any]) -> IdempotentReply:
        """The row that a request leaves whose process died before it answered."""
        self.client = by_token()
        launch(self.client, body)
        reply = IdempotentReply.objects.get()
        reply.status, reply.body, reply.created_at = None, None, timezone.now()
        reply.save(update_fields=["status", "body", "created_at"])
        return reply

    def test_keeps_a_second_one_waiting(
        self, pending: IdempotentReply, body: dict[str, Any]
    ) -> None:
        response = launch(self.client, body)

        assert problem(response) == (409, "in_progress")
        assert 0 < int(response.headers["Retry-After"]) <= 5

    def test_blocks_its_key_for_a_minute_at_most(
        self, pending: IdempotentReply, body: dict[str, Any]
    ) -> None:
        pending.created_at -= idempotency.IN_PROGRESS_MAX
        pending.save(update_fields=["created_at"])

        response = launch(self.client, body)

        # The instance had been launched before the process died; the launch key finds it.
        assert response.status_code == 200
        assert Instance.objects.count() == 1
        assert launch(self.client, body).json() == response.json()

    def test_that_failed_by_our_fault_may_be_tried_again(
        self, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = by_token()
        client.raise_request_exception = False
        with monkeypatch.context() as broken:
            broken.setattr(admission, "launch", lambda **_: 1 / 0)
            assert problem(launch(client, body)) == (500, "fault")

        assert launch(client, body).status_code == 201


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

    def test_find_a_dead_request_and_one_goes_on(self) -> None:
        member = make_member()
        reply = IdempotentReply.objects.create(
            user=member.user,
            key="once",
            request_digest="0" * 64,
            created_at=timezone.now() - timedelta(hours=1),
        )
        now = timezone.now()

        def claim() -> bool:
            dead = IdempotentReply.objects.get(pk=reply.pk)
            return idempotency.take_over(dead, now=now)

        assert sum(at_once(claim)) == 1
