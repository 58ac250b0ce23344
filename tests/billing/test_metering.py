"""Meters: E4, E6, E6b and E11b with their exact figures."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from billing import accounts, charging, funds, holds, ledger, metering, prices
from billing.metering import NothingHeld
from billing.models import EntryKind, Hold, LedgerEntry, UsageInterval
from billing.rating.intervals import month_bounds, month_of
from tests.billing.factories import (
    H100_MICROS,
    HOUR,
    NOON,
    SECOND,
    confirm,
    make_account,
    make_price,
    start,
)

pytestmark = pytest.mark.django_db

CHEAPER_MICROS = 1_990_000


def reprice(sku: str, micros_per_hour: int, *, at: Any) -> None:
    prices.publish(prices={sku: micros_per_hour}, effective_from=at, note="", now=at)


class TestOpenInterval:
    def test_starts_at_a_whole_second_and_gives_the_hold_back(self) -> None:
        account = make_account()

        interval = start(account, at=NOON + SECOND / 2, runway=HOUR)

        assert interval.started_at == NOON
        assert interval.micros_per_hour == H100_MICROS
        assert not Hold.objects.filter(released_at=None).exists()
        assert funds.balance(account.pk, NOON).held_micros == 0

    def test_is_said_twice_and_opens_one(self) -> None:
        interval = start(make_account())

        again = metering.open_interval(reference=interval.reference, now=NOON + HOUR)

        assert again == interval
        assert UsageInterval.objects.count() == 1

    def test_refuses_what_nothing_is_held_for(self) -> None:
        with pytest.raises(NothingHeld):
            metering.open_interval(reference=uuid4(), now=NOON)

        assert not UsageInterval.objects.exists()

    def test_keeps_the_price_of_the_launch_when_it_rose_since(self) -> None:
        account, sku, reference = make_account(), make_price(), uuid4()
        holds.place(account_id=account.pk, sku=sku, reference=reference, runway=HOUR, now=NOON)
        reprice(sku, 2 * H100_MICROS, at=NOON + SECOND)

        interval = metering.open_interval(reference=reference, now=NOON + HOUR)

        assert interval.micros_per_hour == H100_MICROS

    def test_takes_the_price_of_today_when_it_fell_since(self) -> None:
        account, sku, reference = make_account(), make_price(), uuid4()
        holds.place(account_id=account.pk, sku=sku, reference=reference, runway=HOUR, now=NOON)
        reprice(sku, CHEAPER_MICROS, at=NOON + SECOND)

        interval = metering.open_interval(reference=reference, now=NOON + HOUR)

        assert interval.micros_per_hour == CHEAPER_MICROS

    def test_never_pays_the_second_of_a_restart_twice(self) -> None:
        account = make_account()
        first = start(account)
        metering.close_interval(reference=first.reference, ended_at=NOON + 10 * SECOND)

        # The clock of another server is behind.
        second = start(account, sku=first.sku, reference=first.reference, at=NOON + 9 * SECOND)

        assert second.started_at == NOON + 10 * SECOND


class TestCloseInterval:
    def test_charges_to_the_second(self) -> None:
        account = make_account()
        interval = start(account)

        closed = metering.close_interval(
            reference=interval.reference, ended_at=NOON + 5025.9 * SECOND
        )

        assert closed is not None
        assert closed.ended_at == NOON + 5025 * SECOND
        assert closed.charged_micros == 3_475_625
        assert ledger.balance_micros(account.pk) == 100_000_000 - 3_475_625

    def test_changes_nothing_the_second_time(self) -> None:
        interval = start(make_account())
        metering.close_interval(reference=interval.reference, ended_at=NOON + HOUR)
        entries = LedgerEntry.objects.count()

        again = metering.close_interval(reference=interval.reference, ended_at=NOON + 2 * HOUR)

        assert again is None
        assert LedgerEntry.objects.count() == entries

    def test_ends_where_the_money_ended(self) -> None:
        account = make_account(micros=10_000_000)
        interval = start(account)

        closed = metering.close_interval(reference=interval.reference, ended_at=NOON + 5 * HOUR)

        # E6
        assert closed is not None
        assert closed.ended_at == NOON + 14_457 * SECOND
        assert closed.charged_micros == 9_999_425
        assert ledger.balance_micros(account.pk) == 575

    def test_ends_two_where_their_common_money_ended(self) -> None:
        account = make_account(micros=10_000_000)
        h100 = start(account)
        rtx4090 = start(account, micros_per_hour=440_000, at=NOON + 600 * SECOND)

        ended = [
            metering.close_interval(reference=one.reference, ended_at=NOON + 9 * HOUR)
            for one in (h100, rtx4090)
        ]

        # E6b. The first to close does not leave its rest to the second.
        assert [one and one.ended_at for one in ended] == [NOON + 12_376 * SECOND] * 2
        assert ledger.balance_micros(account.pk) == 10_000_000 - 9_999_354

    def test_never_ends_before_it_started(self) -> None:
        interval = start(make_account(), at=NOON + SECOND)

        closed = metering.close_interval(reference=interval.reference, ended_at=NOON)

        assert closed is not None
        assert closed.ended_at == closed.started_at
        assert closed.charged_micros == 0

    def test_gives_back_what_was_charged_beyond_its_end(self) -> None:
        account = make_account()
        interval = start(account)
        confirm(interval, at=NOON + HOUR)
        charging.charge_due(now=NOON + HOUR)

        closed = metering.close_interval(reference=interval.reference, ended_at=NOON + HOUR / 2)

        assert closed is not None
        assert closed.charged_micros == H100_MICROS // 2
        assert ledger.balance_micros(account.pk) == 100_000_000 - H100_MICROS // 2

    def test_cuts_its_entries_at_the_month_border(self) -> None:
        _, border = month_bounds(month_of(NOON))
        interval = start(make_account(), at=border - 30 * SECOND)

        metering.close_interval(reference=interval.reference, ended_at=border + 30 * SECOND)

        # E11b
        entries = LedgerEntry.objects.filter(interval=interval).order_by("period_start")
        assert list(entries.values_list("period_start", "period_end", "amount_micros")) == [
            (border - 30 * SECOND, border, 20_750),
            (border, border + 30 * SECOND, 20_750),
        ]

    def test_does_not_let_the_last_micro_fall_below_nought(self) -> None:
        account = make_account(micros=691)
        interval = start(account)

        closed = metering.close_interval(reference=interval.reference, ended_at=NOON + HOUR)

        # A second costs 691.67 micros: the money ends before it, and nothing is charged.
        assert closed is not None
        assert closed.ended_at == NOON
        assert ledger.balance_micros(account.pk) == 691


class TestConfirm:
    def test_moves_forwards_only(self) -> None:
        interval = start(make_account())

        moved = [
            metering.confirm(references=[interval.reference], now=NOON + after * SECOND)
            for after in (10, 5, 10.5, 11)
        ]

        assert moved == [1, 0, 0, 1]
        assert metering.last_confirmed_at(reference=interval.reference) == NOON + 11 * SECOND

    def test_is_one_statement_for_all(
        self, django_assert_num_queries: Callable[[int], Any]
    ) -> None:
        account = make_account()
        references = [start(account).reference for _ in range(3)]

        # BEGIN and COMMIT of a savepoint count as well.
        with django_assert_num_queries(3):
            moved = metering.confirm(references=[*references, uuid4()], now=NOON + SECOND)

        assert moved == 3

    def test_leaves_what_has_ended_alone(self) -> None:
        interval = start(make_account())
        metering.close_interval(reference=interval.reference, ended_at=NOON + SECOND)

        assert metering.confirm(references=[interval.reference], now=NOON + HOUR) == 0
        assert metering.last_confirmed_at(reference=interval.reference) is None


class TestApplyPriceDecreases:
    def test_splits_what_runs_at_the_second_the_lower_price_starts(self) -> None:
        account = make_account()
        interval = start(account)
        reprice(interval.sku, CHEAPER_MICROS, at=NOON + 1800 * SECOND)
        confirm(interval, at=NOON + 2000 * SECOND)

        changed = metering.apply_price_decreases(now=NOON + 2000 * SECOND)
        again = metering.apply_price_decreases(now=NOON + 2000 * SECOND)
        metering.close_interval(reference=interval.reference, ended_at=NOON + HOUR)

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

        metering.close_interval(reference=interval.reference, ended_at=NOON + HOUR)

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

        metering.close_interval(reference=interval.reference, ended_at=NOON + 2 * HOUR)

        used = H100_MICROS + CHEAPER_MICROS
        assert ledger.balance_micros(account.pk) == 100_000_000 - used

    def test_lets_the_money_last_longer(self) -> None:
        account = make_account(micros=2 * H100_MICROS)
        interval = start(account)
        reprice(interval.sku, H100_MICROS // 2, at=NOON + HOUR)
        confirm(interval, at=NOON + HOUR)

        metering.apply_price_decreases(now=NOON + HOUR)

        assert funds.balance(account.pk, NOON + HOUR).exhaust_at == NOON + 3 * HOUR


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
            metering.close_interval(reference=interval.reference, ended_at=NOON + hour * HOUR)
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


class TestWhenMoneyComesAfterItHasEnded:
    def test_goes_on_and_pays_for_all_of_it(self) -> None:
        account = make_account(micros=H100_MICROS)
        interval = start(account)

        accounts.credit(
            account_id=account.pk,
            amount_micros=H100_MICROS,
            cause="top-up",
            kind=EntryKind.TOP_UP,
            note="",
            now=NOON + HOUR + 3 * SECOND,
        )
        closed = metering.close_interval(reference=interval.reference, ended_at=NOON + 2 * HOUR)

        assert closed is not None
        assert closed.ended_at == NOON + 2 * HOUR
        assert ledger.balance_micros(account.pk) == 0

    def test_what_starts_later_does_not_pay_for_what_still_runs(self) -> None:
        account = make_account(micros=2 * H100_MICROS)
        sku, waiting = make_price(), uuid4()
        running = start(account, sku=sku)
        holds.place(account_id=account.pk, sku=sku, reference=waiting, runway=HOUR, now=NOON)

        # The first one's money ended after an hour; nobody stopped it for two.
        metering.open_interval(reference=waiting, now=NOON + 2 * HOUR)

        closed = [
            metering.close_interval(reference=reference, ended_at=NOON + 3 * HOUR)
            for reference in (running.reference, waiting)
        ]
        assert all(closed)
        assert ledger.balance_micros(account.pk) >= 0
