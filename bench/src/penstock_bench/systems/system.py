"""The measured systems: products in their variants, each started, written, read back and stopped the same way.

Rules: A variant starts its own processes in its own folder and ends them. Each round gets an empty log, which is
deleted afterwards, so that no round reads or maintains another round's data. Nothing is tuned: a variant lists every
difference from the product's defaults. nats-server's `max_payload` is raised for none.

| variant            | configuration                                                                         |
|--------------------|---------------------------------------------------------------------------------------|
| `penstock`         | `penstock serve` with its own nats-server; a stream at its defaults: fsync before ack |
| `penstock-os`      | as `penstock`, with `durability = os`: acked from the page cache                      |
| `penstock-memory`  | as `penstock`, with `storage = memory`                                                |
| `…-encrypted`      | each of the first two with `encryption = aes-256-gcm`                                 |
| `jetstream`        | nats-server with JetStream; a file stream, R1, at its defaults: syncs every 2 minutes |
| `jetstream-always` | as `jetstream`, with `sync_interval: always`                                          |
| `jetstream-async`  | a file stream with `persist_mode: async`: acked before it is written                  |
| `jetstream-memory` | as `jetstream`, with memory storage                                                   |
| `echo`             | nats-server and a responder on asyncio, which stores nothing                          |
| `echo-raw`         | nats-server and a responder on a blocking socket                                      |
| `null`             | a responder in the place of nats-server: the generator's ceiling                      |
"""

from __future__ import annotations

import itertools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.base.addresses import Address, parse_address
from penstock.base.config import Encryption
from penstock.base.errors import OperationalError
from penstock.base.limits import BENCH_POOL_BYTES_MAX, BENCH_STALL_S, BENCH_START_S
from penstock.broker.nats.server import find_nats_server
from penstock.broker.supervision.child import OnEnd, serving
from penstock.client.blocking import client as blocking
from penstock.client.blocking.client import Client
from penstock.commitlog.files.index import ENTRY_BYTES
from penstock.messages import StreamInfo
from penstock.vfs.keys import new_key_line
from penstock_bench.load.content import Content, Tally
from penstock_bench.load.frames import Pool
from penstock_bench.load.generator import Load, Published, PublishTask, publish
from penstock_bench.load.nats_socket import NatsSocket
from penstock_bench.machine import vital, worker
from penstock_bench.machine.processes import child, children_of
from penstock_bench.systems import jetstream_read, responders

_LISTENING = re.compile(rb"Listening for client connections on \S*:(\d+)\s*$")
_READY = re.compile(rb"Server is ready")
_TIMEOUT_S = 60.0
_LOADED_ROWS = 16_384


class MeasuredLog(ABC):
    """An empty log, for one round."""

    @abstractmethod
    def publish(self, load: Load) -> Published:
        """Publish the load from the generator's own process until all sent messages are answered."""

    @abstractmethod
    def read_back(self, *, ordered: bool) -> Content | None:
        """Read everything and verify every checksum; None if the system stores nothing."""


class System(ABC):
    """A running product. `processes`: process ids by role, for the CPU time."""

    processes: Mapping[str, int] = {}

    @abstractmethod
    def log(self) -> AbstractContextManager[MeasuredLog]:
        """Return an empty log that is deleted when the context ends."""


class Variant(NamedTuple):
    """A row of the table: a system that can be started in a folder."""

    name: str
    title: str  # for tables and plots
    product: str
    start: Callable[[Path], AbstractContextManager[System]]


class NatsLog(MeasuredLog):
    """A log that is written through NATS: the raw generator publishes on `subject` to the server at `nats`."""

    dialect = "jetstream"

    def __init__(self, nats: Address, subject: str, processes: Mapping[str, int]) -> None:
        self.nats = nats
        self.subject = subject
        self.processes = processes

    def publish(self, load: Load) -> Published:
        task = PublishTask(self.nats, self.subject, load, dict(self.processes), self.dialect)
        return worker.run(publish, task, timeout_s=time_for(load))


def time_for(load: Load) -> float:
    """Return the time-out of a generator in seconds: encoding, sending, a stall, and the check of the acks."""
    return _TIMEOUT_S + load.seconds_max + BENCH_STALL_S + load.messages / 10_000


# Penstock


