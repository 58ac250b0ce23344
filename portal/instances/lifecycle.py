"""The life of an Instance: one table of legal moves, and the only function that makes one.

queued ──► starting ──► running ──► stopping ──► stopped ──► queued (start again)
  ▲  │        │  │         │  │         │           │
  └──┼────────┘  │         │  │         │           │
     │           │         │  │         │           │
     ├───────────┴─────────┘  └── failed, stopped   │
     └──► stopped, terminated, failed   └──► terminated ◄──┘
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from portal import hints
from portal.accounts.models import User
from portal.instances.models import Instance, InstanceEvent, Reason, State

MOVES: Mapping[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.STARTING, State.STOPPED, State.TERMINATED, State.FAILED}),
    State.STARTING: frozenset(
        {State.RUNNING, State.QUEUED, State.STOPPING, State.STOPPED, State.FAILED}
    ),
    State.RUNNING: frozenset({State.STOPPING, State.STOPPED, State.FAILED}),
    State.STOPPING: frozenset({State.STOPPED, State.TERMINATED}),
    State.STOPPED: frozenset({State.QUEUED, State.TERMINATED}),
    State.TERMINATED: frozenset(),
    State.FAILED: frozenset(),
}


EXPLANATION_CHARACTERS = Instance._meta.get_field("explanation").max_length


def sources_of(target: State) -> list[State]:
    """The states from which `target` can be reached in one move."""
    return [source for source, targets in MOVES.items() if target in targets]


@dataclass(frozen=True)
class Why:
    """What explains a move: its reason, a sentence for the customer, and who wanted it.

    `effective_at` is the moment from which it counts for what is paid, where that is not now.
    """

    reason: Reason
    explanation: str
    actor: User | None = None
    effective_at: datetime | None = None


class Outrun(Exception):
    """Of several instances that were to move together, another worker moved some first."""


@transaction.atomic(savepoint=False)
def advance(
    instance_ids: Collection[UUID], *, to: State, why: Why, at: datetime, **fields: Any
) -> bool:
    """Move instances together, write the event of each, and wake nodes that are to stop them.

    `fields` are written with the move, e.g. `endpoints`. Returns False where none of them is in
    a state that leads to `to`: another worker was first, or a late report arrived. Raises Outrun
    where that holds for some: lock what moves together, or be ready to try each alone.

    The guard and the write are one UPDATE, so of two callers one makes the move, and neither has
    to lock the rows beforehand.
    """
    explanation = why.explanation[:EXPLANATION_CHARACTERS]
    moved = Instance.objects.filter(pk__in=instance_ids, state__in=sources_of(to)).update(
        state=to,
        state_changed_at=at,
        reason=why.reason,
        explanation=explanation,
        **({"phase": "", "phase_percent": None, "endpoints": {}} | fields),
    )
    if not moved:
        return False
    if moved != len(instance_ids):
        raise Outrun(f"{moved} of {len(instance_ids)} instances could move to {to}")
    InstanceEvent.objects.bulk_create(
        InstanceEvent(
            instance_id=instance_id,
            state=to,
            reason=why.reason,
            explanation=explanation,
            actor=why.actor,
            at=at,
            effective_at=why.effective_at or at,
        )
        for instance_id in instance_ids
    )
    if to == State.STOPPING:
        # Every other move is a node's own news, or the scheduler's, which tells the node itself.
        hints.send(*map(hints.instance_topic, instance_ids))
    return True
