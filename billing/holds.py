"""Money set aside at launch, so that what is admitted can be paid for a while."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from uuid import UUID

from billing.ledger import InsufficientFunds
from billing.locking import LockedAccount
from billing.models import Hold, Price
from billing.rating.charge import needed_micros
from database.compiled import Compiled, param


def place(
    account: LockedAccount, *, price: Price, reference: UUID, runway: timedelta, now: datetime
) -> Hold:
    """Set aside what `runway` costs at `price`, and pin that for this run of `reference`.

    The account must be able to pay `runway` of all that runs and of this one. It is locked, so of
    two launches at once the second counts the first.

    Raises InsufficientFunds; nothing is written then.
    """
    require(
        account.available_micros(now),
        micros_per_hour=account.burn_micros_per_hour + price.micros_per_hour,
        runway=runway,
    )
    hold = Hold.objects.create(
        account_id=account.pk,
        reference=reference,
        price=price,
        amount_micros=needed_micros(micros_per_hour=price.micros_per_hour, runway=runway),
        placed_at=now,
    )
    account.held_micros += hold.amount_micros
    account.reckon()
    account.save()
    return hold


def require(available_micros: int, *, micros_per_hour: int, runway: timedelta) -> None:
    """Raises InsufficientFunds where an account cannot pay `runway` of all that would run."""
    needed = needed_micros(micros_per_hour=micros_per_hour, runway=runway)
    if available_micros < needed:
        raise InsufficientFunds(
            f"All that would run, for {runway // timedelta(minutes=1)} minutes,",
            needed_micros=needed,
            available_micros=available_micros,
        )


_HELD = Compiled(
    lambda: Hold.objects.filter(
        account__any=param("accounts"), reference__any=param("references"), released_at=None
    ).values_list(
        *("pk", "account", "reference", "amount_micros"),
        *("price", "price__sku", "price__micros_per_hour"),
    )
)


def release(
    accounts: Mapping[int, LockedAccount], references: Collection[UUID], *, now: datetime
) -> list[Hold]:
    """Give back what locked accounts hold for `references`; returns what was held."""
    released = [
        Hold(
            pk=pk,
            account_id=account_id,
            reference=reference,
            amount_micros=micros,
            price=Price(pk=price_id, sku=sku, micros_per_hour=rate),
        )
        for pk, account_id, reference, micros, price_id, sku, rate in _HELD(
            accounts=list(accounts), references=list(references)
        )
    ]
    if released:
        Hold.objects.filter(pk__in=[hold.pk for hold in released]).update(released_at=now)
    for hold in released:
        accounts[hold.account_id].held_micros -= hold.amount_micros
    return released
