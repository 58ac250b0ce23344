"""Work that may never return, away from the event loop."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import cast


def begin[T](work: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Do the work in a thread of its own; the future tells its outcome.

    The thread is a daemon, unlike those of an executor: a driver or a registry that hangs must
    not keep the process from ending. Cancelling the future does not end the work.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, fault: Exception | None) -> None:
        if outcome.done():
            return
        if fault is not None:
            outcome.set_exception(fault)
        else:
            outcome.set_result(cast("T", result))

    def run() -> None:
        result, fault = None, None
        try:
            result = work()
        except Exception as error:
            fault = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, fault)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome
