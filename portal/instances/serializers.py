"""Instances as the API takes and gives them."""

from datetime import timedelta
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from billing.metering import CostLine
from portal.api.errors import problem_of
from portal.api.money import Money, MoneySerializer, money
from portal.api.schema import Problem
from portal.api.strict import StrictSerializer, TextField, WholeNumberField
from portal.instances.models import Instance, InstanceEvent, Pricing
from portal.instances.operations.admission import MAX_ENV, MAX_PORTS
from portal.instances.quote import Quote

PORT_MAX = 65_535
COMMAND_WORDS_MAX = 100
WORD_CHARACTERS_MAX = 400
SSH_KEYS_MAX = 100
ID_MAX = 2**63 - 1


class LaunchBody(StrictSerializer):
    """What a client sends to launch. Input and output differ, so they are two serializers."""

    plan = TextField(max_length=60, help_text="The sku of a plan.")
    image = TextField(max_length=60, help_text="The slug of an image.")
    team = WholeNumberField(
        min_value=1, max_value=ID_MAX, required=False, help_text="Absent: the one you act for."
    )
    name = TextField(max_length=63, required=False, help_text="Absent: the plan's sku.")
    pricing = serializers.ChoiceField(Pricing.choices, default=Pricing.ON_DEMAND.value)
    ports = serializers.ListField(
        child=WholeNumberField(min_value=1, max_value=PORT_MAX),
        default=list,
        max_length=MAX_PORTS,
        help_text="Opened beside the image's own.",
    )
    env = serializers.DictField(
        child=TextField(max_length=8_192, allow_blank=True),
        default=dict,
        help_text=f"At most {MAX_ENV} variables. Kept, and never given out again.",
    )
    ssh_keys = serializers.ListField(
        child=WholeNumberField(min_value=1, max_value=ID_MAX),
        required=False,
        max_length=SSH_KEYS_MAX,
        help_text="Ids of your SSH keys. Absent: all of them.",
    )
    command = serializers.ListField(
        child=TextField(max_length=WORD_CHARACTERS_MAX),
        default=list,
        max_length=COMMAND_WORDS_MAX,
        help_text="Word by word; empty: the image's.",
    )


class PreflightDetail(serializers.Serializer[Any]):
    """What a launch would mean now. It promises nothing."""

    admitted = serializers.BooleanField(help_text="Whether a launch would be admitted.")
    refusal = Problem(allow_null=True, help_text="What it would be refused with.")
    price_per_hour = MoneySerializer(allow_null=True, help_text="Null: it has no price.")
    available = MoneySerializer(help_text="The credit that is neither used nor held.")
    burn_per_hour = MoneySerializer(help_text="What an hour costs of all that runs now.")
    runway_seconds = serializers.IntegerField(
        allow_null=True,
        help_text="How long the credit would pay for all that runs and this. Null: for ever, or "
        "it has no price.",
    )
    gpus_in_use = serializers.IntegerField(help_text="By the team; they count against its quota.")
    gpu_quota = serializers.IntegerField()
    free_now = serializers.IntegerField(help_text="How many of the plan have room now.")
    simulated = serializers.BooleanField(help_text="Only simulated GPUs offer it.")
    place = serializers.IntegerField(help_text="Where it would stand in the queue, from 1.")
    gpus_ahead = serializers.IntegerField(help_text="Of its model, wanted by what waits before it.")
    starts_at_once = serializers.BooleanField(help_text="There is room, and nothing waits for it.")


def preflight(quote: Quote) -> dict[str, Any]:
    """A quote as the API gives it."""
    rate = quote.micros_per_hour
    runway = quote.runway
    return PreflightDetail(
        {
            "admitted": quote.refusal is None,
            "refusal": quote.refusal and problem_of(quote.refusal),
            "price_per_hour": None if rate is None else money(rate),
            "available": money(quote.balance.available_micros),
            "burn_per_hour": money(quote.balance.burn_micros_per_hour),
            "runway_seconds": None if runway is None else runway // timedelta(seconds=1),
            "gpus_in_use": quote.gpus_in_use,
            "gpu_quota": quote.gpu_quota,
            "free_now": quote.free_now,
            "simulated": quote.simulated,
            "place": quote.place,
            "gpus_ahead": quote.gpus_ahead,
            "starts_at_once": quote.starts_at_once,
        }
    ).data


