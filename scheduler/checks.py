"""Settings that must fit together."""

from typing import Any

from django.conf import settings
from django.core.checks import Error, register


@register()
def lease_outlives_three_syncs(**_: Any) -> list[Error]:
    """A node that misses two syncs must not lose what it runs."""
    if 3 * max(settings.AGENT_SYNC_INTERVAL, settings.AGENT_SYNC_HOLD) <= settings.LEASE_DURATION:
        return []
    return [
        Error(
            "LEASE_DURATION must be at least three syncs long.",
            hint="With less, one lost packet ends a customer's instance.",
            id="scheduler.E001",
        )
    ]


@register()
def a_held_sync_keeps_its_node_in_sight(**_: Any) -> list[Error]:
    """A node that waits for orders must not look suspect."""
    if settings.AGENT_SYNC_HOLD < settings.NODE_SUSPECT_AFTER < settings.NODE_UNREACHABLE_AFTER:
        return []
    return [
        Error(
            "AGENT_SYNC_HOLD, NODE_SUSPECT_AFTER and NODE_UNREACHABLE_AFTER must grow in order.",
            hint="A node is silent while its sync is held open.",
            id="scheduler.E002",
        )
    ]
