"""What an operator may say in the environment."""

import pytest

from agents.config import Refused, RuntimeChoice, SimulatedModel, read

SMALLEST = {
    "HEADRACE_URL": "https://gpu.example.org/",
    "HEADRACE_STATE": "/var/lib/headrace",
    "HEADRACE_NODE_NAME": "rack-1",
}


class TestRead:
    def test_takes_the_smallest_environment(self) -> None:
        config = read(SMALLEST)

        assert config.url == "https://gpu.example.org"
        assert config.runtime == RuntimeChoice.AUTO
        assert config.advertise_address == "127.0.0.1"
        assert config.simulated_gpus == ()

    def test_treats_an_empty_variable_as_none(self) -> None:
        empty = dict.fromkeys(
            ("HEADRACE_RUNTIME", "HEADRACE_PORTS", "HEADRACE_SIMULATED_GPUS", "DOCKER_HOST"), ""
        )

        assert read(SMALLEST | empty) == read(SMALLEST)

    def test_reads_a_list_of_simulated_gpus(self) -> None:
        gpus = "8xNVIDIA H100 80GB HBM3:81559, 4xNVIDIA L4:23034"

        config = read(SMALLEST | {"HEADRACE_SIMULATED_GPUS": gpus})

        assert config.simulated_gpus == (
            SimulatedModel(8, "NVIDIA H100 80GB HBM3", 81_559),
            SimulatedModel(4, "NVIDIA L4", 23_034),
        )
        # A machine with so many has vCPUs and memory for them.
        assert config.simulated_vcpus == 12 * 16
        assert config.simulated_memory_mib == 12 * 224 * 1024

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("HEADRACE_URL", ""),
            ("HEADRACE_URL", "gpu.example.org"),
            ("HEADRACE_URL", "ftp://gpu.example.org"),
            ("HEADRACE_URL", "http://[::1"),
            ("HEADRACE_URL", "http://portal:99999"),
            ("HEADRACE_STATE", ""),
            ("HEADRACE_NODE_NAME", "rack 1"),
            ("HEADRACE_NODE_NAME", "r" * 64),
            ("HEADRACE_NODE_NAME", "-rack"),
            ("HEADRACE_RUNTIME", "podman"),
            ("HEADRACE_SIMULATED_GPUS", "8"),
            ("HEADRACE_SIMULATED_GPUS", "0xNVIDIA L4:23034"),
            ("HEADRACE_SIMULATED_GPUS", "65xNVIDIA L4:23034"),
            ("HEADRACE_SIMULATED_GPUS", "1xNVIDIA L4:much"),
            ("HEADRACE_SIMULATED_VCPUS", "-1"),
            ("HEADRACE_SIMULATED_VCPUS", "0"),
            ("HEADRACE_SIMULATED_MEMORY_MIB", "9" * 19),
            ("HEADRACE_SIMULATED_MEMORY_MIB", "٣"),
            ("HEADRACE_PORTS", "20000"),
            ("HEADRACE_PORTS", "25000-20000"),
            ("HEADRACE_PORTS", "22-80"),
            ("HEADRACE_PORTS", "60000-70000"),
        ],
    )
    def test_refuses_nonsense_with_the_name_of_the_variable(
        self, variable: str, value: str
    ) -> None:
        with pytest.raises(Refused, match=variable):
            read(SMALLEST | {variable: value})
