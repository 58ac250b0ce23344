"""A launch through the real API, to a real container on a node of the rig and to the ledger."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from docker import DockerClient
from docker.models.containers import Container

from tests.docker.conftest import Rig, gpu_nodes, output_of, run_rig
from tests.stack.customer import Customer
from tests.stack.prepare import MICROS_PER_HOUR
from tests.stack.processes import Process, eventually
from tests.stack.stack import Stack, running_stack

pytestmark = pytest.mark.docker

PLAN = "a100-small"
REGISTRY_PORT = 5000
MICROS_PER_SECOND = MICROS_PER_HOUR // 3600
# What `docker inspect` says of every container of a customer's.
HARDENING = {
    "CapDrop": ["ALL"],
    "Init": True,
    "IpcMode": "private",
    "Memory": 1 << 30,
    "MemorySwap": 1 << 30,
    "NanoCpus": 1_000_000_000,
    "NetworkMode": "headrace",
    "PidMode": "",
    "PidsLimit": 8192,
    "Privileged": False,
    "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
    "SecurityOpt": ["no-new-privileges:true"],
    "ShmSize": 512 << 20,
    "UTSMode": "",
}


@pytest.fixture(scope="module")
def stack(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Headrace with one node: the rig's engine, and the GPUs that NVML lists there."""
    values = dict(line.split("=", 1) for line in run_rig("env").splitlines())
    node = {**values, "HEADRACE_RUNTIME": "docker", "HEADRACE_SIMULATED_GPUS": ""}
    with running_stack(tmp_path_factory.mktemp("stack")) as stack:
        stack.add_agent("rig", node)
        yield stack


@pytest.fixture
def agent(stack: Stack) -> Process:
    return stack.agents[0]


@pytest.fixture
def customer(stack: Stack, engine: DockerClient) -> Customer:
    """A person with a team, beside whom nobody has a container."""
    return Customer.sign_up(stack)


def container_of(engine: DockerClient, instance: str) -> Container:
    [found] = engine.containers.list(filters={"label": f"headrace.instance={instance}"})
    return found


def containers_of(engine: DockerClient, instance: str) -> list[Container]:
    """Every container of the instance, ended ones too."""
    return engine.containers.list(all=True, filters={"label": f"headrace.instance={instance}"})


def launch(customer: Customer, engine: DockerClient, image: str = "waits") -> tuple[str, Container]:
    """A running instance and its container."""
    instance = customer.launch(PLAN, image)
    running = customer.wait_for(instance, "running", "failed")
    assert running["state"] == "running", running["explanation"]
    return instance, container_of(engine, instance)


def stop(customer: Customer, engine: DockerClient, *instances: str) -> None:
    """Stop them; back when nothing of them is left on the node."""
    for instance in instances:
        customer.stop(instance)
    for instance in instances:
        customer.wait_for(instance, "stopped")
        assert containers_of(engine, instance) == []


def allocated_gpus(stack: Stack, instance: str) -> set[str]:
    """The device nodes of what the scheduler says the instance has, by the rig's inventory."""
    uuids = stack.stores.rows(
        "SELECT g.uuid FROM scheduler_allocation a JOIN scheduler_gpu g ON g.id = a.gpu_id"
        " JOIN scheduler_lease l ON l.id = a.lease_id"
        " WHERE l.instance_id = %s AND a.released_at IS NULL",
        instance,
    )
    # From tests/rig/gpus.conf: the second part of a UUID is the index of its device node.
    return {f"nvidia{int(uuid.split('-')[2])}" for (uuid,) in uuids}


def attributes(container: Container) -> dict[str, Any]:
    container.reload()
    found: dict[str, Any] = container.attrs
    return found


@contextmanager
def empty_registry() -> Iterator[None]:
    """A registry without images in the network of the rig's engine."""
    network = f"/run/netns/{os.environ.get('NAME', 'rig')}"
    program = (sys.executable, "-m", "tests.docker.registry", str(REGISTRY_PORT))
    process = subprocess.Popen(("nsenter", f"--net={network}", *program), stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: _listens(network), within_seconds=20, what="the registry listens")
        yield
    finally:
        process.kill()
        process.wait()


def _listens(network: str) -> bool:
    sockets = subprocess.run(
        ("nsenter", f"--net={network}", "cat", "/proc/net/tcp"),
        capture_output=True,
        text=True,
        check=True,
    )
    return f":{REGISTRY_PORT:04X} 00000000:0000 0A" in sockets.stdout


