"""Money set aside at launch, before it is spent; a hold pins the price of the run to come."""

from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction

from billing import funds, prices
from billing.ledger import InsufficientFunds
from billing.models import Hold
from billing.rating.money import format_micros


@transaction.atomic
def place(*, account_id: int, sku: str, reference: UUID, runway: timedelta, now: datetime) -> Hold:
    """Set aside what `sku` costs for `runway`.

    What is available must pay `runway` of all that runs, of all that is held for, and of this.
    Raises InsufficientFunds, which names the figures, or UnknownPrice.
    """
    funds.lock(account_id)
    price = prices.price_at(sku, now)
    amount = price.micros_per_hour * int(runway.total_seconds()) // 3600
    balance = funds.balance(account_id, now=now)
    running = balance.burn_micros_per_hour * int(runway.total_seconds()) // 3600
    available = balance.available_micros - running
    if available < amount:
        hours = runway / timedelta(hours=1)
        raise InsufficientFunds(
            f"{format_micros(amount)} is needed to start ({hours:g} h), and "
            f"{format_micros(max(available, 0))} is free to use."
        )
    hold = Hold.objects.create(
        account_id=account_id, reference=reference, price=price, amount_micros=amount, placed_at=now
    )
    funds.reckon(account_id)
    return hold


@transaction.atomic
def release(*, reference: UUID, now: datetime) -> Hold | None:
    """Give the money back. Returns None where nothing was held: releasing twice is harmless."""
    hold = Hold.objects.filter(reference=reference, released_at=None).first()
    if hold is None:
        return None
    funds.lock(hold.account_id)
    if not Hold.objects.filter(pk=hold.pk, released_at=None).update(released_at=now):
        return None
    funds.reckon(hold.account_id)
    return hold
