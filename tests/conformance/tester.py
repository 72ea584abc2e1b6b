"""The tester service of nats.go's suite, which starts servers on request, for servers of our choice.

Rules: a request is a NATS message on `tester.…` with a JSON body, as the module `ntf-client` of orbit.go sends it. An
answer is JSON; an error is in the headers of NATS services. What a suite does not use here is refused: TLS, traces,
proxies and super-clusters. Servers start and stop on threads, so that tests may run side by side.

| subject                                   | does                                                        |
|-------------------------------------------|-------------------------------------------------------------|
| `tester.create.server`, `.create.cluster` | starts servers with this config; answers their ports        |
| `tester.stop.server`, `.start.server`     | stops a server in order; starts it on its ports and files   |
| `tester.update.server`, `.reload.server`  | writes another config; lets nats-server read it             |
| `tester.destroy`, `tester.reset`          | kills the servers of one instance, or of all                |
| `tester.status`, `tester.list`            | tells of the instances                                      |
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from tests.broker_process import running_nats
from tests.conformance.servers import ManagedServer, Plan, System
from tests.ports import free_ports

_log = logging.getLogger("conformance.tester")

SERVERS_MAX = 5
_WITH_PORT = ("websocket", "mqtt", "leafnode")
_SNIPPETS = ("accounts", "system_account", "authorization", "jetstream", "top", *_WITH_PORT)
_VARIABLE = re.compile(r"\{\{\s*\.([A-Za-z.]+)\s*\}\}")
_ACCOUNT = "USERS{0} {{ users = [ {{ user: user{0}, password: password }} ], jetstream: true }}\n"
_SYSTEM = "$SYS { users = [ { user: system, password: password } ] }"
_USERS = f"accounts {{\n{''.join(map(_ACCOUNT.format, range(1, 6)))}{_SYSTEM}\n}}"
_DEFAULTS = {"accounts": _USERS, "system_account": 'system_account: "$SYS"', "authorization": "no_auth_user: user1"}

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class RequestError(Exception):
    """A request that cannot be carried out; the text says why."""


@dataclass(frozen=True)
class Instance:
    """The servers of one request."""

    id: str
    kind: str
    description: str
    created: str
    folder: Path
    servers: tuple[ManagedServer, ...]

    def summary(self) -> dict[str, Any]:
        return {"id": self.id, "kind": self.kind, "description": self.description}


class Tester:
    """The service: instances by their ids, servers by their names."""

    def __init__(self, system: System, folder: Path) -> None:
        self._system = system
        self._folder = folder
        self._instances: dict[str, Instance] = {}
        self._numbers = count(1)
        self._connection: NatsClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[str, Handler] = {
            "create.server": lambda request: self._create("server", 1, request),
            "create.cluster": lambda request: self._create("cluster", int(request["servers"]), request),
            "destroy": self._destroy,
            "reset": self._reset,
            "stop.server": self._stop,
            "start.server": self._start,
            "update.server": self._update,
            "reload.server": self._reload,
            "status": self._status,
            "list": self._list,
        }

    async def serve(self, connection: NatsClient) -> None:
        """Answer requests on this connection."""
        self._connection = connection
        await connection.subscribe("tester.>", cb=self._heard)

    async def close(self) -> None:
        """End all servers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._reset({})

    async def _heard(self, message: Msg) -> None:
        task = asyncio.create_task(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: Msg) -> None:
        headers: dict[str, str] = {}
        answer: dict[str, Any] = {}
        try:
            handler = self._handlers.get(message.subject.removeprefix("tester."))
            if handler is None:
                raise RequestError(f"{message.subject} is not served here")
            answer = await handler(json.loads(message.data or b"{}"))
        except (RequestError, AssertionError, OSError, KeyError, ValueError) as error:
            _log.exception("%s", message.subject)
            headers = {"Nats-Service-Error": str(error).splitlines()[0], "Nats-Service-Error-Code": "002"}
        assert self._connection is not None
        await self._connection.publish(message.reply, json.dumps(answer).encode(), headers=headers or None)

    async def _create(self, kind: str, wanted: int, request: dict[str, Any]) -> dict[str, Any]:
        if asked := [name for name in ("tls", "trace", "proxy", "template") if request.get(name)]:
            raise RequestError(f"not supported by this tester: {', '.join(asked)}")
        if not 1 <= wanted <= SERVERS_MAX:
            raise RequestError(f"{wanted} servers: 1 to {SERVERS_MAX} are allowed")
        number = next(self._numbers)
        name = f"I{number:06d}"
        folder = self._folder / name
        servers = tuple(ManagedServer(self._system, plan) for plan in _plans(name, folder, wanted, request))
        made = Instance(name, kind, request.get("description", ""), _now(), folder, servers)
        self._instances[name] = made
        try:
            await asyncio.gather(*(asyncio.to_thread(server.launch) for server in servers))
            await asyncio.gather(*(asyncio.to_thread(server.wait_ready) for server in servers))
        except AssertionError:
            await self._destroy({"instance_id": name})
            raise
        return {**made.summary(), "servers": [_described(server) for server in servers]}

    async def _destroy(self, request: dict[str, Any]) -> dict[str, Any]:
        instance = self._instances.pop(request["instance_id"], None)
        if instance is None:
            raise RequestError(f"there is no instance {request['instance_id']}")
        await asyncio.gather(*(asyncio.to_thread(server.end) for server in instance.servers))
        await asyncio.to_thread(shutil.rmtree, instance.folder, ignore_errors=True)
        return {"destroyed": True}

    async def _reset(self, request: dict[str, Any]) -> dict[str, Any]:
        for name in list(self._instances):
            await self._destroy({"instance_id": name})
        return {"shutdown": True}

    async def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        await asyncio.to_thread(self._server(request).stop)
        return {"shutdown": True}

    async def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        await asyncio.to_thread(self._server(request).start)
        return {"started": True}

    async def _update(self, request: dict[str, Any]) -> dict[str, Any]:
        server = self._server(request)
        variables = _variables(server.plan.folder, server.plan.ports)
        server.plan.blocks = _blocks(request.get("snippets") or {}, variables)
        server.write()
        return {"updated": True}

    async def _reload(self, request: dict[str, Any]) -> dict[str, Any]:
        self._server(request).reload()
        return {"reloaded": True}

    async def _status(self, request: dict[str, Any]) -> dict[str, Any]:
        wanted = request.get("instance_id")
        found = [one for one in self._instances.values() if wanted in (None, "", one.id)]
        return {"instances": [one.summary() | {"servers": [_described(s) for s in one.servers]} for one in found]}

    async def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        every = self._instances.values()
        return {"instances": [one.summary() | {"servers": len(one.servers), "created": one.created} for one in every]}

    def _server(self, request: dict[str, Any]) -> ManagedServer:
        for instance in self._instances.values():
            for server in instance.servers:
                if server.plan.name == request["name"]:
                    return server
        raise RequestError(f"there is no server {request['name']}")


