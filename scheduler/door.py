"""A door for programs: JSON in, JSON out, straight on the event loop.

It has neither sessions nor pages, and thousands of requests are held open in it: what Django does
for every request would cost more here than most answers do.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from django.conf import settings

logger = logging.getLogger(__name__)

type Handler = Callable[[str, bytes], Awaitable[Answer]]
type Receive = Callable[[], Awaitable[dict[str, Any]]]
type Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back: a JSON object and its status."""

    body: Mapping[str, Any]
    status: HTTPStatus = HTTPStatus.OK


class Refused(Exception):
    """An answer that is not a reply: a status, a code and a sentence."""

    def __init__(self, status: HTTPStatus, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code = status, code

    def answer(self) -> Answer:
        body = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": self.status,
            "code": self.code,
            "detail": str(self),
        }
        return Answer(body, self.status)


class Door:
    """An ASGI application. Each handler gets the `Authorization` header and the body of a POST."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        try:
            handler = self._handler_of(scope)
            body = await _read(receive)
            authorization = _header(scope, b"authorization")
            answer = await _unless_they_leave(receive, handler(authorization, body))
        except Refused as refusal:
            answer = refusal.answer()
        except Exception:
            logger.exception("the door failed", extra={"path": scope["path"]})
            answer = Refused(
                HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", "Something broke here."
            ).answer()
        if answer is not None:
            await _send(send, answer)

    def _handler_of(self, scope: Mapping[str, Any]) -> Handler:
        handler = self._handlers.get(scope["path"])
        if handler is None:
            raise Refused(HTTPStatus.NOT_FOUND, "not_found", "There is nothing here.")
        if scope["method"] != "POST":
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", "Use POST.")
        return handler


async def _read(receive: Receive) -> bytes:
    """The whole body. Raises Refused for one that is larger than any honest message."""
    parts, size = [], 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > (settings.DATA_UPLOAD_MAX_MEMORY_SIZE or size):
            raise Refused(HTTPStatus.CONTENT_TOO_LARGE, "too_large", "The body is too large.")
        if not message.get("more_body", False):
            return b"".join(parts)


async def _unless_they_leave(receive: Receive, work: Awaitable[Answer]) -> Answer | None:
    """The answer; None, and the work is dropped, where the other side hangs up before."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        leaving.cancel()
        working.cancel()


def _header(scope: Mapping[str, Any], name: bytes) -> str:
    value: bytes = dict(scope["headers"]).get(name, b"")
    return value.decode("latin-1")


async def _send(send: Send, answer: Answer) -> None:
    kind = b"application/json" if answer.status.is_success else b"application/problem+json"
    body = json.dumps(answer.body).encode()
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
