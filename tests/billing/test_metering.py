"""Meters open, are confirmed, and close: E6, E6b and E11b with their exact figures."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction

from billing import accounts, audit, charging, funds, ledger, metering, prices
from billing.metering import NothingHeld
from billing.models import EntryKind, Hold, LedgerEntry, UsageInterval
from billing.rating.intervals import month_bounds, month_of
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

        again = open_interval(reference=interval.reference, now=NOON + HOUR)

        assert again == interval
        assert UsageInterval.objects.count() == 1

    def test_refuses_what_nothing_is_held_for(self) -> None:
        with pytest.raises(NothingHeld):
            open_interval(reference=uuid4(), now=NOON)

        assert not UsageInterval.objects.exists()

    def test_never_pays_the_second_of_a_restart_twice(self) -> None:
        account = make_account()
        first = start(account)
        close_interval(reference=first.reference, ended_at=NOON + 10 * SECOND)

        # The clock of another server is behind.
        second = start(account, sku=first.sku, reference=first.reference, at=NOON + 9 * SECOND)

        assert second.started_at == NOON + 10 * SECOND


class TestCloseInterval:
    def test_charges_to_the_second(self) -> None:
        account = make_account()
        interval = start(account)

        closed = close_interval(reference=interval.reference, ended_at=NOON + 5025.9 * SECOND)

        assert closed is not None
        assert closed.ended_at == NOON + 5025 * SECOND
        assert closed.charged_micros == 3_475_625
        assert ledger.balance_micros(account.pk) == 100_000_000 - 3_475_625

    def test_changes_nothing_the_second_time(self) -> None:
        interval = start(make_account())
        close_interval(reference=interval.reference, ended_at=NOON + HOUR)
        entries = LedgerEntry.objects.count()

        again = close_interval(reference=interval.reference, ended_at=NOON + 2 * HOUR)

        assert again is None
        assert LedgerEntry.objects.count() == entries

    def test_ends_where_the_money_ended(self) -> None:
        account = make_account(micros=10_000_000)
        interval = start(account)

        closed = close_interval(reference=interval.reference, ended_at=NOON + 5 * HOUR)

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
            close_interval(reference=one.reference, ended_at=NOON + 9 * HOUR)
            for one in (h100, rtx4090)
        ]

        # E6b. The first to close does not leave its rest to the second.
        assert [one and one.ended_at for one in ended] == [NOON + 12_376 * SECOND] * 2
        assert ledger.balance_micros(account.pk) == 10_000_000 - 9_999_354

    def test_never_ends_before_it_started(self) -> None:
        interval = start(make_account(), at=NOON + SECOND)

        closed = close_interval(reference=interval.reference, ended_at=NOON)

        assert closed is not None
        assert closed.ended_at == closed.started_at
        assert closed.charged_micros == 0

    def test_gives_back_what_was_charged_beyond_its_end(self) -> None:
        account = make_account()
        interval = start(account)
        confirm(interval, at=NOON + HOUR)
        charging.charge_due(now=NOON + HOUR)

        closed = close_interval(reference=interval.reference, ended_at=NOON + HOUR / 2)

        assert closed is not None
        assert closed.charged_micros == H100_MICROS // 2
        assert ledger.balance_micros(account.pk) == 100_000_000 - H100_MICROS // 2

    def test_cuts_its_entries_at_the_month_border(self) -> None:
        _, border = month_bounds(month_of(NOON))
        interval = start(make_account(), at=border - 30 * SECOND)

        close_interval(reference=interval.reference, ended_at=border + 30 * SECOND)

        # E11b
        entries = LedgerEntry.objects.filter(interval=interval).order_by("period_start")
        assert list(entries.values_list("period_start", "period_end", "amount_micros")) == [
            (border - 30 * SECOND, border, 20_750),
            (border, border + 30 * SECOND, 20_750),
        ]

    def test_does_not_let_the_last_micro_fall_below_nought(self) -> None:
        account = make_account(micros=691)
        interval = start(account)

        closed = close_interval(reference=interval.reference, ended_at=NOON + HOUR)

        # A second costs 691.67 micros: the money ends before it, and nothing is charged.
        assert closed is not None
        assert closed.ended_at == NOON
        assert ledger.balance_micros(account.pk) == 691


class TestOfManyReferences:
    def test_opens_for_each_account_what_it_holds_and_keeps_what_runs(self) -> None:
        one, other = make_account(), make_account()
        running, waiting = start(one), [uuid4(), uuid4()]
        for account, reference in zip((one, other), waiting, strict=True):
            place(
                account_id=account.pk,
                sku=running.sku,
                reference=reference,
                runway=HOUR,
                now=NOON,
            )

        opened = metering.open_intervals(
            references=[*waiting, running.reference], now=NOON + 5 * SECOND
        )

        later = NOON + 5 * SECOND
        assert opened == {waiting[0]: later, waiting[1]: later, running.reference: NOON}
        assert [funds.balance(account.pk, NOON).held_micros for account in (one, other)] == [0, 0]
        assert funds.balance(one.pk, NOON).burn_micros_per_hour == 2 * H100_MICROS
        assert audit.differences(now=later) == []

    def test_opens_nothing_where_nothing_is_held_for_one(self) -> None:
        account, reference = make_account(), uuid4()
        place(
            account_id=account.pk,
            sku=make_price(),
            reference=reference,
            runway=HOUR,
            now=NOON,
        )

        with pytest.raises(NothingHeld), transaction.atomic():
            metering.open_intervals(references=[reference, uuid4()], now=NOON)

        assert not UsageInterval.objects.exists()
        assert Hold.objects.filter(released_at=None).count() == 1

    def test_starts_each_after_its_own_last_second(self) -> None:
        account, references = make_account(), [uuid4(), uuid4()]
        sku = make_price()
        start(account, sku=sku, reference=references[0])
        close_interval(reference=references[0], ended_at=NOON + 10 * SECOND)
        for reference in references:
            place(
                account_id=account.pk,
                sku=sku,
                reference=reference,
                runway=HOUR,
                now=NOON,
            )
        prices.publish(prices={sku: 1}, effective_from=NOON + 10 * SECOND, note="", now=NOON)

        opened = metering.open_intervals(references=references, now=NOON + 9 * SECOND)

        assert opened == {references[0]: NOON + 10 * SECOND, references[1]: NOON + 9 * SECOND}
        rates = UsageInterval.objects.filter(ended_at=None).values_list(
            "reference", "micros_per_hour"
        )
        assert dict(rates) == {references[0]: 1, references[1]: H100_MICROS}

    def test_closes_each_on_its_own_account_at_its_own_end(self) -> None:
        one, other = make_account(), make_account()
        first, second = start(one), start(other)
        waiting = uuid4()
        place(
            account_id=other.pk,
            sku=first.sku,
            reference=waiting,
            runway=HOUR,
            now=NOON,
        )
        ends = {
            second.reference: NOON + 2 * HOUR,
            first.reference: NOON + HOUR,
            waiting: NOON,
            uuid4(): NOON,
        }

        closed = metering.close_intervals(ends=ends, now=NOON + 2 * HOUR)

        assert closed == {first.reference: NOON + HOUR, second.reference: NOON + 2 * HOUR}
        assert ledger.balance_micros(one.pk) == 100_000_000 - H100_MICROS
        assert ledger.balance_micros(other.pk) == 100_000_000 - 2 * H100_MICROS
        assert funds.balance(other.pk, NOON).held_micros == 0
        assert audit.differences(now=NOON + 2 * HOUR) == []

    def test_closes_two_where_their_common_money_ended(self) -> None:
        account = make_account(micros=10_000_000)
        h100 = start(account)
        rtx4090 = start(account, micros_per_hour=440_000, at=NOON + 600 * SECOND)
        references = [h100.reference, rtx4090.reference]

        closed = metering.close_intervals(
            ends=dict.fromkeys(references, NOON + 9 * HOUR), now=NOON + 9 * HOUR
        )

        # E6b
        assert closed == dict.fromkeys(references, NOON + 12_376 * SECOND)
        assert ledger.balance_micros(account.pk) == 10_000_000 - 9_999_354

    def test_lets_what_stops_earlier_leave_its_money_to_the_rest(self) -> None:
        account = make_account(micros=2 * H100_MICROS)
        early, late = start(account), start(account)

        # Both would be paid for an hour; one stops after half of it.
        closed = metering.close_intervals(
            ends={late.reference: NOON + 9 * HOUR, early.reference: NOON + HOUR / 2},
            now=NOON + 9 * HOUR,
        )

        assert closed == {early.reference: NOON + HOUR / 2, late.reference: NOON + 3 * HOUR / 2}
        assert ledger.balance_micros(account.pk) == 0

    def test_follows_the_lower_prices_of_each(self) -> None:
        account = make_account()
        first, second = start(account), start(account)
        prices.publish(
            prices={first.sku: 1_990_000}, effective_from=NOON + HOUR / 2, note="", now=NOON
        )
        ends = {first.reference: NOON + HOUR, second.reference: NOON + HOUR}

        assert metering.close_intervals(ends=ends, now=NOON + HOUR) == ends

        # E4, and one that keeps its price.
        assert ledger.balance_micros(account.pk) == 100_000_000 - 2_240_000 - H100_MICROS
        assert audit.differences(now=NOON + HOUR) == []


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
        close_interval(reference=interval.reference, ended_at=NOON + SECOND)

        assert metering.confirm(references=[interval.reference], now=NOON + HOUR) == 0
        assert metering.last_confirmed_at(reference=interval.reference) is None


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
        closed = close_interval(reference=interval.reference, ended_at=NOON + 2 * HOUR)

        assert closed is not None
        assert closed.ended_at == NOON + 2 * HOUR
        assert ledger.balance_micros(account.pk) == 0

    def test_what_starts_later_does_not_pay_for_what_still_runs(self) -> None:
        account = make_account(micros=2 * H100_MICROS)
        sku, waiting = make_price(), uuid4()
        running = start(account, sku=sku)
        place(
            account_id=account.pk,
            sku=sku,
            reference=waiting,
            runway=HOUR,
            now=NOON,
        )

        # The first one's money ended after an hour; nobody stopped it for two.
        open_interval(reference=waiting, now=NOON + 2 * HOUR)

        closed = [
            close_interval(reference=reference, ended_at=NOON + 3 * HOUR)
            for reference in (running.reference, waiting)
        ]
        assert all(closed)
        assert ledger.balance_micros(account.pk) >= 0
