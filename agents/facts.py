"""What the agent knows about the containers of its node. Pure."""

from dataclasses import dataclass, field

from agents.protocol import ErrorCode, Phase, SeenInstance

type Key = tuple[str, int]  # instance and generation

HAS_CONTAINER = frozenset(
    {
        Phase.PULLING,  # it has none yet, but its start is under way
        Phase.CREATING,
        Phase.PROBING,
        Phase.RUNNING,
        Phase.STOPPING,
        Phase.EXITED,
    }
)
HOLDS_GPUS = HAS_CONTAINER - {Phase.EXITED}
# What moves an instance on the server; the rest is progress, which can wait for company.
DECISIVE = frozenset({Phase.RUNNING, Phase.EXITED, Phase.FAILED, Phase.GONE})


@dataclass(frozen=True, slots=True)
class Fact:
    """One generation of an instance on this node, as far as the agent knows.

    `found` marks a container that this run of the agent met rather than made, and has not yet
    judged: whether it is ready, and whether it may live, only an order tells.
    """

    instance: str
    generation: int
    phase: Phase
    spec_digest: str = ""
    gpu_uuids: tuple[str, ...] = ()
    found: bool = False
    percent: int | None = None
    exit_code: int | None = None
    oom_killed: bool = False
    error_code: ErrorCode | None = None
    error: str = ""
    endpoints: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.instance, self.generation

    @property
    def has_container(self) -> bool:
        return self.phase in HAS_CONTAINER

    @property
    def held_gpus(self) -> frozenset[str]:
        """The GPUs that nothing else may use now. An ended container uses none."""
        return frozenset(self.gpu_uuids if self.phase in HOLDS_GPUS else ())

    def to_seen(self) -> SeenInstance:
        return SeenInstance(
            instance=self.instance,
            generation=self.generation,
            phase=self.phase,
            percent=self.percent,
            exit_code=self.exit_code,
            oom_killed=self.oom_killed,
            error_code=self.error_code,
            error=self.error,
            endpoints=dict(self.endpoints),
        )


def gone(key: Key) -> Fact:
    """No container of this generation is left, and none will be started."""
    instance, generation = key
    return Fact(instance, generation, Phase.GONE)
