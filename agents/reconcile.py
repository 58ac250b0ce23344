"""From what should run and what does run, to what to do. Pure: the loop acts, this decides."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agents.facts import Fact, Key
from agents.protocol import Order, Phase, Want


@dataclass(frozen=True, slots=True)
class Lease:
    """An order, and the moment on the agent's own clock at which the right to it ends."""

    order: Order
    expires_at: float

    @property
    def key(self) -> Key:
        return self.order.instance, self.order.generation


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop a container with grace, and remove it.

    `is_final` is false where the same generation is to be started again afterwards.
    """

    instance: str
    generation: int
    grace_seconds: float
    reason: str
    is_final: bool = True


@dataclass(frozen=True, slots=True)
class Gone:
    """Report that there is no container and that none will be started."""

    instance: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Go on with a container that an earlier run of the agent made."""

    order: Order


@dataclass(frozen=True, slots=True)
class Start:
    """Pull, create, start and probe a container."""

    order: Order


type Action = Stop | Gone | Adopt | Start

DEFAULT_GRACE_SECONDS = 10.0


def plan(
    leases: Iterable[Lease],
    facts: Iterable[Fact],
    *,
    now: float,
    gone_up_to: Mapping[str, int] | None = None,
) -> list[Action]:
    """The actions that make the node match its orders; an empty list when it already does.

    Stops come first: they free the GPUs that a start may need. A start waits, by being left
    out, while another container holds one of its GPUs or an older generation of its instance
    still has a container. What no order speaks of is left alone: absent is not deleted.

    `gone_up_to` is the highest generation of each instance that was ever reported gone. Of two
    replies the older can arrive later, and must not start again what the newer one ended.

    >>> from agents.protocol import ContainerSpec
    >>> spec = ContainerSpec("cuda", ("GPU-1",), 8, 65536, 100, "blue-fox")
    >>> order = Order("i1", 1, Want.RUNNING, 120.0, may_start=True, spec=spec)
    >>> [action] = plan([Lease(order, expires_at=120.0)], [], now=0.0)
    >>> action == Start(order)
    True
    >>> plan([Lease(order, expires_at=120.0)], [Fact("i1", 1, Phase.PULLING)], now=0.0)
    []
    """
    view = _View(list(leases), list(facts), gone_up_to or {}, now)
    stops = view.stops()
    return [*stops, *view.gone(), *view.adoptions(stops), *view.starts()]


class _View:
    """Orders and facts side by side, for the questions that `plan` asks."""

    def __init__(
        self, leases: list[Lease], facts: list[Fact], gone_up_to: Mapping[str, int], now: float
    ) -> None:
        self.now = now
        self.leases = {lease.key: lease for lease in leases}
        self.facts = {fact.key: fact for fact in facts}
        self.gone_up_to = gone_up_to
        self.newest_order = _newest(self.leases)
        self.newest_fact = _newest(self.facts)

    def stops(self) -> list[Stop]:
        return [
            stop
            for fact in self.facts.values()
            if fact.has_container and fact.phase != Phase.STOPPING
            if (stop := self._stop_for(fact)) is not None
        ]

    def _stop_for(self, fact: Fact) -> Stop | None:
        lease = self.leases.get(fact.key)
        reason = self._reason_to_end(fact, lease)
        if reason:
            grace = lease.order.grace_seconds if lease else DEFAULT_GRACE_SECONDS
            return Stop(*fact.key, grace, reason)
        if lease is None or not lease.order.may_start:
            return None
        order = lease.order
        if fact.spec_digest and order.spec and fact.spec_digest != order.spec.digest():
            return Stop(*fact.key, order.grace_seconds, "its spec has changed", is_final=False)
        return None

    def _reason_to_end(self, fact: Fact, lease: Lease | None) -> str:
        """Why a container must go for good; empty where it may stay."""
        if self.newest_order.get(fact.instance, 0) > fact.generation:
            return f"generation {self.newest_order[fact.instance]} replaces it"
        return self._reason_to_end_by(lease, fact) if lease else ""

    def _reason_to_end_by(self, lease: Lease, fact: Fact) -> str:
        order = lease.order
        if order.want == Want.GONE:
            return "ordered"
        if self._is_over(lease) and not _outlives_its_lease(fact, order):
            return "its lease has ended"
        half_made = fact.found and fact.phase == Phase.CREATING
        return "its start was broken off" if half_made and not order.may_start else ""

    def gone(self) -> list[Gone]:
        return [
            Gone(*lease.key, reason)
            for lease in self.leases.values()
            if (reason := self._reason_for_none(lease))
        ]

    def _reason_for_none(self, lease: Lease) -> str:
        """Why an order without a container will never get one; empty where it has one or may."""
        order, fact = lease.order, self.facts.get(lease.key)
        if fact is not None:
            ended = fact.phase == Phase.FAILED and order.want == Want.GONE
            return "its failed start was noted" if ended else ""
        if order.want == Want.GONE:
            return "nothing was left to remove"
        if self._is_over(lease):
            return "its lease ended before it was started"
        return self._reason_not_to_start(order)

    def _reason_not_to_start(self, order: Order) -> str:
        if order.generation < self._newest_known(order.instance):
            return "a newer generation is known"
        if order.generation <= self.gone_up_to.get(order.instance, 0):
            return "it was reported gone before"
        return "" if order.may_start else "its container has disappeared"

    def adoptions(self, stops: list[Stop]) -> list[Adopt]:
        stopped = {(stop.instance, stop.generation) for stop in stops}
        return [
            Adopt(self.leases[fact.key].order)
            for fact in self.facts.values()
            if fact.found and fact.phase in (Phase.CREATING, Phase.PROBING)
            if fact.key in self.leases and fact.key not in stopped
        ]

    def starts(self) -> list[Start]:
        held = {uuid for fact in self.facts.values() for uuid in fact.held_gpus}
        occupied = {fact.instance for fact in self.facts.values() if fact.has_container}
        starts = []
        for lease in self.leases.values():
            order = lease.order
            if lease.key in self.facts or order.spec is None or self._reason_for_none(lease):
                continue
            wanted = set(order.spec.gpu_uuids)
            if order.instance in occupied or wanted & held:
                continue
            held |= wanted
            occupied.add(order.instance)
            starts.append(Start(order))
        return starts

    def _newest_known(self, instance: str) -> int:
        return max(
            self.newest_order.get(instance, 0),
            self.newest_fact.get(instance, 0),
            self.gone_up_to.get(instance, 0),
        )

    def _is_over(self, lease: Lease) -> bool:
        return lease.expires_at <= self.now


def _outlives_its_lease(fact: Fact, order: Order) -> bool:
    """A node cut off keeps what customers pay for, and exit codes that nobody has read yet."""
    if fact.phase == Phase.EXITED:
        return True
    is_running = fact.phase == Phase.RUNNING or (fact.phase == Phase.PROBING and fact.found)
    return order.keeps_running and is_running


def _newest(keys: Iterable[Key]) -> dict[str, int]:
    newest: dict[str, int] = {}
    for instance, generation in keys:
        newest[instance] = max(generation, newest.get(instance, 0))
    return newest
