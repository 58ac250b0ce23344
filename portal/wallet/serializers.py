"""Money as the API gives it: the balance, statements, and what was used."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from billing.rating.statement import Line, MonthlyStatement
from billing.usage import Used
from portal.api.money import Money, MoneySerializer, money
from portal.api.strict import StrictSerializer, TextField


class BalanceDetail(serializers.Serializer[Any]):
    """available = settled − accrued − held."""

    available = MoneySerializer(help_text="What a launch can still be paid from.")
    settled = MoneySerializer(help_text="The ledger's balance.")
    accrued = MoneySerializer(help_text="Used, but not posted yet.")
    held = MoneySerializer(help_text="Set aside for instances that have not started.")
    burn_per_hour = MoneySerializer(help_text="What an hour costs as all runs now.")
    exhaust_at = serializers.DateTimeField(
        allow_null=True, help_text="When the money ends as all runs now; null: it does not."
    )


class StatementLineDetail(serializers.Serializer[Line]):
    """One credit, or one instance's use at one price."""

    kind = serializers.CharField()
    description = serializers.CharField()
    instance = serializers.UUIDField(  # type: ignore[assignment]
        source="reference", allow_null=True
    )
    seconds = serializers.IntegerField(allow_null=True)
    price_per_hour = serializers.SerializerMethodField()
    amount = serializers.SerializerMethodField()

    @extend_schema_field(MoneySerializer(allow_null=True))
    def get_price_per_hour(self, line: Line) -> Money | None:
        return None if line.micros_per_hour is None else money(line.micros_per_hour)

    @extend_schema_field(MoneySerializer)
    def get_amount(self, line: Line) -> Money:
        """Positive: credited. Negative: used."""
        return money(line.amount_micros)


class StatementSummary(serializers.Serializer[MonthlyStatement]):
    """A month in two figures; months are cut in UTC."""

    month = serializers.SerializerMethodField()
    issued_at = serializers.DateTimeField(
        allow_null=True, help_text="Frozen since; null: a preview of a month that is not issued."
    )
    opening = serializers.SerializerMethodField()
    closing = serializers.SerializerMethodField()

    def get_month(self, statement: MonthlyStatement) -> str:
        """yyyy-mm."""
        return f"{statement.month:%Y-%m}"

    @extend_schema_field(MoneySerializer)
    def get_opening(self, statement: MonthlyStatement) -> Money:
        return money(statement.opening_micros)

    @extend_schema_field(MoneySerializer)
    def get_closing(self, statement: MonthlyStatement) -> Money:
        return money(statement.closing_micros)


class StatementDetail(StatementSummary):
    """opening + the sum of the lines = closing."""

    lines = StatementLineDetail(many=True)


class StatementList(serializers.Serializer[Any]):
    """All issued statements on one page, the newest first: there are twelve in a year."""

    next = serializers.CharField(allow_null=True)
    previous = serializers.CharField(allow_null=True)
    results = StatementSummary(many=True)


class UsageQuery(StrictSerializer):
    """The period [since, until); an interval that shares a second with it is given whole."""

    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False)
    format = serializers.ChoiceField(("json", "csv"), default="json")
    cursor = TextField(required=False)
    page_size = TextField(required=False)


class UsageDetail(serializers.Serializer[Any]):
    """One interval that is paid, to the second."""

    instance = serializers.UUIDField(source="reference")
    sku = serializers.CharField()
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True, help_text="Null while it runs.")
    seconds = serializers.IntegerField()
    price_per_hour = serializers.SerializerMethodField()
    cost = serializers.SerializerMethodField()

    @extend_schema_field(MoneySerializer)
    def get_price_per_hour(self, used: Used) -> Money:
        return money(used.micros_per_hour)

    @extend_schema_field(MoneySerializer)
    def get_cost(self, used: Used) -> Money:
        return money(used.micros, running=True)
