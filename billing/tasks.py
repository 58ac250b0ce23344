"""The periodic jobs of billing."""

from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from billing import audit, charging, metering, statements

# Pages count to the second without it; one row an hour keeps the ledger small.
CHARGE_EVERY = timedelta(hours=1)


@shared_task(name="billing.charge_usage", ignore_result=True)
def charge_usage(**_: object) -> None:
    """Tick. Safe to run late, twice, or at the same time as itself."""
    now = timezone.now()
    metering.apply_price_decreases(now=now)
    charging.charge_due(now=now, every=CHARGE_EVERY)


@shared_task(name="billing.issue_statements", ignore_result=True)
def issue_statements(**_: object) -> None:
    """Tick. Safe to run late, twice, or at the same time as itself."""
    statements.issue_due(now=timezone.now())


@shared_task(name="billing.audit_ledger", ignore_result=True)
def audit_ledger(**_: object) -> None:
    """Tick. Reads only; every difference is an error in the log."""
    audit.alarm(now=timezone.now())
