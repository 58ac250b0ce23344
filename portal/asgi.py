"""The whole portal on one port: what is held open on the event loop, all else in threads.

Django is about five times quicker as WSGI in threads than as ASGI, whose middleware hops between
loop and threads; but a thread for each held sync or stream would be one too many.
"""

from typing import Any, cast

from a2wsgi import WSGIMiddleware
from django.core.asgi import get_asgi_application

from portal.wsgi import application as wsgi_application

# Views below these must be coroutines.
HELD_OPEN = ("/agent/v1/", "/live/")
# Fewer than the database pool holds: a thread that waits for a connection serves nobody.
THREADS = 16

_held = get_asgi_application()
_pages = WSGIMiddleware(cast("Any", wsgi_application), workers=THREADS)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Hand one connection to the half of Django that serves its path."""
    match scope["type"]:
        case "lifespan":
            await _live(receive, send)
        case "http" if scope["path"].startswith(HELD_OPEN):
            await _held(scope, receive, send)
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
