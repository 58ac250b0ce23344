"""The whole portal on one port: what is held open on the event loop, all else in threads.

Django is about five times quicker as WSGI in threads than as ASGI, whose middleware hops between
loop and threads; but a thread for each held sync or stream would be one too many.
"""

from typing import Any, cast

from a2wsgi import WSGIMiddleware
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.exception import convert_exception_to_response

from portal.wsgi import application as wsgi_application

# The nodes' door, whose syncs are held open.
DOOR = "/agent/v1/"
# Fewer than the database pool holds: a thread that waits for a connection serves nobody.
THREADS = 16


class BareHandler(ASGIHandler):
    """Django without middleware: the nodes' door has neither sessions nor pages, and each hop
    of a middleware between the loop and a thread would cost more than the whole answer."""

    def load_middleware(self, is_async: bool = False) -> None:
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        self._middleware_chain = convert_exception_to_response(
            self._get_response_async  # type: ignore[attr-defined]
        )


_door = BareHandler()
_pages = WSGIMiddleware(cast("Any", wsgi_application), workers=THREADS)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Hand one connection to the half of Django that serves its path."""
    match scope["type"]:
        case "lifespan":
            await _live(receive, send)
        case "http" if scope["path"].startswith(DOOR):
            await _door(scope, receive, send)
        case "http":
            await _pages(scope, receive, send)
        case _:  # no websockets are served: refuse the handshake
            await send({"type": "websocket.close"})


async def _live(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
