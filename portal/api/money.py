"""Money as the API shows it."""

from typing import TypedDict

from rest_framework import serializers

from billing.rating.money import format_micros


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
    shown = format_micros(amount_micros, decimals=4 if running else 2)
    return {"amount_micros": amount_micros, "currency": "USD", "display": shown}
