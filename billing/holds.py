"""Money set aside at launch, so that what is admitted can be paid for a while."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from uuid import UUID

from billing import locking, prices
from billing.ledger import InsufficientFunds
from billing.locking import LockedAccount
from billing.models import Hold
from billing.rating.charge import needed_micros


def place(*, account_id: int, sku: str, reference: UUID, runway: timedelta, now: datetime) -> Hold:
    """Set aside what `runway` of the sku costs, and pin its price for this run of `reference`.

    Call it in a transaction. The account must be able to pay `runway` of all that runs and of
    this one. It is locked, so of two launches at once the second counts the first.

    Raises InsufficientFunds or UnknownPrice; nothing is written then.
    """
    account = locking.lock(account_id)
    price = prices.price_at(sku, now)
    rate = account.burn_micros_per_hour + price.micros_per_hour
    needed = needed_micros(micros_per_hour=rate, runway=runway)
    available = account.available_micros(now)
    if available < needed:
        raise InsufficientFunds(
            f"All that would run, for {runway // timedelta(minutes=1)} minutes,",
            needed_micros=needed,
            available_micros=available,
        )
    hold = Hold.objects.create(
        account_id=account_id,
        reference=reference,
        price=price,
        amount_micros=needed_micros(micros_per_hour=price.micros_per_hour, runway=runway),
        placed_at=now,
    )
    account.held_micros += hold.amount_micros
    account.reckon()
    account.save()
    return hold


def release(
    accounts: Mapping[int, LockedAccount], references: Collection[UUID], *, now: datetime
) -> list[Hold]:
    """Give back what locked accounts hold for `references`; returns what was held."""
    held = Hold.objects.filter(
        account__in=accounts, reference__in=references, released_at=None
    ).select_related("price")
    released = list(held)
    if released:
        Hold.objects.filter(pk__in=[hold.pk for hold in released]).update(released_at=now)
    for hold in released:
        accounts[hold.account_id].held_micros -= hold.amount_micros
    return released
