"""The ledger, and what the database refuses whoever asks."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing import accounts, ledger, prices, statements
from billing.ledger import CauseTaken, InsufficientFunds
from billing.models import Account, EntryKind, LedgerEntry, UsageInterval
from billing.rating.intervals import month_of
from tests.billing.factories import HOUR, NOON, make_account, make_price, rolled_back, start

pytestmark = pytest.mark.django_db

DOLLAR = 1_000_000


def post(debit: Account, credit: Account, micros: int = DOLLAR, **fields: Any) -> bool:
    defaults: dict[str, Any] = {
        "kind": EntryKind.ADJUSTMENT,
        "cause": str(uuid4()),
        "at": NOON,
    }
    return ledger.post(
        debit_id=debit.pk, credit_id=credit.pk, amount_micros=micros, **(defaults | fields)
    )


def usage(
    debit: Account, credit: Account, cause: str, *, micros: int = DOLLAR, at: datetime = NOON
) -> LedgerEntry:
    """An entry, not posted yet, for the hour from noon on."""
    return LedgerEntry(
        debit=debit,
        credit=credit,
        amount_micros=micros,
        kind=EntryKind.USAGE,
        cause=cause,
        period_start=NOON,
        period_end=NOON + HOUR,
        posted_at=at,
    )


def run(sql: str, *params: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql, params)


@pytest.fixture
def house() -> Account:
    return accounts.system_account("revenue:compute")


class TestPost:
    def test_moves_money_from_one_account_to_another(self, house: Account) -> None:
        account = make_account(micros=5 * DOLLAR)

        assert post(account, house, 2 * DOLLAR)

        assert ledger.balance_micros(account.pk) == 3 * DOLLAR
        assert ledger.balance_micros(house.pk) == 2 * DOLLAR

    def test_moves_it_once_for_each_cause(self, house: Account) -> None:
        account = make_account(micros=5 * DOLLAR)

        posted = [post(account, house, cause="usage:1:1") for _ in range(3)]

        assert posted == [True, False, False]
        assert ledger.balance_micros(account.pk) == 4 * DOLLAR

    def test_refuses_a_cause_that_was_posted_with_other_figures(self, house: Account) -> None:
        account = make_account(micros=5 * DOLLAR)
        post(account, house, cause="usage:1:1")

        with pytest.raises(CauseTaken):
            post(account, house, 2, cause="usage:1:1")

        assert ledger.balance_micros(account.pk) == 4 * DOLLAR

    def test_stops_at_the_floor_and_writes_nothing(self, house: Account) -> None:
        account = make_account(micros=5 * DOLLAR)
        entries = LedgerEntry.objects.count()

        with pytest.raises(InsufficientFunds) as refusal:
            post(account, house, 5 * DOLLAR + 1)

        assert str(refusal.value) == "This costs $5.01, and $5.00 is available."
        assert LedgerEntry.objects.count() == entries
        assert ledger.balance_micros(account.pk) == 5 * DOLLAR

    def test_spends_to_the_last_micro(self, house: Account) -> None:
        account = make_account(micros=5 * DOLLAR)

        post(account, house, 5 * DOLLAR)

        assert ledger.balance_micros(account.pk) == 0

    @pytest.mark.parametrize("micros", [0, -1, 10**15 + 1])
    def test_refuses_what_is_no_amount(self, house: Account, micros: int) -> None:
        with pytest.raises(ValueError, match=r"positive|bounds"):
            post(make_account(), house, micros)

    @pytest.mark.parametrize("micros", [1.0, True, "1", float("nan")])
    def test_refuses_what_is_no_integer(self, house: Account, micros: Any) -> None:
        with pytest.raises(TypeError):
            post(make_account(), house, micros)

    def test_refuses_to_mix_currencies(self) -> None:
        euros = accounts.open_account(code="team:euros", currency="EUR")

        with pytest.raises(IntegrityError, match="one currency"):
            post(make_account(), euros)

    def test_refuses_an_account_as_both_ends(self) -> None:
        account = make_account()

        with pytest.raises(IntegrityError, match="entry_moves_between_two_accounts"):
            post(account, account)

    @given(
        moves=st.lists(
            st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3 * DOLLAR)),
            max_size=12,
        )
    )
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    def test_creates_no_money_and_breaks_no_floor(self, moves: list[tuple[int, int, int]]) -> None:
        with rolled_back():
            self.check_moves(moves)

    def check_moves(self, moves: list[tuple[int, int, int]]) -> None:
        all_of_them = [make_account(micros=5 * DOLLAR) for _ in range(3)]
        all_of_them.append(accounts.system_account("revenue:compute"))
        before = sum(ledger.sum_of_entries(account.pk) for account in all_of_them)

        for debit, credit, micros in moves:
            try:
                with transaction.atomic():
                    post(all_of_them[debit], all_of_them[credit], micros)
            except (InsufficientFunds, IntegrityError):
                continue

        balances = [ledger.balance_micros(account.pk) for account in all_of_them]
        assert balances == [ledger.sum_of_entries(account.pk) for account in all_of_them]
        assert sum(balances) == before
        assert min(balances[:3]) >= 0


class TestPostAll:
    def test_moves_each_cause_once_in_one_statement(
        self, house: Account, django_assert_num_queries: Callable[[int], Any]
    ) -> None:
        account = make_account(micros=5 * DOLLAR)
        ledger.post_all([usage(account, house, "usage:1:1")])

        with django_assert_num_queries(1):
            posted = ledger.post_all(
                [usage(account, house, f"usage:{number}:2") for number in range(3)]
            )
        again = ledger.post_all(
            [usage(account, house, cause) for cause in ("usage:1:1", "usage:3:2")]
        )

        assert (posted, again) == (3, 1)
        assert ledger.balance_micros(account.pk) == 0
        assert ledger.balance_micros(house.pk) == 5 * DOLLAR

    def test_stops_at_the_floor_and_writes_none(self, house: Account) -> None:
        account = make_account(micros=DOLLAR)
        entries = [usage(account, house, f"usage:{number}:1") for number in range(2)]

        with pytest.raises(IntegrityError, match=ledger.FLOOR), transaction.atomic():
            ledger.post_all(entries)

        assert ledger.balance_micros(account.pk) == DOLLAR

    def test_refuses_a_cause_that_was_posted_with_other_figures(self, house: Account) -> None:
        account = make_account(micros=5 * DOLLAR)
        ledger.post_all([usage(account, house, "usage:1:1")])
        entries = [usage(account, house, cause, micros=2) for cause in ("usage:1:1", "usage:2:1")]

        with pytest.raises(CauseTaken), transaction.atomic():
            ledger.post_all(entries)

        assert ledger.balance_micros(account.pk) == 4 * DOLLAR

    def test_refuses_what_is_no_amount(self, house: Account) -> None:
        account = make_account(micros=5 * DOLLAR)
        entries = [usage(account, house, "one"), usage(account, house, "two", micros=0)]

        with pytest.raises(ValueError, match="positive"):
            ledger.post_all(entries)

        assert ledger.balance_micros(account.pk) == 5 * DOLLAR


class TestBalance:
    def test_of_a_floored_account_is_read_without_its_entries(
        self, django_assert_num_queries: Callable[[int], Any]
    ) -> None:
        account = make_account()

        with django_assert_num_queries(1):
            ledger.balance_micros(account.pk)

    def test_counts_what_belongs_to_earlier_times(self, house: Account) -> None:
        account = make_account(micros=5 * DOLLAR, now=NOON)
        ledger.post_all([usage(account, house, "usage:1:1", at=NOON + 2 * HOUR)])

        assert ledger.sum_of_entries(account.pk, before=NOON) == 0
        assert ledger.sum_of_entries(account.pk, before=NOON + HOUR / 2) == 4 * DOLLAR


# By what they attack: (statement, what the database says to it).
ATTACKS = {
    "an amount": "UPDATE billing_ledgerentry SET amount_micros = 1",
    "an entry": "DELETE FROM billing_ledgerentry",
    "a balance": "UPDATE billing_account SET balance_micros = balance_micros + 1",
    "a floor": "UPDATE billing_account SET floor_micros = NULL",
    "a currency": "UPDATE billing_account SET currency = 'EUR'",
    "an account that opens rich": (
        "INSERT INTO billing_account (code, currency, floor_micros, balance_micros)"
        " VALUES ('x', 'USD', 0, 1)"
    ),
    "a price": "UPDATE billing_price SET micros_per_hour = 0",
    "the start of what was used": "UPDATE billing_usageinterval SET started_at = now()",
    "the rate of what was used": "UPDATE billing_usageinterval SET micros_per_hour = 0",
    "what was used": "DELETE FROM billing_usageinterval",
    "a price book": "UPDATE billing_pricebook SET effective_from = now()",
}


class TestTheDatabase:
    @pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
    def test_refuses_to_rewrite(self, attack: str) -> None:
        start(make_account())

        with pytest.raises(IntegrityError):
            run(attack)

    @pytest.mark.parametrize(
        ("table", "trigger"),
        [
            ("billing_ledgerentry", "entry_is_never_truncated"),
            ("billing_statementline", "line_is_never_truncated"),
        ],
    )
    @pytest.mark.parametrize("how", ["", "CASCADE"])
    def test_refuses_to_empty_the_books(self, table: str, trigger: str, how: str) -> None:
        # Tests that commit need it disabled (tests/conftest.py); this one is rolled back.
        run(f"ALTER TABLE {table} ENABLE TRIGGER {trigger}")

        with pytest.raises(IntegrityError, match="append-only"):
            run(f"TRUNCATE {table} {how}")

    @pytest.mark.parametrize("table", ["billing_account", "billing_price", "billing_usageinterval"])
    def test_refuses_to_empty_what_the_books_rest_on(self, table: str) -> None:
        run("ALTER TABLE billing_ledgerentry ENABLE TRIGGER entry_is_never_truncated")

        with pytest.raises(IntegrityError, match="append-only"):
            run(f"TRUNCATE {table} CASCADE")

    def test_refuses_to_reopen_what_has_ended(self) -> None:
        interval = start(make_account())
        UsageInterval.objects.filter(pk=interval.pk).update(ended_at=NOON)

        with pytest.raises(IntegrityError, match="not rewritten"):
            run("UPDATE billing_usageinterval SET ended_at = NULL")

    def test_refuses_to_bill_a_second_of_one_reference_twice(self) -> None:
        interval = start(make_account())
        UsageInterval.objects.filter(pk=interval.pk).update(
            ended_at=NOON + HOUR, charged_until=NOON + HOUR
        )

        with pytest.raises(IntegrityError, match="interval_never_overlaps"), transaction.atomic():
            UsageInterval.objects.create(
                account_id=interval.account_id,
                reference=interval.reference,
                price=interval.price,
                sku=interval.sku,
                micros_per_hour=interval.micros_per_hour,
                started_at=NOON + HOUR / 2,
                confirmed_at=NOON + HOUR / 2,
                charged_until=NOON + HOUR / 2,
            )

    def test_lets_no_entry_into_a_month_that_is_issued(self, house: Account) -> None:
        account = make_account(now=NOON)
        issued = month_of(NOON)
        statements.issue(account_id=account.pk, month=issued, now=NOON + timedelta(days=40))

        with pytest.raises(IntegrityError, match="month is issued"):
            post(account, house, at=NOON)

        assert post(account, house, at=NOON + timedelta(days=31))

    def test_keeps_what_is_refused_out_of_a_price_book(self) -> None:
        sku = make_price()
        books = prices.current_rates(NOON)

        with pytest.raises(IntegrityError):
            run("UPDATE billing_price SET micros_per_hour = -1 WHERE sku = %s", sku)

        assert prices.current_rates(NOON) == books
