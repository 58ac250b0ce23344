"""How long to wait before trying again: longer each time, and never in step with others."""

import random

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 15.0


class Backoff:
    """From half a second, doubling, to 15 s; each wait is drawn from the upper half of that.

    A fleet that lost its portal must not come back to it all at once.
    """

    def __init__(self) -> None:
        self._seconds = FIRST_SECONDS

    def next_seconds(self) -> float:
        seconds = self._seconds
        self._seconds = min(2 * seconds, LONGEST_SECONDS)
        return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        self._seconds = FIRST_SECONDS
