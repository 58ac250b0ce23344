"""Pages about instances: the dashboard, the list, the launch form, and one instance's own."""

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from billing import funds, metering
from portal.accounts.models import Member
from portal.accounts.roles import GRANTS, Permission, Role
from portal.catalog.models import Image, Plan
from portal.errors import DomainError
from portal.http import MemberRequest, for_members
from portal.instances.forms import LaunchForm
from portal.instances.models import Instance, State
from portal.instances.operations import admission, ending
from portal.instances.operations.admission import LaunchRequest
from portal.instances.quote import Quote, quote

PAGE_SIZE = 25
DASHBOARD_ROWS = 10


@for_members
@require_safe
def dashboard(request: MemberRequest) -> HttpResponse:
    """What runs now and how long the credit lasts; asked by htmx, only that part."""
    now = timezone.now()
    team = request.member.team
    live = Instance.objects.for_team(team).live()
    context = {
        "member": request.member,
        "balance": funds.balance(team.account_id, now=now),
        "running": live.filter(state=State.RUNNING).count(),
        "moving": live.exclude(state=State.RUNNING).exists(),
        "gpus_in_use": admission.standing_of(team).gpus_in_use,
        "rows": _with_costs(_shown(live)[:DASHBOARD_ROWS], now=now),
    }
    return render(request, "dashboard.html#now" if request.htmx else "dashboard.html", context)


@for_members
@require_safe
def instance_list(request: MemberRequest) -> HttpResponse:
    """Every instance of the team, newest first; asked by htmx, only the rows."""
    instances = Instance.objects.for_team(request.member.team)
    page = Paginator(_shown(instances), PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "rows": _with_costs(page, now=timezone.now()),
        "settled": all(instance.is_settled for instance in page),
    }
    template = "instances/list.html#rows" if request.htmx else "instances/list.html"
    return render(request, template, context)


@for_members
@require_http_methods(["GET", "HEAD", "POST"])
def launch(request: MemberRequest) -> HttpResponse:
    """The form with its card; asked by htmx, only the card. A refusal comes back with 422."""
    now = timezone.now()
    if request.method == "POST":
        form = LaunchForm(request.POST, user=request.user)
        instance = _try_to_launch(form, actor=request.member, now=now)
        if instance is not None:
            return redirect("instances:detail", instance.pk)
        return _launch_page(request, form, sku=form.data.get("plan"), now=now, status=422)
    sku = request.GET.get("plan")
    form = LaunchForm(initial={"plan": sku, "launch_key": uuid4()}, user=request.user)
    return _launch_page(request, form, sku=sku, now=now)


@for_members
@require_safe
def detail(request: MemberRequest, instance_id: UUID) -> HttpResponse:
    return _page_of(request, _visible(request, instance_id), "instances/detail.html")


@for_members
@require_safe
def state(request: MemberRequest, instance_id: UUID) -> HttpResponse:
    """The part of an instance's page that changes with its state."""
    return _page_of(request, _visible(request, instance_id), "instances/detail.html#live")


@for_members
@require_safe
def cost(request: MemberRequest, instance_id: UUID) -> HttpResponse:
    """What it has cost up to this second."""
    return _page_of(request, _visible(request, instance_id), "instances/detail.html#cost")


@for_members
@require_POST
def stop(request: MemberRequest, instance_id: UUID) -> HttpResponse:
    return _act(request, instance_id, ending.stop)


@for_members
@require_POST
def start(request: MemberRequest, instance_id: UUID) -> HttpResponse:
    return _act(request, instance_id, admission.start)


@for_members
@require_POST
def terminate(request: MemberRequest, instance_id: UUID) -> HttpResponse:
    return _act(request, instance_id, ending.terminate)


def _act(
    request: MemberRequest, instance_id: UUID, operation: Callable[..., Instance]
) -> HttpResponse:
    """Do one thing to an instance; a refusal is a message beside what the instance is now."""
    instance = _visible(request, instance_id)
    actor = admission.actor_of(instance, request.user)
    try:
        operation(actor=actor, instance=instance, now=timezone.now())
    except DomainError as refusal:
        messages.error(request, f"{refusal} {refusal.next_step}".strip())
    if not request.htmx:
        return redirect("instances:detail", instance_id)
    return _page_of(request, _visible(request, instance_id), "instances/detail.html#live")


def _page_of(request: MemberRequest, instance: Instance, template: str) -> HttpResponse:
    actor = admission.actor_of(instance, request.user)
    context = {
        "instance": instance,
        "events": instance.events.order_by("-at", "-pk"),
        "cost": metering.cost_of(reference=instance.pk, now=timezone.now()),
        "may_operate": Permission.OPERATE in GRANTS[Role(actor.role)],
    }
    return render(request, template, context)


def _visible(request: MemberRequest, instance_id: UUID) -> Instance:
    instances = Instance.objects.visible_to(request.user.pk).select_related("plan", "image", "team")
    return get_object_or_404(instances, pk=instance_id)


def _shown(instances: Any) -> Any:
    return instances.select_related("plan", "image").order_by("-queued_at", "pk")


def _with_costs(instances: Any, *, now: datetime) -> list[tuple[Instance, int]]:
    """Each instance with its cost so far in micros, in two queries however many there are."""
    rows = list(instances)
    costs = metering.costs_of(references=[instance.pk for instance in rows], now=now)
    return [(instance, costs.get(instance.pk, 0)) for instance in rows]


def _try_to_launch(form: LaunchForm, *, actor: Member, now: datetime) -> Instance | None:
    """The launched instance, or None with the reason written into the form."""
    if not form.is_valid():
        return None
    try:
        instance, _ = admission.launch(
            actor=actor,
            request=form.to_request(),
            launch_key=str(form.cleaned_data["launch_key"]),
            now=now,
        )
    except DomainError as refusal:
        form.add_error(None, f"{refusal} {refusal.next_step}".strip())
        return None
    return instance


def _launch_page(
    request: MemberRequest, form: LaunchForm, *, sku: str | None, now: datetime, status: int = 200
) -> HttpResponse:
    context = {"form": form, "quote": _card(request.member, sku, now=now)}
    template = "instances/launch.html#quote" if request.htmx else "instances/launch.html"
    return render(request, template, context, status=status)


def _card(actor: Member, sku: str | None, *, now: datetime) -> Quote | None:
    """What the plan of this sku, or else the first one, would mean; None: nothing is offered."""
    plans = Plan.objects.offered().order_by("gpu_model", "gpu_count")
    plan = plans.filter(sku=sku).first() or plans.first()
    image = Image.objects.offered().first()
    if plan is None or image is None:
        return None
    return quote(actor=actor, request=LaunchRequest(plan=plan, image=image), now=now)
