"""Settings that must fit together."""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.checks import Error, register


@register()
def shown_cost_outlives_a_report(**_: Any) -> list[Error]:
    """Between two reports of a node, the cost on a page must not stand still."""
    between = settings.AGENT_SYNC_INTERVAL + settings.AGENT_SYNC_HOLD
    if between <= settings.CONFIRMATION_TOLERANCE:
        return []
    return [
        Error(
            "CONFIRMATION_TOLERANCE must be at least AGENT_SYNC_INTERVAL + AGENT_SYNC_HOLD.",
            hint="With less, costs stop and jump while everything works.",
            id="billing.E001",
        )
    ]


@register()
def money_settings_are_amounts(**_: Any) -> list[Error]:
    """A launch needs some runway, and a trial credit cannot be a debt."""
    if timedelta(0) < settings.LAUNCH_RUNWAY and settings.TRIAL_CREDIT_MICROS >= 0:
        return []
    return [
        Error(
            "LAUNCH_RUNWAY must be positive, and TRIAL_CREDIT_MICROS not negative.",
            id="billing.E002",
        )
    ]
