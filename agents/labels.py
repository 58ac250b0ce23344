"""What stands on a container, so that a later run of the agent can take it up. Pure."""

import json
from collections.abc import Mapping

from agents.containers import Container, State
from agents.facts import Key
from agents.protocol import ContainerSpec

NODE, INSTANCE, GENERATION = "headrace.node", "headrace.instance", "headrace.generation"
SPEC, GPUS, ENDPOINTS = "headrace.spec", "headrace.gpus", "headrace.endpoints"


def name_of(key: Key) -> str:
    """The name is the key that makes creation happen once.

    >>> name_of(("i1", 3))
    'hr-i1-g3'
    """
    instance, generation = key
    return f"hr-{instance}-g{generation}"


def labels_for(
    key: Key, spec: ContainerSpec, *, node: str, endpoints: Mapping[str, str]
) -> dict[str, str]:
    """All that a later run of the agent must know to take the container up."""
    instance, generation = key
    return {
        NODE: node,
        INSTANCE: instance,
        GENERATION: str(generation),
        SPEC: spec.digest(),
        GPUS: ",".join(spec.gpu_uuids),
        ENDPOINTS: json.dumps(endpoints),
    }


def container_of(status: str, labels: Mapping[str, str]) -> Container:
    """Raises KeyError or ValueError where a label is missing or garbled."""
    states = {"created": State.CREATED, "exited": State.EXITED, "dead": State.EXITED}
    gpus = labels[GPUS]
    return Container(
        instance=labels[INSTANCE],
        generation=int(labels[GENERATION]),
        state=states.get(status, State.RUNNING),
        spec_digest=labels[SPEC],
        gpu_uuids=tuple(gpus.split(",")) if gpus else (),
        endpoints=dict(json.loads(labels[ENDPOINTS])),
    )


def key_of(labels: Mapping[str, str]) -> Key | None:
    try:
        return labels[INSTANCE], int(labels[GENERATION])
    except (KeyError, ValueError):
        return None
