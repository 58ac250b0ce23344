"""The API against its own OpenAPI document: no fault of ours, and no answer undeclared."""

import base64
import hashlib
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from django.core.management import call_command
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from django.test import override_settings
from hypothesis import HealthCheck, Phase, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import ignored_auth

from tests.factories import make_image, make_instance, make_member, make_plan, make_team
from tests.portal.callers import by_session, secret_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.yaml"
EXAMPLES = 15
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MONTH = re.compile(r"[0-9]{4}-[0-9]{2}")
CSRF = "c" * 32
CONFIG = {
    "generation": {
        "mode": "all",
        "max-examples": EXAMPLES,
        "deterministic": True,
        "with-security-parameters": False,
    },
    # A well-formed request may be refused all the same: for want of funds, of a real plan, …
    "checks": {"positive_data_acceptance": {"enabled": False}},
}

wanted: dict[str, str] = {}
# Tokens are made and revoked by a signed-in person alone; all else is asked with a token.
TOKEN: dict[str, str] = {}
COOKIES: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _one_connection() -> Iterator[None]:
    """A request would close the connection whose transaction holds the test's rows."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture(autouse=True)
def _something_to_find(db: None) -> Iterator[None]:
    member = make_member(make_team(gpu_quota=1_000, credit_micros=10**12))
    instance = make_instance(actor=member)
    wanted.update(plan=make_plan().sku, image=make_image().slug, id=str(instance.pk))
    TOKEN["Authorization"] = f"Bearer {secret_of(member)}"
    session = by_session(member).cookies["sessionid"].value
    COOKIES.update(sessionid=session, csrftoken=CSRF)
    with override_settings(API_RATES=dict.fromkeys(("any", "launch", "login", "signup"), "9999/s")):
        yield


def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """What is well-formed leads to what is there; its state changes as the test goes."""
    path = path_parameters or {}
    if context.operation.path.startswith("/api/v1/instances/{") and UUID.fullmatch(str(path["id"])):
        return path | {"id": wanted["id"]}
    if MONTH.fullmatch(str(path.get("month"))):
        return path | {"month": "2026-01"}
    return path_parameters


def map_body(context: Any, body: Any) -> Any:
    """What is well-formed names what is offered, and a key that is one."""
    if not isinstance(body, dict):
        return body
    if context.operation.label in ("POST /api/v1/instances", "POST /api/v1/preflight"):
        return body | {name: wanted[name] for name in ("plan", "image") if _is_slug(body.get(name))}
    if context.operation.label == "POST /api/v1/ssh-keys" and _is_slug(body.get("public_key")):
        return body | {"public_key": _key_drawn_from(body["public_key"])}
    return body


django = get_wsgi_application()


def application(environ: dict[str, Any], start_response: Any) -> Any:
    """Our WSGI application, with the caller's address, which every real server gives."""
    return django(environ | {"REMOTE_ADDR": "127.0.0.1"}, start_response)


def _is_slug(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 60


def _key_drawn_from(text: str) -> str:
    point = hashlib.sha256(text.encode("utf-8", "replace")).digest()
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + point
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"


document = schemathesis.openapi.from_path(DOCUMENT, config=SchemathesisConfig.from_dict(CONFIG))
document.app = application
document.hook(map_path_parameters)
document.hook(map_body)


@document.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_answers_as_its_document_says(case: Any) -> None:
    by_person = case.operation.path.startswith(("/api/v1/tokens", "/api/v1/auth"))
    if by_person:
        # That check takes the header away and finds the cookie still there.
        case.call_and_validate(
            headers={"X-CSRFToken": CSRF}, cookies=COOKIES, excluded_checks=[ignored_auth]
        )
    else:
        case.call_and_validate(headers=TOKEN)


def test_the_committed_document_is_what_the_code_says() -> None:
    said = StringIO()

    call_command("spectacular", "--validate", "--fail-on-warn", stdout=said)

    assert DOCUMENT.read_text() == said.getvalue()
