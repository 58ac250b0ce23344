"""The nodes' door: enroll and sync. Served by ASGI, since a sync is held open."""

import asyncio
import json
import logging
from collections.abc import Callable, Collection
from http import HTTPStatus

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

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
from scheduler.leases import LiveLease
from scheduler.models import Node

logger = logging.getLogger(__name__)
listener = hints.Listener()
# What this process last told each node at once: what a node has heard need not end its held sync.
_told: dict[int, str] = {}


class _Refused(Exception):
    """An answer that is not a reply: a status, a code and a sentence."""

    def __init__(self, status: HTTPStatus, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code = status, code

    def response(self) -> JsonResponse:
        body = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": self.status,
            "code": self.code,
            "detail": str(self),
        }
        return JsonResponse(body, status=self.status, content_type="application/problem+json")


@csrf_exempt
@require_POST
def enroll(request: HttpRequest) -> JsonResponse:
    """A machine with a one-use join token becomes a node."""
    try:
        wanted = _message(EnrollRequest.from_json, request.body)
        _check_protocol(wanted.protocol)
        node, secret = fleet.enroll(wanted, now=timezone.now())
    except _Refused as refusal:
        return refusal.response()
    except DomainError as refusal:
        return _translated(refusal).response()
    reply = EnrollReply(node_token=secret, node_name=node.name, node_epoch=node.epoch)
    return JsonResponse(reply.to_json(), status=HTTPStatus.CREATED)


@csrf_exempt
async def sync(request: HttpRequest) -> JsonResponse:
    """Take in what a node sees; answer with what it should run, at once or when that changes."""
    if request.method != "POST":
        return _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", "Use POST.").response()
    try:
        said = _message(SyncRequest.from_json, request.body)
        _check_protocol(said.protocol)
        authorization = request.headers.get("Authorization", "")
        wait_seconds = min(said.wait_seconds, settings.AGENT_SYNC_HOLD.total_seconds())
        if wait_seconds > 0:
            reply = await _sync_and_hold(authorization, said, wait_seconds)
        else:
            _, reply, _ = await _in_thread(lambda: _take_in(authorization, said))
    except _Refused as refusal:
        return refusal.response()
    return JsonResponse(reply.to_json())


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
        raise _Refused(
            HTTPStatus.UNAUTHORIZED, "node_token_refused", "This node token opens nothing here."
        )
    try:
        held, withdrawals = reports.receive(node, said, now=timezone.now())
    except DomainError as refusal:
        raise _translated(refusal) from refusal
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
    """Database work off the event loop; its connection goes back to the pool at once."""

    def run() -> T:
        try:
            return work()
        finally:
            close_old_connections()

    return await sync_to_async(run, thread_sensitive=False)()


def _message[T](parse: Callable[[object], T], body: bytes) -> T:
    try:
        return parse(json.loads(body))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, "malformed", "The body is not JSON.") from error
    except Malformed as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, "malformed", str(error)) from error


def _check_protocol(spoken: int) -> None:
    if spoken not in PROTOCOLS_ACCEPTED:
        accepted = ", ".join(map(str, PROTOCOLS_ACCEPTED))
        raise _Refused(
            HTTPStatus.CONFLICT,
            "protocol_not_spoken",
            f"This server speaks protocol {accepted}, the agent {spoken}. Upgrade the older one.",
        )


def _translated(refusal: DomainError) -> _Refused:
    match refusal:
        case Forbidden():
            status = HTTPStatus.FORBIDDEN
        case Conflict():
            status = HTTPStatus.CONFLICT
        case _:
            status = HTTPStatus.UNPROCESSABLE_ENTITY
    return _Refused(status, refusal.code, f"{refusal} {refusal.next_step}".strip())
