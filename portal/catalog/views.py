"""What can be rented, for anyone: prices are no secret."""

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from billing import prices
from portal.catalog.models import Plan


@dataclass(frozen=True)
class PricedPlan:
    """A plan on offer and what an hour of it costs now."""

    plan: Plan
    micros_per_hour: int


@require_safe
def plan_list(request: HttpRequest) -> HttpResponse:
    """The catalogue, dearest first; asked by htmx, only the plans. A plan without price waits."""
    rates = prices.current_rates(timezone.now())
    plans = [
        PricedPlan(plan, rates[plan.sku])
        for plan in Plan.objects.offered().select_related("availability").order_by("gpu_count")
        if plan.sku in rates
    ]
    per_gpu = {p.plan.gpu_model: p.micros_per_hour // p.plan.gpu_count for p in reversed(plans)}
    plans.sort(key=lambda priced: (-per_gpu[priced.plan.gpu_model], priced.plan.gpu_model))
    template = (
        "catalog/list.html#plans" if request.headers.get("HX-Request") else "catalog/list.html"
    )
    return render(request, template, {"plans": plans})
