"""Monthly statements: their lines are the ledger's, and they never change."""

from collections.abc import Callable
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, connection, transaction

from billing import accounts, charging, funds, ledger, prices, statements
from billing.models import Account, EntryKind, Statement, StatementLine
from billing.rating.intervals import month_bounds
from billing.rating.statement import MonthlyStatement
from billing.statements import MonthNotOver, UsageNotCharged
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

JANUARY = date(2026, 1, 1)
FEBRUARY = date(2026, 2, 1)
BORDER = month_bounds(JANUARY)[1]
CREDIT = 100_000_000


def issue(account: Account, month: date = JANUARY, *, now: datetime = BORDER) -> MonthlyStatement:
    return statements.issue(account_id=account.pk, month=month, now=now)


class TestIssue:
    def test_has_a_line_for_each_credit_and_each_run_at_a_price(self) -> None:
        account = make_account()
        interval = start(account)
        close_interval(reference=interval.reference, ended_at=NOON + 5025 * SECOND)

        issued = issue(account)

        credit, usage = issued.lines
        assert (credit.kind, credit.description, credit.amount_micros) == (
            EntryKind.TRIAL_CREDIT,
            "Trial credit",
            CREDIT,
        )
        assert (usage.kind, usage.description) == (EntryKind.USAGE, interval.sku)
        assert (usage.reference, usage.seconds) == (interval.reference, 5025)
        assert (usage.micros_per_hour, usage.amount_micros) == (H100_MICROS, -3_475_625)
        assert (issued.opening_micros, issued.closing_micros) == (0, CREDIT - 3_475_625)
        assert issued.adds_up

    def test_joins_the_runs_of_one_reference_at_one_price(self) -> None:
        account = make_account()
        interval = start(account)
        close_interval(reference=interval.reference, ended_at=NOON + HOUR)
        start(account, sku=interval.sku, reference=interval.reference, at=NOON + 2 * HOUR)
        close_interval(reference=interval.reference, ended_at=NOON + 3 * HOUR)

        _, usage = issue(account).lines

        assert (usage.seconds, usage.amount_micros) == (7200, -2 * H100_MICROS)

    def test_parts_them_where_the_price_changed(self) -> None:
        account = make_account()
        interval = start(account)
        prices.publish(
            prices={interval.sku: 1_990_000},
            effective_from=NOON + HOUR / 2,
            note="",
            now=NOON,
        )
        close_interval(reference=interval.reference, ended_at=NOON + HOUR)

        _, *usage = issue(account).lines

        # E4
        assert [(line.seconds, line.amount_micros) for line in usage] == [
            (1800, -1_245_000),
            (1800, -995_000),
        ]

    def test_shares_a_run_over_the_border_with_the_next_month(self) -> None:
        account = make_account()
        interval = start(account, at=BORDER - 30 * SECOND)
        close_interval(reference=interval.reference, ended_at=BORDER + 30 * SECOND)

        first = issue(account)
        second = issue(account, FEBRUARY, now=month_bounds(FEBRUARY)[1])

        # E11b
        for issued in (first, second):
            line = issued.lines[-1]
            assert (line.seconds, line.amount_micros) == (30, -20_750)
        assert second.opening_micros == first.closing_micros == CREDIT - 20_750
        assert second.closing_micros == ledger.balance_micros(account.pk)

    def test_shows_what_was_used_at_no_price(self) -> None:
        account = make_account()
        free = start(account, micros_per_hour=0)
        close_interval(reference=free.reference, ended_at=NOON + HOUR)

        usage = issue(account).lines[-1]

        assert (usage.seconds, usage.amount_micros) == (3600, 0)

    def test_counts_what_was_given_back_with_what_was_charged(self) -> None:
        account = make_account()
        interval = start(account)
        confirm(interval, at=NOON + HOUR)
        charging.charge_due(now=NOON + HOUR)
        close_interval(reference=interval.reference, ended_at=NOON + HOUR / 2)

        _, usage = issue(account).lines

        assert (usage.seconds, usage.amount_micros) == (1800, -H100_MICROS // 2)

    def test_books_what_is_given_back_later_in_the_month_that_is_open(self) -> None:
        account = make_account()
        interval = start(account, at=BORDER - HOUR)
        confirm(interval, at=BORDER)
        charging.charge_due(now=BORDER)
        issue(account)

        close_interval(reference=interval.reference, ended_at=BORDER - HOUR / 2)

        second = issue(account, FEBRUARY, now=month_bounds(FEBRUARY)[1])
        [line] = second.lines
        assert (line.seconds, line.amount_micros) == (0, H100_MICROS // 2)
        assert second.closing_micros == ledger.balance_micros(account.pk)

    def test_is_the_same_one_the_second_time(self) -> None:
        account = make_account()

        first, second = issue(account), issue(account, now=BORDER + HOUR)

        assert first == second
        assert Statement.objects.count() == 1

    def test_refuses_a_month_that_is_not_over(self) -> None:
        account = make_account()

        with pytest.raises(MonthNotOver):
            issue(account, now=BORDER - SECOND)

        assert not Statement.objects.exists()

    def test_refuses_while_use_is_not_charged_up_to_the_border(self) -> None:
        account = make_account()
        interval = start(account, at=BORDER - HOUR)
        confirm(interval, at=BORDER - SECOND)
        charging.charge_due(now=BORDER)

        with pytest.raises(UsageNotCharged):
            issue(account)

        assert not Statement.objects.exists()
        confirm(interval, at=BORDER)
        charging.charge_due(now=BORDER)
        assert issue(account).adds_up

    def test_refuses_a_month_that_does_not_begin_on_its_first(self) -> None:
        with pytest.raises(ValueError, match="first day"):
            issue(make_account(), date(2026, 1, 2))


class TestAnIssuedStatement:
    @pytest.mark.parametrize(
        "attack",
        [
            "UPDATE billing_statement SET closing_micros = 0",
            "DELETE FROM billing_statement",
            "UPDATE billing_statementline SET amount_micros = 0",
            "DELETE FROM billing_statementline",
            """INSERT INTO billing_statementline
                   (statement_id, position, kind, description, amount_micros)
               SELECT id, 1, 'adjustment', 'x', 0 FROM billing_statement""",
        ],
    )
    def test_is_frozen(self, attack: str) -> None:
        issue(make_account())

        with (
            pytest.raises(IntegrityError),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(attack)

    @pytest.mark.parametrize(("closing", "count"), [(1, 0), (0, 1)])
    def test_cannot_be_written_where_it_does_not_add_up(self, closing: int, count: int) -> None:
        Statement.objects.create(
            account=make_account(),
            month=JANUARY,
            opening_micros=0,
            closing_micros=closing,
            line_count=count,
            issued_at=BORDER,
        )

        # As at a commit.
        with pytest.raises(IntegrityError, match="do not add up"), transaction.atomic():
            connection.check_constraints()

        transaction.set_rollback(True)

    def test_is_read_back_as_it_was(self, django_assert_num_queries: Callable[[int], Any]) -> None:
        account = make_account()
        interval = start(account, at=BORDER - 30 * SECOND)
        close_interval(reference=interval.reference, ended_at=BORDER + 30 * SECOND)
        first = issue(account)
        second = issue(account, FEBRUARY, now=month_bounds(FEBRUARY)[1])

        with django_assert_num_queries(2):
            read = statements.issued(account_id=account.pk)

        assert read == [second, first]
        assert statements.find(account_id=account.pk, month=JANUARY) == first
        assert statements.find(account_id=account.pk, month=date(2026, 3, 1)) is None


class TestIssueDue:
    def test_issues_every_month_in_which_money_moved(self) -> None:
        account = make_account()
        make_account(micros=0)
        interval = start(account, at=BORDER + HOUR)
        close_interval(reference=interval.reference, ended_at=BORDER + 2 * HOUR)
        later = month_bounds(date(2026, 5, 1))[0]

        issued = [statements.issue_due(now=later + HOUR) for _ in range(2)]

        assert issued == [2, 0]
        months = Statement.objects.order_by("month").values_list("account", "month")
        assert list(months) == [(account.pk, JANUARY), (account.pk, FEBRUARY)]

    def test_waits_until_what_happened_before_midnight_is_written(self) -> None:
        make_account()

        assert statements.issue_due(now=BORDER + HOUR - SECOND) == 0
        assert statements.issue_due(now=BORDER + HOUR) == 1

    def test_goes_on_to_the_next_account_where_use_is_unconfirmed(self) -> None:
        waiting, ready = make_account(), make_account()
        start(waiting, at=BORDER - HOUR)

        assert statements.issue_due(now=BORDER + HOUR) == 1
        assert Statement.objects.get().account == ready

    def test_keeps_to_its_limit(self) -> None:
        for _ in range(2):
            make_account()

        issued = [statements.issue_due(now=BORDER + HOUR, limit=1) for _ in range(3)]

        assert issued == [1, 1, 0]


class TestPreview:
    def preview(self, account: Account, month: date, now: datetime) -> MonthlyStatement:
        return statements.preview(account_id=account.pk, month=month, now=now)

    def test_shows_what_is_used_and_not_charged_and_writes_nothing(self) -> None:
        account = make_account()
        interval = start(account)
        confirm(interval, at=NOON + HOUR)

        preview = self.preview(account, JANUARY, NOON + HOUR)

        usage = preview.lines[-1]
        assert (usage.seconds, usage.amount_micros) == (3600, -H100_MICROS)
        assert preview.closing_micros == funds.live_balance_micros(account.pk, NOON + HOUR)
        assert preview.issued_at is None
        assert not StatementLine.objects.exists()
        assert ledger.balance_micros(account.pk) == CREDIT

    def test_is_the_same_before_and_after_it_is_charged(self) -> None:
        interval = start(make_account(), at=BORDER - HOUR)
        confirm(interval, at=BORDER + HOUR)
        account = interval.account
        before = self.preview(account, FEBRUARY, BORDER + HOUR)

        charging.charge_due(now=BORDER + HOUR)

        assert self.preview(account, FEBRUARY, BORDER + HOUR) == before
        assert before.opening_micros == CREDIT - H100_MICROS
        assert before.lines[0].seconds == 3600
        assert before.adds_up

    def test_becomes_the_statement(self) -> None:
        account = make_account()
        interval = start(account, at=BORDER - HOUR)
        confirm(interval, at=BORDER + HOUR)
        charging.charge_due(now=BORDER + HOUR)
        preview = self.preview(account, JANUARY, BORDER + HOUR)

        issued = issue(account, now=BORDER + HOUR)

        assert issued.lines == preview.lines
        assert issued.closing_micros == preview.closing_micros


def test_a_year_of_statements_adds_up_to_the_ledger() -> None:
    account = make_account(micros=10**11)
    longest = start(account)
    for day in range(0, 365, 11):
        reference, at = uuid4(), NOON + timedelta(days=day)
        start(account, sku=longest.sku, reference=reference, at=at)
        close_interval(reference=reference, ended_at=at + timedelta(days=13, seconds=day))
    accounts.credit(
        account_id=account.pk,
        amount_micros=123,
        cause="a gift",
        kind=EntryKind.ADJUSTMENT,
        note="A gift",
        now=NOON + timedelta(days=100),
    )
    the_end = NOON + timedelta(days=400)
    close_interval(reference=longest.reference, ended_at=the_end)

    statements.issue_due(now=the_end + timedelta(days=40))

    issued = statements.issued(account_id=account.pk)
    assert [one.month for one in issued][:2] == [date(2027, 2, 1), date(2027, 1, 1)]
    assert len(issued) == 14
    assert all(one.adds_up for one in issued)
    assert all(later.opening_micros == one.closing_micros for later, one in pairwise(issued))
    assert issued[0].closing_micros == ledger.balance_micros(account.pk)
