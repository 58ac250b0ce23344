"""What ran when, read from the events alone: the other side of the audit of the ledger."""

from collections import defaultdict
from datetime import datetime
from uuid import UUID

from portal.instances.models import InstanceEvent, State


def runs() -> dict[UUID, list[tuple[datetime, datetime | None]]]:
    """Per instance, the spans [ready, meter closed) that its events tell of; None: still open."""
    spans: dict[UUID, list[tuple[datetime, datetime | None]]] = defaultdict(list)
    opened: dict[UUID, datetime] = {}
    events = InstanceEvent.objects.order_by("instance_id", "id")
    for event in events.only("instance_id", "state", "effective_at").iterator():
        started_at = opened.pop(event.instance_id, None)
        if started_at is not None:
            spans[event.instance_id].append((started_at, event.effective_at))
        if event.state == State.RUNNING:
            opened[event.instance_id] = event.effective_at
    for instance_id, started_at in opened.items():
        spans[instance_id].append((started_at, None))
    return dict(spans)