def _plans(name: str, folder: Path, wanted: int, request: dict[str, Any]) -> list[Plan]:
    """Return the plans of the servers that a request asks for: with several, those of a cluster."""
    snippets = request.get("snippets") or {}
    if unknown := set(snippets) - set(_SNIPPETS):
        raise RequestError(f"unknown parts of a config: {', '.join(sorted(unknown))}")
    routes, listens = free_ports(wanted), free_ports(wanted)
    voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(listens, 1)) if wanted > 1 else ""
    plans = []
    for number in range(1, wanted + 1):
        place = folder / f"n{number}"
        ports = {part: free_ports(1)[0] for part in _WITH_PORT if part in snippets}
        variables = _variables(place, ports)
        plan = Plan(
            name=f"{name}-n{number}",
            folder=place,
            port=free_ports(1)[0],
            blocks=_blocks(snippets, variables),
            cluster_block=_cluster(name, routes, number) if wanted > 1 else "",
            wants_jetstream=bool(request.get("jetstream")),
            jetstream_extras=_filled(snippets.get("jetstream", ""), variables),
            voters=voters,
            broker_id=number,
            broker_listen=f"127.0.0.1:{listens[number - 1]}",
            ports=ports,
        )
        plans.append(plan)
    return plans


def _cluster(name: str, routes: list[int], number: int) -> str:
    others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    return f'cluster {{ name: "C-{name}", listen: "127.0.0.1:{routes[number - 1]}", routes: [ {others} ] }}'


def _blocks(snippets: dict[str, str], variables: dict[str, str]) -> dict[str, str]:
    """Return the blocks of a config: the suite's, or else the tester's own."""
    bodies = {**_DEFAULTS, **{name: body for name, body in snippets.items() if name != "jetstream"}}
    return {name: _filled(body, variables) for name, body in bodies.items()}


def _variables(folder: Path, ports: dict[str, int]) -> dict[str, str]:
    return {"StoreDir": str(folder), **{f"Ports.{name}": str(port) for name, port in ports.items()}}


def _filled(body: str, variables: dict[str, str]) -> str:
    """Fill a template of Go in, as far as the suite uses templates; raise RequestError for all else."""
    unknown = [name for name in _VARIABLE.findall(body) if name not in variables]
    if unknown or "{{" in _VARIABLE.sub("", body):
        raise RequestError(f"not supported in a part of a config: {body}")
    return _VARIABLE.sub(lambda found: variables[found[1]], body)


def _described(server: ManagedServer) -> dict[str, Any]:
    plan = server.plan
    return {"name": plan.name, "cluster": "", "port": plan.port, "ports": plan.ports, "running": server.is_running}


def _now() -> str:
    return datetime.now(UTC).isoformat()


@asynccontextmanager
async def running_tester(system: System, folder: Path) -> AsyncIterator[str]:
    """Run the service within the block; yield its URL."""
    with running_nats(folder / "tester") as server:
        connection = await nats.connect(server.url)
        tester = Tester(system, folder)
        await tester.serve(connection)
        try:
            yield server.url
        finally:
            await tester.close()
            await connection.close()
