"""Pages of the fleet for operators, and the "where it runs" of an instance's page."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.db.models import Exists, OuterRef, Prefetch
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from portal.http import PortalRequest, for_staff
from portal.instances.models import Instance
from scheduler import fleet as fleet_operations
from scheduler.models import Allocation, Gpu, Lease, Node, NodeState

QUEUE_ROWS = 50


@dataclass(frozen=True)
class Figure:
    """One number at the top of the page, out of how many."""

    label: str
    value: int
    of: int | None = None


@for_staff
@require_safe
def fleet(request: PortalRequest) -> HttpResponse:
    """Every node with its GPUs, and what waits; asked by htmx, only that part."""
    template = "scheduler/fleet.html#nodes" if request.htmx else "scheduler/fleet.html"
    return render(request, template, _fleet_context(timezone.now()))


@login_required
@require_safe
def placement(request: PortalRequest, instance_id: UUID) -> HttpResponse:
    """The node and GPUs that an instance holds now; for who may see the instance, and staff."""
    visible = Instance.objects.visible_to(request.user.pk)
    instances = Instance.objects.all() if request.user.is_staff else visible
    instance = get_object_or_404(instances, pk=instance_id)
    lease = Lease.objects.filter(instance=instance, ended_at=None).select_related("node").first()
    allocations = Allocation.objects.filter(instance=instance, released_at=None)
    context = {
        "lease": lease,
        "allocations": allocations.select_related("gpu").order_by("gpu__uuid"),
    }
    return render(request, "scheduler/placement.html", context)


@for_staff
@require_POST
def cordon(request: PortalRequest, node_id: int) -> HttpResponse:
    fleet_operations.cordon(node=get_object_or_404(Node, pk=node_id), now=timezone.now())
    return _after_change(request)


@for_staff
@require_POST
def uncordon(request: PortalRequest, node_id: int) -> HttpResponse:
    fleet_operations.uncordon(node=get_object_or_404(Node, pk=node_id))
    return _after_change(request)


@for_staff
@require_POST
@never_cache
def join_token(request: PortalRequest) -> HttpResponse:
    """The command that enrols one machine; its secret stands in this answer alone."""
    now = timezone.now()
    token, secret = fleet_operations.create_join_token(by=request.user, now=now)
    context = {"join_token": token, "join_secret": secret, "public_url": settings.PUBLIC_URL}
    if request.htmx:
        return render(request, "scheduler/fleet.html#join", context, status=201)
    return render(request, "scheduler/fleet.html", _fleet_context(now) | context, status=201)


def _after_change(request: PortalRequest) -> HttpResponse:
    if not request.htmx:
        return redirect("scheduler:fleet")
    return render(request, "scheduler/fleet.html#nodes", _fleet_context(timezone.now()))


def _fleet_context(now: datetime) -> dict[str, object]:
    held = Exists(Allocation.objects.filter(gpu=OuterRef("pk"), released_at=None))
    gpus = Gpu.objects.annotate(held=held).order_by("model", "uuid")
    nodes = Node.objects.filter(retired_at=None).order_by("name")
    rows = [
        (node, node.state_at(now))
        for node in nodes.prefetch_related(Prefetch("gpus", gpus, to_attr="shown_gpus"))
    ]
    usable = Gpu.objects.usable().filter(node__retired_at=None)
    queue = Instance.objects.in_queue_order()
    return {
        "rows": rows,
        "queue": queue.select_related("plan", "team")[:QUEUE_ROWS],
        "figures": [
            Figure("Nodes ready", sum(status == NodeState.READY for _, status in rows), len(rows)),
            Figure("GPUs in use", usable.filter(held).count(), usable.count()),
            Figure("Instances on nodes", Lease.objects.filter(ended_at=None).count()),
            Figure("Waiting", queue.count()),
        ],
    }
