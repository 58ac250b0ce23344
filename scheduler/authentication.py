"""Who speaks at the nodes' door: a bearer secret, known by its digest."""

from scheduler import fleet
from scheduler.models import Node

PREFIX = "Bearer "


def node_of(authorization: str) -> Node | None:
    """The node whose secret an `Authorization` header carries; None for anything else."""
    if not authorization.startswith(PREFIX):
        return None
    secret = authorization.removeprefix(PREFIX)
    return Node.objects.filter(token_digest=fleet.digest(secret), retired_at=None).first()
