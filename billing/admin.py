"""Money, in the operator's console: to be read and searched, and by nobody to be changed.

Corrections are entries of their own, made by operations.
"""

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import display

from billing.models import (
    Account,
    LedgerEntry,
    Price,
    PriceBook,
    Statement,
    StatementLine,
    UsageInterval,
)
from billing.rating.money import format_micros

EXACT = 6


class Unchangeable:
    """No form adds, edits or removes a row."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class BookAdmin(Unchangeable, ModelAdmin):
    """A list of rows of money, newest first."""

    list_per_page = 50
    show_full_result_count = False


class PriceInline(Unchangeable, TabularInline):
    model = Price
    extra = 0
    show_title = False
    fields = ("sku", "price")
    readonly_fields = ("price",)
    ordering = ("sku",)

    @display(description="An hour")
    def price(self, price: Price) -> str:
        return format_micros(price.micros_per_hour, decimals=EXACT)


class LineInline(Unchangeable, TabularInline):
    model = StatementLine
    extra = 0
    show_title = False
    fields = ("description", "kind", "reference", "seconds", "amount")
    readonly_fields = ("amount",)
    ordering = ("position",)

    @display(description="Amount")
    def amount(self, line: StatementLine) -> str:
        return format_micros(line.amount_micros, decimals=EXACT)


@admin.register(Account)
class AccountAdmin(BookAdmin):
    list_display = ("code", "currency", "balance", "exhaust_at")
    list_filter = (("floor_micros", admin.EmptyFieldListFilter),)
    search_fields = ("code",)
    ordering = ("code",)
    fields = ("code", "currency", "balance", "exhaust_at")
    readonly_fields = ("balance",)

    @display(description="Balance", ordering="balance_micros")
    def balance(self, account: Account) -> str:
        """A house account has no stored balance: its entries would have to be added up."""
        if account.floor_micros is None:
            return "–"
        return format_micros(account.balance_micros, decimals=EXACT)


@admin.register(PriceBook)
class PriceBookAdmin(BookAdmin):
    list_display = ("version", "effective_from", "published_at", "note")
    search_fields = ("note", "prices__sku")
    ordering = ("-version",)
    fields = ("version", "effective_from", "published_at", "note")
    inlines = (PriceInline,)


@admin.register(LedgerEntry)
class LedgerEntryAdmin(BookAdmin):
    list_display = ("posted_at", "kind", "amount", "debit", "credit", "note", "cause")
    list_filter = ("kind",)
    search_fields = ("cause", "note", "debit__code", "credit__code")
    list_select_related = ("debit", "credit")
    ordering = ("-posted_at", "pk")
    fields = (
        *("id", "kind", "amount", "debit", "credit", "cause", "note"),
        *("interval", "period_start", "period_end", "posted_at"),
    )
    readonly_fields = ("id", "amount")

    @display(description="Amount", ordering="amount_micros")
    def amount(self, entry: LedgerEntry) -> str:
        return format_micros(entry.amount_micros, decimals=EXACT)


@admin.register(UsageInterval)
class UsageIntervalAdmin(BookAdmin):
    list_display = ("reference", "sku", "rate", "started_at", "ended_at", "charged", "account")
    list_filter = ("sku", ("ended_at", admin.EmptyFieldListFilter))
    search_fields = ("reference__istartswith", "sku", "account__code")
    list_select_related = ("account",)
    ordering = ("-started_at", "-pk")
    fields = (
        *("reference", "account", "sku", "rate", "started_at", "ended_at"),
        *("confirmed_at", "charged_until", "charged"),
    )
    readonly_fields = ("rate", "charged")

    @display(description="An hour", ordering="micros_per_hour")
    def rate(self, interval: UsageInterval) -> str:
        return format_micros(interval.micros_per_hour, decimals=EXACT)

    @display(description="Charged", ordering="charged_micros")
    def charged(self, interval: UsageInterval) -> str:
        return format_micros(interval.charged_micros, decimals=EXACT)


@admin.register(Statement)
class StatementAdmin(BookAdmin):
    list_display = ("month", "account", "opening", "closing", "issued_at")
    search_fields = ("account__code",)
    list_select_related = ("account",)
    ordering = ("-month", "account__code")
    fields = ("account", "month", "opening", "closing", "issued_at")
    readonly_fields = ("opening", "closing")
    inlines = (LineInline,)

    @display(description="Opening")
    def opening(self, statement: Statement) -> str:
        return format_micros(statement.opening_micros, decimals=EXACT)

    @display(description="Closing")
    def closing(self, statement: Statement) -> str:
        return format_micros(statement.closing_micros, decimals=EXACT)
