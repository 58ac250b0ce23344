"""Every answer that says no: RFC 9457 problems, made in one place. Views never build one."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.core.signals import got_request_exception
from django.db import IntegrityError
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.response import Response

from portal.errors import Conflict, DomainError, Forbidden

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"


class Refused(exceptions.APIException):
    """A refusal of the API itself, where no operation was reached: status, code and sentence.

    `retry_after` is in seconds.
    """

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        detail: str,
        *,
        next_step: str = "",
        retry_after: int | None = None,
    ) -> None:
        super().__init__(detail, code)
        self.status_code = status
        self.next_step = next_step
        if retry_after is not None:
            self.wait = retry_after


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    next_step: str = "",
    errors: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body of a refusal. `code` is for programs, `detail` and `next_step` for people."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "code": code,
        "detail": detail,
    }
    if next_step:
        body["next_step"] = next_step
    if errors is not None:
        body["errors"] = errors
    return body


def handle(exc: Exception, context: Mapping[str, Any]) -> Response:
    """What DRF answers with when a view raises."""
    headers: dict[str, str] = {}
    match exc:
        case DomainError():
            body = problem_of(exc)
        case exceptions.ValidationError():
            body = problem(400, "invalid", "Some fields are not valid.", errors=_by_field(exc))
        case Http404() | ObjectDoesNotExist():
            body = _of(exceptions.NotFound())
        case PermissionDenied():
            body = _of(exceptions.PermissionDenied())
        case exceptions.APIException():
            body, headers = _of(exc), _headers(exc)
        case IntegrityError():
            # A constraint stood in the way that no operation had foreseen: the database is
            # right, and whoever reads this line adds the missing refusal.
            logger.error("constraint refused a request", exc_info=exc)
            body = problem(409, "conflict", "This contradicts what is there already.")
        case _:
            body = _fault(exc, context)
    return Response(body, status=body["status"], headers=headers, content_type=CONTENT_TYPE)


def problem_of(refusal: DomainError) -> dict[str, Any]:
    """The body of an operation's refusal."""
    match refusal:
        case Forbidden():
            status = 403
        case Conflict():
            status = 409
        case _:
            status = 422
    return problem(status, refusal.code, str(refusal), next_step=refusal.next_step)


@csrf_exempt
def not_found(request: HttpRequest) -> JsonResponse:
    """For a path under the API that nothing answers to."""
    body = problem(404, "not_found", "There is nothing at this address.")
    return JsonResponse(body, status=404, content_type=CONTENT_TYPE)


def _fault(exc: Exception, context: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing of what went wrong leaves the house; the log and Django's own signal have it."""
    logger.error("request failed", exc_info=exc)
    got_request_exception.send(sender=None, request=context.get("request"))
    return problem(500, "fault", "This is our fault.", next_step="Try again later.")


def _of(exc: exceptions.APIException) -> dict[str, Any]:
    code = exc.get_codes()
    return problem(
        exc.status_code,
        code if isinstance(code, str) else exc.default_code,
        str(exc.detail),
        next_step=getattr(exc, "next_step", ""),
    )


def _headers(exc: exceptions.APIException) -> dict[str, str]:
    headers = {}
    if challenge := getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if (wait := getattr(exc, "wait", None)) is not None:
        headers["Retry-After"] = str(int(wait))
    return headers


def _by_field(exc: exceptions.ValidationError) -> dict[str, Any]:
    """Sentences per field; what is wrong with the body as a whole stands under `body`."""
    if not isinstance(exc.detail, dict):
        return {"body": exc.detail}
    return {("body" if name == "non_field_errors" else name): at for name, at in exc.detail.items()}