class TestALaunch:
    def test_ends_in_a_container_with_exactly_its_gpus(
        self, stack: Stack, customer: Customer, engine: DockerClient
    ) -> None:
        # Its image asks for every GPU of the machine.
        instance, container = launch(customer, engine, "cuda")

        expected = allocated_gpus(stack, instance)
        assert len(expected) == 1
        assert gpu_nodes(container) == expected
        [request] = attributes(container)["HostConfig"]["DeviceRequests"]
        assert len(request["DeviceIDs"]) == 1
        stop(customer, engine, instance)

    def test_gives_a_second_team_none_of_the_first_ones_gpus(
        self, stack: Stack, customer: Customer, engine: DockerClient
    ) -> None:
        first, of_first = launch(customer, engine)
        stranger = Customer.sign_up(stack)

        second, of_second = launch(stranger, engine, "cuda")

        assert gpu_nodes(of_second) == allocated_gpus(stack, second)
        assert gpu_nodes(of_second).isdisjoint(gpu_nodes(of_first))
        [node] = gpu_nodes(of_first)
        minor = node.removeprefix("nvidia")
        assert "not permitted" in output_of(of_second, f"mknod /tmp/gpu c 195 {minor}")
        assert stranger.call("GET", f"/instances/{first}").status_code == 404
        stop(customer, engine, first)
        stop(stranger, engine, second)

    def test_is_hardened(self, customer: Customer, engine: DockerClient) -> None:
        instance, container = launch(customer, engine)

        limits = attributes(container)["HostConfig"]
        status = dict(
            line.split(":\t", 1)
            for line in output_of(container, "cat /proc/self/status").splitlines()
        )
        assert {name: limits[name] for name in HARDENING} == HARDENING
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        # SYS_ADMIN and MKNOD, the ways out of most containers.
        assert int(status["CapBnd"], 16) & (1 << 21 | 1 << 27) == 0
        stop(customer, engine, instance)

    def test_answers_at_the_endpoint_that_is_shown(
        self, customer: Customer, engine: DockerClient
    ) -> None:
        instance, _ = launch(customer, engine, "page")
        shown = customer.get(f"/instances/{instance}")["endpoints"]

        answer = httpx.get(f"http://{shown['8080']}/passwd", timeout=10)

        assert answer.text.startswith("root:")
        stop(customer, engine, instance)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{shown['8080']}/passwd", timeout=2)


class TestAKilledAgent:
    def test_adopts_what_runs_without_a_restart_or_a_lost_second(
        self, stack: Stack, agent: Process, customer: Customer, engine: DockerClient
    ) -> None:
        instance, container = launch(customer, engine)
        before = attributes(container)
        running_since = time.time()
        agent.kill()
        killed_at = time.time()
        with_dead_agent = customer.get(f"/instances/{instance}/cost")["seconds"] + 3
        eventually(
            lambda: customer.get(f"/instances/{instance}/cost")["seconds"] >= with_dead_agent,
            within_seconds=30,
            what="the cost goes on",
        )

        agent.start()

        seen_at = "SELECT extract(epoch FROM last_seen_at) FROM scheduler_node"
        eventually(
            lambda: stack.stores.number(seen_at) > killed_at,
            within_seconds=30,
            what="the agent syncs again",
        )
        [after] = containers_of(engine, instance)
        assert after.id == container.id
        assert attributes(after)["State"]["StartedAt"] == before["State"]["StartedAt"]
        assert customer.get(f"/instances/{instance}")["state"] == "running"
        stopped_at = time.time()
        stop(customer, engine, instance)
        cost = customer.get(f"/instances/{instance}/cost")
        assert len(cost["intervals"]) == 1
        assert cost["seconds"] == customer.paid_seconds(instance)
        assert cost["seconds"] >= max(int(stopped_at - running_since), with_dead_agent)
        charged = stack.stores.number(
            "SELECT sum(e.amount_micros) FROM billing_ledgerentry e"
            " JOIN billing_usageinterval i ON i.id = e.interval_id WHERE i.reference = %s",
            instance,
        )
        assert charged == cost["seconds"] * MICROS_PER_SECOND
        stack.check_ledger()

    def test_removes_what_was_stopped_meanwhile(
        self, agent: Process, customer: Customer, engine: DockerClient
    ) -> None:
        instance, container = launch(customer, engine)
        agent.kill()
        customer.stop(instance)
        assert attributes(container)["State"]["Running"]

        agent.start()

        customer.wait_for(instance, "stopped")
        assert containers_of(engine, instance) == []


class TestAStartThatFails:
    def test_for_an_image_that_does_not_exist_says_so_and_costs_nothing(
        self, stack: Stack, customer: Customer, engine: DockerClient
    ) -> None:
        with empty_registry():
            instance = customer.launch(PLAN, "absent")
            ended = customer.wait_for(instance, "failed", "running")

        assert (ended["state"], ended["reason"]) == ("failed", "image_unavailable")
        assert "team/absent:1" in ended["explanation"]
        assert ended["cost"]["amount_micros"] == 0
        assert containers_of(engine, instance) == []
        stack.check_ledger()

    @pytest.mark.parametrize(
        ("code", "expected"),
        [(3, ("failed", "container_exited")), (0, ("stopped", "finished"))],
    )
    def test_for_a_container_that_exits_at_once_says_how_it_ended(
        self,
        stack: Stack,
        customer: Customer,
        engine: DockerClient,
        code: int,
        expected: tuple[str, str],
    ) -> None:
        instance = customer.launch(PLAN, "waits", command=["sh", "-c", f"exit {code}"])

        ended = customer.wait_for(instance, "failed", "stopped")

        assert (ended["state"], ended["reason"]) == expected
        assert ("exit code 3" in ended["explanation"]) == (code == 3)
        assert ended["cost"]["amount_micros"] == 0
        eventually(
            lambda: not containers_of(engine, instance), within_seconds=30, what="it is removed"
        )
        stack.check_ledger()
