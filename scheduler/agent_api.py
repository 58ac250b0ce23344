"""The nodes' door: enroll and sync, which is held open."""

import asyncio
import json
import logging
from collections.abc import Callable, Collection
from http import HTTPStatus

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections
from django.utils import timezone

from agents.protocol import (
    PROTOCOL,
    PROTOCOLS_ACCEPTED,
    EnrollReply,
    EnrollRequest,
    Malformed,
    Order,
    SyncReply,
    SyncRequest,
    orders_digest,
)
from portal import hints
from portal.errors import Conflict, DomainError, Forbidden
from scheduler import fleet, leases, reports
from scheduler.authentication import node_of
from scheduler.door import Answer, Door, Refused
from scheduler.leases import LiveLease
from scheduler.models import Node

logger = logging.getLogger(__name__)
listener = hints.Listener()
# What this process last told each node at once: what a node has heard need not end its held sync.
_told: dict[int, str] = {}


async def enroll(_authorization: str, body: bytes) -> Answer:
    """A machine with a one-use join token becomes a node."""
    wanted = _message(EnrollRequest.from_json, body)
    _check_protocol(wanted.protocol)
    node, secret = await _in_thread(lambda: fleet.enroll(wanted, now=timezone.now()))
    reply = EnrollReply(node_token=secret, node_name=node.name, node_epoch=node.epoch)
    return Answer(reply.to_json(), HTTPStatus.CREATED)


async def sync(authorization: str, body: bytes) -> Answer:
    """Take in what a node sees; answer with what it should run, at once or when that changes."""
    said = _message(SyncRequest.from_json, body)
    _check_protocol(said.protocol)
    wait_seconds = min(said.wait_seconds, settings.AGENT_SYNC_HOLD.total_seconds())
    if wait_seconds > 0:
        reply = await _sync_and_hold(authorization, said, wait_seconds)
    else:
        _, reply, _ = await _in_thread(lambda: _take_in(authorization, said))
    return Answer(reply.to_json())


async def _sync_and_hold(authorization: str, said: SyncRequest, wait_seconds: float) -> SyncReply:
    """Answer once the orders differ from those the node knows, at most `wait_seconds` later."""
    deadline = asyncio.get_running_loop().time() + wait_seconds
    # Begun before the rows are read: a hint that comes meanwhile is heard.
    async with listener.listening() as ear:
        node, reply, withdrawals = await _in_thread(lambda: _take_in(authorization, said))
        if reply.digest != said.known_digest:
            return reply
        topics = [hints.instance_topic(order.instance) for order in reply.orders]
        with listener.attending(ear, [hints.node_topic(node.pk), *topics]):
            while True:
                left = deadline - asyncio.get_running_loop().time()
                heard = await ear.next(left)
                # What is withdrawn stays so: without it every look would seem to bring news.
                newest = await _in_thread(
                    lambda: _reply(node, leases.live_leases(node), withdrawals)
                )
                if not heard or newest.digest not in (reply.digest, _told.get(node.pk)):
                    return newest


def _take_in(authorization: str, said: SyncRequest) -> tuple[Node, SyncReply, list[Order]]:
    node = node_of(authorization)
    if node is None:
        raise Refused(
            HTTPStatus.UNAUTHORIZED, "node_token_refused", "This node token opens nothing here."
        )
    held, withdrawals = reports.receive(node, said, now=timezone.now())
    reply = _reply(node, held, withdrawals)
    _told[node.pk] = reply.digest
    return node, reply, withdrawals


def _reply(
    node: Node, held: Collection[LiveLease], withdrawals: Collection[Order] = ()
) -> SyncReply:
    now = timezone.now()
    leases.renew(held, now=now)
    orders = (*(leases.order_for(lease, now=now) for lease in held), *withdrawals)
    return SyncReply(
        protocol=PROTOCOL,
        node_epoch=node.epoch,
        digest=orders_digest(orders),
        orders=orders,
        sync_within_seconds=settings.AGENT_SYNC_INTERVAL.total_seconds(),
    )


async def _in_thread[T](work: Callable[[], T]) -> T:
    """Database work off the event loop; its connection goes back to the pool at once.

    Raises Refused for what the work refuses.
    """

    def run() -> T:
        try:
            return work()
        except DomainError as refusal:
            raise _translated(refusal) from refusal
        finally:
            close_old_connections()

    return await sync_to_async(run, thread_sensitive=False)()


def _message[T](parse: Callable[[object], T], body: bytes) -> T:
    try:
        return parse(json.loads(body))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "malformed", "The body is not JSON.") from error
    except Malformed as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "malformed", str(error)) from error


def _check_protocol(spoken: int) -> None:
    if spoken not in PROTOCOLS_ACCEPTED:
        accepted = ", ".join(map(str, PROTOCOLS_ACCEPTED))
        raise Refused(
            HTTPStatus.CONFLICT,
            "protocol_not_spoken",
            f"This server speaks protocol {accepted}, the agent {spoken}. Upgrade the older one.",
        )


def _translated(refusal: DomainError) -> Refused:
    match refusal:
        case Forbidden():
            status = HTTPStatus.FORBIDDEN
        case Conflict():
            status = HTTPStatus.CONFLICT
        case _:
            status = HTTPStatus.UNPROCESSABLE_ENTITY
    return Refused(status, refusal.code, f"{refusal} {refusal.next_step}".strip())


application = Door({"/agent/v1/enroll": enroll, "/agent/v1/sync": sync})
