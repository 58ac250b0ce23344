"""What many workers at once may not break: E18 and E19."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import transaction

from billing import accounts, audit, charging, funds, ledger, metering, prices, statements
from billing.ledger import InsufficientFunds
from billing.models import EntryKind, Hold, LedgerEntry, PriceBook, Statement, UsageInterval
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
from tests.races import at_once

pytestmark = pytest.mark.django_db(transaction=True)

DOLLAR = 1_000_000


class TestPost:
    def test_of_sixteen_that_spend_a_dollar_of_five_five_succeed(self) -> None:
        account = make_account(micros=5 * DOLLAR)
        revenue = accounts.system_account("revenue:compute")

        def spend() -> bool:
            try:
                return ledger.post(
                    debit_id=account.pk,
                    credit_id=revenue.pk,
                    amount_micros=DOLLAR,
                    kind=EntryKind.ADJUSTMENT,
                    cause=str(uuid4()),
                    at=NOON,
                )
            except InsufficientFunds:
                return False

        # E18
        assert sum(at_once(spend, times=16)) == 5
        assert ledger.balance_micros(account.pk) == 0
        assert ledger.sum_of_entries(account.pk) == 0

    def test_of_eight_with_one_cause_one_succeeds(self) -> None:
        account = make_account(micros=0)

        # E19
        given = at_once(
            lambda: accounts.grant_trial_credit(
                account_id=account.pk, amount_micros=DOLLAR, now=NOON
            )
        )
        assert sum(given) == 1
        assert ledger.balance_micros(account.pk) == DOLLAR

    def test_both_ways_between_two_accounts_never_deadlocks(self) -> None:
        pair = [make_account(), make_account()]
        turns = iter([(0, 1), (1, 0)] * 4)

        def swap() -> bool:
            debit, credit = next(turns)
            return ledger.post(
                debit_id=pair[debit].pk,
                credit_id=pair[credit].pk,
                amount_micros=DOLLAR,
                kind=EntryKind.ADJUSTMENT,
                cause=str(uuid4()),
                at=NOON,
            )

        assert all(at_once(swap))
        assert [ledger.balance_micros(one.pk) for one in pair] == [100 * DOLLAR] * 2

    def test_makes_a_house_account_once(self) -> None:
        made = at_once(lambda: accounts.system_account("goodwill").pk)

        assert len(set(made)) == 1


class TestChargeDue:
    def test_of_eight_workers_one_posts_the_hour(self) -> None:
        interval = start(make_account())
        confirm(interval, at=NOON + HOUR)

        posted = at_once(lambda: charging.charge_due(now=NOON + HOUR))

        # E19
        assert sorted(posted) == [0] * 7 + [H100_MICROS]
        assert LedgerEntry.objects.filter(interval=interval).count() == 1

    def test_beside_what_closes_and_confirms_loses_and_doubles_nothing(self) -> None:
        account = make_account()
        intervals = [start(account) for _ in range(4)]
        references = [interval.reference for interval in intervals]
        for interval in intervals:
            confirm(interval, at=NOON + HOUR)
        ending = iter(references)
        acts: Iterator[Callable[[], object]] = iter(
            [
                lambda: charging.charge_due(now=NOON + HOUR),
                lambda: close_interval(reference=next(ending), ended_at=NOON + HOUR + 7 * SECOND),
                lambda: metering.confirm(references=references, now=NOON + HOUR + 5 * SECOND),
                lambda: charging.charge_due(now=NOON + HOUR + 5 * SECOND),
            ]
            * 2
        )

        def act() -> object:
            return next(acts)()

        at_once(act)

        for reference in references:
            close_interval(reference=reference, ended_at=NOON + HOUR + 7 * SECOND)
        charge = 2_494_841
        assert ledger.balance_micros(account.pk) == 100_000_000 - 4 * charge
        assert audit.differences(now=NOON + 2 * HOUR) == []


class TestPlace:
    def test_admits_no_more_than_the_account_can_pay(self) -> None:
        account, sku = make_account(micros=3 * H100_MICROS), make_price()

        def launch() -> bool:
            try:
                with transaction.atomic():
                    place(
                        account_id=account.pk,
                        sku=sku,
                        reference=uuid4(),
                        runway=HOUR,
                        now=NOON,
                    )
            except InsufficientFunds:
                return False
            return True

        assert sum(at_once(launch)) == 3
        assert funds.balance(account.pk, NOON).available_micros == 0


class TestOpenInterval:
    def test_opens_one_meter_of_one_reference(self) -> None:
        account, sku, reference = make_account(), make_price(), uuid4()
        with transaction.atomic():
            place(
                account_id=account.pk,
                sku=sku,
                reference=reference,
                runway=HOUR,
                now=NOON,
            )

        opened = at_once(lambda: open_interval(reference=reference, now=NOON).pk)

        assert len(set(opened)) == 1
        assert not Hold.objects.filter(released_at=None).exists()


class TestCloseInterval:
    def test_closes_it_once(self) -> None:
        account = make_account()
        interval = start(account)

        closed = at_once(lambda: close_interval(reference=interval.reference, ended_at=NOON + HOUR))

        assert len([one for one in closed if one is not None]) == 1
        assert ledger.balance_micros(account.pk) == 100_000_000 - H100_MICROS

    def test_of_many_at_once_beside_reports_closes_each_once(self) -> None:
        pair = [make_account(), make_account()]
        sku = make_price()
        references = [start(account, sku=sku).reference for account in pair * 6]
        orders = iter([references, references[::-1]] * 4)
        turns = iter([True, True, False, False] * 2)

        def close_or_confirm() -> int:
            order, closing = next(orders), next(turns)
            if not closing:
                metering.confirm(references=order, now=NOON + HOUR)
                return 0
            with transaction.atomic():
                ends = dict.fromkeys(order, NOON + HOUR)
                return len(metering.close_intervals(ends=ends, now=NOON + HOUR))

        assert sum(at_once(close_or_confirm)) == 12
        assert [ledger.balance_micros(account.pk) for account in pair] == [
            100_000_000 - 6 * H100_MICROS
        ] * 2
        assert audit.differences(now=NOON + HOUR) == []


class TestApplyPriceDecreases:
    def test_splits_a_meter_once(self) -> None:
        interval = start(make_account())
        prices.publish(
            prices={interval.sku: DOLLAR}, effective_from=NOON + SECOND, note="", now=NOON
        )
        confirm(interval, at=NOON + HOUR)

        changed = at_once(lambda: metering.apply_price_decreases(now=NOON + HOUR))

        assert sum(changed) == 1
        assert UsageInterval.objects.count() == 2


class TestPublish:
    def test_gives_each_book_its_own_version(self) -> None:
        versions = at_once(
            lambda: (
                prices.publish(
                    prices={str(uuid4()): 1}, effective_from=NOON, note="", now=NOON
                ).version
            )
        )

        assert sorted(versions) == list(range(1, 9))
        last = PriceBook.objects.get(version=8)
        assert last.prices.count() == 8


class TestIssue:
    def test_issues_one_statement(self) -> None:
        account = make_account()
        month = month_of(NOON)
        after = month_bounds(month)[1] + timedelta(days=1)

        issued = at_once(lambda: statements.issue(account_id=account.pk, month=month, now=after))

        assert Statement.objects.count() == 1
        assert all(one == issued[0] for one in issued)

    def test_lets_no_credit_slip_into_the_month_it_freezes(self) -> None:
        account = make_account()
        month = month_of(NOON)
        _, border = month_bounds(month)

        def issue_or_credit() -> None:
            if next(turns):
                statements.issue(account_id=account.pk, month=month, now=border)
                return
            accounts.credit(
                account_id=account.pk,
                amount_micros=DOLLAR,
                cause=str(uuid4()),
                kind=EntryKind.TOP_UP,
                note="",
                now=border,
            )

        turns = iter([True, False] * 4)
        at_once(issue_or_credit)

        assert audit.differences(now=border) == []
        assert ledger.balance_micros(account.pk) == 104 * DOLLAR
