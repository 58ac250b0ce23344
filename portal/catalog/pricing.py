"""A new version of the price book, made in two steps: shown first, then published as shown."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminTextInputWidget

from billing import prices
from billing.rating.money import format_micros, parse_micros
from portal.catalog.models import Plan
from portal.errors import DomainError

DECIMALS = 6


class PricesRefused(DomainError):
    code = "prices_refused"


@dataclass(frozen=True)
class Change:
    """One plan's price before and after, in micros an hour; None before: it had no price."""

    plan: Plan
    before: int | None
    after: int

    @property
    def before_text(self) -> str:
        return "–" if self.before is None else format_micros(self.before, decimals=4)

    @property
    def after_text(self) -> str:
        return format_micros(self.after, decimals=4)

    @property
    def difference_text(self) -> str:
        if not self.before:
            return "new" if self.before is None else "–"
        return f"{100 * (self.after - self.before) / self.before:+.1f} %"


class PricingForm(forms.Form):
    """A price for each plan on offer, and when they start.

    `was_shown` is True where exactly these prices were on the page before: only then may they be
    published.
    """

    effective_from = forms.DateTimeField(
        required=False,
        label="In force from (UTC)",
        widget=UnfoldAdminTextInputWidget(attrs={"type": "datetime-local"}),
        help_text="Empty: as soon as it is published.",
    )
    note = forms.CharField(
        required=False,
        max_length=200,
        widget=UnfoldAdminTextInputWidget,
        help_text="Why, for those who look at it later.",
    )

    def __init__(self, data: Any, *, plans: Iterable[Plan], now: datetime) -> None:
        super().__init__(data)
        self.now = now
        self.plans = {f"price:{plan.sku}": plan for plan in plans}
        rates = prices.current_rates(now)
        for name, plan in self.plans.items():
            self.fields[name] = forms.CharField(
                required=False,
                label=f"{plan.sku}, $ an hour",
                initial=_dollars(rates.get(plan.sku)),
                max_length=20,
                widget=UnfoldAdminTextInputWidget(attrs={"inputmode": "decimal"}),
            )
        self.order_fields([*self.plans, "effective_from", "note"])

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        rates = {}
        for name, plan in self.plans.items():
            text = str(cleaned.get(name, "")).strip()
            if text:
                try:
                    rates[plan.sku] = parse_micros(text)
                except ValueError as error:
                    self.add_error(name, str(error))
        starts_at = cleaned.get("effective_from") or self.now
        # Compared with what holds when these begin, which may be more than what holds now.
        before = prices.current_rates(max(starts_at, self.now))
        self.changes = [
            Change(plan, before.get(plan.sku), rates[plan.sku])
            for plan in self.plans.values()
            if plan.sku in rates and rates[plan.sku] != before.get(plan.sku)
        ]
        if not self.errors and not self.changes:
            self.add_error(None, "These are the prices that hold already.")
        cleaned["prices"] = {change.plan.sku: change.after for change in self.changes}
        return cleaned

    @property
    def fingerprint(self) -> str:
        """Of every change with the price before it, and of when they start."""
        shown = [(change.plan.sku, change.before, change.after) for change in self.changes]
        starts_at = str(self.cleaned_data.get("effective_from"))
        return hashlib.sha256(json.dumps([shown, starts_at]).encode()).hexdigest()

    @property
    def was_shown(self) -> bool:
        return self.data.get("shown") == self.fingerprint


def publish(fields: Mapping[str, Any], *, now: datetime) -> tuple[Any, str]:
    """Publish the cleaned fields of a PricingForm; returns the price book, and a sentence.

    Raises PricesRefused.
    """
    try:
        book = prices.publish(
            prices=fields["prices"],
            effective_from=fields["effective_from"] or now,
            note=fields["note"],
            now=now,
        )
    except prices.BadPriceBook as refusal:
        raise PricesRefused(str(refusal)) from refusal
    return book, (
        f"Published version {book.version} of the price book, in force from "
        f"{book.effective_from:%d %b %Y %H:%M} UTC; {len(fields['prices'])} prices changed."
    )


def _dollars(micros: int | None) -> str:
    """As `parse_micros` reads it, without needless noughts: 2490000 → 2.49."""
    if micros is None:
        return ""
    exact = format_micros(micros, decimals=DECIMALS).removeprefix("$").replace(",", "")
    whole, _, part = exact.partition(".")
    return f"{whole}.{part.rstrip('0').ljust(2, '0')}"
