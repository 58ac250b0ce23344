"""What something costs so far, to the second."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from billing import charging, metering
from tests.billing.factories import (
    H100_MICROS,
    HOUR,
    NOON,
    SECOND,
    close_interval,
    confirm,
    make_account,
    start,
)

pytestmark = pytest.mark.django_db


class TestCostOf:
    def test_runs_to_the_second(self) -> None:
        interval = start(make_account())
        confirm(interval, at=NOON + 5000 * SECOND)

        cost = metering.cost_of(reference=interval.reference, now=NOON + 5025.7 * SECOND)

        assert (cost.total_micros, cost.seconds) == (3_475_625, 5025)
        assert cost.burn_micros_per_hour == H100_MICROS

    def test_stands_still_when_nobody_confirms_it(self) -> None:
        interval = start(make_account())

        cost = metering.cost_of(reference=interval.reference, now=NOON + HOUR)

        assert (cost.seconds, cost.burn_micros_per_hour) == (120, 0)

    def test_stands_still_when_the_money_has_ended(self) -> None:
        interval = start(make_account(micros=10_000_000))
        confirm(interval, at=NOON + 9 * HOUR)

        cost = metering.cost_of(reference=interval.reference, now=NOON + 9 * HOUR)

        assert (cost.total_micros, cost.burn_micros_per_hour) == (9_999_425, 0)

    def test_is_the_same_before_and_after_it_is_charged(self) -> None:
        interval = start(make_account())
        confirm(interval, at=NOON + 1234 * SECOND)
        now = NOON + 1300 * SECOND

        before = metering.cost_of(reference=interval.reference, now=now)
        charging.charge_due(now=now)

        assert metering.cost_of(reference=interval.reference, now=now) == before

    def test_takes_one_query_however_often_it_ran(
        self, django_assert_num_queries: Callable[[int], Any]
    ) -> None:
        account = make_account()
        interval = start(account)
        for hour in (1, 2, 3):
            close_interval(reference=interval.reference, ended_at=NOON + hour * HOUR)
            start(account, sku=interval.sku, reference=interval.reference, at=NOON + hour * HOUR)

        with django_assert_num_queries(1):
            cost = metering.cost_of(reference=interval.reference, now=NOON + 3 * HOUR)

        assert [line.seconds for line in cost.lines] == [3600, 3600, 3600, 0]

    def test_of_many_is_one_query_and_names_what_cost_nothing(
        self, django_assert_num_queries: Callable[[int], Any]
    ) -> None:
        interval, nothing = start(make_account()), uuid4()
        confirm(interval, at=NOON + HOUR)

        with django_assert_num_queries(1):
            costs = metering.costs_of([interval.reference, nothing], NOON + HOUR)

        assert costs == {interval.reference: H100_MICROS, nothing: 0}
