"""One node from its configuration to its running agent: wire, enrol once, run."""

import asyncio
import logging

from agents import inventory, runtime, state_folder
from agents.backoff import Backoff
from agents.client import Client, Unreachable
from agents.config import AgentConfig, RuntimeChoice
from agents.containers import Host, Runtime, RuntimeAway
from agents.inventory import NodeInventory
from agents.loop import Agent, work_until
from agents.ports import PortRange
from agents.protocol import PROTOCOL, EnrollReply, EnrollRequest
from agents.runtime import DockerRuntime
from agents.simulated import SimulatedRuntime
from agents.state_folder import NodeIdentity

logger = logging.getLogger(__name__)


class NotEnrolled(Exception):
    """The node has no identity and no way to get one; the sentence says what to do."""


async def serve(config: AgentConfig, stop: asyncio.Event) -> None:
    """Be this node until `stop` is set. Many can be served in one process.

    Raises NotEnrolled, client.Rejected (the join token was refused), loop.TokenRefused or
    state_folder.StateFolderUnusable.
    """
    with state_folder.locked(config.state):
        known = state_folder.load(config.state)
        name = known.name if known else config.node_name
        choice = await _choose_runtime(config, known)
        containers = _make_runtime(config, choice, name)
        stock = NodeInventory(containers, config=config, node_name=name)
        if known is None:
            await work_until(stop, _enroll(config, choice, stock))
        identity = state_folder.load(config.state)
        if identity is None:
            return  # told to stop before the portal answered
        logger.info("node %s, runtime %s, portal %s", identity.name, choice, config.url)
        client = Client(config.url, node_token=identity.token)
        try:
            await Agent(config, containers, stock, client, identity=identity).run(stop)
        finally:
            await client.aclose()


async def _choose_runtime(config: AgentConfig, known: NodeIdentity | None) -> RuntimeChoice:
    """What the operator says, else what was chosen at the first start, else what is there."""
    if config.runtime != RuntimeChoice.AUTO:
        return config.runtime
    if known is not None:
        return known.runtime
    if await _docker_answers(config):
        return RuntimeChoice.DOCKER
    logger.warning("no Docker Engine answers: this node's containers will be simulated")
    return RuntimeChoice.SIMULATED


async def _docker_answers(config: AgentConfig) -> bool:
    try:
        await _make_runtime(config, RuntimeChoice.DOCKER, config.node_name).host()
    except RuntimeAway:
        return False
    return True


def _make_runtime(config: AgentConfig, choice: RuntimeChoice, node_name: str) -> Runtime:
    ports = PortRange(config.advertise_address, config.first_port, config.last_port)
    if choice == RuntimeChoice.DOCKER:
        pretended = inventory.simulate(node_name, config.simulated_gpus)
        return DockerRuntime(
            lambda: runtime.connect(config.docker_host),
            node=node_name,
            ports=ports,
            pretended_gpus=frozenset(gpu.uuid for gpu in pretended),
        )
    host = Host("simulated", config.simulated_vcpus, config.simulated_memory_mib)
    return SimulatedRuntime(config.state, host=host, ports=ports)


async def _enroll(config: AgentConfig, choice: RuntimeChoice, stock: NodeInventory) -> None:
    """Exchange the join token for this node's own secret, and keep it."""
    if not config.join_token:
        raise NotEnrolled(
            "This node is not enrolled: make a join token on the fleet page, or with "
            "manage.py enroll_node, and start it once with HEADRACE_JOIN_TOKEN."
        )
    client = Client(config.url)
    try:
        reply = await _ask_to_join(client, config, stock)
    finally:
        await client.aclose()
    identity = NodeIdentity(reply.node_name, reply.node_token, reply.node_epoch, choice)
    state_folder.save(config.state, identity)
    logger.info("enrolled as %s", identity.name)


async def _ask_to_join(client: Client, config: AgentConfig, stock: NodeInventory) -> EnrollReply:
    """Again until the portal and the engine both answer."""
    backoff = Backoff()
    while True:
        try:
            request = EnrollRequest(
                protocol=PROTOCOL,
                join_token=config.join_token,
                node_name=config.node_name,
                inventory=await stock.read(),
            )
            return await client.enroll(request)
        except (Unreachable, RuntimeAway) as away:
            logger.warning("this node waits to enrol: %s", away)
            await asyncio.sleep(backoff.next_seconds())
