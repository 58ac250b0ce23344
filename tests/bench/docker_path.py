"""From a launch request to a running container of the rig's Docker, beside raw docker-py.

Both create and start the same container in turn, in one run: raw docker-py with nothing around
it, and a launch through the API, the queue, the node's agent and its probe.
"""

import statistics
import tempfile
import time
from pathlib import Path

from agents.containers import Host
from agents.hardening import environment_for, host_config_for
from agents.protocol import ContainerSpec
from tests.bench.report import Peer, Result, say, spread
from tests.docker.conftest import BUSYBOX, GPU_1, Rig, find_rig, run_rig
from tests.stack.customer import Customer
from tests.stack.processes import eventually
from tests.stack.stack import Stack, running_stack

RUNS = 20
ALLOWANCE_MS = 500
RUNNING = (
    "SELECT count(*) FROM instances_instanceevent WHERE instance_id = %s AND state = 'running'"
)
ENDED = "SELECT count(*) FROM scheduler_lease WHERE instance_id = %s AND ended_at IS NOT NULL"


def measure() -> list[Result]:
    """Starts the rig for the time it takes; says so where it cannot be had."""
    was_up = find_rig() is not None
    try:
        run_rig("start")
    except OSError as error:
        say(f"request_to_running_docker_p50_ms was not measured: {error}")
        return []
    try:
        rig = find_rig()
        assert rig is not None
        return [_compare(rig)]
    finally:
        if not was_up:
            run_rig("stop")


def _compare(rig: Rig) -> Result:
    values = dict(line.split("=", 1) for line in run_rig("env").splitlines())
    ours, raw = [], []
    with tempfile.TemporaryDirectory(prefix="hr-bench-") as folder:
        Path(folder).chmod(0o755)
        with running_stack(Path(folder)) as stack:
            node = {**values, "HEADRACE_RUNTIME": "docker", "HEADRACE_SIMULATED_GPUS": ""}
            stack.add_agent("rig", node)
            customer = Customer.sign_up(stack)
            for number in range(RUNS + 2):
                pair = _launch_ms(stack, customer), _raw_ms(rig)
                if number >= 2:  # the first ones make the network and warm both up
                    ours.append(pair[0])
                    raw.append(pair[1])
    peer = statistics.median(raw)
    return Result(
        "request_to_running_docker_p50_ms",
        statistics.median(ours),
        "ms",
        peer + ALLOWANCE_MS,
        RUNS,
        f"{spread(ours)}; raw: {spread(raw)}",
        Peer("raw docker-py create and start", peer),
    )


def _launch_ms(stack: Stack, customer: Customer) -> float:
    began = time.perf_counter()
    instance = customer.launch("a100-small", "waits")
    while not stack.stores.number(RUNNING, instance):
        time.sleep(0.001)
    took = (time.perf_counter() - began) * 1000
    customer.stop(instance)
    eventually(lambda: stack.stores.number(ENDED, instance), within_seconds=30, what="its end")
    return took


def _raw_ms(rig: Rig) -> float:
    """The same container, created and started with nothing around it."""
    spec = ContainerSpec(BUSYBOX, (GPU_1,), 1, 1024, 1, "raw-peer", command=("sleep", "infinity"))
    api = rig.client().api
    limits = host_config_for(spec, host=Host("docker", 1, 1024), endpoints={}, real_gpus=[GPU_1])
    began = time.perf_counter()
    made = api.create_container(
        spec.image,
        command=list(spec.command),
        hostname=spec.hostname,
        environment=environment_for(spec, real_gpus=[GPU_1]),
        host_config=api.create_host_config(**limits),
    )
    api.start(made["Id"])
    took = (time.perf_counter() - began) * 1000
    api.remove_container(made["Id"], force=True)
    api.close()
    return took
