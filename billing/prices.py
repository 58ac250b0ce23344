"""Price books: published ahead, complete, never changed."""

from collections.abc import Collection, Mapping
from datetime import datetime

from django.db import connection, transaction
from django.db.models import Exists, Expression, OuterRef, QuerySet

from billing.models import Price as Price  # noqa: PLC0414 - others take it from here
from billing.models import PriceBook, UsageInterval
from billing.rating.intervals import whole_seconds
from billing.rating.money import check_rate
from database.compiled import CompiledModels, param


class UnknownPrice(LookupError):
    """The price book of that moment does not name the sku."""


class BadPriceBook(ValueError):
    """A price book that cannot be published; the sentence says why."""


@transaction.atomic
def publish(
    *, prices: Mapping[str, int], effective_from: datetime, note: str, now: datetime
) -> PriceBook:
    """Publish the next price book: micro-dollars for an hour of each sku, from a moment on.

    A sku that `prices` does not name keeps its price, so each book is complete. What runs keeps
    the price it was launched at; a lower one reaches it at `effective_from`, a whole second.

    Raises BadPriceBook for a start in the past or before the last book's, and for what is no
    price; nothing is written then.
    """
    if not prices:
        raise BadPriceBook("A price book names at least one price.")
    effective_from, now = whole_seconds(effective_from), whole_seconds(now)
    if effective_from < now:
        raise BadPriceBook("A price book starts now or later.")
    rates = {sku: _checked(sku, rate) for sku, rate in prices.items()}
    with connection.cursor() as cursor:
        # Versions are consecutive, so two publishers take turns; readers are not held up.
        cursor.execute("LOCK TABLE billing_pricebook IN SHARE ROW EXCLUSIVE MODE")
    last = PriceBook.objects.order_by("-version").first()
    if last is not None:
        if effective_from < last.effective_from:
            raise BadPriceBook(f"Price book {last.version} starts later than that.")
        rates = dict(last.prices.values_list("sku", "micros_per_hour")) | rates
    book = PriceBook.objects.create(
        version=last.version + 1 if last else 1,
        effective_from=effective_from,
        published_at=now,
        note=note,
    )
    Price.objects.bulk_create(
        Price(book=book, sku=sku, micros_per_hour=rate) for sku, rate in sorted(rates.items())
    )
    return book


_PRICES_AT = CompiledModels(lambda: _newest(param("moment")).filter(sku__any=param("skus")))
_CAME_LATER = CompiledModels(
    lambda: (
        came_into_force()
        .filter(sku__any=param("skus"), book__effective_from__gt=param("first"))
        .order_by("book__version")
    ),
    "book",
)


def price_at(sku: str, moment: datetime) -> Price:
    """The price of a sku at a moment. Raises UnknownPrice."""
    return prices_at([sku], moment)[sku]


def prices_at(skus: Collection[str], moment: datetime) -> dict[str, Price]:
    """The price of each sku at a moment; one query. Raises UnknownPrice."""
    newest = _PRICES_AT(skus=list(skus), moment=moment)
    found = {price.sku: price for price in newest}
    for sku in skus:
        if sku not in found:
            raise UnknownPrice(f"{sku} has no price at {moment:%F %T}.")
    return found


def current_rates(moment: datetime) -> dict[str, int]:
    """Every sku's micros per hour at a moment; one query. Empty before the first price book."""
    return dict(_newest(moment).values_list("sku", "micros_per_hour"))


def came_into_force() -> QuerySet[Price]:
    """Prices that held from their book's first second on: no later book took its place there."""
    replacing = PriceBook.objects.filter(
        effective_from=OuterRef("book__effective_from"), version__gt=OuterRef("book__version")
    )
    return Price.objects.filter(~Exists(replacing)).select_related("book")


def since(intervals: Collection[UsageInterval]) -> list[Price]:
    """Prices of the skus of `intervals` that came into force after the first began, the earliest
    first; one query."""
    if not intervals:
        return []
    first = min(interval.started_at for interval in intervals)
    skus = list({interval.sku for interval in intervals})
    return _CAME_LATER(skus=skus, first=first)


def _checked(sku: str, rate: object) -> int:
    try:
        return check_rate(rate)
    except (TypeError, ValueError) as error:
        raise BadPriceBook(f"{sku}: {error}.") from error


def _newest(moment: datetime | Expression) -> QuerySet[Price]:
    begun = Price.objects.filter(book__effective_from__lte=moment)
    return begun.order_by("sku", "-book__version").distinct("sku")
