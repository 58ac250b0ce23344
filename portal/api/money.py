"""Money as the API shows it."""

from typing import TypedDict

from billing.rating.money import format_micros, format_running
from rest_framework import serializers


class Money(TypedDict):
    amount_micros: int
    currency: str
    display: str


class MoneySerializer(serializers.Serializer[Money]):
    """An exact amount, and the same rounded for people."""

    amount_micros = serializers.IntegerField(help_text="Millionths of the currency's unit.")
    currency = serializers.CharField(help_text="ISO 4217.")
    display = serializers.CharField(help_text="For people; rounded.")


def money(amount_micros: int, *, running: bool = False) -> Money:
    """`running`: a cost that ticks is shown with more decimals than an amount that is settled."""
    shown = format_running(amount_micros) if running else format_micros(amount_micros)
    return {"amount_micros": amount_micros, "currency": "USD", "display": shown}
