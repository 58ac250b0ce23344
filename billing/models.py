"""Accounts, prices, what was used, and the ledger. Billing knows nobody: a reference is opaque."""

import uuid
from datetime import datetime

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeBoundary, RangeOperators
from django.db import models
from django.db.models import F, Func, Q

from billing.rating.charge import charged_micros
from billing.rating.intervals import seconds_between, whole_seconds


class TsTzRange(Func):
    function = "TSTZRANGE"
    output_field = DateTimeRangeField()


class Account(models.Model):
    """A balance in the ledger: a customer's prepaid money, or one of the house accounts.

    `balance_micros` is moved by the ledger's trigger alone, and only where a floor is set: a
    house account has none, and its balance is the sum of its entries.
    """

    code = models.CharField(max_length=80, unique=True)
    currency = models.CharField(max_length=3, default="USD")
    floor_micros = models.BigIntegerField(
        null=True, blank=True, help_text="The balance never falls below this; empty: no floor."
    )
    balance_micros = models.BigIntegerField(default=0, editable=False)
    exhaust_at = models.DateTimeField(
        null=True, blank=True, db_index=True, help_text="When open usage will have used it up."
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="account_balance_stays_above_its_floor",
                condition=Q(floor_micros__isnull=True) | Q(balance_micros__gte=F("floor_micros")),
            ),
        ]

    def __str__(self) -> str:
        return self.code


class PriceBook(models.Model):
    """A published, complete list of prices; a new version replaces nothing, it starts later."""

    version = models.PositiveIntegerField(unique=True)
    effective_from = models.DateTimeField()
    published_at = models.DateTimeField()
    note = models.CharField(max_length=200, blank=True)

    def __str__(self) -> str:
        return f"price book {self.version} from {self.effective_from:%F %T}"


class Price(models.Model):
    """One line of a price book: micro-dollars for an hour of a sku. Immutable."""

    book = models.ForeignKey(PriceBook, on_delete=models.PROTECT, related_name="prices")
    sku = models.SlugField(max_length=60)
    micros_per_hour = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="price_once_per_book", fields=["book", "sku"]),
            models.CheckConstraint(
                name="price_is_not_negative", condition=Q(micros_per_hour__gte=0)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.sku}: {self.micros_per_hour} µ$/h (book {self.book_id})"


