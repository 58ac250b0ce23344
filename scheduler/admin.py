"""The fleet, in the operator's console, and the page it opens with."""

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.cache import add_never_cache_headers
from unfold.decorators import action, display
from unfold.enums import ActionVariant

from portal.console import ACT, Act, Fields, NothingAsked, Question, ReadingAdmin, ReadingInline
from scheduler import dashboard, fleet
from scheduler.dashboard import NODE_COLOURS
from scheduler.models import Allocation, Gpu, JoinToken, Lease, Node

HELD = Exists(Allocation.objects.filter(gpu=OuterRef("pk"), released_at=None))
GPU_COLOURS = {"In use": "primary", "Free": "success", "Unhealthy": "danger", "Absent": "warning"}


def overview(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Adds the dashboard to what the console's first page shows."""
    now = timezone.now()
    return context | {"title": "Overview", "dashboard": dashboard.look(now=now), "now": now}


class GpuInline(ReadingInline):
    model = Gpu
    fields = ("uuid", "model", "memory", "condition", "problem")
    readonly_fields = ("memory", "condition")
    ordering = ("model", "uuid")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Gpu]:
        gpus: QuerySet[Gpu] = super().get_queryset(request)
        return gpus.annotate(held=HELD)

    @display(description="Memory")
    def memory(self, gpu: Gpu) -> str:
        return _memory(gpu)

    @display(description="Condition", label=GPU_COLOURS)
    def condition(self, gpu: Gpu) -> str:
        return _condition(gpu)


@admin.register(Node)
class NodeAdmin(ReadingAdmin):
    list_display = ("name", "standing", "gpus", "kind", "runtime", "driver_version", "last_seen_at")
    list_filter = ("simulated", ("retired_at", admin.EmptyFieldListFilter))
    search_fields = ("name", "gpus__uuid", "gpus__model")
    ordering = ("name",)
    fieldsets = (
        (None, {"fields": ("name", "standing", "kind", "gpus")}),
        ("Seen", {"fields": ("last_seen_at", "cordoned_at", "retired_at", "enrolled_at", "epoch")}),
        (
            "Has",
            {"fields": ("vcpus", "memory_mib", "runtime", "driver_version", "agent_version")},
        ),
    )
    readonly_fields = ("standing", "kind", "gpus")
    inlines = (GpuInline,)
    actions_list = ("join_token",)
    actions_detail = ("cordon", "uncordon", "retire")
    actions_row = ("cordon", "uncordon", "retire")
    fitting = {
        "cordon": lambda node: node.cordoned_at is None,
        "uncordon": lambda node: node.cordoned_at is not None and node.retired_at is None,
        "retire": lambda node: node.retired_at is None,
    }

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        nodes: QuerySet[Node] = super().get_queryset(request)
        usable = Q(gpus__healthy=True, gpus__present=True)
        # One row for each GPU: the constraint lets it have one live allocation.
        held = Q(gpus__allocations__released_at=None, gpus__allocations__isnull=False)
        return nodes.annotate(
            gpus_known=Count("gpus", distinct=True),
            gpus_usable=Count("gpus", filter=usable, distinct=True),
            gpus_held=Count("gpus", filter=held, distinct=True),
            gpus_free=Count("gpus", filter=usable, distinct=True)
            - Count("gpus", filter=usable & held, distinct=True),
        )

    @display(description="State", label=NODE_COLOURS)
    def standing(self, node: Node) -> str:
        return str(node.state_at(timezone.now()).label)

    @display(description="GPUs", ordering="gpus_held")
    def gpus(self, node: Any) -> str:
        unusable = node.gpus_known - node.gpus_usable
        text = f"{node.gpus_held} in use, {node.gpus_free} free"
        return f"{text}, {unusable} unusable" if unusable else text

    @display(description="Kind", label={"Simulated": "warning", "Simulated GPUs": "warning"})
    def kind(self, node: Node) -> str:
        if node.simulated:
            return "Simulated"
        return "Simulated GPUs" if node.simulated_gpus else "Real"

    @action(
        description="Add a node",
        icon="add",
        variant=ActionVariant.PRIMARY,
        permissions=ACT,
    )
    def join_token(self, request: HttpRequest) -> HttpResponse:
        """Shows the command that enrols one machine; its secret stands in this answer alone."""
        minutes = int(settings.JOIN_TOKEN_LIFETIME.total_seconds() // 60)
        question = Question(
            title="Add a node",
            consequence=f"Makes a join token: it enrols one machine, once, within {minutes} "
            "minutes, and is shown on the next page only.",
            button="Make a join token",
            template="admin/scheduler/node/join_token.html",
        )
        if request.method != "POST":
            return self.page(request, question, NothingAsked())
        token, secret = fleet.create_join_token(by=request.user, now=timezone.now())  # type: ignore[arg-type]
        self.log_addition(request, token, "Made a join token.")
        shown = {"token": token, "command": fleet.join_command(secret)}
        response = self.page(request, question, NothingAsked(), status=201, **shown)
        add_never_cache_headers(response)
        return response

    @action(description="Cordon", icon="do_not_disturb_on", permissions=ACT)
    def cordon(self, request: HttpRequest, object_id: str) -> HttpResponse:
        node = self.row(object_id)

        def does(_: Fields) -> tuple[Node, str]:
            fleet.cordon(node=node, now=timezone.now())
            return node, f"{node.name} takes no new work."

        return self.ask(
            request,
            Act(
                title=f"Cordon {node.name}",
                consequence="It takes no new work. What runs on it runs on.",
                button="Cordon",
                does=does,
            ),
        )

    @action(description="Uncordon", icon="check_circle", permissions=ACT)
    def uncordon(self, request: HttpRequest, object_id: str) -> HttpResponse:
        node = self.row(object_id)

        def does(_: Fields) -> tuple[Node, str]:
            fleet.uncordon(node=node)
            return node, f"{node.name} takes work again."

        return self.ask(
            request,
            Act(
                title=f"Uncordon {node.name}",
                consequence="It takes work again, from the next cycle on.",
                button="Uncordon",
                does=does,
            ),
        )

    @action(description="Retire", icon="delete_forever", permissions=ACT)
    def retire(self, request: HttpRequest, object_id: str) -> HttpResponse:
        node = self.row(object_id)

        def does(_: Fields) -> tuple[Node, str]:
            ended = fleet.retire(node=node, now=timezone.now())
            return node, f"Retired {node.name}; ended {ended} instances as lost."

        return self.ask(
            request,
            Act(
                title=f"Retire {node.name}",
                consequence="For good: its secret opens nothing any more. What ran on a node that "
                "is not seen ends as lost, and is charged up to its last sign of life. A node that "
                "is seen and runs something is refused.",
                button="Retire",
                does=does,
                ends_something=True,
            ),
        )


@admin.register(Gpu)
class GpuAdmin(ReadingAdmin):
    list_display = ("uuid", "node", "model", "memory", "condition", "problem")
    list_filter = ("model", "healthy", "present")
    search_fields = ("uuid", "model", "node__name")
    ordering = ("node__name", "model", "uuid")
    fields = ("uuid", "node", "model", "memory", "condition", "problem")
    readonly_fields = ("memory", "condition")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Gpu]:
        gpus: QuerySet[Gpu] = super().get_queryset(request)
        return gpus.select_related("node").annotate(held=HELD)

    @display(description="Memory", ordering="memory_mib")
    def memory(self, gpu: Gpu) -> str:
        return _memory(gpu)

    @display(description="Condition", label=GPU_COLOURS)
    def condition(self, gpu: Gpu) -> str:
        return _condition(gpu)


