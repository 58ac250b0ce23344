"""Plans with their prices, and images, in the operator's console."""

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import BigIntegerField, Case, QuerySet, Value, When
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from billing import prices
from billing.rating.money import format_micros
from portal.catalog import operations, pricing
from portal.catalog.models import Image, Plan
from portal.catalog.operations import ImageOffer, PlanOffer
from portal.catalog.pricing import PricingForm
from portal.console import ACT, Act, Fields, ReadingAdmin


class PlanForm(forms.Form):
    sku = forms.CharField(
        max_length=60,
        widget=UnfoldAdminTextInputWidget,
        help_text="What prices and statements call it, e.g. h100-2x. It never changes.",
    )
    gpu_model = forms.CharField(
        label="GPU model",
        max_length=40,
        widget=UnfoldAdminTextInputWidget,
        help_text="Exactly as NVML names it, e.g. NVIDIA H100 80GB HBM3.",
    )
    gpu_count = forms.IntegerField(label="GPUs", widget=UnfoldAdminIntegerFieldWidget)
    gpu_memory_gib = forms.IntegerField(
        label="Memory of one GPU, GiB", widget=UnfoldAdminIntegerFieldWidget
    )
    vcpus = forms.IntegerField(label="vCPUs", widget=UnfoldAdminIntegerFieldWidget)
    memory_gib = forms.IntegerField(label="Memory, GiB", widget=UnfoldAdminIntegerFieldWidget)
    disk_gib = forms.IntegerField(label="Disk, GiB", widget=UnfoldAdminIntegerFieldWidget)


class ImageForm(forms.Form):
    slug = forms.CharField(max_length=60, widget=UnfoldAdminTextInputWidget)
    name = forms.CharField(max_length=80, widget=UnfoldAdminTextInputWidget)
    reference = forms.CharField(
        max_length=255,
        widget=UnfoldAdminTextInputWidget,
        help_text="As `docker pull` takes it, e.g. ubuntu:24.04.",
    )
    description = forms.CharField(required=False, max_length=200, widget=UnfoldAdminTextInputWidget)
    command = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}),
        help_text="One word per line; empty: the image's own.",
    )
    ports = forms.CharField(
        required=False,
        max_length=100,
        widget=UnfoldAdminTextInputWidget,
        help_text="With commas, e.g. 8888, 6006.",
    )
    ready_port = forms.IntegerField(
        required=False,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Ready when this port answers; empty: when the container runs.",
    )

    def clean_command(self) -> tuple[str, ...]:
        return tuple(self.cleaned_data["command"].splitlines())

    def clean_ports(self) -> tuple[int, ...]:
        try:
            return tuple(
                int(port) for port in self.cleaned_data["ports"].split(",") if port.strip()
            )
        except ValueError as error:
            raise forms.ValidationError("Ports are numbers, with commas between.") from error


