"""Calls that race each other, each with its own connection to the database.

Tests that use it commit: mark them `django_db(transaction=True)`.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from django.db import connection


def at_once[T](call: Callable[[], T], times: int = 8) -> list[T]:
    """What `times` calls return that begin together, each in a thread of its own."""
    start = Barrier(times)

    def in_own_connection() -> T:
        try:
            connection.ensure_connection()
            start.wait(timeout=30)
            return call()
        finally:
            connection.close()

    with ThreadPoolExecutor(times) as pool:
        futures = [pool.submit(in_own_connection) for _ in range(times)]
        return [future.result() for future in futures]
