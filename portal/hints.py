"""Hints: "look now" from a commit that gives somebody work, sent through Redis.

A hint carries a topic and nothing else, is sent when the transaction lands, and may be lost:
the next tick or the end of a held sync does the same work later. Nothing is decided by a hint.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from datetime import timedelta

import redis
import redis.asyncio
from celery import current_app
from django.conf import settings
from django.db import transaction
from kombu.exceptions import OperationalError

logger = logging.getLogger(__name__)

CHANNEL = "headrace.hints"
# The tick that a queued instance or a freed GPU makes come early.
SCHEDULER_CYCLE = "scheduler.run_cycle"
# One pending run serves every hint that comes before it begins; see `begin_task`.
PENDING_SECONDS = 2


def instance_topic(instance_id: object) -> str:
    return f"instance:{instance_id}"


def node_topic(node_id: int) -> str:
    return f"node:{node_id}"


def send(*topics: str) -> None:
    """Wake whoever waits for `topics`, once this transaction has landed."""
    transaction.on_commit(lambda: _publish(topics))


def send_task(name: str) -> None:
    """Run the tick `name` when this transaction has landed, unless a run is pending.

    That is at once, or as soon as the spacing is over that its last run asked for. A run that
    has to wait does so as a message, in no worker's way.
    """
    transaction.on_commit(lambda: _send_task(name))


def begin_task(name: str) -> None:
    """Called first by a hinted tick: what lands from here on needs another run."""
    with contextlib.suppress(redis.RedisError):
        _client().delete(_pending(name))


def space_task(name: str, spacing: timedelta) -> None:
    """Called by a run that found something to do, before it does it.

    Hints make the next one begin no sooner than `spacing` from now, so that many of them cannot
    fill a processor with runs that find little to do. `spacing` is below `PENDING_SECONDS`.
    """
    with contextlib.suppress(redis.RedisError):
        _client().set(_spaced(name), 1, px=spacing)


def _pending(name: str) -> str:
    return f"hint:{name}:pending"


def _spaced(name: str) -> str:
    """There while no run should begin. Redis alone keeps the time: no two clocks are compared."""
    return f"hint:{name}:spaced"


def _publish(topics: Iterable[str]) -> None:
    try:
        connection = _client()
        for topic in topics:
            connection.publish(CHANNEL, topic)
    except redis.RedisError as error:
        logger.warning("hint lost", extra={"topics": list(topics), "error": str(error)})


def _send_task(name: str) -> None:
    try:
        with _client().pipeline() as together:
            together.set(_pending(name), 1, nx=True, ex=PENDING_SECONDS)
            together.pttl(_spaced(name))
            first, spaced_ms = together.execute()
        if first:
            wait_seconds = max(spaced_ms, 0) / 1000  # below nought where there is no such key
            current_app.send_task(
                name, countdown=wait_seconds, expires=PENDING_SECONDS, retry=False
            )
    except (redis.RedisError, OperationalError) as error:
        logger.warning("hint lost", extra={"task": name, "error": str(error)})


_clients: dict[str, redis.Redis] = {}


def _client() -> redis.Redis:
    url = settings.REDIS_URL
    if url not in _clients:
        _clients[url] = redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)
    return _clients[url]


class Ear:
    """What one waiter listens to. It hears everything until it is told what to attend to."""

    def __init__(self) -> None:
        self._heard: set[str] = set()
        self._event = asyncio.Event()

    def hear(self, topic: str) -> None:
        self._heard.add(topic)
        self._event.set()

    async def next(self, seconds: float) -> bool:
        """Wait for a hint that came since the last call; False where none comes in time."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout=seconds)
        heard = self._event.is_set()
        self._event.clear()
        return heard

    def keep(self, topics: Collection[str]) -> None:
        """Forget what was heard of anything else."""
        if self._heard.isdisjoint(topics):
            self._event.clear()


class Listener:
    """Hands the hints of one subscription to every waiter of this process.

    It connects when first needed and again when the connection breaks; a waiter that hears
    nothing meanwhile wakes at its own time limit.
    """

    def __init__(self) -> None:
        self._curious: set[Ear] = set()
        self._attentive: dict[str, set[Ear]] = defaultdict(set)
        self._reader: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Ear]:
        """An ear for every hint from entry on: enter, read what may change, then
        `attending` to that."""
        if self._reader is None or self._reader.done():
            self._subscribed = asyncio.Event()
            self._reader = asyncio.create_task(self._read())
        ear = Ear()
        self._curious.add(ear)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._subscribed.wait(), timeout=1)
            yield ear
        finally:
            self._curious.discard(ear)

    @contextlib.contextmanager
    def attending(self, ear: Ear, topics: Collection[str]) -> Iterator[None]:
        """Let an ear hear of `topics` alone; what it has heard of them already counts."""
        self._curious.discard(ear)
        for topic in topics:
            self._attentive[topic].add(ear)
        ear.keep(topics)
        try:
            yield
        finally:
            for topic in topics:
                self._attentive[topic].discard(ear)
                if not self._attentive[topic]:
                    del self._attentive[topic]

    async def _read(self) -> None:
        while True:
            try:
                await self._read_until_broken()
            except redis.RedisError as error:
                logger.warning("hints interrupted", extra={"error": str(error)})
                await asyncio.sleep(0.5)

    async def _read_until_broken(self) -> None:
        client = redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_timeout=None)
        async with client, client.pubsub(ignore_subscribe_messages=True) as pubsub:
            await pubsub.subscribe(CHANNEL)
            self._subscribed.set()
            async for message in pubsub.listen():
                topic = message["data"].decode()
                for ear in (*self._curious, *self._attentive.get(topic, ())):
                    ear.hear(topic)
