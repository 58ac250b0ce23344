"""Plans and images as the API gives them."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from portal.api.money import Money, MoneySerializer, money
from portal.catalog.models import Image, Plan


class PricesSerializer(serializers.Serializer[Any]):
    """What an hour costs, per pricing; null: it cannot be launched that way now."""

    on_demand = MoneySerializer(allow_null=True)


class PlanDetail(serializers.ModelSerializer[Plan]):
    """`context["rates"]` holds sku → micros an hour."""

    price_per_hour = serializers.SerializerMethodField()
    free_now = serializers.SerializerMethodField()
    simulated = serializers.SerializerMethodField()

    class Meta:
        model = Plan
        fields = (
            *("sku", "gpu_model", "gpu_count", "gpu_memory_gib", "vcpus", "memory_gib"),
            *("disk_gib", "price_per_hour", "free_now", "simulated"),
        )

    @extend_schema_field(PricesSerializer)
    def get_price_per_hour(self, plan: Plan) -> dict[str, Money | None]:
        rate = self.context["rates"].get(plan.sku)
        return {"on_demand": None if rate is None else money(rate)}

    def get_free_now(self, plan: Plan) -> int:
        """How many would start now."""
        return plan.availability.free_now if hasattr(plan, "availability") else 0

    def get_simulated(self, plan: Plan) -> bool:
        """Only simulated GPUs offer it."""
        return hasattr(plan, "availability") and plan.availability.simulated


class ImageDetail(serializers.ModelSerializer[Image]):
    class Meta:
        model = Image
        fields = ("slug", "name", "reference", "description", "command", "ports", "ready_port")
