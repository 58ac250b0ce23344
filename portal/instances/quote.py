"""What a launch would mean, said before it is made: the card beside the launch form."""

from dataclasses import dataclass
from datetime import datetime

from billing import funds
from portal.accounts.models import Team
from portal.catalog.models import Plan
from portal.instances.operations.admission import gpus_in_use, price_per_hour


@dataclass(frozen=True)
class Quote:
    """Price, money, quota and capacity for one plan, at one moment. Promises nothing."""

    plan: Plan
    micros_per_hour: int | None
    available_micros: int
    gpus_in_use: int
    gpu_quota: int
    free_now: int
    simulated: bool

    @property
    def within_quota(self) -> bool:
        return self.gpus_in_use + self.plan.gpu_count <= self.gpu_quota

    @property
    def whole_hours(self) -> int:
        """How many full hours the available credit pays for this plan alone."""
        return max(self.available_micros, 0) // (self.micros_per_hour or 1)


def quote(*, team: Team, plan: Plan, now: datetime) -> Quote:
    """Read-only; the launch itself checks everything again under the team's lock."""
    availability = getattr(plan, "availability", None)
    return Quote(
        plan=plan,
        micros_per_hour=price_per_hour(plan, now=now),
        available_micros=funds.balance(team.account_id, now=now).available_micros,
        gpus_in_use=gpus_in_use(team),
        gpu_quota=team.gpu_quota,
        free_now=availability.free_now if availability else 0,
        simulated=bool(availability and availability.simulated),
    )
