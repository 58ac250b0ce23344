"""requirements/*.lock are in step with pyproject.toml, without asking any registry."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCKS = {
    "server": ("server", "embedded", "agent"),
    "agent": ("agent",),
    "dev": ("server", "embedded", "agent", "dev"),
}
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)


def asked(name: str) -> list[Requirement]:
    """What pyproject.toml asks of the lock `name`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return [Requirement(line) for extra in LOCKS[name] for line in extras[extra]]


def text(name: str) -> str:
    return (ROOT / "requirements" / f"{name}.lock").read_text()


def pinned(name: str) -> dict[str, str]:
    return {canonicalize_name(package): at for package, at in PINNED.findall(text(name))}


@pytest.mark.parametrize("name", LOCKS)
class TestEveryLock:
    def test_pins_what_is_asked_within_its_range(self, name: str) -> None:
        held = pinned(name)
        off = [
            str(requirement)
            for requirement in asked(name)
            if not requirement.specifier.contains(held.get(canonicalize_name(requirement.name), ""))
        ]
        assert off == []

    def test_pins_nothing_for_our_sake_that_is_not_asked(self, name: str) -> None:
        asked_for = {canonicalize_name(requirement.name) for requirement in asked(name)}
        ours = {
            canonicalize_name(entry.partition("==")[0])
            for entry in re.split(r"\n(?=\S)", text(name))
            if "headrace (pyproject.toml)" in entry
        }
        assert ours == asked_for

    def test_has_a_hash_for_every_package(self, name: str) -> None:
        entries = [entry for entry in re.split(r"\n(?=\S)", text(name)) if "==" in entry]
        assert [entry for entry in entries if "--hash=sha256:" not in entry] == []

    def test_names_no_address(self, name: str) -> None:
        assert "://" not in text(name)


def test_dev_holds_server_at_the_same_versions() -> None:
    # bin/environment relies on it: an environment for dev serves `make up` as well.
    assert pinned("server").items() <= pinned("dev").items()
