from collections.abc import Callable
from typing import Any

import pytest

from billing import prices
from billing.models import Price, PriceBook
from billing.prices import BadPriceBook, UnknownPrice
from tests.billing.factories import HOUR, NOON, SECOND

pytestmark = pytest.mark.django_db


def publish(rates: dict[str, Any], *, at: Any = NOON, now: Any = NOON) -> PriceBook:
    return prices.publish(prices=rates, effective_from=at, note="", now=now)


class TestPublish:
    def test_makes_the_next_version(self) -> None:
        versions = [publish({"h100": rate}).version for rate in (3, 2)]

        assert versions == [1, 2]

    def test_carries_over_what_it_does_not_name(self) -> None:
        publish({"h100": 3, "rtx4090": 1})

        publish({"h100": 2}, at=NOON + HOUR)

        assert prices.current_rates(NOON + HOUR) == {"h100": 2, "rtx4090": 1}

    def test_starts_at_a_whole_second(self) -> None:
        book = publish({"h100": 3}, at=NOON + SECOND / 2, now=NOON + SECOND / 3)

        assert book.effective_from == NOON

    @pytest.mark.parametrize(
        ("rates", "at"),
        [
            ({"h100": 2}, NOON - SECOND),
            ({"h100": -1}, NOON + HOUR),
            ({"h100": 2.49}, NOON + HOUR),
            ({"h100": True}, NOON + HOUR),
            ({"h100": 10**12 + 1}, NOON + HOUR),
            ({}, NOON + HOUR),
            ({"h100": 2}, NOON + HOUR - SECOND),
        ],
        ids=["past", "negative", "float", "bool", "too dear", "nothing", "before the last"],
    )
    def test_refuses_and_writes_nothing(self, rates: dict[str, Any], at: Any) -> None:
        publish({"rtx4090": 1}, at=NOON + HOUR)

        with pytest.raises(BadPriceBook):
            publish(rates, at=at)

        assert PriceBook.objects.count() == 1
        assert Price.objects.count() == 1


class TestPriceAt:
    def test_is_that_of_the_newest_book_in_force(self) -> None:
        publish({"h100": 3})
        publish({"h100": 2}, at=NOON + HOUR)

        assert prices.price_at("h100", NOON + HOUR - SECOND).micros_per_hour == 3
        assert prices.price_at("h100", NOON + HOUR).micros_per_hour == 2

    def test_is_that_of_the_later_version_of_one_moment(self) -> None:
        publish({"h100": 3})
        publish({"h100": 2})

        assert prices.price_at("h100", NOON).micros_per_hour == 2

    def test_refuses_what_is_not_priced_yet(self) -> None:
        publish({"h100": 3})

        with pytest.raises(UnknownPrice):
            prices.price_at("h200", NOON)
        with pytest.raises(UnknownPrice):
            prices.price_at("h100", NOON - SECOND)


class TestCurrentRates:
    def test_is_one_query_for_all_skus(
        self, django_assert_num_queries: Callable[[int], Any]
    ) -> None:
        publish({f"sku-{n}": n for n in range(20)})
        publish({"sku-3": 30}, at=NOON + HOUR)

        with django_assert_num_queries(1):
            rates = prices.current_rates(NOON + HOUR)

        assert rates == {f"sku-{n}": n for n in range(20)} | {"sku-3": 30}
