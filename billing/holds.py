"""Money set aside at launch, so that what is admitted can be paid for a while."""

from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction

from billing import funds, prices
from billing.ledger import InsufficientFunds
from billing.models import Hold
from billing.rating.charge import needed_micros


@transaction.atomic
def place(*, account_id: int, sku: str, reference: UUID, runway: timedelta, now: datetime) -> Hold:
    """Set aside what `runway` of the sku costs, and pin its price for this run of `reference`.

    The account must be able to pay `runway` of all that runs and of this one. It is locked, so
    of two launches at once the second counts the first.

    Raises InsufficientFunds or UnknownPrice; nothing is written then.
    """
    funds.lock(account_id)
    price = prices.price_at(sku, now)
    balance = funds.admissible(account_id, now)
    needed = needed_micros(
        micros_per_hour=balance.burn_micros_per_hour + price.micros_per_hour, runway=runway
    )
    if balance.available_micros < needed:
        raise InsufficientFunds(
            f"All that would run, for {runway // timedelta(minutes=1)} minutes,",
            needed_micros=needed,
            available_micros=balance.available_micros,
        )
    hold = Hold.objects.create(
        account_id=account_id,
        reference=reference,
        price=price,
        amount_micros=needed_micros(micros_per_hour=price.micros_per_hour, runway=runway),
        placed_at=now,
    )
    funds.reckon(account_id)
    return hold


@transaction.atomic(savepoint=False)
def release(*, reference: UUID, now: datetime) -> bool:
    """Give back what is held for `reference`. Returns False where nothing is."""
    hold = Hold.objects.filter(reference=reference, released_at=None).first()
    if hold is None:
        return False
    funds.lock(hold.account_id)
    released = Hold.objects.filter(pk=hold.pk, released_at=None).update(released_at=now)
    funds.reckon(hold.account_id)
    return bool(released)
