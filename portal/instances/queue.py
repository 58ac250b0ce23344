"""The queue as one team may see it: everyone's places, but only its own names."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Count, Q, Sum

from portal.accounts.models import Team
from portal.instances.models import Instance, State

SHOWN = 200


@dataclass(frozen=True, slots=True)
class Own:
    """What a team may know of its own waiting instance."""

    id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class Place:
    """One waiting instance; `gpus_ahead` counts its GPU model only. None: another team's."""

    place: int
    gpus_ahead: int
    gpu_model: str
    gpu_count: int
    queued_at: datetime
    instance: Own | None


@dataclass(frozen=True, slots=True)
class Queue:
    """How much waits, and the places that are shown: the first ones, and all of the team's."""

    waiting: int
    gpus_wanted: int
    results: tuple[Place, ...]


def end_for(team: Team, gpu_model: str) -> tuple[int, int]:
    """Where a launch of `team` would stand, from 1, and the GPUs of a model wanted before it."""
    ahead = Instance.objects.filter(
        state=State.QUEUED, team__priority_class__gte=team.priority_class
    ).aggregate(
        instances=Count("pk"),
        gpus=Sum("plan__gpu_count", filter=Q(plan__gpu_model=gpu_model)),
    )
    return ahead["instances"] + 1, ahead["gpus"] or 0


def seen_by(team: Team) -> Queue:
    """One query, whatever waits; the names of other teams' instances never leave it."""
    ahead: Counter[str] = Counter()
    places = []
    waiting = 0
    rows = Instance.objects.in_queue_order().values_list(
        "pk", "name", "team_id", "plan__gpu_model", "plan__gpu_count", "queued_at"
    )
    for waiting, (pk, name, team_id, model, count, queued_at) in enumerate(rows.iterator(), 1):
        own = Own(pk, name) if team_id == team.pk else None
        if waiting <= SHOWN or own is not None:
            places.append(Place(waiting, ahead[model], model, count, queued_at, own))
        ahead[model] += count
    return Queue(waiting, ahead.total(), tuple(places))
