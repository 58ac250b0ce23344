"""What runs follows a price down and never up: E4."""

from typing import Any
from uuid import uuid4

import pytest

from billing import charging, funds, ledger, metering, prices
from tests.billing.factories import (
    H100_MICROS,
    HOUR,
    NOON,
    SECOND,
    close_interval,
    confirm,
    make_account,
    make_price,
    open_interval,
    place,
    start,
)

pytestmark = pytest.mark.django_db

CHEAPER_MICROS = 1_990_000


def reprice(sku: str, micros_per_hour: int, *, at: Any) -> None:
    prices.publish(prices={sku: micros_per_hour}, effective_from=at, note="", now=at)


class TestOpenInterval:
    def test_keeps_the_price_of_the_launch_when_it_rose_since(self) -> None:
        account, sku, reference = make_account(), make_price(), uuid4()
        place(
            account_id=account.pk,
            sku=sku,
            reference=reference,
            runway=HOUR,
            now=NOON,
        )
        reprice(sku, 2 * H100_MICROS, at=NOON + SECOND)

        interval = open_interval(reference=reference, now=NOON + HOUR)

        assert interval.micros_per_hour == H100_MICROS

    def test_takes_the_price_of_today_when_it_fell_since(self) -> None:
        account, sku, reference = make_account(), make_price(), uuid4()
        place(
            account_id=account.pk,
            sku=sku,
            reference=reference,
            runway=HOUR,
            now=NOON,
        )
        reprice(sku, CHEAPER_MICROS, at=NOON + SECOND)

        interval = open_interval(reference=reference, now=NOON + HOUR)

        assert interval.micros_per_hour == CHEAPER_MICROS


class TestApplyPriceDecreases:
    def test_splits_what_runs_at_the_second_the_lower_price_starts(self) -> None:
        account = make_account()
        interval = start(account)
        reprice(interval.sku, CHEAPER_MICROS, at=NOON + 1800 * SECOND)
        confirm(interval, at=NOON + 2000 * SECOND)

        changed = metering.apply_price_decreases(now=NOON + 2000 * SECOND)
        again = metering.apply_price_decreases(now=NOON + 2000 * SECOND)
        close_interval(reference=interval.reference, ended_at=NOON + HOUR)

        # E4
        assert (changed, again) == (1, 0)
        assert ledger.balance_micros(account.pk) == 100_000_000 - 2_240_000
        cost = metering.cost_of(reference=interval.reference, now=NOON + 2 * HOUR)
        assert [(line.micros_per_hour, line.seconds) for line in cost.lines] == [
            (H100_MICROS, 1800),
            (CHEAPER_MICROS, 1800),
        ]

    def test_happens_at_the_latest_when_the_meter_closes(self) -> None:
        account = make_account()
        interval = start(account)
        reprice(interval.sku, CHEAPER_MICROS, at=NOON + 1800 * SECOND)

        close_interval(reference=interval.reference, ended_at=NOON + HOUR)

        assert ledger.balance_micros(account.pk) == 100_000_000 - 2_240_000

    def test_happens_before_the_time_after_it_is_charged(self) -> None:
        account = make_account()
        interval = start(account)
        reprice(interval.sku, CHEAPER_MICROS, at=NOON + 1800 * SECOND)
        confirm(interval, at=NOON + HOUR)

        # The first charge closes one interval, and charges what follows it.
        charged = charging.charge_due(now=NOON + HOUR)

        assert charged == H100_MICROS // 2 - (H100_MICROS // 2 - CHEAPER_MICROS // 2)
        assert ledger.balance_micros(account.pk) == 100_000_000 - 2_240_000

    def test_follows_several_and_keeps_the_lowest(self) -> None:
        interval = start(make_account())
        for minute, rate in ((10, 2_000_000), (20, 1_000_000), (30, 3_000_000)):
            reprice(interval.sku, rate, at=NOON + minute * 60 * SECOND)
        confirm(interval, at=NOON + HOUR)

        metering.apply_price_decreases(now=NOON + HOUR)

        cost = metering.cost_of(reference=interval.reference, now=NOON + HOUR)
        assert [(line.micros_per_hour, line.seconds) for line in cost.lines] == [
            (H100_MICROS, 600),
            (2_000_000, 600),
            (1_000_000, 2400),
        ]

    def test_leaves_what_runs_alone_when_the_price_rises(self) -> None:
        interval = start(make_account())
        reprice(interval.sku, 2 * H100_MICROS, at=NOON + SECOND)
        confirm(interval, at=NOON + HOUR)

        assert metering.apply_price_decreases(now=NOON + HOUR) == 0

    def test_ignores_a_price_that_was_replaced_before_it_held(self) -> None:
        interval = start(make_account())
        for rate in (1, H100_MICROS):
            prices.publish(
                prices={interval.sku: rate}, effective_from=NOON + HOUR, note="", now=NOON
            )
        confirm(interval, at=NOON + 2 * HOUR)

        assert metering.apply_price_decreases(now=NOON + 2 * HOUR) == 0

    def test_waits_until_the_use_is_confirmed(self) -> None:
        interval = start(make_account())
        reprice(interval.sku, CHEAPER_MICROS, at=NOON + 1800 * SECOND)
        confirm(interval, at=NOON + 1799 * SECOND)

        assert metering.apply_price_decreases(now=NOON + HOUR) == 0

    def test_does_not_reprice_what_is_charged_already(self) -> None:
        account = make_account()
        interval = start(account)
        confirm(interval, at=NOON + HOUR)
        charging.charge_due(now=NOON + HOUR)
        # Published at its first second, but written down after the charge.
        reprice(interval.sku, CHEAPER_MICROS, at=NOON + 1800 * SECOND)

        close_interval(reference=interval.reference, ended_at=NOON + 2 * HOUR)

        used = H100_MICROS + CHEAPER_MICROS
        assert ledger.balance_micros(account.pk) == 100_000_000 - used

    def test_lets_the_money_last_longer(self) -> None:
        account = make_account(micros=2 * H100_MICROS)
        interval = start(account)
        reprice(interval.sku, H100_MICROS // 2, at=NOON + HOUR)
        confirm(interval, at=NOON + HOUR)

        metering.apply_price_decreases(now=NOON + HOUR)

        assert funds.balance(account.pk, NOON + HOUR).exhaust_at == NOON + 3 * HOUR
