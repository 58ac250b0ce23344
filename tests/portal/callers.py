"""Who calls the API in a test: a member with a token, or with a session."""

from datetime import timedelta
from typing import Any

from django.utils import timezone
from rest_framework.test import APIClient

from portal.accounts import operations
from portal.accounts.models import Member
from portal.accounts.roles import Scope
from tests.factories import NOON, make_member

ED25519 = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIL2e5wE2kR+tS+dlmV8Pr37Fs1Z3S5C9JfWIk0lr1djB me@laptop"
)


def secret_of(member: Member, *scopes: Scope) -> str:
    _, secret = operations.issue_token(
        actor=member,
        name="test",
        scopes=scopes or tuple(Scope),
        expires_at=timezone.now() + timedelta(days=1),
        now=NOON,
    )
    return secret


def by_token(member: Member | None = None, *scopes: Scope) -> APIClient:
    """Calls as `member` (an owner of a new team) with a token of `scopes`, or of all."""
    return by_secret(secret_of(member or make_member(), *scopes))


def by_secret(secret: str) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


def by_session(member: Member, *, csrf: bool = False) -> APIClient:
    client = APIClient(enforce_csrf_checks=csrf)
    client.force_login(member.user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def problem(response: Any) -> tuple[int, str]:
    """Status and code of a refusal, which must be a problem of RFC 9457."""
    assert response.headers["Content-Type"] == "application/problem+json"
    body = response.json()
    assert {"type", "title", "status", "code", "detail"} <= set(body)
    assert body["status"] == response.status_code
    assert body["detail"]
    return response.status_code, body["code"]
