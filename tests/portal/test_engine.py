import asyncio
from pathlib import Path

import pytest

from portal.up import engine


def runtime_beside(answer: bytes, socket: Path) -> str:
    """What is chosen while something on `socket` gives `answer` to a ping."""

    async def choose() -> str:
        async def give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(answer)
            writer.close()

        async with await asyncio.start_unix_server(give, socket):
            return await engine.runtime({"DOCKER_HOST": f"unix://{socket}"})

    return asyncio.run(choose())


class TestRuntime:
    def test_is_docker_where_an_engine_answers(self, tmp_path: Path) -> None:
        assert runtime_beside(b"HTTP/1.0 200 OK\r\n\r\nOK", tmp_path / "e") == "docker"

    @pytest.mark.parametrize("answer", [b"HTTP/1.0 500 Oh\r\n\r\n", b"", b"\x00\xff"])
    def test_is_simulated_where_it_answers_badly(self, tmp_path: Path, answer: bytes) -> None:
        assert runtime_beside(answer, tmp_path / "e") == "simulated"

    @pytest.mark.parametrize(
        "address", ["unix:///nowhere", "tcp://127.0.0.1:1", "nonsense", "tcp://x:y"]
    )
    def test_is_simulated_where_none_answers(self, address: str) -> None:
        assert asyncio.run(engine.runtime({"DOCKER_HOST": address})) == "simulated"


class TestSimulated:
    GPUS = "8xNVIDIA H100 80GB HBM3:81559,4xNVIDIA L4:23034"

    def test_names_everything_on_a_machine_with_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine, "NVIDIA_DRIVER", tmp_path / "absent")

        assert engine.simulated("simulated", self.GPUS) == (
            "GPUs (8 × NVIDIA H100 80GB HBM3, 4 × NVIDIA L4) and "
            "containers (no Docker engine answers here)"
        )

    def test_is_nothing_on_a_machine_with_everything(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine, "NVIDIA_DRIVER", tmp_path)

        assert engine.simulated("docker", self.GPUS) == "nothing"
