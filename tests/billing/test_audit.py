"""The audit finds each kind of difference, planted behind the database's back."""

import logging
from datetime import datetime
from uuid import UUID, uuid4

import pytest
from django.db import connection

from billing import audit, charging, statements, tasks
from billing.models import Account, UsageInterval
from billing.rating.intervals import month_bounds, month_of
from tests.billing.factories import (
    HOUR,
    NOON,
    SECOND,
    close_interval,
    confirm,
    make_account,
    start,
)

pytestmark = pytest.mark.django_db

MONTH = month_of(NOON)
LATER = month_bounds(MONTH)[1] + HOUR


def plant(sql: str, *params: int | UUID | datetime) -> None:
    """Write what the database would refuse: no trigger and no constraint of ours stands."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(sql, params)
        cursor.execute("SET LOCAL session_replication_role = origin")


@pytest.fixture
def account() -> Account:
    """One that ran, was charged, stopped, ran again and got a statement."""
    account = make_account()
    interval = start(account)
    confirm(interval, at=NOON + HOUR)
    charging.charge_due(now=NOON + HOUR)
    close_interval(reference=interval.reference, ended_at=NOON + 2 * HOUR)
    statements.issue(account_id=account.pk, month=MONTH, now=LATER)
    running = start(account, sku=interval.sku, at=LATER)
    confirm(running, at=LATER + HOUR)
    charging.charge_due(now=LATER + HOUR)
    return account


@pytest.fixture
def closed(account: Account) -> UsageInterval:
    return UsageInterval.objects.get(account=account, ended_at__isnull=False)


@pytest.fixture
def running(account: Account) -> UsageInterval:
    return UsageInterval.objects.get(account=account, ended_at=None)


def found(now: datetime = LATER + HOUR) -> set[str]:
    return {difference.check for difference in audit.differences(now=now)}


class TestExamine:
    @pytest.mark.usefixtures("account")
    def test_finds_nothing_where_nothing_is_wrong_and_counts_what_it_compared(self) -> None:
        report = audit.examine(now=LATER + HOUR)

        assert report.differences == []
        assert report.counts == {
            "stored balance": 3,
            "charge of interval": 2,
            "entries of interval": 2,
            "account of entry": 3,
            "time of entry": 3,
            "end of interval": 1,
            "order of intervals": 2,
            "price of interval": 2,
            "age of charge": 1,
            "sum of statement": 1,
            "opening of statement": 1,
            "closing of statement": 1,
            "second of exhaustion": 1,
        }

    def test_finds_a_balance_that_its_entries_do_not_explain(self, account: Account) -> None:
        plant(
            "UPDATE billing_account SET balance_micros = balance_micros + 1 WHERE id = %s",
            account.pk,
        )

        [difference] = [
            one for one in audit.differences(now=LATER + HOUR) if one.check == "stored balance"
        ]

        assert difference.subject == account.code
        assert int(difference.found) == int(difference.expected) + 1
        assert str(difference) == (
            f"stored balance: {account.code} should be {difference.expected}, is {difference.found}"
        )

    def test_finds_an_entry_that_is_gone(self, closed: UsageInterval) -> None:
        plant(
            "DELETE FROM billing_ledgerentry WHERE interval_id = %s AND period_start = %s",
            closed.pk,
            NOON,
        )

        assert {"stored balance", "entries of interval", "closing of statement"} <= found()

    def test_finds_an_amount_that_was_changed(self, closed: UsageInterval) -> None:
        plant("UPDATE billing_ledgerentry SET amount_micros = 1 WHERE interval_id = %s", closed.pk)

        assert {"stored balance", "entries of interval"} <= found()

    def test_finds_a_charge_that_its_seconds_do_not_explain(self, closed: UsageInterval) -> None:
        plant(
            "UPDATE billing_usageinterval SET charged_micros = charged_micros + 1 WHERE id = %s",
            closed.pk,
        )

        assert found() == {"charge of interval", "entries of interval"}

    def test_finds_an_entry_of_another_account(self, closed: UsageInterval) -> None:
        plant(
            "UPDATE billing_ledgerentry SET debit_id = %s WHERE interval_id = %s",
            make_account().pk,
            closed.pk,
        )

        assert "account of entry" in found()

    def test_finds_a_second_that_two_entries_pay(self, closed: UsageInterval) -> None:
        plant(
            "UPDATE billing_ledgerentry SET period_start = period_start - interval '1 second'"
            " WHERE interval_id = %s AND period_start > %s",
            closed.pk,
            NOON,
        )

        assert found() == {"time of entry"}

    def test_finds_an_entry_over_a_month_border(self, closed: UsageInterval) -> None:
        plant(
            "UPDATE billing_ledgerentry SET period_end = %s WHERE interval_id = %s"
            " AND period_start > %s",
            LATER,
            closed.pk,
            NOON,
        )

        assert found() == {"time of entry"}

    def test_finds_an_end_that_is_not_charged(self, closed: UsageInterval) -> None:
        plant(
            "UPDATE billing_usageinterval SET ended_at = ended_at + interval '1 second'"
            " WHERE id = %s",
            closed.pk,
        )

        assert found() == {"end of interval"}

    def test_finds_two_intervals_of_one_reference_at_once(self, closed: UsageInterval) -> None:
        plant("ALTER TABLE billing_usageinterval DROP CONSTRAINT interval_never_overlaps")
        plant(
            "UPDATE billing_usageinterval SET reference = %s, started_at = %s"
            " WHERE ended_at IS NULL",
            closed.reference,
            NOON + HOUR,
        )

        assert "order of intervals" in found()

    def test_finds_a_rate_that_was_never_published(self, closed: UsageInterval) -> None:
        plant("UPDATE billing_usageinterval SET micros_per_hour = 1 WHERE id = %s", closed.pk)

        assert "price of interval" in found()

    def test_finds_what_nobody_charges(self, running: UsageInterval) -> None:
        confirm(running, at=LATER + 9 * HOUR)

        assert found(LATER + 3 * HOUR) == set()
        assert found(LATER + 3 * HOUR + SECOND) == {"age of charge"}

    @pytest.mark.parametrize(
        ("change", "checks"),
        [
            (
                "UPDATE billing_statement SET opening_micros = 1",
                {"sum of statement", "opening of statement"},
            ),
            (
                "UPDATE billing_statement SET closing_micros = 1",
                {"sum of statement", "closing of statement"},
            ),
        ],
    )
    @pytest.mark.usefixtures("account")
    def test_finds_a_statement_that_was_changed(self, change: str, checks: set[str]) -> None:
        plant(change)

        assert found() == checks

    @pytest.mark.usefixtures("account")
    def test_finds_a_line_that_is_gone(self) -> None:
        plant("DELETE FROM billing_statementline WHERE position = 0")

        assert found() == {"sum of statement"}

    def test_finds_a_second_of_exhaustion_that_is_not_what_it_should_be(
        self, account: Account
    ) -> None:
        plant(
            "UPDATE billing_account SET exhaust_at = exhaust_at + interval '1 second'"
            " WHERE id = %s",
            account.pk,
        )

        assert found() == {"second of exhaustion"}

    def test_gives_no_more_examples_than_anyone_reads(
        self, account: Account, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(audit, "DIFFERENCES_MAX", 1)
        plant(
            "UPDATE billing_usageinterval SET charged_micros = 0 WHERE account_id = %s", account.pk
        )

        report = audit.examine(now=LATER + HOUR)

        charges = [one for one in report.differences if one.check == "charge of interval"]
        assert len(charges) == 1
        assert report.counts["charge of interval"] == 2


Usage = dict[UUID, list[tuple[datetime, datetime | None]]]


class TestUsage:
    """What the room above says ran, against what was metered."""

    def compare(self, usage: Usage) -> list[str]:
        differences = audit.differences(now=LATER + HOUR, usage=usage)
        return [difference.subject for difference in differences]

    def test_agrees_to_the_second(self, closed: UsageInterval, running: UsageInterval) -> None:
        usage: Usage = {
            closed.reference: [(NOON + SECOND / 2, NOON + 2 * HOUR + SECOND / 3)],
            running.reference: [(LATER, None)],
            uuid4(): [(NOON, NOON + SECOND / 2)],
        }

        assert self.compare(usage) == []

    @pytest.mark.parametrize(
        "runs",
        [
            [(NOON, NOON + 2 * HOUR - SECOND)],
            [(NOON - SECOND, NOON + 2 * HOUR)],
            [(NOON, None)],
            [],
        ],
    )
    def test_differs_by_a_second(
        self,
        closed: UsageInterval,
        running: UsageInterval,
        runs: list[tuple[datetime, datetime | None]],
    ) -> None:
        usage: Usage = {
            closed.reference: runs,
            running.reference: [(LATER, None)],
        }

        assert self.compare(usage) == [str(closed.reference)]

    def test_differs_where_nothing_was_metered(
        self, closed: UsageInterval, running: UsageInterval
    ) -> None:
        unmetered = uuid4()
        usage: Usage = {
            closed.reference: [(NOON, NOON + 2 * HOUR)],
            running.reference: [(LATER, None)],
            unmetered: [(NOON, NOON + HOUR)],
        }

        assert self.compare(usage) == [str(unmetered)]

    def test_takes_runs_that_touch_as_one(
        self, closed: UsageInterval, running: UsageInterval
    ) -> None:
        usage: Usage = {
            closed.reference: [(NOON + HOUR, NOON + 2 * HOUR), (NOON, NOON + HOUR)],
            running.reference: [(LATER, None)],
        }

        assert self.compare(usage) == []


class TestAlarm:
    def test_is_an_error_in_the_log_for_each_difference(
        self, account: Account, caplog: pytest.LogCaptureFixture
    ) -> None:
        plant("UPDATE billing_account SET balance_micros = 0 WHERE id = %s", account.pk)

        with caplog.at_level(logging.ERROR):
            count = audit.alarm(now=LATER + HOUR)

        assert count == len(caplog.records) > 0
        assert {record.message for record in caplog.records} == {"ledger differs"}


class TestTicks:
    @pytest.mark.parametrize(
        "tick", [tasks.charge_usage, tasks.issue_statements, tasks.audit_ledger]
    )
    def test_swallow_words_that_they_do_not_know(self, tick: object) -> None:
        assert tick(sent_by="an older release") is None  # type: ignore[operator]
