"""The rig itself: it may be started twice, and what a killed one left does no harm."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.conftest import BUSYBOX, COMMAND, GPU_0, Rig, find_rig, gpus, run_rig

pytestmark = pytest.mark.docker

NAME = "rigtest"
ENV = os.environ | {"NAME": NAME, "NET": "10.98.0"}


@pytest.fixture
def own_rig() -> Iterator[Rig]:
    """A rig beside the one that the other tests use."""
    run_rig("start", env=ENV)
    found = find_rig(env=ENV)
    assert found is not None
    yield found
    run_rig("purge", env=ENV)


def kill_engine() -> None:
    pid = int(Path(f"/run/{NAME}-docker/docker.pid").read_text())
    os.kill(pid, signal.SIGKILL)


def processes_in(namespace: int) -> list[str]:
    """The pids of all processes in a network namespace, given as its inode."""
    found = []
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            inode = link.stat().st_ino
        except OSError:
            continue  # it ended meanwhile, or is the machine's own
        if inode == namespace:
            found.append(link.parts[2])
    return found


def remains() -> list[str]:
    """What of the rig is still on this machine: folders, mounts, cgroups and network."""
    folders = (Path(f"/var/lib/{NAME}-docker"), Path(f"/run/{NAME}-docker"))
    found = [str(folder) for folder in folders if folder.exists()]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if NAME in line]
    found += [str(path) for path in Path("/sys/fs/cgroup").rglob(NAME)]
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    return found + [line for line in links.splitlines() if f"v{NAME}" in line]


class TestRig:
    def test_is_left_as_it_is_by_a_second_start(self, own_rig: Rig) -> None:
        container = own_rig.client().containers.run(BUSYBOX, ["sleep", "600"], detach=True)

        address = run_rig("start", env=ENV)

        container.reload()
        assert address == f"{own_rig.docker_host}\n"
        assert container.status == "running"

    def test_comes_back_empty_after_its_engine_was_killed(self, own_rig: Rig) -> None:
        own_rig.client().containers.run(
            BUSYBOX, ["sleep", "600"], detach=True, device_requests=gpus(GPU_0)
        )
        (own_rig.state / "hook_fail").write_text("left over")
        kill_engine()

        run_rig("start", env=ENV)

        assert own_rig.client().containers.list(all=True) == []
        assert not (own_rig.state / "hook_fail").exists()

    def test_leaves_nothing_after_a_purge_even_where_its_engine_was_killed(
        self, own_rig: Rig
    ) -> None:
        own_rig.client().containers.run(
            BUSYBOX, ["sleep", "600"], detach=True, ports={"80/tcp": None}
        )
        namespace = Path(f"/run/netns/{NAME}").stat().st_ino
        assert processes_in(namespace)
        kill_engine()

        run_rig("purge", env=ENV)

        assert remains() == []
        assert processes_in(namespace) == []

    def test_says_what_to_do_where_another_uses_its_network(self, own_rig: Rig) -> None:
        third = ENV | {"NAME": "rigthird"}

        done = subprocess.run(
            [COMMAND, "start"], env=third, capture_output=True, text=True, check=False
        )

        assert done.returncode == 1
        assert "choose another NET" in done.stderr
        assert not Path("/var/lib/rigthird-docker").exists()
