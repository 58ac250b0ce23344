"""What the agents rely on of a real Docker Engine, as facts that a newer engine must keep.

Where a fact is a trap, the name says so: it is here so that nobody walks into it, and so that
its end is noticed.
"""

import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from docker import DockerClient
from docker.errors import APIError
from docker.types import DeviceRequest

from tests.docker.conftest import (
    BUSYBOX,
    CUDA,
    GPU_0,
    GPU_1,
    SLICE_OF_GPU_3,
    Rig,
    Start,
    gpu_nodes,
    gpus,
    output_of,
)

pytestmark = pytest.mark.docker


class TestDeviceRequest:
    def test_gives_exactly_the_gpus_that_it_names(self, start: Start) -> None:
        container = start(device_requests=gpus(GPU_0, GPU_1))

        assert gpu_nodes(container) == {"nvidia0", "nvidia1"}

    def test_gives_a_second_tenant_none_of_the_first_ones(self, start: Start) -> None:
        start(device_requests=gpus(GPU_0))

        second = start(device_requests=gpus(GPU_1))

        assert gpu_nodes(second) == {"nvidia1"}

    def test_gives_the_parents_node_for_a_slice(self, start: Start) -> None:
        container = start(device_requests=gpus(SLICE_OF_GPU_3))

        assert gpu_nodes(container) == {"nvidia3"}

    def test_is_what_it_takes_to_get_any_gpu(self, start: Start) -> None:
        assert gpu_nodes(start(image=CUDA)) == set()

    def test_overrules_the_image_and_the_customers_environment(self, start: Start) -> None:
        container = start(
            image=CUDA,
            environment={"NVIDIA_VISIBLE_DEVICES": "all"},
            device_requests=gpus(GPU_0),
        )

        assert gpu_nodes(container) == {"nvidia0"}

    def test_opens_its_gpu_and_no_other_that_a_tenant_makes_a_node_for(self, start: Start) -> None:
        container = start(device_requests=gpus(GPU_0))

        own = output_of(container, "true </dev/nvidia0")
        other = output_of(container, "mknod /tmp/gpu c 195 1 && true </tmp/gpu")

        # The engine let it pass, and there is only no driver behind it.
        assert "No such device or address" in own
        assert "Operation not permitted" in other

    def test_with_an_unknown_uuid_fails_at_start_and_leaves_the_container(
        self, engine: DockerClient
    ) -> None:
        container = engine.containers.create(BUSYBOX, device_requests=gpus("GPU-ffff"))

        with pytest.raises(APIError, match="GPU-ffff: unknown device"):
            container.start()

        container.reload()
        assert container.status == "created"
        assert container.attrs["State"]["ExitCode"] == 128
        assert "GPU-ffff: unknown device" in container.attrs["State"]["Error"]

    def test_is_a_trap_when_there_are_two_as_the_last_one_wins(self, start: Start) -> None:
        container = start(device_requests=gpus(GPU_0) + gpus(GPU_1))

        assert gpu_nodes(container) == {"nvidia1"}

    def test_is_a_trap_without_ids_as_the_container_starts_without_gpu(self, start: Start) -> None:
        container = start(device_requests=[DeviceRequest(capabilities=[["gpu"]])])

        assert gpu_nodes(container) == set()

    def test_passes_on_the_words_of_a_failing_hook(self, rig: Rig, engine: DockerClient) -> None:
        text = "nvml error: driver/library version mismatch"
        (rig.state / "hook_fail").write_text(text)
        container = engine.containers.create(BUSYBOX, device_requests=gpus(GPU_0))

        with pytest.raises(APIError, match=text):
            container.start()


class TestNvidiaRuntime:
    def test_is_a_trap_as_it_gives_every_gpu_to_an_image_that_asks(self, start: Start) -> None:
        container = start(image=CUDA, runtime="nvidia")

        assert gpu_nodes(container) == {"nvidia0", "nvidia1", "nvidia2", "nvidia3"}

    def test_gives_no_gpu_where_the_environment_says_void(self, start: Start) -> None:
        container = start(
            image=CUDA, runtime="nvidia", environment={"NVIDIA_VISIBLE_DEVICES": "void"}
        )

        assert gpu_nodes(container) == set()


