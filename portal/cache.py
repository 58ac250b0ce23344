"""The cache, which may be away: what is read then is missing, and what is written is lost.

Log-in counts its attempts here (allauth's own limits), and nobody should be shut out because
Redis restarts. Nothing that must be true is kept in a cache.
"""

import logging
from functools import cache, cached_property
from typing import Any

import redis
from django.core.cache.backends.base import DEFAULT_TIMEOUT
from django.core.cache.backends.redis import RedisCache, RedisCacheClient

logger = logging.getLogger(__name__)


class _OneClient(RedisCacheClient):
    """Keeps its client. Django makes a new one for each command, which takes longer than most."""

    @cached_property
    def _kept(self) -> redis.Redis:
        return super().get_client(write=True)

    def get_client(self, key: Any = None, *, write: bool = False) -> redis.Redis:
        return self._kept


@cache
def _client_of(server: str) -> _OneClient:
    """One for the process. Django makes a cache anew for each request that runs in a context of
    its own, and each would connect anew."""
    return _OneClient([server])


class LossyRedisCache(RedisCache):
    """Django's Redis cache, but for the errors of a Redis that does not answer.

    `incr` still raises: who counts decides what a lost count means.
    """

    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._server = server

    @property
    def _cache(self) -> _OneClient:
        return _client_of(self._server)

    def count(self, key: str, *, timeout: int) -> int:
        """How often `key` was counted, this time too; forgotten `timeout` seconds after the last.

        One round trip. Nought where it cannot be asked: without a count nobody is over a limit.
        """
        made = self.make_and_validate_key(key)
        pipeline = self._cache.get_client(made, write=True).pipeline(transaction=False)
        pipeline.incr(made)
        pipeline.expire(made, timeout)
        try:
            return int(pipeline.execute()[0])
        except redis.RedisError as error:
            self._lost("count", error)
            return 0

    def add(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        """True where it cannot be asked: the caller is the first as far as anybody knows."""
        try:
            return super().add(key, value, timeout, version)
        except redis.RedisError as error:
            self._lost("add", error)
            return True

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        try:
            return super().get(key, default, version)
        except redis.RedisError as error:
            self._lost("get", error)
            return default

    def set(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> None:
        try:
            super().set(key, value, timeout, version)
        except redis.RedisError as error:
            self._lost("set", error)

    def delete(self, key: Any, version: int | None = None) -> bool:
        try:
            return super().delete(key, version)
        except redis.RedisError as error:
            self._lost("delete", error)
            return False

    def _lost(self, what: str, error: redis.RedisError) -> None:
        logger.warning("cache away: %s lost (%s)", what, error)
