"""What the portal says no with. Stdlib only, so that any layer above can import it. Pure."""


class DomainError(Exception):
    """An expected refusal: the caller can act on it, so it is never logged as a fault.

    `code` is part of the public API: add new codes, never rename one. The message is a sentence
    for the customer; `next_step` says what to do, where something can be done.
    """

    code = "refused"

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


class Forbidden(DomainError):
    """The caller may see the thing but not do this to it (HTTP 403)."""

    code = "forbidden"


class Conflict(DomainError):
    """The request contradicts the present state (HTTP 409)."""

    code = "conflict"
