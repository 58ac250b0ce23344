"""Redis away: nobody is shut out."""

from collections.abc import Iterator
from typing import Any, cast
from uuid import uuid4

import pytest
from django.conf import settings
from django.core.cache import caches
from django.test import Client, override_settings

from portal.accounts.models import User
from portal.cache import LossyRedisCache

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def away() -> Iterator[Any]:
    backend = {"BACKEND": "portal.cache.LossyRedisCache", "LOCATION": NOWHERE}
    with override_settings(CACHES={"default": backend}):
        yield caches["default"]


class TestLossyRedisCache:
    def test_misses_what_it_cannot_read_and_loses_what_it_cannot_write(self, away: Any) -> None:
        assert isinstance(away, LossyRedisCache)
        assert away.get("key", "nothing") == "nothing"
        away.set("key", 1)
        assert not away.delete("key")
        assert away.count("key", timeout=9) == 0

    def test_counts_each_key_by_itself(self) -> None:
        counter = cast("LossyRedisCache", caches["default"])
        first, second = (f"counted:{uuid4()}" for _ in range(2))

        counts = [counter.count(key, timeout=9) for key in (first, second, first)]

        assert counts == [1, 1, 2]

    def test_lets_everybody_be_the_first(self, away: Any) -> None:
        assert away.add("lock", 1)

    @pytest.mark.django_db
    @pytest.mark.usefixtures("away")
    def test_keeps_the_door_open(self) -> None:
        User.objects.create_user("someone@example.org", "correct-horse-battery")

        answer = Client().post(
            "/accounts/login/", {"login": "someone@example.org", "password": "wrong"}
        )

        assert answer.status_code != 500


def test_every_cache_of_a_process_shares_one_connection_pool() -> None:
    """Django makes a cache anew for each request that runs in a context of its own."""
    one, another = (LossyRedisCache(settings.REDIS_URL, {}) for _ in range(2))

    assert one._cache.get_client() is another._cache.get_client()
