"""Redis away: nobody is shut out."""

from collections.abc import Iterator
from typing import Any

import pytest
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
