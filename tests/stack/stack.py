"""All of Headrace as processes on this machine, for one test or for many."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx

from portal.up import house
from portal.up.folder import Folder
from portal.up.supervisor import Program
from portal.up.terminal import MAIL_ENDS, read_mail
from tests.stack.processes import Process, eventually
from tests.stack.stores import Stores, fresh_stores

START_SECONDS = 120  # on a machine that does much else beside
ROOT = Path(__file__).parent.parent.parent
# The first page that a browser without a session is sent to.
ENTRANCE = "/accounts/login/"
# Rich enough for any test, and no limit that a test would meet by its haste alone.
ENVIRONMENT = {
    "DJANGO_SETTINGS_MODULE": "portal.settings",
    "EMAIL_URL": "consolemail://",
    "DEFAULT_GPU_QUOTA": "100",
    "TRIAL_CREDIT_MICROS": "1000000000",
    "API_RATE_ANY": "100000/min",
    "API_RATE_LAUNCH": "100000/min",
    "API_RATE_SIGNUP": "100000/min",
    "API_RATE_LOGIN": "100000/min",
}


class Stack:
    """The processes of one installation, each of which can be killed and started again."""

    def __init__(self, folder: Path, stores: Stores, *, webs: int, workers: int) -> None:
        self.stores = stores
        self._folder = Folder(folder)
        self._env = {
            **ENVIRONMENT,
            "DATABASE_URL": stores.database_url,
            "REDIS_URL": stores.redis_url,
        }
        houses = [house.House(self._folder, _free_port(), self._env) for _ in range(webs)]
        self._settings = houses[0].settings()
        self.urls = [each.url for each in houses]
        self.webs = [
            self._process(f"web-{n}", house.web(each, each.settings()))
            for n, each in enumerate(houses)
        ]
        worker, beat = house.background(houses[0], self._settings)
        self.workers = [
            self._process(f"worker-{n}", worker, "-n", f"worker-{n}@%h") for n in range(workers)
        ]
        self.beat = self._process("beat", beat)
        self.agents: list[Process] = []
        self._join_tokens: list[str] = []

    def start(self) -> None:
        """Return when every web process answers; the rest comes up meanwhile."""
        self._folder.logs.mkdir(parents=True, exist_ok=True)
        said = self.run("-m", "tests.stack.prepare")
        assert said.returncode == 0, said.stderr
        self._join_tokens = json.loads(said.stdout.splitlines()[-1])
        for process in (*self.webs, *self.workers, self.beat):
            process.start()
        for index in range(len(self.webs)):
            self.wait_for_web(index)

    def wait_for_web(self, index: int) -> None:
        process, url = self.webs[index], self.urls[index] + ENTRANCE

        def answers() -> bool:
            assert process.runs, f"{process.name} ended:\n{process.words}"
            try:
                return http.get(url).status_code == httpx.codes.OK
            except httpx.TransportError:
                return False

        with httpx.Client(timeout=5) as http:
            eventually(answers, within_seconds=START_SECONDS, what=f"{process.name} answers")

    def add_agent(self, name: str, told: Mapping[str, str]) -> Process:
        """A node that enrols with a join token of its own; back when the portal has seen it."""
        agent = self.new_agent(name, told)
        agent.start()
        eventually(lambda: self.has_enrolled(name), within_seconds=START_SECONDS, what=name)
        return agent

    def new_agent(self, name: str, told: Mapping[str, str]) -> Process:
        env = {
            "HEADRACE_URL": self.urls[len(self.agents) % len(self.urls)],
            "HEADRACE_STATE": str(self.state_of(name)),
            "HEADRACE_NODE_NAME": name,
            "HEADRACE_JOIN_TOKEN": self._join_tokens.pop(),
            **told,
        }
        agent = Process(
            name, (sys.executable, "-m", "agents"), env, self._folder.logs / f"{name}.log"
        )
        self.agents.append(agent)
        return agent

    def state_of(self, node: str) -> Path:
        """The folder in which the agent of a node keeps its state."""
        return self._folder.path / "agents" / node

    def has_enrolled(self, node: str) -> bool:
        return self.stores.number("SELECT count(*) FROM scheduler_node WHERE name = %s", node) == 1

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One Python program beside the others, to its end."""
        return subprocess.run(
            (sys.executable, *arguments),
            cwd=ROOT,
            env={**os.environ, **self._settings},
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )

    def check_ledger(self) -> None:
        """Fails the test where events, intervals and ledger differ by a micro or by a second."""
        audit = self.run("manage.py", "audit_ledger")
        assert audit.returncode == 0, audit.stdout + audit.stderr

    def verification_key(self, email: str) -> str:
        """The key in the newest mail that asks this person to confirm the address."""

        def find() -> str:
            for sentence in self._mail_to(email):
                if link := re.search(r"/accounts/confirm-email/([^/]+)/", sentence):
                    return link[1]
            return ""

        return eventually(find, within_seconds=START_SECONDS, what=f"a mail to {email}")

    def verification_url(self, email: str) -> str:
        return f"{self.urls[0]}/accounts/confirm-email/{quote(self.verification_key(email))}/"

    def stop(self) -> None:
        """Ends all of it, the nodes first, whatever a test did to it."""
        everything = (*self.agents, *self.webs, *self.workers, self.beat)
        for process in everything:
            process.ask_to_stop()
        for process in everything:
            process.wait_or_kill()

    def _mail_to(self, email: str) -> list[str]:
        """The lines of all mails to one person, the newest mail first."""
        mails = [mail for web in self.webs for mail in _mails(web.words)]
        return [line for mail in mails if mail[0].startswith(f"Mail to {email}:") for line in mail]

    def _process(self, name: str, program: Program, *more: str) -> Process:
        log = self._folder.logs / f"{name}.log"
        return Process(name, (*program.argv, *more), program.env, log)


@contextmanager
def running_stack(folder: Path, *, webs: int = 1, workers: int = 1) -> Iterator[Stack]:
    """A stack over a database of its own; nothing of it is left afterwards but its logs."""
    with fresh_stores() as stores:
        stack = Stack(folder, stores, webs=webs, workers=workers)
        try:
            stack.start()
            yield stack
        finally:
            stack.stop()


def _mails(words: str) -> list[list[str]]:
    """What a web process shows of each mail, the newest first, as its reader would see it."""
    *mails, _ = words.split(MAIL_ENDS)
    starts = [mail.find("Content-Type: ") for mail in mails]
    return [read_mail(mail[start:]) for mail, start in zip(mails, starts, strict=True)][::-1]


def _free_port() -> int:
    with socket.create_server((house.HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port
