from pathlib import Path

import pytest

from portal.up import house

GPUS = "8xNVIDIA H100 80GB HBM3:81559,4xNVIDIA L4:23034"


class TestSimulated:
    def test_is_everything_without_an_engine(self) -> None:
        assert house.simulated("simulated", GPUS) == (
            "GPUs and containers, as no Docker engine answered "
            "(8 × NVIDIA H100 80GB HBM3, 4 × NVIDIA L4)"
        )

    def test_is_the_gpus_where_an_engine_has_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(house, "NVIDIA_DRIVER", tmp_path / "absent")

        assert (
            house.simulated("docker", "2xL4:23034") == "the GPUs (2 × L4); containers are real ones"
        )

    def test_is_nothing_on_a_machine_with_both(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(house, "NVIDIA_DRIVER", tmp_path)

        assert house.simulated("docker", GPUS).startswith("nothing")