@admin.register(Plan)
class PlanAdmin(ReadingAdmin):
    list_display = ("sku", "gpus", "machine", "price", "free", "standing")
    list_filter = ("gpu_model", ("retired_at", admin.EmptyFieldListFilter))
    search_fields = ("sku", "gpu_model")
    list_select_related = ("availability",)
    ordering = ("gpu_model", "gpu_count", "sku")
    fields = ("sku", "gpus", "gpu_memory_gib", "machine", "price", "free", "retired_at")
    readonly_fields = ("gpus", "machine", "price", "free")
    actions_list = ("publish_prices", "publish_plan")
    actions_detail = ("retire",)
    actions_row = ("retire",)
    fitting = {"retire": lambda plan: plan.retired_at is None}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Plan]:
        plans: QuerySet[Plan] = super().get_queryset(request)
        rates = prices.current_rates(timezone.now())
        whens = [When(sku=sku, then=Value(rate)) for sku, rate in rates.items()]
        priced = Case(*whens, default=None, output_field=BigIntegerField())
        return plans.annotate(micros_per_hour=priced)

    @display(description="GPUs", ordering="gpu_model")
    def gpus(self, plan: Plan) -> str:
        return f"{plan.gpu_count} × {plan.gpu_model}"

    @display(description="Machine")
    def machine(self, plan: Plan) -> str:
        return f"{plan.vcpus} vCPUs, {plan.memory_gib} GiB, {plan.disk_gib} GiB disk"

    @display(description="Price an hour", ordering="micros_per_hour")
    def price(self, plan: Any) -> str:
        if plan.micros_per_hour is None:
            return "None: it cannot be launched"
        return format_micros(plan.micros_per_hour, decimals=4)

    @display(description="Would start now")
    def free(self, plan: Plan) -> str:
        availability = getattr(plan, "availability", None)
        if availability is None:
            return "–"
        simulated = " (simulated)" if availability.simulated else ""
        return f"{availability.free_now} of {availability.total}{simulated}"

    @display(description="Standing", label={"Offered": "success", "Retired": "warning"})
    def standing(self, plan: Plan) -> str:
        return "Retired" if plan.retired_at else "Offered"

    @action(
        description="Publish prices",
        icon="sell",
        variant=ActionVariant.PRIMARY,
        permissions=ACT,
    )
    def publish_prices(self, request: HttpRequest) -> HttpResponse:
        """Shows what would change for which plan; what was shown can then be published."""
        now = timezone.now()
        plans = Plan.objects.offered().order_by("gpu_model", "gpu_count", "sku")
        sent = request.method == "POST"
        form = PricingForm(request.POST if sent else None, plans=plans, now=now)
        act = Act(
            title="Publish prices",
            consequence="A new version of the price book; the versions before stay as they are. "
            "What runs keeps the price it was launched at, unless the new one is lower. "
            "Plans that are not changed keep their price.",
            does=lambda fields: pricing.publish(fields, now=timezone.now()),
            template="admin/catalog/plan/prices.html",
        )
        if sent and form.is_valid() and form.was_shown:
            return self.carry_out(request, act, form)
        return self.page(request, act, form, status=422 if form.errors else 200)

    @action(description="Add a plan", icon="add", permissions=ACT)
    def publish_plan(self, request: HttpRequest) -> HttpResponse:
        def does(fields: Fields) -> tuple[Plan, str]:
            plan = operations.publish_plan(PlanOffer(**fields))
            return plan, f"Plan {plan.sku} is on offer; it can be launched once it has a price."

        return self.ask(
            request,
            Act(
                title="Add a plan",
                consequence="A plan is never edited, so that what was sold stays what it was: "
                "to change one, add another and retire the first.",
                button="Add plan",
                form=PlanForm,
                does=does,
            ),
        )

    @action(description="Retire", icon="archive", permissions=ACT)
    def retire(self, request: HttpRequest, object_id: str) -> HttpResponse:
        plan = self.row(object_id)

        def does(_: Fields) -> tuple[Plan, str]:
            operations.retire_plan(plan=plan, now=timezone.now())
            return plan, f"Plan {plan.sku} is no longer on offer."

        return self.ask(
            request,
            Act(
                title=f"Retire {plan.sku}",
                consequence="Nobody can launch it or start it again. What runs on it runs on.",
                button="Retire",
                does=does,
                ends_something=True,
            ),
        )


@admin.register(Image)
class ImageAdmin(ReadingAdmin):
    list_display = ("name", "slug", "reference", "opens", "standing")
    list_filter = (("retired_at", admin.EmptyFieldListFilter),)
    search_fields = ("slug", "name", "reference")
    ordering = ("name", "slug")
    fields = (
        *("slug", "name", "reference", "description"),
        *("command", "ports", "ready_port", "retired_at"),
    )
    actions_list = ("publish_image",)
    actions_detail = ("retire",)
    actions_row = ("retire",)
    fitting = {"retire": lambda image: image.retired_at is None}

    @display(description="Ports")
    def opens(self, image: Image) -> str:
        return ", ".join(map(str, image.ports)) or "–"

    @display(description="Standing", label={"Offered": "success", "Retired": "warning"})
    def standing(self, image: Image) -> str:
        return "Retired" if image.retired_at else "Offered"

    @action(description="Add an image", icon="add", permissions=ACT)
    def publish_image(self, request: HttpRequest) -> HttpResponse:
        def does(fields: Fields) -> tuple[Image, str]:
            image = operations.publish_image(ImageOffer(**fields))
            return image, f"Image {image.name} is on offer."

        return self.ask(
            request,
            Act(
                title="Add an image",
                consequence="An image is never edited: to change one, add another and retire the "
                "first.",
                button="Add image",
                form=ImageForm,
                does=does,
            ),
        )

    @action(description="Retire", icon="archive", permissions=ACT)
    def retire(self, request: HttpRequest, object_id: str) -> HttpResponse:
        image = self.row(object_id)

        def does(_: Fields) -> tuple[Image, str]:
            operations.retire_image(image=image, now=timezone.now())
            return image, f"Image {image.name} is no longer on offer."

        return self.ask(
            request,
            Act(
                title=f"Retire {image.name}",
                consequence="Nobody can launch it or start it again. What runs from it runs on.",
                button="Retire",
                does=does,
                ends_something=True,
            ),
        )
