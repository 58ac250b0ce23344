"""What a node has to offer, and what it says while its driver is ill."""

import asyncio
import threading
from pathlib import Path

from agents.config import AgentConfig, SimulatedModel
from agents.containers import Host
from agents.inventory import Devices, NodeInventory, NvmlReader, simulate
from agents.ports import PortRange
from agents.protocol import Inventory, SeenGpu
from agents.runtime import DockerRuntime
from agents.simulated import SimulatedRuntime
from tests.fakes import FakeDocker, FakeGpu, FakeNvml, NvmlFault, NvmlMismatch

H100 = SimulatedModel(2, "NVIDIA H100 80GB HBM3", 81_559)
PORTS = PortRange("127.0.0.1", 20_000, 20_009)


def config(state: Path, *models: SimulatedModel) -> AgentConfig:
    return AgentConfig(
        "http://portal",
        state,
        "rack-1",
        simulated_gpus=models,
        simulated_vcpus=32,
        simulated_memory_mib=500_000,
    )


def read_with_docker(nvml: FakeNvml, settings: AgentConfig) -> Inventory:
    runtime = DockerRuntime(FakeDocker, node="rack-1", ports=PORTS)
    stock = NodeInventory(runtime, config=settings, node_name="rack-1", nvml=nvml)
    return asyncio.run(stock.read())


class TestNodeInventory:
    def test_says_what_nvml_and_the_engine_say(self, tmp_path: Path) -> None:
        inventory = read_with_docker(FakeNvml(FakeGpu("GPU-a")), config(tmp_path, H100))

        assert inventory.gpus == (SeenGpu("GPU-a", "NVIDIA H100 80GB HBM3", 81_559),)
        assert inventory.driver_version == "550.127.05"
        assert (inventory.vcpus, inventory.memory_mib) == (4, 16_384)
        assert inventory.runtime == "Docker 28.5.2"
        assert not inventory.simulated
        assert not inventory.simulated_gpus

    def test_pretends_where_there_is_no_gpu_and_says_that_it_does(self, tmp_path: Path) -> None:
        inventory = read_with_docker(FakeNvml(), config(tmp_path, H100))

        assert [gpu.model for gpu in inventory.gpus] == [H100.model] * 2
        assert inventory.simulated_gpus
        assert not inventory.simulated
        # Nothing sold with such GPUs would fit on the machine as it is.
        assert (inventory.vcpus, inventory.memory_mib) == (32, 500_000)

    def test_offers_none_where_there_is_none_and_none_is_pretended(self, tmp_path: Path) -> None:
        inventory = read_with_docker(FakeNvml(), config(tmp_path))

        assert inventory.gpus == ()
        assert not inventory.simulated_gpus

    def test_never_puts_real_gpus_behind_simulated_containers(self, tmp_path: Path) -> None:
        runtime = SimulatedRuntime(tmp_path, host=Host("simulated", 8, 1024), ports=PORTS)
        nvml = FakeNvml(FakeGpu("GPU-real"))
        stock = NodeInventory(runtime, config=config(tmp_path, H100), node_name="rack-1", nvml=nvml)

        inventory = asyncio.run(stock.read())

        assert "GPU-real" not in {gpu.uuid for gpu in inventory.gpus}
        assert inventory.simulated


class TestSimulate:
    def test_gives_the_same_uuids_at_each_start_and_others_on_each_node(self) -> None:
        first = {gpu.uuid for gpu in simulate("rack-1", [H100])}

        assert first == {gpu.uuid for gpu in simulate("rack-1", [H100])}
        assert len(first) == 2
        assert not first & {gpu.uuid for gpu in simulate("rack-2", [H100])}
        assert all(uuid.startswith("GPU-") for uuid in first)


class TestNvmlReader:
    def read(self, reader: NvmlReader) -> Devices:
        return asyncio.run(reader.read())

    def test_finds_nothing_where_there_is_no_driver(self) -> None:
        nvml = FakeNvml(FakeGpu("GPU-a"))
        nvml.init_fault = NvmlFault("Driver Not Loaded")

        assert self.read(NvmlReader(nvml)).gpus == ()

    def test_outlives_a_driver_that_lacks_a_function(self) -> None:
        nvml = FakeNvml(FakeGpu("GPU-a", fault=NvmlMismatch("function not found")))

        [gpu] = self.read(NvmlReader(nvml)).gpus

        assert (gpu.healthy, gpu.problem) == (False, "function not found")

    def test_tells_a_lost_gpu_from_the_others_and_keeps_what_was_known_of_it(self) -> None:
        nvml = FakeNvml(FakeGpu("GPU-a"), FakeGpu("GPU-b"))
        reader = NvmlReader(nvml)
        self.read(reader)
        nvml.gpus[0].fault = NvmlFault("GPU is lost")

        lost, well = self.read(reader).gpus

        assert lost == SeenGpu(
            "GPU-a", "NVIDIA H100 80GB HBM3", 81_559, healthy=False, problem="GPU is lost"
        )
        assert well.healthy

    def test_reports_a_gpu_that_is_not_listed_any_more(self) -> None:
        nvml = FakeNvml(FakeGpu("GPU-a"), FakeGpu("GPU-b"))
        reader = NvmlReader(nvml)
        self.read(reader)
        del nvml.gpus[0]

        health = {gpu.uuid: gpu.healthy for gpu in self.read(reader).gpus}

        assert health == {"GPU-a": False, "GPU-b": True}

    def test_does_not_wait_for_a_driver_that_hangs_nor_ask_it_again(self) -> None:
        released = threading.Event()
        entered: list[None] = []

        class Hanging(FakeNvml):
            hangs = False

            def nvmlDeviceGetCount(self) -> int:  # noqa: N802
                if self.hangs:
                    entered.append(None)
                    released.wait()
                return super().nvmlDeviceGetCount()

        nvml = Hanging(FakeGpu("GPU-a"))
        reader = NvmlReader(nvml, deadline_seconds=0.05)
        self.read(reader)
        nvml.hangs = True
        try:
            for _ in range(2):
                [gpu] = self.read(reader).gpus
                assert (gpu.healthy, gpu.problem) == (False, "The driver does not answer.")
            assert len(entered) == 1
        finally:
            released.set()
