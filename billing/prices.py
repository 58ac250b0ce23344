"""Publishing price books, and the price at a moment."""

from collections.abc import Mapping
from datetime import datetime

from django.db import connection, transaction
from django.db.models import Max

from billing.models import Price, PriceBook
from billing.rating.money import check_micros

# One book is published at a time, so that versions are consecutive and each is complete.
PUBLISHING_LOCK = 7_210_001


class UnknownPrice(Exception):
    """No price of the sku holds at the moment."""


class BadPriceBook(Exception):
    """A price book that cannot be published; the message says why."""


@transaction.atomic
def publish(
    *, prices: Mapping[str, int], effective_from: datetime, note: str, now: datetime
) -> PriceBook:
    """A new version with `prices` (sku → micros an hour); what it does not name carries over.

    Raises BadPriceBook for a past start, a start before the newest book's, or a bad price.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [PUBLISHING_LOCK])
    newest = PriceBook.objects.order_by("-version").first()
    if effective_from < now:
        raise BadPriceBook("A price book cannot start in the past.")
    if newest is not None and effective_from < newest.effective_from:
        raise BadPriceBook(f"Book {newest.version} starts later than this one.")
    book = PriceBook.objects.create(
        version=newest.version + 1 if newest else 1,
        effective_from=effective_from,
        published_at=now,
        note=note,
    )
    carried = dict(newest.prices.values_list("sku", "micros_per_hour")) if newest else {}
    lines = carried | {sku: _checked(sku, amount) for sku, amount in prices.items()}
    Price.objects.bulk_create(
        Price(book=book, sku=sku, micros_per_hour=amount) for sku, amount in sorted(lines.items())
    )
    return book


def price_at(sku: str, moment: datetime) -> Price:
    """The line of the newest book in force at `moment`. Raises UnknownPrice."""
    in_force = Price.objects.filter(sku=sku, book__effective_from__lte=moment)
    price = in_force.order_by("-book__version").first()
    if price is None:
        raise UnknownPrice(f"{sku} has no price.")
    return price


def current_rates(moment: datetime) -> dict[str, int]:
    """sku → micros an hour, of the book in force at `moment`. Two queries."""
    in_force = PriceBook.objects.filter(effective_from__lte=moment)
    version = in_force.aggregate(newest=Max("version"))["newest"]
    lines = Price.objects.filter(book__version=version)
    return dict(lines.values_list("sku", "micros_per_hour"))


def _checked(sku: str, amount: object) -> int:
    try:
        micros = check_micros(amount)
    except (TypeError, ValueError) as error:
        raise BadPriceBook(f"{sku}: {error}.") from error
    if micros < 0:
        raise BadPriceBook(f"{sku}: a price is not negative.")
    return micros
