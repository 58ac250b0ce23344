from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.test import override_settings
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.test import APIClient, APIRequestFactory

from portal.accounts import operations
from portal.accounts.authentication import TokenAuthentication
from portal.accounts.models import ApiToken, Member
from portal.accounts.roles import Role, Scope
from portal.api.throttling import Throttle
from tests.factories import NOON, make_instance, make_member, make_team, make_user
from tests.portal.callers import by_session, by_token, problem, secret_of

ME = "/api/v1/me"


def with_header(value: str) -> Any:
    return APIClient().get(ME, headers={"Authorization": value})


@pytest.mark.django_db
class TestABearerToken:
    def test_acts_as_its_member(self) -> None:
        member = make_member(role=Role.DEVELOPER)

        me = by_token(member).get(ME).json()

        assert (me["email"], me["role"]) == (member.user.email, "developer")
        assert me["team"]["id"] == member.team_id

    def test_brings_its_rows_as_they_are_in_one_query(self, django_assert_num_queries: Any) -> None:
        secret = secret_of(make_member(), Scope.READ)
        ApiToken.objects.update(last_used_at=timezone.now())
        header = {"authorization": f"Bearer {secret}"}
        with django_assert_num_queries(1):
            known = TokenAuthentication().authenticate(
                Request(APIRequestFactory().get(ME, headers=header))
            )

        assert known is not None
        user, token = known
        for brought in (token, token.member, user, token.member.team):
            stored = type(brought)._default_manager.get(pk=brought.pk)
            for column in brought._meta.concrete_fields:
                assert getattr(brought, column.attname) == getattr(stored, column.attname)

    def test_notes_its_use(self) -> None:
        by_token().get(ME)

        used_at = ApiToken.objects.get().last_used_at
        assert used_at is not None
        assert timezone.now() - used_at < timedelta(minutes=1)

    @pytest.mark.parametrize("value", ["Bearer hr_unknown", "bearer ", "Bearer \u00e9"])
    def test_that_is_unknown_opens_nothing(self, value: str) -> None:
        response = with_header(value)

        assert problem(response) == (401, "token_unknown")
        assert response.headers["WWW-Authenticate"] == 'Bearer realm="api"'

    @pytest.mark.parametrize("value", ["", "hr_unknown", "Basic YTpi"])
    def test_that_is_none_is_like_no_header(self, value: str) -> None:
        assert problem(with_header(value)) == (401, "not_authenticated")

    def test_that_expired_opens_nothing(self) -> None:
        client = by_token()
        ApiToken.objects.update(expires_at=timezone.now())

        assert problem(client.get(ME)) == (401, "token_expired")

    def test_that_was_revoked_opens_nothing(self) -> None:
        client = by_token()
        ApiToken.objects.update(revoked_at=NOON)

        assert problem(client.get(ME)) == (401, "token_revoked")

    def test_of_a_suspended_user_opens_nothing(self) -> None:
        member = make_member()
        client = by_token(member)
        operations.suspend_user(user=member.user)

        assert problem(client.get(ME)) == (401, "user_suspended")

    def test_ends_with_the_membership(self) -> None:
        member = make_member()
        client = by_token(member)
        member.delete()

        assert problem(client.get(ME)) == (401, "token_unknown")


@pytest.mark.django_db
class TestASession:
    def test_may_do_all_that_its_person_may(self) -> None:
        client = by_session(make_member())

        assert client.get(ME).status_code == 200
        assert client.get("/api/v1/tokens").status_code == 200

    def test_must_send_the_csrf_token_to_change_anything(self) -> None:
        client = by_session(make_member(), csrf=True)

        response = client.post("/api/v1/tokens", {"name": "x", "scopes": ["read"]})

        assert problem(response) == (403, "permission_denied")
        assert not ApiToken.objects.exists()

    def test_of_a_suspended_user_is_none(self) -> None:
        member = make_member()
        client = by_session(member)
        operations.suspend_user(user=member.user)

        assert problem(client.get(ME)) == (401, "not_authenticated")

    def test_of_someone_without_a_team_is_told_so(self) -> None:
        member = make_member()
        client = by_session(member)
        Member.objects.all().delete()

        assert problem(client.get(ME)) == (403, "no_team")


READS = ["/me", "/teams", "/members", "/ssh-keys", "/tokens", "/plans", "/images"]


