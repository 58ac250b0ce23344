"""The agent's way to its portal, against answers of every kind."""

import asyncio
import json
from collections.abc import Callable

import httpx
import pytest

from agents.client import Client, Rejected, Unreachable
from agents.protocol import EnrollReply, EnrollRequest, Inventory, SyncReply, SyncRequest
from tests.agents.orders import reply, running

INVENTORY = Inventory(8, 1024, ())
REQUEST = SyncRequest(1, "run", 1, INVENTORY, (), wait_seconds=25.0)


def sync(answer: Callable[[httpx.Request], httpx.Response]) -> SyncReply:
    async def ask() -> SyncReply:
        transport = httpx.MockTransport(answer)
        client = Client("https://portal", node_token="hrn_x", transport=transport)
        try:
            return await client.sync(REQUEST)
        finally:
            await client.aclose()

    return asyncio.run(ask())


class TestSync:
    def test_sends_what_is_seen_under_the_nodes_secret(self) -> None:
        asked: list[httpx.Request] = []

        def answer(request: httpx.Request) -> httpx.Response:
            asked.append(request)
            return httpx.Response(200, json=reply(running()).to_json())

        assert sync(answer) == reply(running())
        [request] = asked
        assert request.url == "https://portal/agent/v1/sync"
        assert request.headers["authorization"] == "Bearer hrn_x"
        assert SyncRequest.from_json(json.loads(request.content)) == REQUEST
        # The server may hold it for 25 s, and then must still have time to answer.
        assert request.extensions["timeout"]["read"] > 25.0

    def test_tells_a_refusal_with_its_code(self) -> None:
        problem = {"code": "node_token_refused", "detail": "It opens nothing here."}

        with pytest.raises(Rejected, match="opens nothing") as caught:
            sync(lambda _: httpx.Response(401, json=problem))

        assert caught.value.code == "node_token_refused"
        assert caught.value.is_token_refused

    @pytest.mark.parametrize(
        "response",
        [
            httpx.Response(502, text="<html>Bad Gateway</html>"),
            httpx.Response(500, json={"code": "server_error"}),
            httpx.Response(401, text="a proxy's own log-in page"),
            httpx.Response(404, json={"detail": "Not found."}),
            httpx.Response(302, headers={"location": "https://elsewhere"}),
            httpx.Response(200, text="not JSON"),
            httpx.Response(200, json={"protocol": 1}),
            httpx.Response(200, json=[]),
        ],
        ids=lambda response: str(response.status_code),
    )
    def test_takes_an_answer_that_is_not_the_portals_for_none(
        self, response: httpx.Response
    ) -> None:
        with pytest.raises(Unreachable):
            sync(lambda _: response)

    @pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadTimeout("late")])
    def test_tells_a_connection_that_fails(self, error: httpx.HTTPError) -> None:
        def answer(_: httpx.Request) -> httpx.Response:
            raise error

        with pytest.raises(Unreachable, match=str(error)):
            sync(answer)


class TestEnroll:
    def test_sends_no_secret_and_brings_one(self) -> None:
        wanted = EnrollReply("hrn_new", "rack-1", 1)

        def answer(request: httpx.Request) -> httpx.Response:
            assert "authorization" not in request.headers
            assert json.loads(request.content)["join_token"] == "hrj_x"
            return httpx.Response(201, json=wanted.to_json())

        async def ask() -> EnrollReply:
            client = Client("https://portal", transport=httpx.MockTransport(answer))
            return await client.enroll(EnrollRequest(1, "hrj_x", "rack-1", INVENTORY))

        assert asyncio.run(ask()) == wanted
