"""GPUs and their health, as NVML tells them. The only file that imports pynvml."""

import asyncio
import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

import pynvml

from agents import VERSION, threads
from agents.config import AgentConfig, SimulatedModel
from agents.containers import Runtime
from agents.protocol import Inventory, SeenGpu

logger = logging.getLogger(__name__)

# A call into a broken driver can hang for ever, and cannot be cancelled.
NVML_DEADLINE_SECONDS = 10.0
MIB = 1024 * 1024
# The namespace of the UUIDs of GPUs that do not exist; drawn once.
SIMULATED = uuid.UUID("6f1d3c3e-52f5-4c0c-9a55-0d2b8f5f6a4e")


@dataclass(frozen=True, slots=True)
class Devices:
    """What NVML says of a machine."""

    gpus: tuple[SeenGpu, ...]
    driver_version: str = ""


class NodeInventory:
    """What this node has to offer: its GPUs by NVML, or those it is told to pretend to have.

    A machine that pretends to have GPUs pretends to have the vCPUs and the memory for them too,
    or nothing that is sold with them would fit on it.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        config: AgentConfig,
        node_name: str,
        nvml: ModuleType = pynvml,
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._simulated = simulate(node_name, config.simulated_gpus)
        self._devices = NvmlReader(nvml)

    async def read(self) -> Inventory:
        """Never raises for a GPU's sake: what does not answer is reported as unhealthy."""
        host = await self._runtime.host()
        found = Devices(()) if self._runtime.simulated else await self._devices.read()
        pretends = not found.gpus and bool(self._simulated)
        return Inventory(
            vcpus=self._config.simulated_vcpus if pretends else host.vcpus,
            memory_mib=self._config.simulated_memory_mib if pretends else host.memory_mib,
            gpus=self._simulated if pretends else found.gpus,
            driver_version=found.driver_version,
            agent_version=VERSION,
            runtime=host.runtime,
            simulated=self._runtime.simulated,
            simulated_gpus=pretends,
        )


class NvmlReader:
    """Reads NVML in a thread of its own, under a deadline.

    A reading that hangs is left to itself, since nothing can end it; until it returns no second
    one is begun, and the GPUs known before count as unhealthy. A GPU that was seen once and is
    not any more is reported as lost, not left out.
    """

    def __init__(self, nvml: ModuleType, *, deadline_seconds: float = NVML_DEADLINE_SECONDS):
        self._nvml = nvml
        self._deadline_seconds = deadline_seconds
        self._reading: asyncio.Future[Devices] | None = None
        self._last = Devices(())

    async def read(self) -> Devices:
        if self._reading is not None and not self._reading.done():
            return self._unhealthy("The driver does not answer.")
        self._reading = threads.begin(lambda: read_devices(self._nvml), name="nvml")
        await asyncio.wait([self._reading], timeout=self._deadline_seconds)
        if not self._reading.done():
            logger.warning("NVML has not answered for %s s", self._deadline_seconds)
            return self._unhealthy("The driver does not answer.")
        now = self._reading.result()
        known = {gpu.uuid: gpu for gpu in self._last.gpus}
        gpus = [
            gpu if gpu.healthy else _unhealthy(known.get(gpu.uuid, gpu), gpu.problem)
            for gpu in now.gpus
        ]
        self._last = Devices((*gpus, *self._lost(now)), now.driver_version)
        return self._last

    def _unhealthy(self, problem: str) -> Devices:
        gpus = tuple(_unhealthy(gpu, problem) for gpu in self._last.gpus)
        return Devices(gpus, self._last.driver_version)

    def _lost(self, now: Devices) -> list[SeenGpu]:
        present = {gpu.uuid for gpu in now.gpus}
        missing = [gpu for gpu in self._last.gpus if gpu.uuid not in present]
        return [_unhealthy(gpu, "The driver does not list it any more.") for gpu in missing]


def read_devices(nvml: ModuleType) -> Devices:
    """Every GPU that the driver lists; none where there is no driver."""
    problems = _problems(nvml)
    try:
        nvml.nvmlInit()
    except problems as error:
        logger.debug("no NVML: %s", error)
        return Devices(())
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
        found = [_read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        return Devices(tuple(gpu for gpu in found if gpu is not None), str(driver))
    except problems as error:
        logger.warning("NVML failed: %s", error)
        return Devices(())
    finally:
        nvml.nvmlShutdown()


def _read_gpu(nvml: ModuleType, index: int) -> SeenGpu | None:
    """One device; None where not even its UUID can be read, so that nothing can be said of it."""
    problems = _problems(nvml)
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        identity = str(nvml.nvmlDeviceGetUUID(handle))
    except problems as error:
        logger.warning("GPU %s does not answer: %s", index, error)
        return None
    try:
        name = str(nvml.nvmlDeviceGetName(handle))
        memory_mib = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB
        nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    except problems as error:
        return SeenGpu(identity, "unknown", 0, healthy=False, problem=str(error))
    return SeenGpu(identity, name, memory_mib)


def _problems(nvml: ModuleType) -> tuple[type[Exception], ...]:
    # An old driver lacks functions; that error is none of NVMLError's.
    return nvml.NVMLError, nvml.NVMLLibraryMismatchError


def simulate(node_name: str, models: Iterable[SimulatedModel]) -> tuple[SeenGpu, ...]:
    """GPUs that do not exist; their UUIDs follow from the node's name, so they stay the same."""
    names = [(model, item) for model in models for item in range(model.count)]
    return tuple(
        SeenGpu(
            uuid=f"GPU-{uuid.uuid5(SIMULATED, f'{node_name}/{index}')}",
            model=model.model,
            memory_mib=model.memory_mib,
        )
        for index, (model, _) in enumerate(names)
    )


def _unhealthy(gpu: SeenGpu, problem: str) -> SeenGpu:
    return SeenGpu(gpu.uuid, gpu.model, gpu.memory_mib, healthy=False, problem=problem)
