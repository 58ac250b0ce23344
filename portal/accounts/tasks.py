from celery import shared_task
from django.utils import timezone

from portal.accounts import operations


@shared_task(name="portal.forget_replies", ignore_result=True)
def forget_replies(**_: object) -> None:
    """Tick. Safe to run late, twice, or at the same time as itself: it only deletes old rows."""
    operations.forget_replies(now=timezone.now())
