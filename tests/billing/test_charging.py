"""From intervals to entries: E1, E3 and E20, and what holds for any order of ticks."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing import charging, ledger, locking, settlement
from billing.models import LedgerEntry, UsageInterval
from billing.rating.charge import charged_micros
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
    rolled_back,
    start,
)

pytestmark = pytest.mark.django_db


class Killed(BaseException):
    """A worker that is gone: nothing in the code expects it."""


def charged_at(now: datetime, interval: UsageInterval) -> int:
    confirm(interval, at=now)
    return charging.charge_due(now=now)


class TestChargeDue:
    def test_posts_the_difference_to_what_was_posted(self) -> None:
        interval = start(make_account())

        posted = [charged_at(NOON + second * SECOND, interval) for second in range(1, 7)]

        # E3
        assert posted == [691, 692, 692, 691, 692, 692]
        assert ledger.balance_micros(interval.account_id) == 100_000_000 - 4_150

    def test_is_the_same_total_however_often_and_late_it_runs(self) -> None:
        interval = start(make_account())

        for second in (7, 7, 1000, 400, 999, 5025, 5025, 3):
            charged_at(NOON + second * SECOND, interval)

        # E1
        interval.refresh_from_db()
        assert interval.charged_micros == 3_475_625
        assert ledger.balance_micros(interval.account_id) == 100_000_000 - 3_475_625

    @given(
        rate=st.integers(0, 10**8),
        ticks=st.lists(st.integers(0, 4000), min_size=1, max_size=8),
        end=st.integers(0, 4000),
    )
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    def test_never_depends_on_its_ticks(self, rate: int, ticks: list[int], end: int) -> None:
        with rolled_back():
            self.check_ticks(rate, ticks, end)

    def check_ticks(self, rate: int, ticks: list[int], end: int) -> None:
        account = make_account()
        before = account.balance_micros
        # Half of the time lies in one month, half in the next.
        border = month_bounds(month_of(NOON))[1]
        begin = border - timedelta(seconds=2000)
        interval = start(account, sku=make_price(rate), at=begin)
        untils = []

        for tick in ticks:
            charged_at(begin + tick * SECOND, interval)
            interval.refresh_from_db()
            untils.append(interval.charged_until)
        closed = close_interval(reference=interval.reference, ended_at=begin + end * SECOND)

        assert all(one <= next_one for one, next_one in pairwise(untils))
        assert closed is not None
        assert closed.ended_at == min(begin + end * SECOND, closed.ended_at or begin)
        total = charged_micros(
            micros_per_hour=rate, seconds=int((closed.charged_until - begin).total_seconds())
        )
        assert before - ledger.balance_micros(account.pk) == closed.charged_micros == total

    def test_charges_what_is_confirmed_and_no_more(self) -> None:
        interval = start(make_account())
        confirm(interval, at=NOON + 100 * SECOND)

        charging.charge_due(now=NOON + HOUR)

        interval.refresh_from_db()
        assert interval.charged_until == NOON + 100 * SECOND

    def test_charges_what_there_is_money_for_and_no_more(self) -> None:
        interval = start(make_account(micros=10_000_000))

        charged_at(NOON + 9 * HOUR, interval)

        assert ledger.balance_micros(interval.account_id) == 575

    def test_gives_each_entry_one_month(self) -> None:
        _, border = month_bounds(month_of(NOON))
        interval = start(make_account(), at=border - 12 * HOUR)

        charged_at(border + 12 * HOUR, interval)

        entries = LedgerEntry.objects.filter(interval=interval).order_by("period_start")
        assert [(month_of(e.period_start).month, e.amount_micros) for e in entries] == [
            (1, 29_880_000),
            (2, 29_880_000),
        ]

    def test_waits_until_enough_has_come_together(self) -> None:
        interval = start(make_account())
        confirm(interval, at=NOON + 2 * HOUR)

        assert charging.charge_due(now=NOON + HOUR, every=HOUR) == 0
        assert charging.charge_due(now=NOON + HOUR + SECOND, every=HOUR) > 0

    def test_does_not_wait_over_a_month_border(self) -> None:
        _, border = month_bounds(month_of(NOON))
        interval = start(make_account(), at=border - SECOND)
        confirm(interval, at=border + SECOND)

        assert charging.charge_due(now=border + SECOND, every=HOUR) == 691 + 692

    def test_charges_nothing_for_what_costs_nothing_but_notes_how_far_it_is(self) -> None:
        interval = start(make_account(), micros_per_hour=0)

        assert charged_at(NOON + HOUR, interval) == 0

        interval.refresh_from_db()
        assert interval.charged_until == NOON + HOUR
        assert not LedgerEntry.objects.filter(interval=interval).exists()

    def test_takes_the_longest_uncharged_first(self) -> None:
        account = make_account()
        early = start(account)
        late = start(account, sku=early.sku, at=NOON + HOUR)
        for interval in (late, early):
            confirm(interval, at=NOON + 2 * HOUR)

        charging.charge_due(now=NOON + 2 * HOUR, limit=1)

        assert UsageInterval.objects.get(pk=early.pk).charged_until == NOON + 2 * HOUR
        assert UsageInterval.objects.get(pk=late.pk).charged_until == NOON + HOUR

    def test_that_is_killed_after_it_posted_has_posted_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        account = make_account()
        interval = start(account)
        confirm(interval, at=NOON + HOUR)
        post_all = ledger.post_all

        def post_and_die(entries: Sequence[LedgerEntry]) -> int:
            post_all(entries)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(ledger, "post_all", post_and_die)
            with pytest.raises(Killed):
                charging.charge_due(now=NOON + HOUR)

        # E20
        interval.refresh_from_db()
        assert (interval.charged_micros, interval.charged_until) == (0, NOON)
        assert ledger.balance_micros(account.pk) == 100_000_000
        assert charging.charge_due(now=NOON + HOUR) == H100_MICROS
        assert charging.charge_due(now=NOON + HOUR) == 0

    def test_that_is_killed_between_two_leaves_the_first_charged(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        account = make_account()
        intervals = [start(account, at=NOON + n * SECOND) for n in range(2)]
        for interval in intervals:
            confirm(interval, at=NOON + HOUR)
        post_all, posted = ledger.post_all, list[int]()

        def post_one(entries: Sequence[LedgerEntry]) -> int:
            if posted:
                raise Killed
            posted.append(post_all(entries))
            return posted[0]

        with monkeypatch.context() as patch:
            patch.setattr(ledger, "post_all", post_one)
            with pytest.raises(Killed):
                charging.charge_due(now=NOON + HOUR)

        assert ledger.balance_micros(account.pk) == 100_000_000 - H100_MICROS
        charging.charge_due(now=NOON + HOUR)
        second = charged_micros(micros_per_hour=H100_MICROS, seconds=3599)
        assert ledger.balance_micros(account.pk) == 100_000_000 - H100_MICROS - second

    def test_is_not_kept_by_one_that_cannot_be_charged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        broken, sound = start(make_account(micros=1000)), start(make_account())
        for interval in (broken, sound):
            confirm(interval, at=NOON + HOUR)
        with connection.cursor() as cursor:
            # As if the second of its end had been lost.
            cursor.execute(
                "UPDATE billing_account SET exhaust_at = NULL WHERE id = %s", [broken.account_id]
            )

        with caplog.at_level(logging.ERROR):
            charged = charging.charge_due(now=NOON + HOUR)

        assert charged == H100_MICROS
        assert ledger.balance_micros(broken.account_id) == 1000
        assert [record.message for record in caplog.records] == ["interval not charged"]


class TestSettle:
    def test_refuses_an_interval_that_another_charged_meanwhile(self) -> None:
        account = make_account()
        interval = start(account)
        stale = UsageInterval.objects.get(pk=interval.pk)
        charged_at(NOON + SECOND, interval)

        charged = settlement.charge(locking.lock(account.pk), stale, until=NOON + HOUR)
        with pytest.raises(settlement.ChargedMeanwhile), transaction.atomic():
            settlement.settle([charged], at=NOON + HOUR)

        assert ledger.balance_micros(account.pk) == 100_000_000 - 691
