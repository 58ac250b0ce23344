"""A fresh database and a fresh Redis for each stack, on the servers that the tests were given."""

import itertools
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis

# The database 0 is the default suite's.
_numbers = itertools.cycle(range(1, 16))


@dataclass(frozen=True)
class Stores:
    """Where one stack keeps what it knows."""

    database_url: str
    redis_url: str

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What the database answers now, on a connection of its own."""
        with psycopg.connect(self.database_url) as connection:
            return connection.execute(query.encode(), parameters).fetchall()

    def number(self, query: str, *parameters: object) -> int:
        [(number,)] = self.rows(query, *parameters)
        return int(number)

    def empty_redis(self) -> None:
        """All of it, as an operator's mistake or a restart without persistence would."""
        with redis.Redis.from_url(self.redis_url) as client:
            client.flushall()


@contextmanager
def fresh_stores() -> Iterator[Stores]:
    server = os.environ["DATABASE_URL"]
    name = f"stack_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    database_url = urlsplit(server)._replace(path=f"/{name}").geturl()
    redis_url = _numbered(os.environ["REDIS_URL"], next(_numbers))
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    try:
        yield Stores(database_url, redis_url)
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def _numbered(url: str, number: int) -> str:
    """The address of another database of the same server, by socket or by TCP."""
    if url.startswith("unix:"):
        return re.sub(r"\bdb=\d+", f"db={number}", url)
    return urlsplit(url)._replace(path=f"/{number}").geturl()
