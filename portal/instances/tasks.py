"""Ticks of the instances room."""

from celery import shared_task
from django.utils import timezone

from portal.instances.operations import ending


@shared_task(name="portal.stop_unfunded")
def stop_unfunded(**_: object) -> None:
    """Tick. Safe to run late, twice, or at the same time as itself."""
    ending.stop_unfunded(now=timezone.now())
