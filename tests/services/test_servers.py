"""The servers themselves, so that nobody takes another suite for this one."""

import os

import psycopg
import pytest
import redis

pytestmark = pytest.mark.services


class TestTheServers:
    def test_are_a_postgresql_of_at_least_15_over_tcp(self) -> None:
        with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
            [address] = connection.execute("SELECT inet_server_addr()").fetchone() or [None]
            assert address is not None
            assert connection.info.server_version >= 15_00_00

    def test_are_a_redis_of_at_least_7_over_tcp(self) -> None:
        with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
            found = client.info("server")

        assert int(found["redis_version"].partition(".")[0]) >= 7
        assert found["tcp_port"]
