"""A sync is held open while there is nothing to say, and answered when there is."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import redis
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection
from django.utils import timezone

from agents.protocol import Phase, SeenInstance, SyncReply
from portal import hints
from portal.instances.models import Instance, State
from portal.instances.operations import ending
from scheduler import cycle, leases
from scheduler.leases import LiveLease
from scheduler.models import Lease, Node
from tests.factories import make_instance, make_member
from tests.nodes import TestNode, enroll_node, knock_async

pytestmark = pytest.mark.django_db(transaction=True)
HELD_SECONDS = 8.0


async def hold(node: TestNode, known: SyncReply, *, wait_seconds: float) -> SyncReply:
    request = replace(node.request(), known_digest=known.digest, wait_seconds=wait_seconds)
    response = await knock_async("sync", request.to_json(), token=node.token)
    return SyncReply.from_json(response.json())


def held_while(
    node: TestNode, act: Callable[[], object], *, wait_seconds: float = HELD_SECONDS
) -> tuple[SyncReply, float]:
    """The answer to a sync during which `act` happens, and the seconds from `act` to it."""
    known = node.work()

    def act_and_hang_up() -> float:
        try:
            act()
            return time.monotonic()
        finally:
            connection.close()

    async def both() -> tuple[SyncReply, float]:
        held = asyncio.create_task(hold(node, known, wait_seconds=wait_seconds))
        await asyncio.sleep(0.3)
        assert not held.done()
        acted_at = await sync_to_async(act_and_hang_up, thread_sensitive=False)()
        reply = await held
        return reply, time.monotonic() - acted_at

    return asyncio.run(both())


class TestAHeldSync:
    def test_is_answered_when_a_lease_is_written(self) -> None:
        node = enroll_node()
        instance = make_instance(now=timezone.now())

        reply, seconds = held_while(node, lambda: cycle.run(now=timezone.now()))

        assert [order.instance for order in reply.orders] == [str(instance.pk)]
        assert seconds < HELD_SECONDS / 2

    def test_is_answered_when_an_instance_is_stopped(self) -> None:
        node, actor = enroll_node(), make_member()
        instance = make_instance(actor=actor, now=timezone.now())
        cycle.run(now=timezone.now())

        reply, seconds = held_while(
            node, lambda: ending.stop(actor=actor, instance=instance, now=timezone.now())
        )

        assert [order.want for order in reply.orders] == ["gone"]
        assert seconds < HELD_SECONDS / 2

    def test_sees_a_hint_that_comes_while_it_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The commit lands after the rows were read and before the wait begins."""
        node = enroll_node()
        instance = make_instance(now=timezone.now())
        read, commits = leases.live_leases, [lambda: cycle.run(now=timezone.now())]

        def read_and_be_overtaken(of: Node) -> list[LiveLease]:
            seen = read(of)
            if overtake and commits:
                commits.pop()()
                time.sleep(0.3)  # the hint arrives
            return seen

        overtake = False
        monkeypatch.setattr(leases, "live_leases", read_and_be_overtaken)

        def begin() -> None:
            nonlocal overtake
            overtake = True
            hints._publish([hints.node_topic(node.row.pk)])

        reply, seconds = held_while(node, begin)

        assert [order.instance for order in reply.orders] == [str(instance.pk)]
        assert seconds < HELD_SECONDS / 2

    def test_is_held_though_a_container_of_an_ended_lease_is_slow_to_go(self) -> None:
        node = enroll_node()
        instance = make_instance(now=timezone.now())
        cycle.run(now=timezone.now())
        leases.end([Lease.objects.get().pk], now=timezone.now())
        key = (str(instance.pk), 1)
        node.seen = {key: SeenInstance(*key, Phase.STOPPING)}
        known = node.sync()
        began = time.monotonic()

        reply = asyncio.run(hold(node, known, wait_seconds=1.0))

        assert [order.want for order in reply.orders] == ["gone"]
        assert time.monotonic() - began >= 1.0

    def test_without_news_ends_at_its_time_with_the_same_orders(self) -> None:
        node = enroll_node()

        reply, _ = held_while(node, lambda: None, wait_seconds=1.0)

        assert reply.orders == ()

    def test_whose_hint_is_lost_ends_at_its_time_with_the_news(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("portal.hints._publish", lambda topics: None)
        node = enroll_node()
        make_instance(now=timezone.now())

        reply, _ = held_while(node, lambda: cycle.run(now=timezone.now()), wait_seconds=1.5)

        assert len(reply.orders) == 1


class TestAnEmptiedRedis:
    def test_loses_no_launch(self) -> None:
        node = enroll_node()
        instance = make_instance(now=timezone.now())
        redis.Redis.from_url(settings.REDIS_URL).flushall()

        cycle.run(now=timezone.now())
        node.work()

        assert Instance.objects.get(pk=instance.pk).state == State.RUNNING

    def test_that_is_away_refuses_no_launch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(settings, "REDIS_URL", "redis://127.0.0.1:1/0")
        node = enroll_node()

        instance = make_instance(now=timezone.now())
        cycle.run(now=timezone.now())
        node.work()

        assert Instance.objects.get(pk=instance.pk).state == State.RUNNING
