"""Products with three replicas, each as three processes of this machine; started, written and read as in `system`.

Rules: as in `system`. An ack means that all in-sync replicas, or a majority, have the message, as the product defines.
The CPU of all storing processes is counted, by their role for the round's stream: `leader`, `follower-1`, `follower-2`.
A stream is measured only after all its replicas are in sync.

| variant               | configuration                                                                           |
|-----------------------|-----------------------------------------------------------------------------------------|
| `penstock-r3`         | three brokers and one nats-server; a stream with three replicas at its defaults:        |
|                       | acked when all in sync have it, synced within a fraction of a second                    |
| `penstock-r3-fsync`   | the same with `durability = fsync`: acked when all in sync have synced it               |
| `jetstream-r3`        | three nats-servers, clustered; a file stream, R3, at its defaults: acked when two have  |
|                       | it, synced every 2 minutes. The publisher is connected to the stream's leader           |
| `jetstream-r3-away`   | the same, the publisher connected to another server, as two of three clients are        |
| `jetstream-r3-always` | `jetstream-r3` with `sync_interval: always`                                             |
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from penstock.base.addresses import Address, parse_address
from penstock.broker.supervision.child import free_ports
from penstock.messages import StreamInfo
from penstock_bench.load.nats_socket import NatsSocket
from penstock_bench.machine.byte_counters import Traffic, traffic
from penstock_bench.systems.brokers import TIMEOUT_S, Brokers, running_brokers, until
from penstock_bench.systems.system import (
    JetStreamLog,
    JetStreamSystem,
    PenstockLog,
    PenstockSystem,
    System,
    Variant,
    nats_server,
)

REPLICAS = 3
_ASK_S = 5.0

# Penstock


class PenstockCluster(System):
    """Brokers that share a nats-server; all streams have the same config, with a replica on each broker."""

    def __init__(self, brokers: Brokers, nats: Address, nats_process_id: int, config: Mapping[str, str]) -> None:
        self.brokers = brokers
        self.nats = nats
        self._nats_process_id = nats_process_id
        self._config = config
        self._numbers = itertools.count(1)

    @contextmanager
    def log(self) -> Iterator[PenstockLog]:
        client, name = self.brokers.client, f"bench-{next(self._numbers)}"
        config: dict[str, Any] = {"replicas": REPLICAS, **self._config}
        stream = client.create_stream(name, f"bench.{name}", timeout=TIMEOUT_S, **config)
        try:
            stream = self.brokers.wait_until_in_sync(stream, REPLICAS)
            yield PenstockLog(self._led(stream), stream)
        finally:
            client.delete_stream(stream, timeout=TIMEOUT_S)

    def traffic(self) -> Traffic:
        """Return the brokers' counters; network bytes are those between brokers and to their clients, not to NATS."""
        brokers = self.brokers
        folders = [brokers.folder(number) for number in brokers.addresses]
        ports = {parse_address(address).port for address in brokers.addresses.values()}
        return traffic(folders, brokers.process_ids.values(), ports)

    def _led(self, stream: StreamInfo) -> PenstockSystem:
        """Return the cluster as a system with the address of the stream's leader."""
        leader = int(stream.partitions[0].leader_id or 0)
        processes = {**self.brokers.by_role(leader), "nats-server": self._nats_process_id}
        led = PenstockSystem(self.brokers.addresses[leader], self.nats, self.brokers.folder(leader), processes)
        led.client = self.brokers.client
        return led


def _penstock(**config: str) -> Callable[[Path], AbstractContextManager[System]]:
    @contextmanager
    def start(folder: Path) -> Iterator[System]:
        with penstock_cluster(folder, **config) as cluster:
            yield cluster

    return start


@contextmanager
def penstock_cluster(folder: Path, **config: str) -> Iterator[PenstockCluster]:
    """Start three brokers on a nats-server of their own."""
    with (
        nats_server(folder / "nats-server") as (nats, process_id),
        running_brokers(folder, nats, REPLICAS) as brokers,
    ):
        yield PenstockCluster(brokers, nats, process_id, config)


# JetStream


class _Server(NamedTuple):
    """One nats-server of a cluster."""

    address: Address
    process_id: int
    route: Address
    store: Path


