"""Prices for the time before the first price book: only demo data has a past to pay for."""

from datetime import datetime

from billing.models import Price, PriceBook
from billing.prices import BadPriceBook
from billing.rating.intervals import whole_seconds

BEFORE_THE_FIRST = 0


def extend(*, back_to: datetime) -> bool:
    """Let the first book's prices hold from `back_to` on, by a book of version 0 before it.

    Returns False where prices hold since then anyway. Nothing that was launched is touched: a
    launch before the first book was refused. Raises BadPriceBook where there is no book, or
    version 0 is taken.
    """
    first = PriceBook.objects.order_by("version").first()
    if first is None:
        raise BadPriceBook("There is no price book to extend.")
    back_to = whole_seconds(back_to)
    if first.effective_from <= back_to:
        return False
    if first.version == BEFORE_THE_FIRST:
        raise BadPriceBook("The first price book was extended before.")
    book = PriceBook.objects.create(
        version=BEFORE_THE_FIRST,
        effective_from=back_to,
        published_at=back_to,
        note="Demo data: the first price book, from before it.",
    )
    Price.objects.bulk_create(
        Price(book=book, sku=sku, micros_per_hour=rate)
        for sku, rate in first.prices.order_by("sku").values_list("sku", "micros_per_hour")
    )
    return True
