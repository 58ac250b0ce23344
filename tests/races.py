"""Many threads at one thing, each with its own connection to the database."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from django.db import connection


def at_once[T](call: Callable[[], T], times: int = 8) -> list[T]:
    """What `call` returned in each of `times` threads that began together."""
    barrier = Barrier(times)

    def in_own_connection() -> T:
        try:
            barrier.wait(timeout=10)
            return call()
        finally:
            connection.close()

    with ThreadPoolExecutor(times) as pool:
        futures = [pool.submit(in_own_connection) for _ in range(times)]
        return [future.result() for future in futures]