class PenstockLog(NatsLog):
    """A stream of a Penstock broker."""

    def __init__(self, system: PenstockSystem, stream: StreamInfo) -> None:
        super().__init__(system.nats, stream.subject, system.processes)
        self.client_address = system.client_address
        self.data_dir = system.data_dir
        self.stream = stream
        self._client = system.client

    def files(self, suffix: str) -> list[Path]:
        """Return the log's files with this suffix, in log order; none for memory storage."""
        return sorted(self.data_dir.glob(f"streams/*-{self.stream.name}/0/*{suffix}"))

    @property
    def batches(self) -> int:
        """Number of record batches on disk."""
        return sum(file.stat().st_size for file in self.files(".index")) // ENTRY_BYTES

    def load(self, load: Load) -> Content:
        """Append the load over the broker's socket in batches of many rows, as bulk writers do. Return its content."""
        import pyarrow as pa

        pool = Pool(self.subject, "", load.size, load.messages, load.seed, bytes_max=BENCH_POOL_BYTES_MAX)
        values = pool.values(load.messages)
        tally = Tally()
        while rows := [bytes(value) for value in itertools.islice(values, _LOADED_ROWS)]:
            self._client.append(self.stream, pa.table({"value": pa.array(rows, pa.binary())}), timeout=_TIMEOUT_S)
            tally.add(rows)
        return tally.content()

    def read_back(self, *, ordered: bool) -> Content:
        """Read through the client, which verifies the CRC and the Arrow layout of every batch."""
        tally = Tally()
        for batch in self._client.read(self.stream, columns=("value",), timeout=_TIMEOUT_S):
            tally.add(batch.column("value").to_pylist())
        return tally.content(ordered=ordered)


class PenstockSystem(System):
    """`penstock serve` as a process, with its nats-server; all streams have the same config."""

    def __init__(self, address: str, nats: Address, data_dir: Path, processes: Mapping[str, int]) -> None:
        self.client_address = address
        self.nats = nats
        self.data_dir = data_dir
        self.processes = processes
        self.config: dict[str, str] = {}
        self.client: Client
        self._numbers = itertools.count(1)

    @contextmanager
    def log(self) -> Iterator[PenstockLog]:
        name = f"bench-{next(self._numbers)}"
        stream = self.client.create_stream(name, f"bench.{name}", timeout=_TIMEOUT_S, **self.config)  # type: ignore[arg-type]
        try:
            yield PenstockLog(self, stream)
        finally:
            self.client.delete_stream(stream, timeout=_TIMEOUT_S)


def _penstock(**config: str) -> Callable[[Path], AbstractContextManager[System]]:
    @contextmanager
    def start(folder: Path) -> Iterator[System]:
        data_dir = folder / "penstock"
        options: tuple[str, ...] = ("--listen", "127.0.0.1:0", "--nats-port", "0", "--log-level", "warning")
        if "encryption" in config:
            keys = folder / "penstock.keys"
            folder.mkdir(parents=True, exist_ok=True)
            keys.write_text(new_key_line("bench", os.urandom))
            keys.chmod(0o600)
            options += ("--encryption-keys-file", str(keys))
        with vital.vital() as broker, serving(data_dir, *options, on_end=broker.ended) as ready:
            processes = {"broker": ready.process_id}
            processes |= zip(("nats-server",), children_of(ready.process_id), strict=False)
            nats = parse_address(ready.nats.removeprefix("nats://"))
            system = PenstockSystem(ready.client, nats, data_dir, processes)
            system.config = config
            with blocking.connect(ready.client, name="penstock-bench", timeout=_TIMEOUT_S) as system.client:
                broker.give_up = system.client.close
                yield system

    return start


# JetStream


class JetStreamLog(NatsLog):
    """A stream of nats-server's JetStream."""

    def __init__(self, system: JetStreamSystem, stream: str, subject: str) -> None:
        super().__init__(system.nats, subject, system.processes)
        self.stream = stream

    def read_back(self, *, ordered: bool) -> Content:
        """Read through a pull consumer."""
        return jetstream_read.read_back(self.nats, self.stream, ordered=ordered)


class JetStreamSystem(System):
    """nats-server with JetStream; all streams have the same config."""

    def __init__(self, nats: Address, config: Mapping[str, str], processes: Mapping[str, int]) -> None:
        self.nats = nats
        self.processes = processes
        self._config = config
        self._numbers = itertools.count(1)

    @contextmanager
    def log(self) -> Iterator[JetStreamLog]:
        name = f"bench-{next(self._numbers)}"
        subject = f"bench.{name}"
        config = {"name": name, "subjects": [subject], "num_replicas": 1, **self._config}
        with NatsSocket(self.nats) as nats:
            nats.request(f"$JS.API.STREAM.CREATE.{name}", config)
        try:
            yield JetStreamLog(self, name, subject)
        finally:
            with NatsSocket(self.nats) as nats:
                nats.request(f"$JS.API.STREAM.DELETE.{name}", {})


