"""The API against its own OpenAPI document: no fault of ours, and no answer undeclared."""

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

from tests.factories import make_image, make_instance, make_member, make_plan, make_team
from tests.portal.callers import secret_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.yaml"
EXAMPLES = 15
UUID_TEXT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
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
    wanted.update(
        plan=make_plan().sku,
        image=make_image().slug,
        id=str(instance.pk),
        secret=secret_of(member),
    )
    with override_settings(API_RATES=dict.fromkeys(("any", "launch", "login", "signup"), "9999/s")):
        yield


def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """Random ids find nothing; this one is there, and its state changes as the test goes."""
    about_an_instance = context.operation.path.startswith("/api/v1/instances/{")
    if about_an_instance and path_parameters and UUID_TEXT.fullmatch(str(path_parameters["id"])):
        return path_parameters | {"id": wanted["id"]}
    return path_parameters


def map_body(context: Any, body: Any) -> Any:
    """Every other launch names a plan and an image that are offered."""
    if context.operation.label == "POST /api/v1/instances" and isinstance(body, dict):
        plan = body.get("plan")
        if isinstance(plan, str) and plan and len(plan) % 2 == 0:
            return body | {"plan": wanted["plan"], "image": wanted["image"]}
    return body


document = schemathesis.openapi.from_path(DOCUMENT, config=SchemathesisConfig.from_dict(CONFIG))
document.app = get_wsgi_application()
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
    case.call_and_validate(headers={"Authorization": f"Bearer {wanted['secret']}"})


def test_the_committed_document_is_what_the_code_says() -> None:
    said = StringIO()

    call_command("spectacular", "--validate", "--fail-on-warn", stdout=said)

    assert DOCUMENT.read_text() == said.getvalue()
