"""From a launch request to a running container of the rig's Docker, beside raw docker-py."""

from tests.bench.report import Result


def measure() -> list[Result]:
    return []
