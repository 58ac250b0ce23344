"""From a launch request to a running container of the rig's Docker, beside raw docker-py.

Both create and start the same container in turn, in one run: raw docker-py with nothing around
it, and a launch through the API, the queue, the node's agent and its probe.
"""

import statistics
import subprocess
import time

import httpx

from agents.containers import Host
from agents.hardening import environment_for, host_config_for
from agents.protocol import ContainerSpec
from tests.bench.portal import GONE, RUNS_NOW, Portal, running
from tests.bench.report import Peer, Result, say, spread
from tests.docker.conftest import BUSYBOX, GPU_1, Rig, find_rig, run_rig

RUNS = 20
ALLOWANCE_MS = 500
# One GPU with so little beside it that this machine carries it.
OFFER = f"""
from django.utils import timezone
from billing import prices
from portal.catalog.models import Image, Plan
now = timezone.now()
Plan.objects.create(sku="rig-1x", gpu_model="NVIDIA A100-SXM4-80GB", gpu_count=1,
                    gpu_memory_gib=80, vcpus=1, memory_gib=1, disk_gib=1)
prices.publish(prices={{"rig-1x": 1_000_000}}, effective_from=now, note="bench", now=now)
Image.objects.create(slug="rig", name="Rig", reference="{BUSYBOX}", command=["sleep", "infinity"])
"""


def measure() -> list[Result]:
    """Starts the rig for the time it takes; says so where it cannot be had."""
    was_up = find_rig() is not None
    try:
        run_rig("start")
    except (OSError, subprocess.CalledProcessError) as error:
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
    node = {**values, "HEADRACE_RUNTIME": "docker", "HEADRACE_SIMULATED_GPUS": ""}
    ours, raw = [], []
    with running(node) as portal, portal.client() as client:
        portal.manage(OFFER)
        for number in range(RUNS + 2):
            pair = _launch_ms(portal, client), _raw_ms(rig)
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


def _launch_ms(portal: Portal, client: httpx.Client) -> float:
    began = time.perf_counter()
    instance = portal.launch(client, "rig-1x", image="rig")
    took = (portal.until(RUNS_NOW, instance) - began) * 1000
    client.post(f"/instances/{instance}/terminate").raise_for_status()
    portal.until(GONE, instance)
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
