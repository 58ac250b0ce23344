import re
from typing import Any

import pytest
from django.core import mail
from django.core.cache import cache
from django.test import override_settings
from rest_framework.test import APIClient

from portal.accounts import operations
from portal.accounts.models import ApiToken, Member, User
from portal.accounts.roles import Role
from portal.api.throttling import Throttle
from tests.factories import make_team
from tests.portal.callers import problem

EMAIL = "ada@example.org"
PASSWORD = "gR8-analytical-engine"


@pytest.fixture(autouse=True)
def _nothing_counted(settings: Any) -> None:
    cache.clear()


def post(path: str, body: object, client: APIClient | None = None) -> Any:
    return (client or APIClient()).post(f"/api/v1/auth/{path}", body)


def sign_up(email: str = EMAIL) -> Any:
    return post("signup", {"email": email, "password": PASSWORD})


def verify() -> Any:
    found = re.search(r"confirm-email/([^/\s]+)/", str(mail.outbox[-1].body))
    assert found
    return post("verify", {"key": found[1]})


def log_in(client: APIClient | None = None, **changes: object) -> Any:
    return post("login", {"email": EMAIL, "password": PASSWORD} | changes, client)


@pytest.mark.django_db
class TestSigningUp:
    def test_and_verifying_and_logging_in_needs_no_page(self) -> None:
        client = APIClient()

        assert sign_up().status_code == 202
        assert verify().status_code == 200
        logged_in = log_in(client, token_name="laptop")

        assert logged_in.status_code == 200
        secret = logged_in.json()["token"]["secret"]
        me = APIClient().get("/api/v1/me", headers={"Authorization": f"Bearer {secret}"})
        assert (me.json()["email"], me.json()["team"]["name"]) == (EMAIL, "ada")
        assert client.get("/api/v1/me").json()["role"] == "owner"

    def test_with_a_known_address_is_answered_alike_and_makes_nothing(self) -> None:
        first = sign_up()
        verify()
        mail.outbox.clear()
        cache.clear()

        second = sign_up(EMAIL.upper())

        assert (second.status_code, second.json()) == (first.status_code, first.json())
        assert User.objects.count() == 1
        assert "already" in str(mail.outbox[0].subject).lower() + str(mail.outbox[0].body).lower()

    @pytest.mark.parametrize("password", ["short", "password", "12345678"])
    def test_refuses_a_weak_password(self, password: str) -> None:
        response = post("signup", {"email": EMAIL, "password": password})

        assert problem(response) == (400, "invalid")
        assert list(response.json()["errors"]) == ["password"]
        assert not User.objects.exists()

    @override_settings(API_RATES={"signup": "2/hour", "any": "9/s"})
    def test_is_throttled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Throttle, "timer", staticmethod(lambda: 1_000_000.0))
        answers = [sign_up(f"{n}@example.org") for n in range(3)]

        assert [answer.status_code for answer in answers] == [202, 202, 429]
        assert problem(answers[2]) == (429, "throttled")
        assert 0 < int(answers[2].headers["Retry-After"]) <= 3601


@pytest.mark.django_db
class TestVerifying:
    @pytest.mark.parametrize("key", ["x", "MQ:1abc:def"])
    def test_refuses_a_key_that_was_never_mailed(self, key: str) -> None:
        assert problem(post("verify", {"key": key})) == (422, "verification_key_refused")

    def test_works_once(self) -> None:
        sign_up()
        verify()

        assert problem(verify()) == (422, "verification_key_refused")


@pytest.mark.django_db
class TestLoggingIn:
    def test_before_the_address_is_verified_opens_nothing(self) -> None:
        sign_up()
        client = APIClient()

        assert problem(log_in(client, token_name="laptop")) == (403, "email_not_verified")

        assert not ApiToken.objects.exists()
        assert problem(client.get("/api/v1/me")) == (401, "not_authenticated")

    def test_answers_a_wrong_password_and_an_unknown_address_alike(self) -> None:
        sign_up()
        verify()

        wrong, unknown = log_in(password="wrong"), log_in(email="nobody@example.org")

        assert problem(wrong) == problem(unknown) == (401, "wrong_credentials")
        assert wrong.json() == unknown.json()

    def test_is_refused_to_a_suspended_user_even_with_the_password(self) -> None:
        sign_up()
        verify()
        operations.suspend_user(user=User.objects.get())

        assert problem(log_in()) == (401, "user_suspended")
        assert problem(log_in(password="wrong")) == (401, "wrong_credentials")

    def test_stops_guessing_at_one_address(self) -> None:
        sign_up()
        verify()
        for _ in range(5):
            log_in(password="wrong")

        refused = log_in()

        assert problem(refused) == (429, "too_many_attempts")
        assert int(refused.headers["Retry-After"]) == 300

    def test_gives_no_token_to_a_role_that_may_have_none(self) -> None:
        sign_up()
        verify()
        Member.objects.update(role=Role.BILLING)

        assert problem(log_in(token_name="laptop")) == (403, "forbidden")

        assert not ApiToken.objects.exists()

    def test_says_that_there_is_no_token_where_none_was_asked_for(self) -> None:
        sign_up()
        verify()

        assert log_in().json() == {"email": EMAIL, "token": None}
        assert not ApiToken.objects.exists()

    def test_reads_json_alone_so_that_no_foreign_page_can_send_it(self) -> None:
        form = {"email": EMAIL, "password": PASSWORD}

        response = APIClient().post("/api/v1/auth/login", form, format="multipart")

        assert problem(response) == (415, "unsupported_media_type")


@pytest.mark.django_db
class TestLoggingOut:
    def test_ends_the_session(self) -> None:
        sign_up()
        verify()
        client = APIClient()
        log_in(client)

        assert post("logout", {}, client).status_code == 204

        assert problem(client.get("/api/v1/me")) == (401, "not_authenticated")


@pytest.mark.django_db
class TestActingForATeam:
    def test_follows_the_team_that_the_session_names(self) -> None:
        sign_up()
        verify()
        client = APIClient()
        log_in(client)
        second = Member.objects.create(
            user=User.objects.get(), team=make_team(), role=Role.DEVELOPER
        )
        session = client.session
        session["team"] = second.team_id
        session.save()

        assert client.get("/api/v1/me").json()["team"]["id"] == second.team_id

    def test_falls_back_to_the_first_for_a_team_that_one_has_left(self) -> None:
        sign_up()
        verify()
        client = APIClient()
        log_in(client)
        session = client.session
        session["team"] = make_team().pk
        session.save()

        assert client.get("/api/v1/me").json()["team"]["name"] == "ada"