@admin.register(Lease)
class LeaseAdmin(ReadingAdmin):
    """Which instance runs, or ran, where."""

    list_display = ("instance", "node", "generation", "started_at", "expires_at", "ended_at")
    list_filter = (("ended_at", admin.EmptyFieldListFilter),)
    search_fields = ("instance__id__istartswith", "instance__name", "node__name")
    list_select_related = ("instance", "node")
    ordering = ("-started_at", "-pk")
    fields = ("instance", "node", "generation", "started_at", "expires_at", "ended_at", "gpus")
    readonly_fields = ("gpus",)

    @display(description="GPUs")
    def gpus(self, lease: Lease) -> str:
        allocations = lease.allocations.select_related("gpu").order_by("gpu__uuid")
        return ", ".join(allocation.gpu.uuid for allocation in allocations)


@admin.register(JoinToken)
class JoinTokenAdmin(ReadingAdmin):
    """Tokens that were made; their secrets are kept nowhere."""

    list_display = ("__str__", "standing", "created_by", "created_at", "expires_at", "node")
    list_select_related = ("created_by", "node")
    ordering = ("-created_at",)
    fields = ("standing", "created_by", "created_at", "expires_at", "used_at", "node")
    readonly_fields = ("standing",)

    @display(description="State", label={"Open": "info", "Used": "success"})
    def standing(self, token: JoinToken) -> str:
        if token.used_at is not None:
            return "Used"
        return "Open" if token.expires_at > timezone.now() else "Expired"


def _memory(gpu: Gpu) -> str:
    return f"{gpu.memory_mib / 1024:.0f} GiB"


def _condition(gpu: Any) -> str:
    if not gpu.present:
        return "Absent"
    if not gpu.healthy:
        return "Unhealthy"
    return "In use" if gpu.held else "Free"
