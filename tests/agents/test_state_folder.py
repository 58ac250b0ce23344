"""What a node keeps of itself."""

import stat
from pathlib import Path

import pytest

from agents import state_folder
from agents.config import RuntimeChoice
from agents.state_folder import NodeIdentity, StateFolderUnusable

IDENTITY = NodeIdentity("rack-1", "hrn_secret", 3, RuntimeChoice.DOCKER)


class TestIdentity:
    def test_comes_back_as_it_was_kept(self, tmp_path: Path) -> None:
        state_folder.save(tmp_path, IDENTITY)

        assert state_folder.load(tmp_path) == IDENTITY

    def test_is_for_the_agent_alone_to_read(self, tmp_path: Path) -> None:
        state_folder.save(tmp_path, IDENTITY)

        assert stat.S_IMODE((tmp_path / "node.json").stat().st_mode) == 0o600

    def test_is_none_before_the_first_enrolment(self, tmp_path: Path) -> None:
        assert state_folder.load(tmp_path) is None

    @pytest.mark.parametrize("text", ["", "[]", '{"name": "rack-1"}', '{"epoch": "x"}', "\0"])
    def test_that_is_damaged_is_said_to_be(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "node.json").write_text(text)

        with pytest.raises(StateFolderUnusable, match=r"node\.json is damaged"):
            state_folder.load(tmp_path)


class TestLocked:
    def test_lets_one_agent_in_at_a_time(self, tmp_path: Path) -> None:
        with (
            state_folder.locked(tmp_path / "state"),
            pytest.raises(StateFolderUnusable, match="Another agent"),
            state_folder.locked(tmp_path / "state"),
        ):
            pytest.fail("a second agent came in")

    def test_lets_the_next_one_in_afterwards(self, tmp_path: Path) -> None:
        for _ in range(2):
            with state_folder.locked(tmp_path):
                pass

    def test_refuses_a_folder_that_cannot_be_one(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()

        with (
            pytest.raises(StateFolderUnusable, match="cannot be used"),
            state_folder.locked(tmp_path / "file"),
        ):
            pytest.fail("a file served as a folder")