class JetStreamCluster(System):
    """Clustered nats-servers; all streams have the same config, with a replica on each server."""

    def __init__(self, servers: Mapping[str, _Server], config: Mapping[str, str], *, away: bool) -> None:
        self.servers = servers
        self._config = config
        self._away = away
        self._numbers = itertools.count(1)

    @contextmanager
    def log(self) -> Iterator[JetStreamLog]:
        name = f"bench-{next(self._numbers)}"
        subject = f"bench.{name}"
        config = {"name": name, "subjects": [subject], "num_replicas": REPLICAS, **self._config}
        until(lambda: self._ask(f"$JS.API.STREAM.CREATE.{name}", config), f"the stream {name} is made")
        try:
            leader = until(lambda: self.leader_if_whole(name), f"all replicas of {name} are current")
            yield JetStreamLog(self._led(leader), name, subject)
        finally:
            self._ask(f"$JS.API.STREAM.DELETE.{name}", {})

    def traffic(self) -> Traffic:
        """Return the servers' counters; network bytes are those of their routes, not to clients."""
        servers = self.servers.values()
        ports = {one.route.port for one in servers}
        return traffic([one.store for one in servers], [one.process_id for one in servers], ports)

    def leader_if_whole(self, stream: str) -> str | None:
        """Return the name of the stream's leader once all its replicas are current."""
        state = self._ask(f"$JS.API.STREAM.INFO.{stream}", {})["cluster"]
        replicas = state.get("replicas", ())
        is_whole = len(replicas) == REPLICAS - 1 and all(one["current"] for one in replicas)
        return state.get("leader") if is_whole else None

    def _led(self, leader: str) -> JetStreamSystem:
        """Return the cluster as a system with the address of the server that the publisher connects to."""
        others = [name for name in self.servers if name != leader]
        processes = {"leader": self.servers[leader].process_id}
        processes |= {f"follower-{place}": self.servers[name].process_id for place, name in enumerate(others, 1)}
        return JetStreamSystem(self.servers[others[0] if self._away else leader].address, {}, processes)

    def _ask(self, subject: str, body: object) -> dict[str, Any]:
        with NatsSocket(next(iter(self.servers.values())).address, timeout_s=_ASK_S) as nats:
            return nats.request(subject, body)


def _jetstream(
    *, sync: str = "", away: bool = False, **config: str
) -> Callable[[Path], AbstractContextManager[System]]:
    @contextmanager
    def start(folder: Path) -> Iterator[System]:
        routes = {f"server-{number}": port for number, port in enumerate(free_ports(REPLICAS), 1)}
        all_routes = ", ".join(f"nats://127.0.0.1:{port}" for port in routes.values())
        with ExitStack() as running:
            servers = {}
            for name, port in routes.items():
                place = folder / name
                text = (
                    f"server_name: {name}\n"
                    f'jetstream {{ store_dir: "{place / "store"}"{sync} }}\n'
                    f"cluster {{ name: bench, listen: 127.0.0.1:{port}, routes: [{all_routes}] }}\n"
                )
                address, process_id = running.enter_context(nats_server(place, text))
                servers[name] = _Server(address, process_id, Address("127.0.0.1", port), place / "store")
            cluster = JetStreamCluster(servers, config, away=away)
            with cluster.log():  # a stream can be created only when all three servers are ready
                pass
            yield cluster

    return start


_TABLE = (
    Variant("penstock-r3", "Penstock, 3 replicas (default: acked when all have it)", "penstock", _penstock()),
    Variant(
        "penstock-r3-fsync",
        "Penstock, 3 replicas, durability fsync (acked when all have synced it)",
        "penstock",
        _penstock(durability="fsync"),
    ),
    Variant(
        "jetstream-r3",
        "JetStream, R3 (default: acked when 2 have it), through its leader",
        "jetstream",
        _jetstream(storage="file"),
    ),
    Variant(
        "jetstream-r3-away",
        "JetStream, R3, through another server",
        "jetstream",
        _jetstream(storage="file", away=True),
    ),
    Variant(
        "jetstream-r3-always",
        "JetStream, R3, sync always, through its leader",
        "jetstream",
        _jetstream(sync=", sync_interval: always", storage="file"),
    ),
)

VARIANTS: dict[str, Variant] = {variant.name: variant for variant in _TABLE}
"""The variants by name."""
PENSTOCK = ("penstock-r3", "penstock-r3-fsync")
AGAINST = {"jetstream": ("jetstream-r3", "jetstream-r3-away", "jetstream-r3-always")}


def variants(names: Iterable[str]) -> tuple[Variant, ...]:
    """Return the cluster variants among these names."""
    return tuple(VARIANTS[name] for name in dict.fromkeys(names) if name in VARIANTS)
