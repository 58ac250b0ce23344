"""Statements: eight references of one account take as many as one does."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from billing import accounts, charging, funds, metering
from billing.models import Account, LedgerEntry
from billing.settlement import REVENUE
from tests.billing.factories import (
    H100_MICROS,
    HOUR,
    NOON,
    confirm,
    make_account,
    make_price,
    place,
    start,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _house() -> None:
    """It is made when first used, and that costs more."""
    accounts.system_account(REVENUE)


def hold(account: Account, count: int) -> list[UUID]:
    """As many references, each of a sku of its own."""
    references = [uuid4() for _ in range(count)]
    for reference in references:
        place(
            account_id=account.pk,
            sku=make_price(),
            reference=reference,
            runway=HOUR,
            now=NOON,
        )
    return references


def run(account: Account, count: int) -> list[UUID]:
    references = hold(account, count)
    metering.open_intervals(references=references, now=NOON)
    return references


class TestPlace:
    @pytest.mark.parametrize("running", [0, 8])
    def test_takes_as_many_whatever_runs(
        self, django_assert_max_num_queries: Any, running: int
    ) -> None:
        account, sku = make_account(), make_price()
        run(account, running)

        with django_assert_max_num_queries(6):
            place(
                account_id=account.pk,
                sku=sku,
                reference=uuid4(),
                runway=HOUR,
                now=NOON,
            )


@pytest.mark.parametrize("count", [1, 8])
class TestOpenIntervals:
    def test_takes_as_many_for_eight(self, django_assert_num_queries: Any, count: int) -> None:
        references = hold(make_account(), count)

        with django_assert_num_queries(8):
            opened = metering.open_intervals(references=references, now=NOON)

        assert opened == dict.fromkeys(references, NOON)

    def test_takes_four_more_where_all_run_already(
        self, django_assert_num_queries: Any, count: int
    ) -> None:
        references = run(make_account(), count)

        with django_assert_num_queries(4):
            metering.open_intervals(references=references, now=NOON + HOUR)


@pytest.mark.parametrize("count", [1, 8])
class TestCloseIntervals:
    def test_takes_as_many_for_eight_that_are_charged(
        self, django_assert_num_queries: Any, count: int
    ) -> None:
        account = make_account()
        references = run(account, count)
        ends = dict.fromkeys(references, NOON + HOUR)

        with django_assert_num_queries(9):
            closed = metering.close_intervals(ends=ends, now=NOON + HOUR)

        assert closed == ends
        assert LedgerEntry.objects.filter(debit=account.pk).count() == count
        assert funds.balance(account.pk, NOON + HOUR).settled_micros == (
            100_000_000 - count * H100_MICROS
        )

    def test_takes_two_fewer_where_nothing_is_charged(
        self, django_assert_num_queries: Any, count: int
    ) -> None:
        references = run(make_account(), count)

        with django_assert_num_queries(7):
            metering.close_intervals(ends=dict.fromkeys(references, NOON), now=NOON)

    def test_takes_as_many_for_eight_that_never_ran(
        self, django_assert_num_queries: Any, count: int
    ) -> None:
        account = make_account()
        references = hold(account, count)

        with django_assert_num_queries(5):
            metering.close_intervals(ends=dict.fromkeys(references, NOON), now=NOON)

        assert funds.balance(account.pk, NOON).held_micros == 0


class TestChargeDue:
    def test_takes_as_many_whatever_else_runs(self, django_assert_num_queries: Any) -> None:
        account = make_account()
        run(account, 8)
        interval = start(account)
        confirm(interval, at=NOON + HOUR)

        # SAVEPOINT and RELEASE stand for BEGIN and COMMIT.
        with django_assert_num_queries(10):
            assert charging.charge_due(now=NOON + HOUR) == H100_MICROS