class TestHardening:
    def test_is_kept_beside_a_gpu(self, start: Start) -> None:
        container = start(
            device_requests=gpus(GPU_0),
            cap_drop=["ALL"],
            cap_add=["SETUID", "SETGID", "SYS_CHROOT"],
            security_opt=["no-new-privileges:true"],
            pids_limit=64,
            read_only=True,
        )

        status = output_of(container, "cat /proc/self/status")
        facts = dict(re.findall(r"^(\w+):\t(.*)$", status, re.MULTILINE))
        writing = output_of(container, "touch /x")

        assert gpu_nodes(container) == {"nvidia0"}
        assert int(facts["CapEff"], 16) == 1 << 6 | 1 << 7 | 1 << 18
        assert facts["NoNewPrivs"] == "1"
        assert facts["Seccomp"] == "2"
        assert "Read-only file system" in writing

    def test_counts_the_processes_of_a_tenant(self, start: Start) -> None:
        container = start(pids_limit=8)

        output = output_of(container, "for _ in $(seq 20); do sleep 9 & done")

        assert "can't fork" in output

    def test_ends_a_container_that_takes_more_memory(self, start: Start) -> None:
        hog = ["dd", "if=/dev/zero", "of=/dev/null", "bs=200M"]
        container = start(hog, mem_limit="32m", memswap_limit="32m")

        container.wait(timeout=30)

        container.reload()
        assert container.attrs["State"]["OOMKilled"] is True
        assert container.attrs["State"]["ExitCode"] == 137


class TestContainer:
    def test_of_a_taken_name_is_refused_to_all_callers_but_one(self, rig: Rig) -> None:
        def create(_: int) -> str:
            client = rig.client()
            try:
                client.containers.create(BUSYBOX, name="hr-race-g1")
            except APIError as error:
                return str(error.status_code)
            finally:
                client.close()
            return "created"

        with ThreadPoolExecutor(8) as threads:
            answers = sorted(threads.map(create, range(8)))

        assert answers == ["409"] * 7 + ["created"]

    def test_tells_an_agent_that_comes_back_what_it_was_started_with(
        self, engine: DockerClient, start: Start
    ) -> None:
        started = start(labels={"headrace.instance": "i-1"}, device_requests=gpus(GPU_0, GPU_1))

        [found] = engine.containers.list(filters={"label": "headrace.instance"})

        assert found.id == started.id
        assert found.labels["headrace.instance"] == "i-1"
        [request] = found.attrs["HostConfig"]["DeviceRequests"]
        assert request["DeviceIDs"] == [GPU_0, GPU_1]
        assert found.attrs["State"]["StartedAt"] > found.attrs["Created"]

    def test_may_start_although_the_client_gave_up_waiting(
        self, rig: Rig, engine: DockerClient
    ) -> None:
        (rig.state / "hook_delay").write_text("2")
        waits = ["sleep", "600"]
        container = engine.containers.create(BUSYBOX, waits, device_requests=gpus(GPU_0))
        hasty = rig.client(timeout_seconds=0.5)

        with pytest.raises(requests.exceptions.ReadTimeout):
            hasty.containers.get(str(container.id)).start()

        deadline = time.monotonic() + 15
        while container.status != "running" and time.monotonic() < deadline:
            time.sleep(0.1)
            container.reload()
        hasty.close()
        assert container.status == "running"

    def test_stops_at_the_first_signal_when_it_has_an_init(self, start: Start) -> None:
        container = start(["sh", "-c", "sleep 600; true"])

        began = time.monotonic()
        container.stop(timeout=20)

        container.reload()
        assert container.attrs["State"]["ExitCode"] == 143
        assert time.monotonic() - began < 10

    def test_answers_on_a_published_port_at_the_rigs_address(self, rig: Rig, start: Start) -> None:
        serve = ["httpd", "-f", "-p", "8080", "-h", "/etc"]
        container = start(serve, ports={"8080/tcp": ("0.0.0.0", None)})  # noqa: S104 - in the rig
        container.reload()
        port = container.attrs["NetworkSettings"]["Ports"]["8080/tcp"][0]["HostPort"]

        answer = requests.get(f"http://{rig.address}:{port}/passwd", timeout=10)

        assert answer.text.startswith("root:")
