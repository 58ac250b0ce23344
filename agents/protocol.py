"""What an agent and the scheduler say to each other. Pure: both sides import it.

One exchange, `sync`: the agent sends everything it sees, and gets everything it should run.
Sending the same twice changes nothing. Unknown fields are ignored and new ones are optional, so
that agent and server of neighbouring versions understand each other (docs/agent-protocol.md).

Durations are seconds, sizes MiB; no message carries a moment of the sender's clock, since the
two clocks need not agree.
"""

import hashlib
import json
import math
import types
from collections.abc import Callable, Mapping, Sized
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

PROTOCOL = 1
PROTOCOLS_ACCEPTED = (1,)

# What no honest message comes near, and a database column or a log line can still take.
MAX_ITEMS = 10_000
MAX_TEXT_BYTES = 64 * 1024
MAX_INTEGER = 2**63 - 1


class Malformed(ValueError):
    """A message that does not have the shape agreed here; the text names the field."""


class Want(StrEnum):
    """What the scheduler orders for one generation of an instance."""

    RUNNING = "running"
    GONE = "gone"


class Phase(StrEnum):
    """What the agent sees of one generation of an instance."""

    PULLING = "pulling"
    CREATING = "creating"
    PROBING = "probing"
    RUNNING = "running"  # the probe passed and the container runs
    STOPPING = "stopping"
    EXITED = "exited"  # the container ended by itself; exit_code tells how
    FAILED = "failed"  # it could not be started; error tells why
    GONE = "gone"  # no container and none will be started: its GPUs are free


class ErrorCode(StrEnum):
    """Why a container could not be started."""

    IMAGE_UNAVAILABLE = "image_unavailable"
    START_FAILED = "start_failed"
    NOT_READY = "not_ready"
    GPU_UNAVAILABLE = "gpu_unavailable"


class Message:
    """What all messages share: a JSON object each way, checked field by field when it comes in."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Raises Malformed; unknown fields are ignored."""
        kind: Any = cls
        message: Self = _parser(kind)(data, cls.__name__)
        return message


@dataclass(frozen=True, slots=True)
class SeenGpu(Message):
    """One device, as NVML describes it."""

    uuid: str
    model: str
    memory_mib: int
    healthy: bool = True
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Inventory(Message):
    """What a node has to offer, and what it is."""

    vcpus: int
    memory_mib: int
    gpus: tuple[SeenGpu, ...]
    driver_version: str = ""
    agent_version: str = ""
    runtime: str = ""
    simulated: bool = False  # containers are simulated
    simulated_gpus: bool = False  # containers are real, their GPUs are not


@dataclass(frozen=True, slots=True)
class SeenInstance(Message):
    """The facts about one generation of an instance on this node."""

    instance: str
    generation: int
    phase: Phase
    percent: int | None = None  # while pulling
    exit_code: int | None = None
    oom_killed: bool = False
    error_code: ErrorCode | None = None
    error: str = ""
    endpoints: dict[str, str] = field(default_factory=dict)  # container port → "host:port"


@dataclass(frozen=True, slots=True)
class SyncRequest(Message):
    """Everything one agent sees. `known_digest` is that of the orders it acts on."""

    protocol: int
    run_id: str  # drawn anew at each start of the agent
    seq: int  # grows with each request of one run
    inventory: Inventory
    instances: tuple[SeenInstance, ...]
    known_digest: str = ""
    wait_seconds: float = 0.0  # how long the server may hold the answer while nothing changes


@dataclass(frozen=True, slots=True)
class ContainerSpec(Message):
    """The container to run, complete: the agent adds only the hardening that all share."""

    image: str
    gpu_uuids: tuple[str, ...]
    vcpus: int
    memory_mib: int
    disk_gib: int
    hostname: str
    command: tuple[str, ...] = ()  # empty: the image's
    env: dict[str, str] = field(default_factory=dict)
    ports: tuple[int, ...] = ()
    ssh_keys: tuple[str, ...] = ()
    ready_port: int | None = None  # ready when it answers; None: when the container runs
    ready_timeout_seconds: float = 300.0

    def digest(self) -> str:
        return digest_of(self.to_json())


@dataclass(frozen=True, slots=True)
class Order(Message):
    """One generation of an instance, and what to do about it.

    A running order whose `may_start` is false has run before: when its container is absent the
    agent reports it gone and starts nothing. The lease ends `expires_in_seconds` after this
    reply unless a later one renews it; then the agent removes the container by itself, but for
    one that is running and has `keeps_running`.
    """

    instance: str
    generation: int
    want: Want
    expires_in_seconds: float
    may_start: bool = False
    keeps_running: bool = False
    grace_seconds: float = 10.0
    spec: ContainerSpec | None = None  # None when want is gone


