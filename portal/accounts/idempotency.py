"""`Idempotency-Key`: a POST that is sent again gets the answer that it got the first time."""

import hashlib
import json
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from functools import wraps
from http import HTTPStatus
from typing import Any, Concatenate

from django.utils import timezone
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.accounts.authentication import acting_member
from portal.accounts.models import IdempotentReply
from portal.api.errors import CONTENT_TYPE, Refused

HEADER = "Idempotency-Key"
KEY_CHARACTERS_MAX = 100
# No request takes this long: one that is still in progress then died, and the next one goes on.
IN_PROGRESS_MAX = timedelta(seconds=60)


def idempotent[V: APIView, **P](
    *, never_stored: Collection[str] = ()
) -> Callable[
    [Callable[Concatenate[V, Request, P], Response]],
    Callable[Concatenate[V, Request, P], Response],
]:
    """Let a client repeat this POST under a key of its own choosing.

    The first answer below 500 is kept, refusals included, for `IDEMPOTENCY_KEY_LIFETIME`. The
    fields in `never_stored` are null in a replay: a secret is not kept for the sake of a retry.
    """

    def decorate(
        method: Callable[Concatenate[V, Request, P], Response],
    ) -> Callable[Concatenate[V, Request, P], Response]:
        @wraps(method)
        def guarded(view: V, request: Request, /, *args: P.args, **kwargs: P.kwargs) -> Response:
            key = key_of(request)
            if key is None:
                return method(view, request, *args, **kwargs)
            now = timezone.now()
            claimed, reply = _claim(request, key, now=now)
            if not claimed:
                return _replay(reply, _digest(request), now=now)
            try:
                response = method(view, request, *args, **kwargs)
            except Exception as error:
                response = view.handle_exception(error)
            _settle(reply, response, never_stored)
            return response

        return guarded

    return decorate


def key_of(request: Request) -> str | None:
    """The request's key, or None. Raises Refused for one that could not be stored."""
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if not 0 < len(key) <= KEY_CHARACTERS_MAX or not (key.isascii() and key.isprintable()):
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            "invalid_idempotency_key",
            f"An {HEADER} has 1 to {KEY_CHARACTERS_MAX} printable ASCII characters.",
        )
    return key


def _claim(request: Request, key: str, *, now: datetime) -> tuple[bool, IdempotentReply]:
    """Whether this request is the one to do the work, and the row of its key."""
    reply, claimed = IdempotentReply.objects.get_or_create(
        user=acting_member(request).user,
        key=key,
        defaults={"request_digest": _digest(request), "created_at": now},
    )
    if not claimed and reply.status is None and reply.request_digest == _digest(request):
        claimed = take_over(reply, now=now)
    return claimed, reply


def take_over(reply: IdempotentReply, *, now: datetime) -> bool:
    """Go on where a request died; of several that find it, one is told True."""
    dead = IdempotentReply.objects.filter(
        pk=reply.pk, status=None, created_at__lte=now - IN_PROGRESS_MAX
    )
    taken = bool(dead.update(created_at=now))
    if taken:
        reply.created_at = now
    return taken


def _replay(reply: IdempotentReply, digest: str, *, now: datetime) -> Response:
    if reply.request_digest != digest:
        raise Refused(
            HTTPStatus.CONFLICT,
            "idempotency_key_reused",
            f"This {HEADER} came with another request before.",
            next_step="Draw a new key for a new request.",
        )
    if reply.status is None:
        left = reply.created_at + IN_PROGRESS_MAX - now
        raise Refused(
            HTTPStatus.CONFLICT,
            "in_progress",
            f"The first request with this {HEADER} has not been answered yet.",
            next_step="Ask again in a moment.",
            retry_after=max(1, min(left.seconds, 5)),
        )
    kind = CONTENT_TYPE if reply.status >= HTTPStatus.BAD_REQUEST else None
    return Response(reply.body, status=reply.status, content_type=kind)


def _settle(reply: IdempotentReply, response: Response, never_stored: Collection[str]) -> None:
    """Keep the answer; or forget the key, where the fault was ours and a retry may do better."""
    mine = IdempotentReply.objects.filter(pk=reply.pk, created_at=reply.created_at, status=None)
    if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        mine.delete()
        return
    body: Any = json.loads(JSONRenderer().render(response.data) or "null")
    if isinstance(body, dict):
        body |= dict.fromkeys(set(never_stored) & set(body))
    mine.update(status=response.status_code, body=body)


def _digest(request: Request) -> str:
    """SHA-256 of who asks for what: the member, method, path and content of the body."""
    content = json.dumps(request.data, sort_keys=True)
    text = f"{acting_member(request).pk} {request.method} {request.path}\n{content}"
    return hashlib.sha256(text.encode()).hexdigest()
