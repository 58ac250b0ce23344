"""When a hinted tick runs: at once, or spaced, and once for many hints."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import current_app
from django.conf import settings
from pytest_django import DjangoCaptureOnCommitCallbacks

from portal import hints

pytestmark = pytest.mark.django_db
SPACING = timedelta(seconds=60)


class Sent:
    """The runs of one tick that were asked for, each with the seconds it has to wait."""

    def __init__(self, capture: DjangoCaptureOnCommitCallbacks) -> None:
        self.name = f"tick-{uuid4()}"
        self.waits: list[float] = []
        self._capture = capture
        self._redis = redis.Redis.from_url(settings.REDIS_URL)

    def send_task(self, name: str, *, countdown: float, **_: Any) -> None:
        assert name == self.name
        self.waits.append(countdown)

    def hint(self) -> None:
        """What gives the tick work lands."""
        with self._capture(execute=True):
            hints.send_task(self.name)

    def begin(self, *, busy: bool = True) -> None:
        hints.begin_task(self.name)
        if busy:
            hints.space_task(self.name, SPACING)

    def forget(self) -> None:
        """The spacing is over, or Redis was emptied: its keys are gone."""
        for key in self._redis.scan_iter(match=f"*{self.name}*"):
            self._redis.delete(key)


@pytest.fixture
def tick(
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> Iterator[Sent]:
    sent = Sent(django_capture_on_commit_callbacks)
    monkeypatch.setattr(current_app, "send_task", sent.send_task)
    yield sent
    sent.forget()


class TestHintedTick:
    def test_runs_at_once_where_it_rested(self, tick: Sent) -> None:
        tick.hint()

        assert tick.waits == [0]

    def test_runs_once_for_all_hints_before_it_begins(self, tick: Sent) -> None:
        tick.hint()
        tick.hint()

        assert len(tick.waits) == 1

    def test_runs_again_for_a_hint_after_it_began_but_not_sooner_than_its_spacing(
        self, tick: Sent
    ) -> None:
        tick.hint()
        tick.begin()
        tick.hint()
        tick.hint()

        at_once, spaced = tick.waits
        assert at_once == 0
        assert SPACING.total_seconds() - 10 < spaced <= SPACING.total_seconds()

    def test_runs_again_at_once_after_a_run_that_found_nothing(self, tick: Sent) -> None:
        tick.begin(busy=False)
        tick.hint()

        assert tick.waits == [0]

    def test_runs_at_once_where_the_spacing_is_over_or_redis_was_emptied(self, tick: Sent) -> None:
        tick.begin()
        tick.hint()
        tick.forget()
        tick.hint()

        spaced, at_once = tick.waits
        assert (spaced > 0, at_once) == (True, 0)

    def test_begins_and_hints_where_redis_is_away(
        self, tick: Sent, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(settings, "REDIS_URL", "redis://127.0.0.1:1/0")

        tick.begin()
        tick.hint()

        assert tick.waits == []


def test_a_spaced_run_does_not_expire_before_it_may_begin() -> None:
    assert timedelta(seconds=hints.PENDING_SECONDS) > 2 * settings.SCHEDULER_CYCLE_SPACING
