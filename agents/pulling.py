"""How far a pull has come, from the engine's lines about each layer. Pure."""

from collections.abc import Mapping
from typing import Any

DOWNLOAD_SHARE = 0.7  # of a layer's work; the rest is unpacking
DONE = {"Pull complete": 1.0, "Already exists": 1.0, "Download complete": DOWNLOAD_SHARE}


class PullProgress:
    """A percentage that never falls, though layers are announced one by one.

    >>> progress = PullProgress()
    >>> progress.take_in({"id": "a", "status": "Pulling fs layer"})
    0
    >>> half = {"current": 50, "total": 100}
    >>> progress.take_in({"id": "a", "status": "Downloading", "progressDetail": half})
    35
    >>> progress.take_in({"id": "b", "status": "Pulling fs layer"})  # not back to 17
    35
    >>> progress.take_in({"id": "a", "status": "Pull complete"})
    50
    """

    def __init__(self) -> None:
        self._layers: dict[str, float] = {}
        self._percent = 0

    def take_in(self, line: Mapping[str, Any]) -> int:
        """The percentage after one decoded line of the engine's answer."""
        layer, status = line.get("id"), line.get("status", "")
        if layer and not status.startswith(("Pulling from", "Pulled")):
            known = self._layers.get(layer, 0.0)
            self._layers[layer] = max(known, _share(status, line.get("progressDetail") or {}))
            reached = sum(self._layers.values()) / len(self._layers)
            self._percent = max(self._percent, int(100 * reached))
        return self._percent


def _share(status: str, detail: Mapping[str, Any]) -> float:
    """How much of one layer's work is done, from 0 to 1."""
    if status in DONE:
        return DONE[status]
    total = detail.get("total") or 0
    part = min(1.0, detail.get("current", 0) / total) if total > 0 else 0.0
    if status == "Downloading":
        return DOWNLOAD_SHARE * part
    if status == "Extracting":
        return DOWNLOAD_SHARE + (1 - DOWNLOAD_SHARE) * part
    return 0.0