@dataclass(frozen=True, slots=True)
class SyncReply(Message):
    """Everything this node should run. What is not listed is not deleted: it is left alone."""

    protocol: int
    node_epoch: int
    digest: str
    orders: tuple[Order, ...]
    sync_within_seconds: float


@dataclass(frozen=True, slots=True)
class EnrollRequest(Message):
    """A machine with a one-use join token asks to become a node."""

    protocol: int
    join_token: str
    node_name: str
    inventory: Inventory


@dataclass(frozen=True, slots=True)
class EnrollReply(Message):
    """The node's own secret, sent once, and its epoch."""

    node_token: str
    node_name: str
    node_epoch: int


def orders_digest(orders: tuple[Order, ...]) -> str:
    """Equal when the orders are, whatever their order; the lease's end does not count.

    A renewed lease alone must not end a held sync.
    """
    content = []
    for order in orders:
        data = order.to_json()
        del data["expires_in_seconds"]
        content.append(data)
    return digest_of(sorted(content, key=lambda data: (data["instance"], data["generation"])))


def digest_of(content: object) -> str:
    """SHA-256 of the canonical JSON of `content`, in hex."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


type _Parser = Callable[[object, str], Any]


@cache
def _parser(kind: Any) -> _Parser:
    """What makes `kind` of a value, or raises Malformed naming where it stood.

    Knows dataclasses, tuples, string maps, enums, scalars, and each of them or None. Looking at
    annotations is the dear part of parsing, and they never change.
    """
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        [option] = [option for option in get_args(kind) if option is not type(None)]
        parse = _parser(option)
        return lambda value, where: None if value is None else parse(value, where)
    if origin is not None:
        parts = [_parser(part) for part in get_args(kind) if part is not ...]
        return _list_parser(*parts) if origin is tuple else _map_parser(*parts)
    if is_dataclass(kind):
        return _object_parser(kind)
    return _enum_parser(kind) if issubclass(kind, StrEnum) else _scalar_parser(kind)


def _list_parser(parse: _Parser) -> _Parser:
    def parse_list(value: object, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise Malformed(f"{where} must be a list.")
        _check_length(value, where)
        return tuple([parse(item, f"{where}[{index}]") for index, item in enumerate(value)])

    return parse_list


def _map_parser(parse_key: _Parser, parse: _Parser) -> _Parser:
    def parse_map(value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise Malformed(f"{where} must be an object.")
        _check_length(value, where)
        return {
            parse_key(key, f"a key of {where}"): parse(item, f"{where}.{key}")
            for key, item in value.items()
        }

    return parse_map


def _object_parser(kind: Any) -> _Parser:
    hints = get_type_hints(kind)
    parsers = [(f.name, _parser(hints[f.name])) for f in fields(kind)]

    def parse_object(value: object, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise Malformed(f"{where} must be an object.")
        parsed = {
            name: parse(value[name], f"{where}.{name}") for name, parse in parsers if name in value
        }
        try:
            return kind(**parsed)
        except TypeError as error:
            raise Malformed(f"{where}: {error}") from error

    return parse_object


def _enum_parser(kind: type[StrEnum]) -> _Parser:
    members = {member.value: member for member in kind}

    def parse_member(value: object, where: str) -> StrEnum:
        if not isinstance(value, str) or value not in members:
            raise Malformed(f"{where} must be one of {', '.join(members)}.")
        return members[value]

    return parse_member


def _scalar_parser(kind: Any) -> _Parser:
    accepted = (int, float) if kind is float else (kind,)

    def parse_scalar(value: Any, where: str) -> Any:
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise Malformed(f"{where} must be a {kind.__name__}.")
        if isinstance(value, str):
            _check_text(value, where)
        elif abs(value) > MAX_INTEGER or not math.isfinite(value):
            raise Malformed(f"{where} is out of range.")
        return value

    return parse_scalar


def _check_length(value: Sized, where: str) -> None:
    if len(value) > MAX_ITEMS:
        raise Malformed(f"{where} must have at most {MAX_ITEMS} items.")


def _check_text(value: str, where: str) -> None:
    """No database takes half a surrogate pair or a NUL, though JSON carries both."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise Malformed(f"{where} is not valid Unicode.") from error
    if "\0" in value:
        raise Malformed(f"{where} must not contain NUL characters.")
    if size > MAX_TEXT_BYTES:
        raise Malformed(f"{where} must have at most {MAX_TEXT_BYTES} bytes.")
