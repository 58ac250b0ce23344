"""Who speaks at the nodes' door: a bearer secret, known by its digest."""

from database.compiled import Compiled, param
from scheduler import fleet
from scheduler.models import Node

PREFIX = "Bearer "
_BY_TOKEN = Compiled(
    lambda: Node.objects.filter(token_digest=param("digest"), retired_at=None).values_list()
)


def node_of(authorization: str) -> Node | None:
    """The node whose secret an `Authorization` header carries; None for anything else."""
    if not authorization.startswith(PREFIX):
        return None
    secret = authorization.removeprefix(PREFIX)
    nodes: list[Node] = _BY_TOKEN.models(digest=fleet.digest(secret))
    return nodes[0] if nodes else None
