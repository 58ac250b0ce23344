from datetime import timedelta
from uuid import uuid4

import pytest

from billing import funds, prices
from billing.ledger import InsufficientFunds
from billing.models import Hold
from billing.prices import UnknownPrice
from tests.billing.factories import (
    H100_MICROS,
    HOUR,
    NOON,
    confirm,
    make_account,
    make_price,
    place,
    release,
    start,
)

pytestmark = pytest.mark.django_db


class TestPlace:
    def test_sets_aside_what_the_runway_costs_and_pins_the_price(self) -> None:
        account, sku = make_account(), make_price()

        hold = place(
            account_id=account.pk,
            sku=sku,
            reference=uuid4(),
            runway=2 * HOUR,
            now=NOON,
        )

        assert hold.amount_micros == 2 * H100_MICROS
        assert hold.price == prices.price_at(sku, NOON)
        assert funds.balance(account.pk, NOON).available_micros == 100_000_000 - 2 * H100_MICROS

    def test_takes_an_account_down_to_nothing(self) -> None:
        account, sku = make_account(micros=H100_MICROS), make_price()

        place(
            account_id=account.pk,
            sku=sku,
            reference=uuid4(),
            runway=HOUR,
            now=NOON,
        )

        assert funds.balance(account.pk, NOON).available_micros == 0

    def test_refuses_a_micro_too_little_with_the_figures_and_writes_nothing(self) -> None:
        account, sku = make_account(micros=H100_MICROS - 1), make_price()

        with pytest.raises(InsufficientFunds) as refusal:
            place(
                account_id=account.pk,
                sku=sku,
                reference=uuid4(),
                runway=HOUR,
                now=NOON,
            )

        assert str(refusal.value) == (
            "All that would run, for 60 minutes, costs $2.49, and $2.48 is available."
        )
        assert not Hold.objects.exists()

    def test_counts_what_runs_and_what_is_held_already(self) -> None:
        account, sku = make_account(micros=4 * H100_MICROS), make_price()
        start(account)
        place(
            account_id=account.pk,
            sku=sku,
            reference=uuid4(),
            runway=HOUR,
            now=NOON,
        )

        # One hour is held, and what runs needs one more: two of four are free for one.
        with pytest.raises(InsufficientFunds) as refusal:
            place(
                account_id=account.pk,
                sku=sku,
                reference=uuid4(),
                runway=2 * HOUR,
                now=NOON,
            )

        assert refusal.value.needed_micros == 4 * H100_MICROS
        assert refusal.value.available_micros == 3 * H100_MICROS

    def test_counts_what_was_used_although_nobody_confirmed_it(self) -> None:
        account = make_account(micros=4 * H100_MICROS)
        interval = start(account)
        confirm(interval, at=NOON + HOUR / 2)
        later = NOON + 3 * HOUR

        with pytest.raises(InsufficientFunds) as refusal:
            place(
                account_id=account.pk,
                sku=interval.sku,
                reference=uuid4(),
                runway=HOUR,
                now=later,
            )

        assert refusal.value.available_micros == H100_MICROS
        assert funds.balance(account.pk, later).available_micros > H100_MICROS

    def test_shortens_how_long_the_rest_lasts(self) -> None:
        account = make_account(micros=4 * H100_MICROS)
        interval = start(account)

        place(
            account_id=account.pk,
            sku=interval.sku,
            reference=uuid4(),
            runway=HOUR,
            now=NOON,
        )

        assert funds.balance(account.pk, NOON).exhaust_at == NOON + 3 * HOUR

    def test_refuses_what_has_no_price(self) -> None:
        with pytest.raises(UnknownPrice):
            place(
                account_id=make_account().pk,
                sku="x",
                reference=uuid4(),
                runway=HOUR,
                now=NOON,
            )

        assert not Hold.objects.exists()


class TestRelease:
    def test_gives_the_money_back_once(self) -> None:
        account, sku, reference = make_account(), make_price(), uuid4()
        place(
            account_id=account.pk,
            sku=sku,
            reference=reference,
            runway=HOUR,
            now=NOON,
        )

        released = [release(reference=reference, now=NOON) for _ in range(2)]

        assert released == [True, False]
        assert funds.balance(account.pk, NOON).available_micros == 100_000_000

    def test_lets_the_rest_last_longer_again(self) -> None:
        account, reference = make_account(micros=4 * H100_MICROS), uuid4()
        interval = start(account)
        place(
            account_id=account.pk,
            sku=interval.sku,
            reference=reference,
            runway=HOUR,
            now=NOON,
        )

        release(reference=reference, now=NOON + timedelta(minutes=1))

        assert funds.balance(account.pk, NOON).exhaust_at == NOON + 4 * HOUR
