from datetime import timedelta

import pytest

from billing import backdating, prices
from billing.models import PriceBook
from billing.prices import BadPriceBook, UnknownPrice
from tests.billing.factories import NOON

DAY = timedelta(days=1)


@pytest.mark.django_db
class TestExtend:
    def test_lets_the_first_prices_hold_from_an_earlier_moment_on(self) -> None:
        prices.publish(prices={"sku": 5}, effective_from=NOON, note="first", now=NOON)
        prices.publish(prices={"sku": 3}, effective_from=NOON + DAY, note="second", now=NOON)

        assert backdating.extend(back_to=NOON - DAY)

        assert prices.price_at("sku", NOON - DAY).micros_per_hour == 5
        assert prices.price_at("sku", NOON + DAY).micros_per_hour == 3
        with pytest.raises(UnknownPrice):
            prices.price_at("sku", NOON - DAY - timedelta(seconds=1))

    def test_writes_nothing_where_prices_hold_since_then(self) -> None:
        prices.publish(prices={"sku": 5}, effective_from=NOON, note="first", now=NOON)

        assert not backdating.extend(back_to=NOON)

        assert PriceBook.objects.count() == 1

    def test_is_refused_twice(self) -> None:
        prices.publish(prices={"sku": 5}, effective_from=NOON, note="first", now=NOON)
        backdating.extend(back_to=NOON - DAY)

        with pytest.raises(BadPriceBook, match="extended before"):
            backdating.extend(back_to=NOON - 2 * DAY)

    def test_needs_a_first_book(self) -> None:
        with pytest.raises(BadPriceBook, match="no price book"):
            backdating.extend(back_to=NOON)
