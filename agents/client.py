"""HTTPS to the scheduler: enrol and sync. The only file that imports httpx."""

from http import HTTPStatus
from typing import Any

import httpx

from agents.protocol import EnrollReply, EnrollRequest, Malformed, SyncReply, SyncRequest

CONNECT_SECONDS = 5.0
# What an answer may take beyond the time that the server was allowed to hold it.
ANSWER_SECONDS = 15.0


class Unreachable(Exception):
    """The portal gave no answer that means anything: try again later."""


class Rejected(Exception):
    """The portal understood, and refuses. `code` is for programs, the text for people."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code = status, code

    @property
    def is_token_refused(self) -> bool:
        return self.status == HTTPStatus.UNAUTHORIZED


class Client:
    """One agent's way to its portal. Two requests may be under way at once."""

    def __init__(
        self, url: str, *, node_token: str = "", transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {node_token}"} if node_token else {},
            transport=transport,
        )

    async def enroll(self, request: EnrollRequest) -> EnrollReply:
        """Raises Unreachable or Rejected. Not repeated by itself: a join token works once."""
        answer = await self._post("/agent/v1/enroll", request.to_json(), held_seconds=0.0)
        return _parsed(EnrollReply, answer)

    async def sync(self, request: SyncRequest) -> SyncReply:
        """Raises Unreachable or Rejected; the server may hold it for `wait_seconds`."""
        answer = await self._post(
            "/agent/v1/sync", request.to_json(), held_seconds=request.wait_seconds
        )
        return _parsed(SyncReply, answer)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _post(self, path: str, body: dict[str, Any], *, held_seconds: float) -> object:
        timeout = httpx.Timeout(ANSWER_SECONDS + held_seconds, connect=CONNECT_SECONDS)
        try:
            response = await self._http.post(path, json=body, timeout=timeout)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        data = _json(response)
        if response.is_success:
            return data
        # A 4xx without our own words comes from a proxy or from an address that is no portal.
        if not response.is_client_error or not isinstance(data, dict) or "code" not in data:
            raise Unreachable(f"it answered {response.status_code}")
        raise Rejected(response.status_code, str(data["code"]), str(data.get("detail", "")))


def _json(response: httpx.Response) -> object:
    try:
        return response.json()
    except ValueError:
        return None


def _parsed[T: (EnrollReply, SyncReply)](kind: type[T], data: object) -> T:
    try:
        return kind.from_json(data)
    except Malformed as error:
        raise Unreachable(f"its answer makes no sense: {error}") from error
