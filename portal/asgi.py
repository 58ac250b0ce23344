"""The whole portal on one port: what is held open on the event loop, all else in threads.

The nodes' door is an ASGI application of its own. Pages and the API are WSGI in threads, at about
a fifth of what Django costs as ASGI, whose middleware hops between loop and threads; but a thread
for each held sync or stream would be one too many.
"""

import sys
from typing import Any, cast

from a2wsgi import WSGIMiddleware
from django.utils.module_loading import import_string

from portal.wsgi import application as wsgi_application

# The nodes' door, whose syncs are held open.
DOOR = "/agent/v1/"
# Fewer than the database pool holds: a thread that waits for a connection serves nobody.
THREADS = 16

# How long a thread that comes back from the database waits for one that computes: at Python's own
# five milliseconds, a launch of a dozen statements would mostly wait.
sys.setswitchinterval(0.0001)

_door = import_string("scheduler.agent_api.application")  # by name, as routes are
_pages = WSGIMiddleware(cast("Any", wsgi_application), workers=THREADS)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Hand one connection to what serves its path."""
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
