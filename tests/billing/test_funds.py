"""What an account has, and that it never has less than nothing (I9)."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing import accounts, audit, charging, funds, ledger, metering, prices
from billing.ledger import InsufficientFunds
from billing.models import EntryKind, UsageInterval
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
    rolled_back,
    start,
)

pytestmark = pytest.mark.django_db


class TestBalance:
    def test_tells_settled_accrued_held_and_available_apart(self) -> None:
        account = make_account()
        interval = start(account)
        confirm(interval, at=NOON + HOUR)
        charging.charge_due(now=NOON + HOUR)
        confirm(interval, at=NOON + 2 * HOUR)
        place(
            account_id=account.pk,
            sku=interval.sku,
            reference=uuid4(),
            runway=HOUR,
            now=NOON + 2 * HOUR,
        )

        balance = funds.balance(account.pk, NOON + 2 * HOUR)

        assert balance.settled_micros == 100_000_000 - H100_MICROS
        assert balance.accrued_micros == H100_MICROS
        assert balance.held_micros == H100_MICROS
        assert balance.available_micros == 100_000_000 - 3 * H100_MICROS
        assert balance.live_micros == 100_000_000 - 2 * H100_MICROS
        assert balance.burn_micros_per_hour == H100_MICROS
        assert balance.currency == "USD"

    def test_of_an_account_at_rest_never_ends(self) -> None:
        balance = funds.balance(make_account().pk, NOON)

        assert balance.available_micros == balance.settled_micros == 100_000_000
        assert (balance.burn_micros_per_hour, balance.exhaust_at) == (0, None)

    def test_stays_when_what_accrued_is_charged(self) -> None:
        interval = start(make_account(micros=10_000_000))
        confirm(interval, at=NOON + HOUR)
        before = funds.balance(interval.account_id, NOON + HOUR)

        charging.charge_due(now=NOON + HOUR)

        after = funds.balance(interval.account_id, NOON + HOUR)
        assert after.live_micros == before.live_micros
        assert after.exhaust_at == before.exhaust_at == funds.exhaustion(interval.account_id)

    def test_is_never_shown_below_nought(self) -> None:
        interval = start(make_account(micros=10_000_000))
        confirm(interval, at=NOON + 9 * HOUR)

        assert funds.live_balance_micros(interval.account_id, NOON + 9 * HOUR) == 575

    @pytest.mark.parametrize("running", [0, 1, 5])
    def test_takes_one_query(self, django_assert_num_queries: Any, running: int) -> None:
        account = make_account()
        for _ in range(running):
            start(account)

        with django_assert_num_queries(1):
            funds.balance(account.pk, NOON)


class TestUnfunded:
    def test_names_what_runs_on_and_when_its_money_ended(self) -> None:
        interval = start(make_account(micros=10_000_000))
        start(make_account())

        [found] = funds.unfunded(NOON + 14_457 * SECOND)

        assert found.reference == interval.reference
        assert found.exhaust_at == NOON + 14_457 * SECOND

    def test_says_nothing_while_the_money_lasts(self) -> None:
        start(make_account(micros=10_000_000))

        assert funds.unfunded(NOON + 14_456 * SECOND) == []

    def test_forgets_what_has_been_stopped(self) -> None:
        interval = start(make_account(micros=10_000_000))

        close_interval(reference=interval.reference, ended_at=NOON + 9 * HOUR)

        assert funds.unfunded(NOON + 9 * HOUR) == []

    def test_leaves_alone_what_costs_nothing(self) -> None:
        account = make_account(micros=10_000_000)
        free, paid = start(account, micros_per_hour=0), start(account)

        found = funds.unfunded(NOON + 9 * HOUR)

        assert [one.reference for one in found] == [paid.reference]
        assert free.reference != paid.reference

    def test_puts_the_longest_overdue_first_within_its_limit(self) -> None:
        later, sooner = start(make_account(micros=2_000_000)), start(make_account(micros=1_000_000))

        found = funds.unfunded(NOON + 9 * HOUR, 2)

        assert [one.reference for one in found] == [sooner.reference, later.reference]
        assert len(funds.unfunded(NOON + 9 * HOUR, 1)) == 1


class Life:
    """One account through whatever may happen to it, in whatever order."""

    def __init__(self) -> None:
        self.account = make_account(micros=3_000_000)
        self.now = NOON
        self.skus = [make_price(rate) for rate in (H100_MICROS, 440_000, 7)]
        self.references: list[UUID] = []
        self.given = 3_000_000

    def launch(self, choice: int) -> None:
        reference = uuid4()
        try:
            place(
                account_id=self.account.pk,
                sku=self.skus[choice % 3],
                reference=reference,
                runway=timedelta(minutes=choice),
                now=self.now,
            )
        except InsufficientFunds:
            return
        self.references.append(reference)

    def begin(self, choice: int) -> None:
        if self.references:
            try:
                open_interval(reference=self._one(choice), now=self.now)
            except metering.NothingHeld:
                return

    def report(self, choice: int) -> None:
        metering.confirm(references=self.references[choice % 2 :], now=self.now)

    def charge(self, choice: int) -> None:
        # Clocks of workers differ.
        charging.charge_due(now=self.now + (choice - 5) * 7 * SECOND)

    def stop(self, choice: int) -> None:
        if self.references:
            ended_at = self.now - (choice % 3) * 11 * SECOND
            close_interval(reference=self._one(choice), ended_at=ended_at)

    def sweep(self, choice: int) -> None:
        for found in funds.unfunded(self.now)[: choice % 3]:
            close_interval(reference=found.reference, ended_at=found.exhaust_at)

    def top_up(self, choice: int) -> None:
        accounts.credit(
            account_id=self.account.pk,
            amount_micros=1 + choice * 100_000,
            cause=str(uuid4()),
            kind=EntryKind.TOP_UP,
            note="",
            now=self.now,
        )
        self.given += 1 + choice * 100_000

    def reprice(self, choice: int) -> None:
        prices.publish(
            prices={self.skus[choice % 3]: 300_000 * choice},
            effective_from=self.now,
            note="",
            now=self.now,
        )

    def wait(self, choice: int) -> None:
        self.now += timedelta(seconds=1, milliseconds=choice * 300_300)

    def _one(self, choice: int) -> UUID:
        return self.references[choice % len(self.references)]


ACTS = (
    Life.launch,
    Life.begin,
    Life.report,
    Life.charge,
    Life.stop,
    Life.sweep,
    Life.top_up,
    Life.reprice,
    Life.wait,
    Life.wait,
)


class TestAnAccount:
    @given(
        acts=st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 9)), min_size=5, max_size=30)
    )
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    def test_is_never_below_nought_and_always_adds_up(self, acts: list[tuple[Any, int]]) -> None:
        with rolled_back():
            self.check(Life(), acts)

    def check(self, life: Life, acts: list[tuple[Any, int]]) -> None:
        for act, choice in acts:
            act(life, choice)
            assert ledger.balance_micros(life.account.pk) >= 0
        for reference in life.references:
            close_interval(reference=reference, ended_at=life.now)

        used = UsageInterval.objects.filter(account=life.account.pk)
        charged = sum(interval.charged_micros for interval in used)
        assert ledger.balance_micros(life.account.pk) == life.given - charged
        assert audit.differences(now=life.now) == []
