"""Who speaks at the nodes' door: a bearer secret, known by its digest."""

from database.compiled import CompiledModels, param
from scheduler import fleet
from scheduler.models import Node

PREFIX = "Bearer "
_BY_TOKEN = CompiledModels(
    lambda: Node.objects.filter(token_digest=param("digest"), retired_at=None)
)


def node_of(authorization: str) -> Node | None:
    """The node whose secret an `Authorization` header carries; None for anything else."""
    if not authorization.startswith(PREFIX):
        return None
    secret = authorization.removeprefix(PREFIX)
    nodes = _BY_TOKEN(digest=fleet.digest(secret))
    return nodes[0] if nodes else None
