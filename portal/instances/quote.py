"""What a launch would mean, said before it is made: the pre-flight card of the form and the API."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings

from billing import funds, holds
from billing.funds import Balance
from billing.ledger import InsufficientFunds
from portal.accounts.models import Member
from portal.accounts.roles import Permission
from portal.catalog.models import Availability, Plan
from portal.errors import DomainError
from portal.instances import queue
from portal.instances.operations import admission
from portal.instances.operations.admission import (
    FundsTooLow,
    LaunchRequest,
    NotPriced,
    Standing,
)


@dataclass(frozen=True)
class Quote:
    """Price, money, quota and capacity for one launch, at one moment. Promises nothing.

    `refusal` is what the launch would be refused with now; None: it would be admitted. `place` is
    where it would stand in the queue, counted from 1, and `gpus_ahead` how many GPUs of its model
    are waited for before it.
    """

    plan: Plan
    refusal: DomainError | None
    micros_per_hour: int | None
    balance: Balance
    gpus_in_use: int
    gpu_quota: int
    free_now: int
    simulated: bool
    place: int
    gpus_ahead: int

    @property
    def within_quota(self) -> bool:
        return self.gpus_in_use + self.plan.gpu_count <= self.gpu_quota

    @property
    def starts_at_once(self) -> bool:
        return self.free_now > 0 and self.gpus_ahead == 0

    @property
    def whole_hours(self) -> int:
        """How many full hours the available credit pays for this plan alone."""
        return max(self.balance.available_micros, 0) // (self.micros_per_hour or 1)

    @property
    def runway(self) -> timedelta | None:
        """How long the credit pays for all that runs and this; None: not priced, or for ever."""
        burn = self.balance.burn_micros_per_hour + (self.micros_per_hour or 0)
        if self.micros_per_hour is None or burn == 0:
            return None
        return timedelta(seconds=max(self.balance.available_micros, 0) * 3600 // burn)


def quote(*, actor: Member, request: LaunchRequest, now: datetime) -> Quote:
    """Read without a lock; the launch itself checks everything again under one."""
    team, plan = actor.team, request.plan
    availability = Availability.objects.filter(plan=plan).first()
    price = admission.current_price(plan, now=now)
    rate = price.micros_per_hour if price else None
    balance = funds.balance(team.account_id, now=now)
    standing = admission.standing_of(team)
    place, gpus_ahead = queue.end_for(team, plan.gpu_model)
    return Quote(
        plan=plan,
        refusal=_refusal(actor, request, standing, rate=rate, balance=balance),
        micros_per_hour=rate,
        balance=balance,
        gpus_in_use=standing.gpus_in_use,
        gpu_quota=standing.gpu_quota,
        free_now=availability.free_now if availability else 0,
        simulated=bool(availability and availability.simulated),
        place=place,
        gpus_ahead=gpus_ahead,
    )


def _refusal(
    actor: Member, request: LaunchRequest, standing: Standing, *, rate: int | None, balance: Balance
) -> DomainError | None:
    """The first thing that `launch` would stumble over, in its own order."""
    try:
        actor.require(Permission.LAUNCH)
        admission.check_request(request)
        admission.check_allowed(standing, request.plan, request.image)
        if rate is None:
            raise NotPriced(request.plan.sku)
        _check_funds(balance, rate)
    except DomainError as refusal:
        return refusal
    return None


def _check_funds(balance: Balance, rate: int) -> None:
    try:
        holds.require(
            balance.available_micros,
            micros_per_hour=balance.burn_micros_per_hour + rate,
            runway=settings.LAUNCH_RUNWAY,
        )
    except InsufficientFunds as refusal:
        raise FundsTooLow(refusal) from refusal
