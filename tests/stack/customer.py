"""A person who rents through the REST API, as a careful client does it."""

import itertools
import time
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any, Self
from uuid import uuid4

import httpx

from tests.stack.processes import eventually
from tests.stack.stack import Stack

PASSWORD = "correct-horse-battery"
# A client that meets a killed server asks another one; what died with the first frees its key.
RETRY_SECONDS = 120
RETRY_PAUSE_SECONDS = 0.2
_serial = itertools.count(1)


@dataclass
class Customer:
    """A signed-up person with a team and a token. Asks each web process in turn."""

    email: str
    token: str
    stack: Stack
    # One for all of its requests: a new client reads every certificate of the machine.
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30))

    @classmethod
    def sign_up(cls, stack: Stack) -> Self:
        """Sign up, open the link of the mail, log in; all through the API."""
        email = f"person-{next(_serial)}@example.org"
        api = f"{stack.urls[0]}/api/v1"
        who = {"email": email, "password": PASSWORD}
        entrance = httpx.Client(timeout=30)
        assert entrance.post(f"{api}/auth/signup", json=who).status_code == HTTPStatus.ACCEPTED
        key = {"key": stack.verification_key(email)}
        assert entrance.post(f"{api}/auth/verify", json=key).status_code == HTTPStatus.OK
        answer = entrance.post(f"{api}/auth/login", json={**who, "token_name": "tests"})
        assert answer.status_code == HTTPStatus.OK, answer.text
        # Its session goes with it: from here on the token alone is shown.
        return cls(email, answer.json()["token"]["secret"], stack)

    def call(self, method: str, path: str, body: Any = None, *, key: str = "") -> httpx.Response:
        """One request, repeated where no server answers or a first try is still under way.

        Only what is safe to repeat comes here: reads, stops, and launches with a key.
        """
        headers = {"Authorization": f"Bearer {self.token}"}
        if key:
            headers["Idempotency-Key"] = key
        deadline = time.monotonic() + RETRY_SECONDS
        for url in itertools.cycle(self.stack.urls):
            try:
                answer = self.http.request(
                    method, f"{url}/api/v1{path}", json=body, headers=headers
                )
            except httpx.TransportError:
                assert time.monotonic() < deadline, f"no server answered {method} {path}"
            else:
                if not _is_in_progress(answer) or time.monotonic() > deadline:
                    return answer
            time.sleep(RETRY_PAUSE_SECONDS)
        raise AssertionError("a cycle ends nowhere")

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        assert answer.status_code == HTTPStatus.OK, answer.text
        return answer.json()

    def launch(self, plan: str, image: str = "ubuntu", **wanted: Any) -> str:
        """The id of a new instance. Without a server's answer the same request goes out again."""
        body = {"plan": plan, "image": image, **wanted}
        answer = self.call("POST", "/instances", body, key=str(uuid4()))
        assert answer.status_code in (HTTPStatus.CREATED, HTTPStatus.OK), answer.text
        return str(answer.json()["id"])

    def stop(self, instance: str) -> None:
        answer = self.call("POST", f"/instances/{instance}/stop", {})
        assert answer.status_code == HTTPStatus.ACCEPTED, answer.text

    def wait_for(self, instance: str, *states: str, within_seconds: float = 60) -> Any:
        """The instance, as soon as it is in one of these states."""

        def reached() -> Any:
            found = self.get(f"/instances/{instance}")
            return found if found["state"] in states else None

        what = f"{instance} is {' or '.join(states)}"
        return eventually(reached, within_seconds=within_seconds, what=what)

    def paid_seconds(self, instance: str) -> int:
        """The whole seconds between “running” and what closed the meter, by its events."""
        events = self.get(f"/instances/{instance}/events")["results"]
        moments = [(event["state"], _epoch(event["effective_at"])) for event in events]
        states = [state for state, _ in moments]
        started = states.index("running")
        return moments[started + 1][1] - moments[started][1]


def _epoch(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def _is_in_progress(answer: httpx.Response) -> bool:
    return answer.status_code == HTTPStatus.CONFLICT and answer.json()["code"] == "in_progress"