@contextmanager
def nats_server(folder: Path, config: str = "") -> Iterator[tuple[Address, int]]:
    """Start a nats-server on a free loopback port; return its address and process id."""
    with vital.vital() as server, nats_server_that_may_end(folder, config, on_end=server.ended) as started:
        yield started


@contextmanager
def nats_server_that_may_end(
    folder: Path, config: str = "", *, on_end: OnEnd | None = None, start_s: float = BENCH_START_S
) -> Iterator[tuple[Address, int]]:
    """As `nats_server`, but the benchmark goes on if it ends; `on_end` is called from a thread then.

    `start_s`: how long it may take to be ready, in seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "nats-server.conf"
    file.write_text(config)
    command = [str(find_nats_server()), "-c", str(file), "-a", "127.0.0.1", "-p", "-1"]
    with child("nats-server", command, on_end=on_end) as process:
        port = int(process.wait_for(_LISTENING, start_s)[1])
        process.wait_for(_READY, start_s)
        yield Address("127.0.0.1", port), process.process_id


def _jetstream(*, sync: str = "", **config: str) -> Callable[[Path], AbstractContextManager[System]]:
    @contextmanager
    def start(folder: Path) -> Iterator[System]:
        place = folder / "jetstream"
        text = f'jetstream {{ store_dir: "{place / "store"}"{sync} }}\n'
        with nats_server(place, text) as (address, process_id):
            yield JetStreamSystem(address, config, {"nats-server": process_id})

    return start


# Responders


class EchoLog(NatsLog):
    """A log whose messages are acked and dropped."""

    def read_back(self, *, ordered: bool) -> None:
        """Return None, because nothing is stored."""


class EchoSystem(System):
    """A responder that acks every message on its one subject."""

    def __init__(self, nats: Address, subject: str, processes: Mapping[str, int]) -> None:
        self.processes = processes
        self._log = EchoLog(nats, subject, processes)

    @contextmanager
    def log(self) -> Iterator[EchoLog]:
        yield self._log


def _echo(kind: str) -> Callable[[Path], AbstractContextManager[System]]:
    @contextmanager
    def start(folder: Path) -> Iterator[System]:
        subject = "bench.echo"
        with nats_server(folder / kind) as (address, process_id):
            task = responders.RespondTask(address, subject)
            with worker.working(responders.RESPONDERS[kind], task) as (_, process):
                yield EchoSystem(address, subject, {"nats-server": process_id, "responder": process.process_id})

    return start


@contextmanager
def _null(folder: Path) -> Iterator[System]:
    task = responders.RespondTask(Address("127.0.0.1", 0), "")
    with worker.working(responders.respond_null, task) as (address, process):
        yield EchoSystem(address, "bench.null", {"responder": process.process_id})


_TABLE = (
    Variant("penstock", "Penstock (default: fsync before ack)", "penstock", _penstock()),
    Variant("penstock-os", "Penstock, durability os", "penstock", _penstock(durability="os")),
    Variant("penstock-memory", "Penstock, memory (no file)", "penstock", _penstock(storage="memory")),
    Variant("jetstream", "JetStream (default: sync every 2 min)", "jetstream", _jetstream(storage="file")),
    Variant(
        "jetstream-always",
        "JetStream, sync always",
        "jetstream",
        _jetstream(sync=", sync_interval: always", storage="file"),
    ),
    Variant(
        "jetstream-async",
        "JetStream, async (a file, acked before it is written)",
        "jetstream",
        _jetstream(storage="file", persist_mode="async"),
    ),
    Variant("jetstream-memory", "JetStream, memory (no file)", "jetstream", _jetstream(storage="memory")),
    Variant("echo", "NATS echo (asyncio)", "none", _echo("asyncio")),
    Variant("echo-raw", "NATS echo (raw socket)", "none", _echo("raw")),
    Variant("null", "null responder, no NATS", "none", _null),
    Variant("penstock-encrypted", "Penstock, encrypted", "penstock", _penstock(encryption=Encryption.AES_256_GCM)),
    Variant(
        "penstock-os-encrypted",
        "Penstock, durability os, encrypted",
        "penstock",
        _penstock(durability="os", encryption=Encryption.AES_256_GCM),
    ),
)

VARIANTS: dict[str, Variant] = {variant.name: variant for variant in _TABLE}
"""The variants by name."""


def variant(name: str, others: Iterable[Variant] = ()) -> Variant:
    """Return the variant of this name, from the table or `others`. Raise OperationalError with the known names."""
    known = VARIANTS | {one.name: one for one in others}
    try:
        return known[name]
    except KeyError:
        raise OperationalError(f"there is no system {name!r}; there are {', '.join(known)}") from None
