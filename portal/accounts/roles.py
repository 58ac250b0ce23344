"""Who may do what in a team: the whole matrix, on one screen. Pure."""

from collections.abc import Mapping
from enum import StrEnum


class Permission(StrEnum):
    LAUNCH = "launch"
    OPERATE = "operate"  # stop, start, terminate
    PAY = "pay"
    MANAGE_TOKENS = "manage_tokens"
    INVITE = "invite"


class Role(StrEnum):
    OWNER = "owner"
    DEVELOPER = "developer"
    BILLING = "billing"


GRANTS: Mapping[Role, frozenset[Permission]] = {
    Role.OWNER: frozenset(Permission),
    Role.DEVELOPER: frozenset({Permission.LAUNCH, Permission.OPERATE, Permission.MANAGE_TOKENS}),
    Role.BILLING: frozenset({Permission.PAY}),
}


class Scope(StrEnum):
    """What a token may be used for; it never grants more than its member's role does."""

    READ = "read"
    INSTANCES = "instances"
    BILLING = "billing"
    FLEET = "fleet"  # nodes; for operators alone
