"""Ticks of the scheduler room."""

from celery import shared_task
from django.utils import timezone

from portal import hints
from scheduler import availability, cycle, leases


@shared_task(name=hints.SCHEDULER_CYCLE)
def run_cycle(**_: object) -> None:
    """Tick, and hinted. Safe to run late, twice, or at the same time as itself."""
    with cycle.alone():
        hints.begin_task(hints.SCHEDULER_CYCLE)
        cycle.run(now=timezone.now())


@shared_task(name="scheduler.publish_availability")
def publish_availability(**_: object) -> None:
    """Tick. Safe to run late, twice, or at the same time as itself."""
    availability.publish(now=timezone.now())


@shared_task(name="scheduler.expire_leases")
def expire_leases(**_: object) -> None:
    """Tick. Safe to run late, twice, or at the same time as itself."""
    leases.expire(now=timezone.now())
