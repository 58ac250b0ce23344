import asyncio
from typing import Any

import pytest

from portal import asgi


def exchange(scope: dict[str, Any], *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """What the application sends when it receives `messages` one after the other."""
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        waiting = iter(messages)

        async def receive() -> dict[str, Any]:
            return next(waiting, {"type": "http.disconnect"})

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await asgi.application(scope, receive, send)

    asyncio.run(run())
    return sent


def spy(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The half of Django that each request from here on goes to."""
    taken: list[str] = []

    def half(name: str) -> Any:
        async def take(scope: object, receive: object, send: object) -> None:
            taken.append(name)

        return take

    monkeypatch.setattr(asgi, "_held", half("held"))
    monkeypatch.setattr(asgi, "_pages", half("pages"))
    return taken


class TestApplication:
    @pytest.mark.parametrize(
        ("path", "half"),
        [
            ("/", "pages"),
            ("/agent/v1/sync", "held"),
            ("/live/instances/", "held"),
            ("/api/v1/instances", "pages"),
            ("/agents", "pages"),
        ],
    )
    def test_gives_only_what_is_held_open_to_the_event_loop(
        self, path: str, half: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken = spy(monkeypatch)

        exchange({"type": "http", "path": path})

        assert taken == [half]

    def test_answers_when_the_server_starts_and_ends(self) -> None:
        sent = exchange(
            {"type": "lifespan"}, {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}
        )

        assert [message["type"] for message in sent] == [
            "lifespan.startup.complete",
            "lifespan.shutdown.complete",
        ]

    def test_refuses_websockets(self) -> None:
        assert exchange({"type": "websocket", "path": "/live/"}) == [{"type": "websocket.close"}]
