"""Containers by Docker. The only file that imports docker."""

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound

from agents import archives, engine_errors, hardening, probing, threads
from agents.containers import Container, Host, RuntimeAway, StartRefused, State
from agents.facts import Key
from agents.labels import NODE, SPEC, container_of, key_of, labels_for, name_of
from agents.ports import PortRange, PortsExhausted
from agents.protocol import ContainerSpec, ErrorCode
from agents.pulling import PullProgress

logger = logging.getLogger(__name__)

CALL_SECONDS = 60  # one answer of the engine; a stop may take its grace in addition
CALLS_AT_ONCE = 32  # more than containers on a node, so that a stop never waits for a start
PULLS_AT_ONCE = 3
PORT_ATTEMPTS = 5
SETTLE_SECONDS = 0.2  # a command that cannot run has ended by then
PROBE_SECONDS = 0.25


def connect(docker_host: str) -> docker.APIClient:
    """A client of the engine; it says hello at once. Raises DockerException."""
    return docker.APIClient(base_url=docker_host or None, timeout=CALL_SECONDS)


class DockerRuntime:
    """Keeps the contract of `agents.containers.Runtime` with a Docker Engine.

    Calls run in threads. One that was begun is waited for even where its caller is cancelled,
    and one that timed out is repeated by the caller: the container's name makes a creation
    happen once, so nothing is assumed about what the engine did meanwhile.
    """

    simulated = False

    def __init__(
        self,
        connect_engine: Callable[[], Any],
        *,
        node: str,
        ports: PortRange,
        pretended_gpus: frozenset[str] = frozenset(),
    ) -> None:
        self._connect = connect_engine
        self._node = node
        self._ports = ports
        self._pretended_gpus = pretended_gpus  # granted in name only
        self._pool = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="docker")
        self._pulls = asyncio.Semaphore(PULLS_AT_ONCE)
        self._making_network = asyncio.Lock()
        self._connecting = threading.Lock()
        self._api: Any = None
        self._host: Host | None = None
        self._published: dict[Key, dict[str, str]] = {}
        self._out_of_memory: set[Key] = set()  # in which something was killed for want of it

    async def host(self) -> Host:
        if self._host is None:
            info = await self._call(lambda api: api.info())
            self._host = Host(
                runtime=f"Docker {info['ServerVersion']}",
                vcpus=int(info["NCPU"]),
                memory_mib=int(info["MemTotal"]) // (1024 * 1024),
            )
        return self._host

    async def containers(self) -> list[Container]:
        wanted = {"label": f"{NODE}={self._node}"}
        listed = await self._call(lambda api: api.containers(all=True, filters=wanted))
        # The list lags behind the events by some milliseconds; to inspect is to know.
        found = await asyncio.gather(*(self._find(item["Id"]) for item in listed))
        return [container for container in found if container is not None]

    async def pull(self, image: str, *, progress: Callable[[int], None]) -> None:
        if await self._has_image(image):
            return
        loop = asyncio.get_running_loop()
        given_up = threading.Event()

        def pull(api: Any) -> None:
            told = PullProgress()
            for line in api.pull(image, stream=True, decode=True):
                if given_up.is_set():
                    return  # dropping the answer makes the engine stop
                if "error" in line:
                    raise _pull_refused(image, line["error"])
                loop.call_soon_threadsafe(progress, told.take_in(line))

        async with self._pulls:
            try:
                # Not one of the pool's threads, and not waited for: a registry can hang for ever.
                await threads.begin(lambda: self._with_engine(pull), name="docker-pull")
            except APIError as error:
                raise _pull_refused(image, _text_of(error)) from error
            finally:
                given_up.set()

    async def start(self, instance: str, generation: int, spec: ContainerSpec) -> Container:
        key = instance, generation
        for _ in range(PORT_ATTEMPTS):
            identifier = await self._create(key, spec)
            try:
                await self._start(identifier)
            except APIError as error:
                await self.remove(*key)
                text = _text_of(error)
                if engine_errors.is_port_taken(text):
                    continue  # by something that is not ours; the next attempt takes others
                code = engine_errors.code_of_start(text)
                raise StartRefused(code, engine_errors.sentence(text)) from error
            if (made := await self._find(identifier)) is not None:
                return made
        raise StartRefused(ErrorCode.START_FAILED, "No free port was found on the node.")

    async def probe(self, container: Container, spec: ContainerSpec) -> bool:
        name = name_of(container.key)
        if spec.ready_port is None:
            await asyncio.sleep(SETTLE_SECONDS)
            return await self._is_running(name)
        try:
            async with asyncio.timeout(spec.ready_timeout_seconds):
                while await self._is_running(name):
                    address, port = await self._address_of(container, spec.ready_port)
                    if await probing.answers(address, port):
                        return True
                    await asyncio.sleep(PROBE_SECONDS)
                return False
        except TimeoutError as error:
            raise StartRefused(
                ErrorCode.NOT_READY,
                f"Nothing answered on port {spec.ready_port} "
                f"within {spec.ready_timeout_seconds:g} seconds.",
            ) from error

    async def stop(self, instance: str, generation: int, *, grace_seconds: float) -> None:
        name = name_of((instance, generation))
        seconds = math.ceil(grace_seconds)
        await self._end(lambda api: api.stop(name, timeout=seconds))

    async def remove(self, instance: str, generation: int) -> None:
        name = name_of((instance, generation))
        await self._end(lambda api: api.remove_container(name, v=True, force=True))
        self._ports.give_back(self._published.pop((instance, generation), {}).values())
        self._out_of_memory.discard((instance, generation))

    async def watch(self, noticed: Callable[[], None]) -> None:
        """Raises RuntimeAway where the engine ends its stream of events."""
        loop = asyncio.get_running_loop()
        filters = {
            "type": "container",
            "event": ["die", "oom", "destroy"],
            "label": f"{NODE}={self._node}",
        }
        stream = await self._call(lambda api: api.events(filters=filters, decode=True))
        ended = asyncio.Event()

        def follow() -> None:
            try:
                for event in stream:
                    key = key_of(event["Actor"]["Attributes"])
                    if event["Action"] == "oom" and key is not None:
                        self._out_of_memory.add(key)
                    loop.call_soon_threadsafe(noticed)
            except (OSError, ValueError, KeyError, RuntimeError) as error:
                logger.warning("following the engine's events failed: %s", error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=follow, name="docker-events", daemon=True).start()
        # What happened before the stream was open is found by looking once.
        noticed()
        try:
            await ended.wait()
        finally:
            stream.close()
        raise RuntimeAway("the stream of events has ended")

    async def _create(self, key: Key, spec: ContainerSpec) -> str:
        """The container's id, made now or by an attempt before. Raises StartRefused."""
        await self._have_network()
        try:
            return await self._create_anew(key, spec)
        except APIError as error:
            if error.status_code != HTTPStatus.CONFLICT:
                raise _create_refused(spec, error) from error
        there = await self._inspect(name_of(key))
        labels = there["Config"]["Labels"] or {} if there else {}
        if there and labels.get(NODE) != self._node:
            raise StartRefused(ErrorCode.START_FAILED, "Its name is taken on the node.")
        if there and labels.get(SPEC) == spec.digest():
            return str(there["Id"])
        await self.remove(*key)
        try:
            return await self._create_anew(key, spec)
        except APIError as error:
            raise _create_refused(spec, error) from error

    async def _create_anew(self, key: Key, spec: ContainerSpec) -> str:
        host = await self.host()
        real_gpus = [uuid for uuid in spec.gpu_uuids if uuid not in self._pretended_gpus]
        try:
            endpoints = self._ports.take(spec.ports)
        except PortsExhausted as error:
            raise StartRefused(ErrorCode.START_FAILED, str(error)) from error
        environment = hardening.environment_for(spec, real_gpus=real_gpus)
        limits = hardening.host_config_for(
            spec, host=host, endpoints=endpoints, real_gpus=real_gpus
        )
        labels = labels_for(key, spec, node=self._node, endpoints=endpoints)

        def create(api: Any) -> str:
            made = api.create_container(
                spec.image,
                command=list(spec.command) or None,
                hostname=spec.hostname,
                environment=environment,
                ports=list(spec.ports),
                labels=labels,
                name=name_of(key),
                host_config=api.create_host_config(**limits),
            )
            if spec.ssh_keys:
                _write_login_environment(api, made["Id"], environment)
            return str(made["Id"])

        try:
            identifier: str = await self._call(create)
        except BaseException:
            self._ports.give_back(endpoints.values())
            raise
        self._published[key] = endpoints
        return identifier

    async def _start(self, identifier: str) -> None:
        """Start what has not run yet; an ended container is not started again."""
        attrs = await self._call(lambda api: api.inspect_container(identifier))
        if attrs["State"]["Status"] == "created":
            await self._call(lambda api: api.start(identifier))

    async def _have_network(self) -> None:
        """Ours must exist, with containers kept apart. Raises StartRefused."""

        def make(api: Any) -> None:
            if any(item["Name"] == hardening.NETWORK for item in api.networks([hardening.NETWORK])):
                return
            options = {"com.docker.network.bridge.enable_icc": "false"}
            api.create_network(
                hardening.NETWORK, driver="bridge", options=options, check_duplicate=True
            )

        async with self._making_network:
            try:
                await self._call(make)
            except APIError as error:
                text = engine_errors.sentence(_text_of(error))
                raise StartRefused(ErrorCode.START_FAILED, text) from error

    async def _end(self, work: Callable[[Any], None]) -> None:
        """Absent is as good as ended; any other refusal is for the caller to try again."""
        try:
            await self._call(work)
        except NotFound:
            return
        except APIError as error:
            raise RuntimeAway(_text_of(error)) from error

    async def _find(self, identifier: str) -> Container | None:
        """None where it is gone or, with a line in the log, where its labels make no sense: one
        bad container must not hide the others."""
        attrs = await self._inspect(identifier)
        if attrs is None:
            return None
        state = attrs["State"]
        try:
            found = container_of(state["Status"], attrs["Config"]["Labels"] or {})
        except (KeyError, ValueError) as error:
            logger.warning("container %s has labels that make no sense: %s", identifier, error)
            return None
        self._ports.hold(found.endpoints.values())
        self._published[found.key] = found.endpoints
        return replace(
            found,
            exit_code=state["ExitCode"] if found.state == State.EXITED else None,
            oom_killed=bool(state["OOMKilled"]) or found.key in self._out_of_memory,
        )

    async def _has_image(self, image: str) -> bool:
        try:
            await self._call(lambda api: api.inspect_image(image))
        except NotFound:
            return False
        except APIError as error:
            raise _pull_refused(image, _text_of(error)) from error
        return True

    async def _is_running(self, name: str) -> bool:
        attrs = await self._inspect(name)
        return attrs is not None and bool(attrs["State"]["Running"])

    async def _address_of(self, container: Container, port: int) -> tuple[str, int]:
        """Where its port answers: as published, else its own address on our network."""
        if (endpoint := container.endpoints.get(str(port))) is not None:
            address, _, published = endpoint.rpartition(":")
            return address, int(published)
        attrs = await self._inspect(name_of(container.key)) or {}
        networks = attrs.get("NetworkSettings", {}).get("Networks", {})
        return networks.get(hardening.NETWORK, {}).get("IPAddress", ""), port

    async def _inspect(self, name: str) -> dict[str, Any] | None:
        try:
            attrs: dict[str, Any] = await self._call(lambda api: api.inspect_container(name))
        except NotFound:
            return None
        return attrs

    async def _call(self, work: Callable[[Any], Any]) -> Any:
        """Do it in a thread. Raises APIError where the engine refuses, RuntimeAway where it
        does not answer."""
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._pool, self._with_engine, work)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])
            done.add_done_callback(lambda future: future.cancelled() or future.exception())
            raise

    def _with_engine(self, work: Callable[[Any], Any]) -> Any:
        try:
            with self._connecting:
                self._api = self._api or self._connect()
            return work(self._api)
        except APIError:
            raise
        except (DockerException, OSError) as error:
            raise RuntimeAway(str(error)) from error


def _text_of(error: APIError) -> str:
    return str(error.explanation or error)


def _pull_refused(image: str, text: str) -> StartRefused:
    sentence = engine_errors.sentence(f"Image {image} cannot be pulled: {text}")
    return StartRefused(engine_errors.code_of_pull(text), sentence)


def _create_refused(spec: ContainerSpec, error: APIError) -> StartRefused:
    if isinstance(error, NotFound):
        return _pull_refused(spec.image, _text_of(error))
    return StartRefused(ErrorCode.START_FAILED, engine_errors.sentence(_text_of(error)))


def _write_login_environment(api: Any, identifier: str, variables: Mapping[str, str]) -> None:
    """Give SSH sessions the container's variables. An image that cannot take them still starts."""
    try:
        chunks, _ = api.get_archive(identifier, "/etc/environment")
        existing = archives.text_in(b"".join(chunks))
    except NotFound:
        existing = ""
    text = hardening.login_environment(existing, variables)
    try:
        api.put_archive(identifier, "/etc", archives.holding("environment", text))
    except APIError as error:
        logger.warning("SSH sessions of %s get no variables: %s", identifier, _text_of(error))
