from datetime import timedelta

import pytest

from billing import accounts, funds, ledger
from billing.ledger import CauseTaken
from billing.models import Account, EntryKind, LedgerEntry
from tests.billing.factories import HOUR, NOON, make_account, start

pytestmark = pytest.mark.django_db


class TestOpenAccount:
    def test_opens_it_empty_and_prepaid(self) -> None:
        account = accounts.open_account(code="team:1")

        assert (account.balance_micros, account.floor_micros, account.currency) == (0, 0, "USD")


class TestSystemAccount:
    def test_is_made_when_first_used_and_has_no_floor(self) -> None:
        made = [accounts.system_account("goodwill") for _ in range(2)]

        assert made[0] == made[1]
        assert made[0].floor_micros is None


class TestGrantTrialCredit:
    def test_gives_it_once(self) -> None:
        account = make_account(micros=0)

        given = [
            accounts.grant_trial_credit(account_id=account.pk, amount_micros=10, now=NOON)
            for _ in range(2)
        ]

        assert given == [True, False]
        assert ledger.balance_micros(account.pk) == 10
        assert ledger.balance_micros(accounts.system_account("promo_expense").pk) == -10

    def test_gives_no_second_one_of_another_size(self) -> None:
        account = make_account(micros=10)

        with pytest.raises(CauseTaken):
            accounts.grant_trial_credit(account_id=account.pk, amount_micros=11, now=NOON)

        assert ledger.balance_micros(account.pk) == 10

    def test_of_nought_posts_nothing(self) -> None:
        account = make_account(micros=0)

        assert not accounts.grant_trial_credit(account_id=account.pk, amount_micros=0, now=NOON)
        assert not LedgerEntry.objects.exists()


class TestCredit:
    def credit(self, account: Account, micros: int, kind: EntryKind = EntryKind.TOP_UP) -> bool:
        return accounts.credit(
            account_id=account.pk,
            amount_micros=micros,
            cause="top-up:1",
            kind=kind,
            note="By card",
            now=NOON,
        )

    def test_lets_what_runs_go_on_for_longer(self) -> None:
        account = make_account(micros=2_490_000)
        start(account)

        self.credit(account, 2_490_000)

        assert funds.balance(account.pk, NOON).exhaust_at == NOON + 2 * HOUR

    def test_comes_from_where_its_kind_says(self) -> None:
        self.credit(make_account(micros=0), 7)

        assert ledger.balance_micros(accounts.system_account("stripe:clearing").pk) == -7

    def test_knows_no_credit_of_usage(self) -> None:
        account = make_account(micros=0)

        with pytest.raises(KeyError):
            self.credit(account, 7, EntryKind.USAGE)

        assert ledger.balance_micros(account.pk) == 0

    def test_is_named_in_the_ledger(self) -> None:
        self.credit(make_account(micros=0), 7)

        entry = LedgerEntry.objects.get()
        assert (entry.kind, entry.note, entry.posted_at) == ("top_up", "By card", NOON)
        assert entry.period_end - entry.period_start == timedelta(0)