class Hold(models.Model):
    """Money set aside from launch until the meter opens; it pins the price of that run."""

    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="holds")
    reference = models.UUIDField()
    price = models.ForeignKey(Price, on_delete=models.PROTECT, related_name="+")
    amount_micros = models.BigIntegerField()
    placed_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="reference_has_one_open_hold",
                fields=["reference"],
                condition=Q(released_at__isnull=True),
            ),
            models.CheckConstraint(name="hold_is_not_negative", condition=Q(amount_micros__gte=0)),
        ]
        indexes = [
            models.Index(
                name="hold_open_by_account", fields=["account"], condition=Q(released_at=None)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.amount_micros} µ$ held for {self.reference}"


class UsageInterval(models.Model):
    """The time [started_at, ended_at) for which `reference` is to be paid; open while it runs.

    `reference` is the id of whatever was used. All moments are whole seconds. What is charged
    so far is C(charged_until) = floor(seconds × rate / 3600) = `charged_micros`. Once closed it
    is charged to its end, and never changes again.
    """

    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="intervals")
    reference = models.UUIDField(db_index=True)
    price = models.ForeignKey(Price, on_delete=models.PROTECT, related_name="+")
    sku = models.SlugField(max_length=60)
    micros_per_hour = models.BigIntegerField(help_text="The price's, kept here for one-row maths.")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    confirmed_at = models.DateTimeField(help_text="Last time the use was seen to go on.")
    charged_until = models.DateTimeField()
    charged_micros = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="interval_ends_after_it_starts",
                condition=Q(ended_at__isnull=True) | Q(ended_at__gte=F("started_at")),
            ),
            models.CheckConstraint(
                name="interval_is_charged_within_its_time",
                condition=Q(charged_until__gte=F("started_at"))
                & (Q(ended_at__isnull=True) | Q(charged_until__lte=F("ended_at"))),
            ),
            models.UniqueConstraint(
                name="reference_has_one_open_interval",
                fields=["reference"],
                condition=Q(ended_at__isnull=True),
            ),
            # No second of one reference can be billed twice, whatever the code does.
            ExclusionConstraint(
                name="interval_never_overlaps",
                expressions=[
                    ("reference", RangeOperators.EQUAL),
                    (
                        TsTzRange("started_at", "ended_at", RangeBoundary()),
                        RangeOperators.OVERLAPS,
                    ),
                ],
            ),
        ]
        indexes = [
            models.Index(
                name="interval_not_fully_charged",
                fields=["account"],
                condition=Q(ended_at__isnull=True) | ~Q(ended_at=F("charged_until")),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.sku} by {self.reference} from {self.started_at:%F %T}"

    def cost_micros(self, until: datetime) -> int:
        """C(until): what it costs from its start on."""
        return charged_micros(
            micros_per_hour=self.micros_per_hour, seconds=seconds_between(self.started_at, until)
        )

    def payable_until(self, moment: datetime, exhaust_at: datetime | None) -> datetime:
        """Up to when it is to be paid, known at `moment`, where its account pays to `exhaust_at`.

        A whole second; never before what is charged already, and never after its end.
        """
        if self.ended_at is not None:
            return self.ended_at
        last = moment if exhaust_at is None else min(moment, exhaust_at)
        return max(whole_seconds(last), self.charged_until)


class EntryKind(models.TextChoices):
    """What moved the money."""

    USAGE = "usage", "Usage"
    TRIAL_CREDIT = "trial_credit", "Trial credit"
    TOP_UP = "top_up", "Top-up"
    ADJUSTMENT = "adjustment", "Adjustment"


class LedgerEntry(models.Model):
    """One movement of money from one account to another. Append-only, by trigger.

    Debit and credit share the row, so no entry can be out of balance; a mistake is corrected by
    a second entry, never by an edit. `cause` names the business fact
    (`usage:<interval>:<through>`), so posting the same cause twice moves money once.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    debit = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="+")
    credit = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="+")
    amount_micros = models.BigIntegerField(help_text="Millionths of the account's currency.")
    kind = models.CharField(max_length=20, choices=EntryKind)
    cause = models.CharField(max_length=120)
    interval = models.ForeignKey(
        UsageInterval, null=True, blank=True, on_delete=models.PROTECT, related_name="entries"
    )
    period_start = models.DateTimeField(help_text="For usage, the seconds paid: from …")
    period_end = models.DateTimeField(help_text="… to, half-open. Otherwise both are posted_at.")
    posted_at = models.DateTimeField()
    note = models.CharField(max_length=200, blank=True)

    class Meta:
        verbose_name_plural = "ledger entries"
        constraints = [
            models.UniqueConstraint(name="entry_once_per_cause", fields=["cause"]),
            models.CheckConstraint(name="entry_is_positive", condition=Q(amount_micros__gt=0)),
            models.CheckConstraint(
                name="entry_moves_between_two_accounts", condition=~Q(debit=F("credit"))
            ),
            models.CheckConstraint(
                name="entry_kind_is_known", condition=Q(kind__in=EntryKind.values)
            ),
        ]
        indexes = [
            models.Index(name="entry_debit_period", fields=["debit", "period_start"]),
            models.Index(name="entry_credit_period", fields=["credit", "period_start"]),
        ]

    def __str__(self) -> str:
        return f"{self.debit_id} → {self.credit_id}: {self.amount_micros} µ$ ({self.cause})"


class Statement(models.Model):
    """What an account used and paid in a month; frozen once issued, by trigger."""

    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="statements")
    month = models.DateField(help_text="Its first day; months are cut in UTC.")
    opening_micros = models.BigIntegerField()
    closing_micros = models.BigIntegerField()
    line_count = models.PositiveIntegerField(help_text="Checked at commit, as is the sum.")
    issued_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="statement_once_per_account_and_month", fields=["account", "month"]
            ),
        ]

    def __str__(self) -> str:
        return f"{self.account_id}: {self.month:%Y-%m}"


class StatementLine(models.Model):
    """One line: a reference's use of one sku at one price, or one credit. Signed micros."""

    statement = models.ForeignKey(Statement, on_delete=models.PROTECT, related_name="lines")
    position = models.PositiveIntegerField()
    kind = models.CharField(max_length=20, choices=EntryKind)
    description = models.CharField(max_length=200)
    reference = models.UUIDField(null=True, blank=True)
    seconds = models.PositiveBigIntegerField(null=True, blank=True)
    micros_per_hour = models.BigIntegerField(null=True, blank=True)
    amount_micros = models.BigIntegerField(help_text="Positive: credited; negative: used.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="line_once_per_position", fields=["statement", "position"]
            ),
        ]

    def __str__(self) -> str:
        return f"{self.description}: {self.amount_micros} µ$"
