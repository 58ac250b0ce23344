"""What an operator sees first: nodes, GPUs, what waits, what is earned, and what is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Exists, OuterRef, Prefetch, Q, Sum
from django.db.models.functions import Coalesce
from django.utils.timesince import timesince

from billing.prices import current_rates
from billing.rating.money import format_micros
from billing.revenue import Revenue, revenue
from portal.accounts.models import Team
from portal.catalog.models import Plan
from portal.instances.models import LIVE_STATES, Instance, State
from scheduler.models import Allocation, Gpu, Node, NodeState

NODES_SHOWN = 100
WAITING_SHOWN = 8
TEAMS_SHOWN = 6


# In Unfold's words, by what is shown.
NODE_COLOURS = {
    NodeState.READY.label: "success",
    NodeState.SUSPECT.label: "warning",
    NodeState.UNREACHABLE.label: "danger",
    NodeState.CORDONED.label: "info",
    NodeState.RETIRED.label: "",
}


@dataclass(frozen=True)
class GpuCell:
    """One device in the map of a node: "held", "free", "broken" or "gone"."""

    kind: str
    title: str


@dataclass(frozen=True)
class NodeRow:
    node: Node
    state: NodeState
    gpus: tuple[GpuCell, ...]

    def count(self, kind: str) -> int:
        return sum(cell.kind == kind for cell in self.gpus)

    @property
    def held(self) -> int:
        return self.count("held")

    @property
    def colour(self) -> str:
        return NODE_COLOURS[self.state.label]


@dataclass(frozen=True)
class Waiting:
    instance: Instance
    seconds: int

    @property
    def text(self) -> str:
        return duration(self.seconds)


@dataclass(frozen=True)
class Dashboard:
    """All figures of one moment."""

    nodes: Sequence[NodeRow]
    queue_length: int
    waiting: Sequence[Waiting]
    running: int
    starting: int
    revenue: Revenue
    teams: Sequence[Team]
    alarms: Sequence[str]

    @property
    def nodes_seen(self) -> int:
        return sum(row.state == NodeState.READY for row in self.nodes)

    @property
    def gpus_held(self) -> int:
        return self._gpus("held")

    @property
    def gpus_free(self) -> int:
        """Usable now: healthy, held by nobody, on a node that takes work."""
        return sum(row.count("free") for row in self.nodes if row.state == NodeState.READY)

    @property
    def gpus_broken(self) -> int:
        return self._gpus("broken") + self._gpus("gone")

    @property
    def gpus(self) -> int:
        return sum(len(row.gpus) for row in self.nodes)

    @property
    def oldest_wait_text(self) -> str:
        return duration(max((waiting.seconds for waiting in self.waiting), default=0))

    @property
    def today_text(self) -> str:
        return format_micros(self.revenue.today_micros)

    @property
    def month_text(self) -> str:
        return format_micros(self.revenue.month_micros)

    @property
    def burn_text(self) -> str:
        return format_micros(self.revenue.burn_micros_per_hour)

    def _gpus(self, kind: str) -> int:
        return sum(row.count(kind) for row in self.nodes)


def look(*, now: datetime) -> Dashboard:
    """A fixed number of queries, whatever the size of the fleet."""
    nodes = node_rows(now=now)
    queue = Instance.objects.in_queue_order().select_related("team", "plan")
    waiting = [_waiting(instance, now) for instance in queue[:WAITING_SHOWN]]
    oldest = Instance.objects.filter(state=State.QUEUED).order_by("queued_at").first()
    if oldest is not None and all(row.instance.pk != oldest.pk for row in waiting):
        waiting.append(_waiting(oldest, now))
    counts = dict(
        Instance.objects.live().values_list("state").annotate(Count("pk")).order_by("state")
    )
    return Dashboard(
        nodes=nodes,
        queue_length=counts.get(State.QUEUED, 0),
        waiting=waiting,
        running=counts.get(State.RUNNING, 0),
        starting=counts.get(State.STARTING, 0),
        revenue=revenue(now=now),
        teams=_busiest_teams(),
        alarms=_alarms(nodes, now=now),
    )


def node_rows(*, now: datetime) -> list[NodeRow]:
    """Every node in service, by name, with a cell for each of its GPUs. Two queries."""
    held = Exists(Allocation.objects.filter(gpu=OuterRef("pk"), released_at=None))
    gpus = Gpu.objects.annotate(held=held).order_by("model", "uuid")
    nodes = Node.objects.filter(retired_at=None).order_by("name")
    return [
        NodeRow(node, node.state_at(now), tuple(map(_cell, node.gpus.all())))
        for node in nodes.prefetch_related(Prefetch("gpus", gpus))[:NODES_SHOWN]
    ]


def _cell(gpu: Gpu) -> GpuCell:
    if not gpu.present:
        return GpuCell("gone", f"{gpu.model}: not in the node's last inventory")
    if not gpu.healthy:
        return GpuCell("broken", f"{gpu.model}: {gpu.problem or 'unhealthy'}")
    held = getattr(gpu, "held", False)
    return GpuCell("held" if held else "free", f"{gpu.model}: {'in use' if held else 'free'}")


def _waiting(instance: Instance, now: datetime) -> Waiting:
    return Waiting(instance, max(0, int((now - instance.queued_at).total_seconds())))


def _busiest_teams() -> list[Team]:
    live = Q(instances__state__in=LIVE_STATES)
    in_use = Coalesce(Sum("instances__plan__gpu_count", filter=live), 0)
    teams = Team.objects.annotate(gpus_in_use=in_use).filter(gpus_in_use__gt=0)
    return list(teams.order_by("-gpus_in_use", "name")[:TEAMS_SHOWN])


def _alarms(nodes: Sequence[NodeRow], *, now: datetime) -> list[str]:
    """What needs somebody, in sentences; empty when nothing does."""
    alarms = [
        f"Node {row.node.name} is {row.state.lower()}: {_unseen(row.node, now)}."
        for row in nodes
        if row.state in (NodeState.SUSPECT, NodeState.UNREACHABLE)
    ]
    for row in nodes:
        broken = [cell.title for cell in row.gpus if cell.kind in ("broken", "gone")]
        if broken:
            alarms.append(f"Node {row.node.name}, unusable GPUs: {len(broken)} ({broken[0]}).")
    unpriced = Plan.objects.offered().exclude(sku__in=current_rates(now)).order_by("sku")
    skus = list(unpriced.values_list("sku", flat=True))
    if skus:
        alarms.append(f"On offer without a price, so it cannot be launched: {', '.join(skus)}.")
    return alarms


def _unseen(node: Node, now: datetime) -> str:
    if node.last_seen_at is None:
        return "never seen since it was enrolled"
    return f"last seen {timesince(node.last_seen_at, now)} ago"


def duration(seconds: int) -> str:
    """A wait in its two largest units: "42 s", "3 min 5 s", "2 h 10 min", "1 d 4 h"."""
    minutes, rest = divmod(seconds, 60)
    hours, rest_minutes = divmod(minutes, 60)
    days, rest_hours = divmod(hours, 24)
    if days:
        return f"{days} d {rest_hours} h"
    if hours:
        return f"{hours} h {rest_minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds} s"