class InstanceDetail(serializers.ModelSerializer[Instance]):
    """An instance, how far it got, and what it has cost."""

    team = serializers.IntegerField(source="team_id")
    plan = serializers.CharField(source="plan.sku")
    image = serializers.CharField(source="image.slug")
    price_per_hour = serializers.SerializerMethodField()
    cost = MoneySerializer(read_only=True, help_text="What it has cost so far, to the second.")
    endpoints = serializers.DictField(child=serializers.CharField())

    class Meta:
        model = Instance
        fields = (
            *("id", "team", "name", "plan", "image", "pricing", "price_per_hour", "cost"),
            *("state", "wanted", "reason", "explanation", "phase", "phase_percent"),
            *("endpoints", "ports", "command", "simulated", "queued_at", "state_changed_at"),
        )

    @extend_schema_field(MoneySerializer)
    def get_price_per_hour(self, instance: Instance) -> Money:
        """The price that its last launch was quoted."""
        return money(instance.micros_per_hour)


# One for all requests: it keeps nothing of any, and its fields are dear to make. It leaves out the
# cost, which is billing's to know.
_INSTANCE = InstanceDetail()


def rendered(instance: Instance, *, cost_micros: int) -> dict[str, Any]:
    """What the API says of an instance that has cost so much so far."""
    cost = money(cost_micros, running=True)
    return {**_INSTANCE.to_representation(instance), "cost": cost}


class EventDetail(serializers.ModelSerializer[InstanceEvent]):
    """`context["team_emails"]` holds the ids and addresses of those whom a member may know."""

    actor = serializers.SerializerMethodField()

    class Meta:
        model = InstanceEvent
        fields = ("id", "at", "effective_at", "state", "reason", "explanation", "actor")

    def get_actor(self, event: InstanceEvent) -> str | None:
        """The member's mail address, “operator”, or null for what happened by itself."""
        if event.actor_id is None:
            return None
        email: str = self.context["team_emails"].get(event.actor_id, "operator")
        return email


class CostLineDetail(serializers.Serializer[CostLine]):
    """One interval that is paid, to the second."""

    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True, help_text="Null while it runs.")
    sku = serializers.CharField()
    price_per_hour = serializers.SerializerMethodField()
    seconds = serializers.IntegerField()
    cost = serializers.SerializerMethodField()

    @extend_schema_field(MoneySerializer)
    def get_price_per_hour(self, line: CostLine) -> Money:
        return money(line.micros_per_hour)

    @extend_schema_field(MoneySerializer)
    def get_cost(self, line: CostLine) -> Money:
        return money(line.micros, running=True)


class CostDetail(serializers.Serializer[Any]):
    """What an instance has cost, and each interval that it consists of."""

    cost = MoneySerializer()
    seconds = serializers.IntegerField()
    burn_per_hour = MoneySerializer(help_text="What an hour costs as it runs now.")
    intervals = CostLineDetail(many=True)


class OwnInstance(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()


class QueuePlace(serializers.Serializer[Any]):
    """One waiting instance. Whose it is, only its own team learns."""

    place = serializers.IntegerField(help_text="1 is next.")
    gpus_ahead = serializers.IntegerField(help_text="Of the same model, wanted by those before it.")
    gpu_model = serializers.CharField()
    gpu_count = serializers.IntegerField()
    queued_at = serializers.DateTimeField()
    instance = OwnInstance(allow_null=True, help_text="Null: another team's.")


class QueueDetail(serializers.Serializer[Any]):
    """The head of the queue, and the team's own places in all of it."""

    waiting = serializers.IntegerField(help_text="Instances in the queue.")
    gpus_wanted = serializers.IntegerField(help_text="By all of them.")
    results = QueuePlace(many=True)
