"""The agent's own range of host ports, given to containers for as long as they exist. Pure."""

from collections.abc import Iterable


class PortsExhausted(Exception):
    """Every port of the range is taken."""


class PortRange:
    """Ports `first` to `last` on `address`, both included.

    The agent chooses them itself: an engine that chooses gives a container another port at each
    start, and different ones for IPv4 and IPv6. They are taken in turn, so that a port given
    back is not at once another customer's.

    >>> ports = PortRange("10.0.0.5", 20000, 20001)
    >>> ports.take((22, 8888))
    {'22': '10.0.0.5:20000', '8888': '10.0.0.5:20001'}
    """

    def __init__(self, address: str, first: int, last: int) -> None:
        self.address = address
        self._first, self._last = first, last
        self._next = first
        self._taken: set[int] = set()

    def take(self, container_ports: Iterable[int]) -> dict[str, str]:
        """An endpoint for each container port. Raises PortsExhausted, and then takes none."""
        wanted = sorted(set(container_ports))
        if len(wanted) > self._last - self._first + 1 - len(self._taken):
            raise PortsExhausted(f"All ports {self._first}-{self._last} of this node are taken.")
        return {str(port): f"{self.address}:{self._take_one()}" for port in wanted}

    def hold(self, endpoints: Iterable[str]) -> None:
        """These are in use already."""
        self._taken |= {_port(endpoint) for endpoint in endpoints}

    def give_back(self, endpoints: Iterable[str]) -> None:
        self._taken -= {_port(endpoint) for endpoint in endpoints}

    def _take_one(self) -> int:
        while self._next in self._taken:
            self._advance()
        port = self._next
        self._taken.add(port)
        self._advance()
        return port

    def _advance(self) -> None:
        self._next = self._first if self._next == self._last else self._next + 1


def _port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])
