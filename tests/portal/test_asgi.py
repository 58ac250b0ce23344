import asyncio
import json
from typing import Any

import pytest

from portal import asgi


def exchange(scope: dict[str, Any], *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """What the application sends when it receives `messages` one after the other."""
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        waiting = iter(messages)

        async def receive() -> dict[str, Any]:
            message = next(waiting, None)
            if message is None:  # a client that listens until it has its answer
                await asyncio.sleep(30)
            return message or {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await asgi.application(scope, receive, send)

    asyncio.run(run())
    return sent


def spy(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the two each request from here on goes to."""
    taken: list[str] = []

    def half(name: str) -> Any:
        async def take(scope: object, receive: object, send: object) -> None:
            taken.append(name)

        return take

    monkeypatch.setattr(asgi, "_door", half("door"))
    monkeypatch.setattr(asgi, "_pages", half("pages"))
    return taken


class TestApplication:
    @pytest.mark.parametrize(
        ("path", "half"),
        [
            ("/", "pages"),
            ("/agent/v1/sync", "door"),
            ("/api/v1/instances", "pages"),
            ("/agents", "pages"),
        ],
    )
    def test_gives_only_the_nodes_door_to_the_event_loop(
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
        assert exchange({"type": "websocket", "path": "/ws"}) == [{"type": "websocket.close"}]


class TestTheDoor:
    """Programs get JSON, whatever they ask for."""

    def test_refuses_an_unknown_node(self) -> None:
        sent = self.ask("/agent/v1/sync", b"{}")

        assert sent[0]["status"] == 400
        assert json.loads(sent[1]["body"])["code"] == "malformed"

    def test_knows_no_other_address(self) -> None:
        assert self.ask("/agent/v1/nothing", b"{}")[0]["status"] == 404

    def ask(self, path: str, body: bytes) -> list[Any]:
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "server": ("localhost", 80),
            "client": ("127.0.0.1", 1),
        }
        return exchange(scope, {"type": "http.request", "body": body, "more_body": False})