@pytest.mark.django_db
class TestScopes:
    @pytest.mark.parametrize("path", [*READS, "/instances", "/queue"])
    def test_reading_needs_the_scope_read(self, path: str) -> None:
        member = make_member()

        allowed = by_token(member, Scope.READ).get(f"/api/v1{path}")
        refused = by_token(member, Scope.INSTANCES, Scope.BILLING).get(f"/api/v1{path}")

        assert allowed.status_code == 200
        assert problem(refused) == (403, "scope_missing")

    @pytest.mark.parametrize("verb", ["stop", "start", "terminate"])
    def test_acting_on_instances_needs_the_scope_instances(self, verb: str) -> None:
        member = make_member()
        instance = make_instance(actor=member)

        refused = by_token(member, Scope.READ, Scope.BILLING).post(
            f"/api/v1/instances/{instance.pk}/{verb}"
        )

        assert problem(refused) == (403, "scope_missing")
        before = instance.state
        instance.refresh_from_db()
        assert instance.state == before

    def test_launching_needs_the_scope_instances(self) -> None:
        refused = by_token(make_member(), Scope.READ).post("/api/v1/instances", {})

        assert problem(refused) == (403, "scope_missing")

    @pytest.mark.parametrize("path", ["/tokens", "/auth/logout"])
    def test_no_token_makes_tokens_or_logs_out(self, path: str) -> None:
        refused = by_token().post(f"/api/v1{path}", {"name": "x", "scopes": ["read"]})

        assert problem(refused) == (403, "session_required")
        assert ApiToken.objects.count() == 1


@pytest.mark.django_db
class TestWhatIsOpenToEveryone:
    @pytest.mark.parametrize("path", [*READS, "/instances", "/queue", "/balance", "/usage"])
    def test_is_no_noun_of_a_team(self, path: str) -> None:
        assert problem(APIClient().get(f"/api/v1{path}")) == (401, "not_authenticated")

    def test_is_the_document_and_its_page(self) -> None:
        schema = APIClient().get("/api/v1/schema")
        docs = APIClient().get("/api/v1/docs")
        script = APIClient().get("/api/v1/docs?script=")

        assert schema.status_code == docs.status_code == script.status_code == 200
        assert script.headers["Content-Type"].startswith("application/javascript")

    def test_relaxes_the_policy_for_the_docs_page_alone(self) -> None:
        docs = APIClient().get("/api/v1/docs").headers["Content-Security-Policy"]
        other = APIClient().get("/api/v1/me").headers["Content-Security-Policy"]

        assert "style-src 'self' 'unsafe-inline'" in docs
        assert "unsafe" not in docs.replace("style-src 'self' 'unsafe-inline'", "")
        assert "unsafe" not in other


@pytest.mark.django_db
class TestThrottling:
    @pytest.fixture(autouse=True)
    def _nothing_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cache.clear()
        # No window may end between two requests of a test.
        monkeypatch.setattr(Throttle, "timer", staticmethod(lambda: 1_000_000.0))

    @override_settings(API_RATES={"any": "2/hour"})
    def test_counts_each_user_apart_and_says_when_to_come_again(self) -> None:
        eager, other = by_token(), by_token()

        answers = [eager.get(ME) for _ in range(3)]

        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert problem(answers[2]) == (429, "throttled")
        assert 0 < int(answers[2].headers["Retry-After"]) <= 3601
        assert other.get(ME).status_code == 200

    @override_settings(API_RATES={"any": "100/hour", "launch": "1/hour"})
    def test_counts_launches_apart_from_reads(self) -> None:
        client = by_token()

        launches = [client.post("/api/v1/instances", {}) for _ in range(2)]

        assert [launch.status_code for launch in launches] == [400, 429]
        assert client.get("/api/v1/instances").status_code == 200

    @override_settings(
        API_RATES={"any": "1/hour"},
        CACHES={
            "default": {
                "BACKEND": "portal.cache.LossyRedisCache",
                "LOCATION": "redis://127.0.0.1:1/0",
            }
        },
    )
    def test_lets_everyone_in_while_there_is_nothing_to_count_in(self) -> None:
        client = by_token()

        assert [client.get(ME).status_code for _ in range(3)] == [200, 200, 200]


@pytest.mark.django_db
class TestTeamsAndMembers:
    def test_a_token_sees_its_own_team_alone(self) -> None:
        member = make_member()
        Member.objects.create(user=member.user, team=make_team(), role=Role.OWNER)

        by_its_token = by_token(member).get("/api/v1/teams").json()["results"]
        by_its_person = by_session(member).get("/api/v1/teams").json()["results"]

        assert [team["id"] for team in by_its_token] == [member.team_id]
        assert len(by_its_person) == 2

    def test_members_are_those_of_the_team(self) -> None:
        member = make_member()
        make_member(member.team, role=Role.BILLING)
        make_member()

        members = by_token(member).get("/api/v1/members").json()["results"]

        assert [entry["role"] for entry in members] == ["owner", "billing"]

    def test_a_person_without_a_team_has_no_teams(self) -> None:
        client = APIClient()
        client.force_authenticate(make_user())

        assert client.get("/api/v1/teams").json()["results"] == []
