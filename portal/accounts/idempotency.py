"""`Idempotency-Key`: a POST that is sent again gets the answer that it got the first time."""

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from typing import Any, Concatenate

from django.db import IntegrityError, transaction
from django.db.models import BooleanField, FilteredRelation, Func, Q, Value
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.accounts.authentication import acting_member
from portal.accounts.models import IdempotentReply, User
from portal.api.errors import CONTENT_TYPE, Refused

HEADER = "Idempotency-Key"
KEY_CHARACTERS_MAX = 100
RETRY_AFTER_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """A request under a key: whose it is, and a digest of what it asks for."""

    user_id: int
    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class Kept:
    """The answer that was given under a key, and a digest of what was asked for."""

    digest: str
    status: int
    body: Any


class Outrun(Exception):
    """Another request under the same key was answered first."""


class _TryLock(Func):
    """Whether the transaction has the advisory lock of a number; it waits for nobody."""

    function = "pg_try_advisory_xact_lock"
    output_field = BooleanField()


def idempotent[V: APIView, **P](
    *, never_stored: Collection[str] = ()
) -> Callable[
    [Callable[Concatenate[V, Request, P], Response]],
    Callable[Concatenate[V, Request, P], Response],
]:
    """Make this POST one transaction, and let a client repeat it under a key of its own choosing.

    The first answer below 500 is kept for `IDEMPOTENCY_KEY_LIFETIME`: with what the request did,
    or after a refusal, which takes back all that it did. The fields in `never_stored` are null in
    a replay: a secret is not kept for the sake of a retry.
    """

    def decorate(
        method: Callable[Concatenate[V, Request, P], Response],
    ) -> Callable[Concatenate[V, Request, P], Response]:
        @wraps(method)
        def guarded(view: V, request: Request, /, *args: P.args, **kwargs: P.kwargs) -> Response:
            key = key_of(request)
            if key is None:
                with transaction.atomic():
                    return method(view, request, *args, **kwargs)

            def work() -> Response:
                try:
                    return method(view, request, *args, **kwargs)
                except Exception as error:
                    return view.handle_exception(error)

            asked = Asked(acting_member(request).user_id, key, _digest(request))
            try:
                return _answer(asked, work, never_stored)
            except Outrun:
                return _replay(_kept(asked), asked)

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


def _answer(asked: Asked, work: Callable[[], Response], never_stored: Collection[str]) -> Response:
    """Do the work and keep its answer in one transaction, or give the answer that is kept.

    Raises Refused, or Outrun: then nothing was done.
    """
    with transaction.atomic():
        if (kept := _claim(asked)) is not None:
            return _replay(kept, asked)
        response = work()
        if response.exception:
            transaction.set_rollback(True)
        else:
            _keep(asked, response, never_stored)
    if response.exception and response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        _keep(asked, response, never_stored)
    return response


def _claim(asked: Asked) -> Kept | None:
    """What is kept under the key; None: it is ours to answer. Raises Refused while another does.

    The lock only spares doing the work twice. That it lands once is held by the reply's own
    constraint, so the moment between this statement's snapshot and its lock does no harm.
    """
    claimed, *kept = (
        User.objects.annotate(
            claimed=_TryLock(Value(_lock_of(asked))),
            reply=FilteredRelation("replies", condition=Q(replies__key=asked.key)),
        )
        .values_list("claimed", "reply__request_digest", "reply__status", "reply__body")
        .get(pk=asked.user_id)
    )
    if kept[0] is not None:
        return Kept(*kept)
    if not claimed:
        raise Refused(
            HTTPStatus.CONFLICT,
            "in_progress",
            f"The first request with this {HEADER} has not been answered yet.",
            next_step="Ask again in a moment.",
            retry_after=RETRY_AFTER_SECONDS,
        )
    return None


def _kept(asked: Asked) -> Kept:
    return Kept(
        *IdempotentReply.objects.values_list("request_digest", "status", "body").get(
            user=asked.user_id, key=asked.key
        )
    )


def _keep(asked: Asked, response: Response, never_stored: Collection[str]) -> None:
    """Raises Outrun where an answer is kept already."""
    body = response.data
    if isinstance(body, dict):
        body = body | dict.fromkeys(body.keys() & set(never_stored))
    try:
        IdempotentReply.objects.create(
            user_id=asked.user_id,
            key=asked.key,
            request_digest=asked.digest,
            status=response.status_code,
            body=body,
            created_at=timezone.now(),
        )
    except IntegrityError as error:
        raise Outrun from error


def _replay(kept: Kept, asked: Asked) -> Response:
    """Raises Refused where something else was asked for."""
    if kept.digest != asked.digest:
        raise Refused(
            HTTPStatus.CONFLICT,
            "idempotency_key_reused",
            f"This {HEADER} came with another request before.",
            next_step="Draw a new key for a new request.",
        )
    kind = CONTENT_TYPE if kept.status >= HTTPStatus.BAD_REQUEST else None
    return Response(kept.body, status=kept.status, content_type=kind)


def _digest(request: Request) -> str:
    """SHA-256 of who asks for what: the member, method, path and content of the body."""
    content = json.dumps(request.data, sort_keys=True)
    text = f"{acting_member(request).pk} {request.method} {request.path}\n{content}"
    return hashlib.sha256(text.encode()).hexdigest()


def _lock_of(asked: Asked) -> int:
    """The number of an advisory lock; that two keys share one is as likely as a broken UUID."""
    text = f"{asked.user_id} {asked.key}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], signed=True)
