"""Servers of JetStream's API: Penstock's brokers with a nats-server, or JetStream, of one or three replicas.

Rules: Both get the same requests. The CPU of all `processes` counts: brokers and nats-server, or the nats-servers with
JetStream. A server of one replica can be killed and started again on its files: of Penstock the broker, while its
nats-server goes on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.broker.supervision.child import free_ports
from penstock_bench.load.nats_socket import NatsSocket
from penstock_bench.systems.brokers import TIMEOUT_S, running_brokers, until
from penstock_bench.systems.clusters import REPLICAS, VARIANTS, JetStreamCluster
from penstock_bench.systems.system import nats_server, nats_server_that_may_end

PENSTOCK, JETSTREAM = "penstock", "jetstream"
SYSTEMS = (PENSTOCK, JETSTREAM)


class ApiServer(Protocol):
    """A server of JetStream's API."""

    @property
    def address(self) -> Address:
        """Address that clients connect to."""

    @property
    def processes(self) -> Mapping[str, int]:
        """Ids of all its processes, by name; the first has the streams and consumers of a server of one replica."""

    def create(self, stream: str, subject: str, **config: Any) -> Address:
        """Create a stream; once all its replicas are in sync, return where its clients connect best."""


class OneServer(ApiServer, Protocol):
    """A server of one replica, which can be killed."""

    def kill(self) -> None:
        """End it with SIGKILL."""

    def start(self) -> None:
        """Start it again; it may not answer yet, and its address may be another one."""


def api_server(system: str, folder: Path, replicas: int, stack: ExitStack) -> ApiServer:
    """Start a system in a folder; it runs until the stack is closed."""
    if replicas == 1:
        return one_server(system, folder, stack)
    return _Penstock(folder, replicas, stack) if system == PENSTOCK else _JetStreamCluster(folder, stack)


def one_server(system: str, folder: Path, stack: ExitStack) -> OneServer:
    """Start a system of one replica in a folder; it runs until the stack is closed."""
    return _Penstock(folder, 1, stack) if system == PENSTOCK else _JetStream(folder, stack)


class _Penstock:
    def __init__(self, folder: Path, replicas: int, stack: ExitStack) -> None:
        (port,) = free_ports(1)
        leaf = f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n'
        self.address, self._nats_process_id = stack.enter_context(nats_server(folder / "nats-server", leaf))
        api = ("--jetstream-api", "auto", "--jetstream-rights", "manage", "--nats-leaf", f"nats://127.0.0.1:{port}")
        self._brokers = stack.enter_context(running_brokers(folder, self.address, replicas, *api))
        self._replicas = replicas

    @property
    def processes(self) -> Mapping[str, int]:
        return {**self._brokers.by_number(), "nats-server": self._nats_process_id}

    def create(self, stream: str, subject: str, **config: Any) -> Address:
        _create(self.address, stream, subject, self._replicas, config)
        created = self._brokers.client.stream(stream, timeout=TIMEOUT_S)
        self._brokers.wait_until_in_sync(created, self._replicas)
        return self.address

    def kill(self) -> None:
        self._brokers.kill(1)

    def start(self) -> None:
        self._brokers.start(1)


class _JetStream:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.address: Address
        self._process_id = 0
        self._folder = folder
        self._running = stack.enter_context(ExitStack())
        self.start()

    @property
    def processes(self) -> Mapping[str, int]:
        return {"nats-server": self._process_id}

    def create(self, stream: str, subject: str, **config: Any) -> Address:
        _create(self.address, stream, subject, 1, config)
        return self.address

    def kill(self) -> None:
        os.kill(self._process_id, signal.SIGKILL)
        self._running.close()

    def start(self) -> None:
        text = f'jetstream {{ store_dir: "{self._folder / "store"}" }}\n'
        running = nats_server_that_may_end(self._folder, text, start_s=limits.BENCH_RECOVERY_S)
        self.address, self._process_id = self._running.enter_context(running)


class _JetStreamCluster:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        cluster = stack.enter_context(VARIANTS["jetstream-r3"].start(folder))
        assert isinstance(cluster, JetStreamCluster)
        self._cluster = cluster
        self.address = next(iter(cluster.servers.values())).address
        self.processes: Mapping[str, int] = {name: one.process_id for name, one in cluster.servers.items()}

    def create(self, stream: str, subject: str, **config: Any) -> Address:
        _create(self.address, stream, subject, REPLICAS, config)
        leader = until(lambda: self._cluster.leader_if_whole(stream), f"all replicas of {stream} are current")
        return self._cluster.servers[leader].address


def _create(address: Address, stream: str, subject: str, replicas: int, config: Mapping[str, Any]) -> None:
    """Create a stream, once the API is served."""
    wanted = {"name": stream, "subjects": [subject], "num_replicas": replicas, **config}

    def made() -> bool:
        with NatsSocket(address, timeout_s=TIMEOUT_S) as nats:
            nats.request(f"$JS.API.STREAM.CREATE.{stream}", wanted)
        return True

    until(made, f"the stream {stream} is made")
