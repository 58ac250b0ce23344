"""`make bench-path`: from a launch request to its lease, to a running instance, and a thousand."""

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.bench import docker_path
from tests.bench.nodes import MODEL
from tests.bench.portal import GONE, LEASED, RUNS_NOW, Portal, running
from tests.bench.report import ROOT, Peer, Result, percentile, publish, say, spread

LAUNCHES = 200
NODES = 16
THOUSAND = 1000
CLIENTS = 8
THOUSAND_DEADLINE_SECONDS = 180
SLURM_SECONDS = 26.9  # Slurm for the same shape on such a machine

JOINED = "SELECT count(*) FROM scheduler_node WHERE name LIKE 'bench-%'"


def main() -> int:
    with running() as portal:
        results = launches(portal)
        results += thousand(portal)
        database = f"PostgreSQL {portal.database.info.server_version // 10_000}"
    results += docker_path.measure()
    publish("path", results, database=database)
    return 0


def launches(portal: Portal) -> list[Result]:
    """One after the other on an idle cluster; each is ended before the next begins."""
    to_lease, to_running = [], []
    with portal.client() as client:
        for number in range(LAUNCHES + 5):
            began = time.perf_counter()
            instance = portal.launch(client, "l4-1x")
            leased = portal.until(LEASED, instance) - began
            runs = portal.until(RUNS_NOW, instance) - began
            client.post(f"/instances/{instance}/terminate").raise_for_status()
            portal.until(GONE, instance)
            if number >= 5:  # the first ones wake everything
                to_lease.append(leased * 1000)
                to_running.append(runs * 1000)
    return [
        Result(
            "request_to_lease_p50_ms",
            statistics.median(to_lease),
            "ms",
            50,
            LAUNCHES,
            spread(to_lease),
        ),
        Result(
            "request_to_lease_p99_ms",
            percentile(to_lease, 99),
            "ms",
            250,
            LAUNCHES,
            spread(to_lease),
        ),
        Result(
            "request_to_running_simulated_p50_ms",
            statistics.median(to_running),
            "ms",
            500,
            LAUNCHES,
            spread(to_running),
        ),
    ]


def thousand(portal: Portal) -> list[Result]:
    """A thousand one-GPU instances through 16 nodes of 8 GPUs; each ends as soon as it ran.

    Once launched by as many teams as there are clients, and once all by one team, whose quota and
    money every launch has to wait for. The clock runs from the first request to the end of the
    last instance's lease.
    """
    customers, tokens = _prepare_thousand(portal)
    with _nodes(portal, tokens):
        return [
            _thousand(portal, "thousand_instances_s", customers),
            _thousand(portal, "thousand_instances_of_one_team_s", customers[:1] * CLIENTS),
        ]


def _thousand(portal: Portal, measure: str, customers: list[str]) -> Result:
    before = _finished(portal)
    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda token: _launch_share(portal, token), customers))
    submitted = time.perf_counter() - began
    while (ended := _finished(portal) - before) < THOUSAND:
        if time.perf_counter() - began > THOUSAND_DEADLINE_SECONDS:
            break
        time.sleep(0.05)
    seconds = time.perf_counter() - began
    _check_thousand(portal, before)
    return Result(
        measure,
        seconds,
        "s",
        27,
        1,
        f"{ended} finished; all requests answered after {submitted:.1f} s",
        Peer("Slurm", SLURM_SECONDS),
    )


def _prepare_thousand(portal: Portal) -> tuple[list[str], list[str]]:
    """A plan that only the bench's nodes carry; the API tokens of customers with money and quota
    enough, and the nodes' join tokens."""
    said = portal.manage(f"""
from datetime import timedelta
from django.utils import timezone
from billing import accounts, prices
from billing.models import EntryKind
from portal.accounts import operations
from portal.accounts.models import Team, User
from portal.accounts.roles import Scope
from portal.catalog.models import Plan
from scheduler import fleet
now = timezone.now()
Plan.objects.create(sku="bench-1x", gpu_model="{MODEL}", gpu_count=1, gpu_memory_gib=80,
                    vcpus=1, memory_gib=1, disk_gib=1)
prices.publish(prices={{"bench-1x": 1_000_000}}, effective_from=now, note="bench", now=now)
for number in range({CLIENTS}):
    user = User.objects.create_user(f"bench-{{number}}@example.org")
    team = operations.create_team(owner=user, name=f"Bench {{number}}", now=now)
    member = team.members.get()
    print(operations.issue_token(actor=member, name="bench", scopes=[Scope.INSTANCES],
                                 expires_at=None, now=now)[1], end=" ")
print()
Team.objects.update(gpu_quota=100_000)
for team in Team.objects.all():
    accounts.credit(account_id=team.account_id, amount_micros=10**12, cause=f"bench:{{team.pk}}",
                    kind=EntryKind.ADJUSTMENT, note="bench", now=now)
print(*[fleet.create_join_token(by=None, now=now)[1] for _ in range({NODES})])
""")
    [customers, tokens] = said.splitlines()
    return customers.split(), tokens.split()


@contextlib.contextmanager
def _nodes(portal: Portal, tokens: list[str]) -> Iterator[None]:
    folder = portal.var.parent / "nodes"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.nodes", portal.url, str(folder), *tokens], cwd=ROOT
    )
    try:
        while portal.count(JOINED) < NODES:
            time.sleep(0.1)
        time.sleep(3)  # every node holds its first sync open
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def _launch_share(portal: Portal, token: str) -> None:
    with portal.client(token) as client:
        for _ in range(THOUSAND // CLIENTS):
            portal.launch(client, "bench-1x", command=["sleep", "0.05"])


def _finished(portal: Portal) -> int:
    return portal.count(
        "SELECT count(*) FROM instances_instance i JOIN scheduler_lease l ON l.instance_id = i.id "
        "WHERE i.state = 'stopped' AND i.reason = 'finished' AND l.ended_at IS NOT NULL "
        "AND i.plan_id = (SELECT id FROM catalog_plan WHERE sku = 'bench-1x')",
    )


def _check_thousand(portal: Portal, before: int) -> None:
    """None lost, none twice."""
    twice = portal.count(
        "SELECT count(*) FROM (SELECT instance_id FROM instances_instanceevent "
        "WHERE state = 'running' GROUP BY instance_id HAVING count(*) > 1) AS again",
    )
    finished = _finished(portal) - before
    if twice or finished != THOUSAND:
        say(f"LOST OR TWICE: {finished} finished, {twice} ran twice")


if __name__ == "__main__":
    sys.exit(main())
