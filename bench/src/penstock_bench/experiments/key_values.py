"""`penstock bench key-values`: a key-value bucket through JetStream's API, in Penstock and in JetStream.

Rules: Both servers get the same requests from one raw connection: those that NATS clients send for a bucket with a
history of 1. Every key is put once before the first round. Keys are random ones. Each answer is read; an error ends the
turn. The CPU of all servers counts: brokers and nats-server, or the nats-servers with JetStream, of which the client is
connected to the leader.

| measure                | requests                                                                            |
|------------------------|-------------------------------------------------------------------------------------|
| put, one by one, many  | a message on the key's subject, with a window of 1, and of WINDOW                   |
| get, one by one, many  | DIRECT.GET of the key's subject, the same                                           |
| watch                  | the first values of a watch of all keys: a push consumer, the last of each subject  |
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock.base.limits import GIB
from penstock_bench.experiments.experiment import Experiment, Row, Turn
from penstock_bench.load.nats_socket import NatsSocket, inbox
from penstock_bench.machine.processes import Stopwatch
from penstock_bench.systems.api_servers import JETSTREAM, PENSTOCK, SYSTEMS, api_server
from penstock_bench.systems.brokers import TIMEOUT_S

WINDOW = 100
_STREAM, _PREFIX = "KV_bench", b"$KV.bench."
_CONFIG = {
    "max_msgs_per_subject": 1,
    "allow_direct": True,
    "allow_rollup_hdrs": True,
    "deny_delete": True,
    "discard": "new",
    "duplicate_window": 120_000_000_000,
}
_VALUE_BYTES = 200
_FILL_WINDOW = 2_000
_CHUNK = 1_000  # frames that are made at once
_READ_BYTES = 1 << 18
_ROUNDS = 3
_SECONDS_A_KEY = 3e-5  # of a fill and a watch, for the time estimate
_BYTES_A_KEY = 1_200
_ERRORS = (b'"error"', b"-ERR", b"NATS/1.0 4", b"NATS/1.0 5")
_EXCERPT_BYTES = 200
_WHAT = (
    ("put", "put, one by one"),
    ("puts", f"put, {WINDOW} in flight"),
    ("get", "get, one by one"),
    ("gets", f"get, {WINDOW} in flight"),
    ("watch", "first values of a watch of all keys"),
)


class Done(msgspec.Struct, frozen=True):
    """The measures of some operations."""

    seconds: float
    cpu_seconds: float  # of all servers
    latencies_s: Sequence[float]  # of each, one by one; empty with more in flight
    count: int

    def measures(self, name: str) -> dict[str, float]:
        """Return them by name."""
        found = {name: self.count / self.seconds, f"{name}_cpu": 1e6 * self.cpu_seconds / self.count}
        if self.latencies_s:
            ordered = sorted(self.latencies_s)
            found[f"{name}_p50"] = 1e6 * statistics.median(ordered)
            found[f"{name}_p99"] = 1e6 * ordered[len(ordered) * 99 // 100]
        return found


def experiment(
    keys: int = 100_000, replicas: int = 1, operations: int = 20_000, rounds: int | None = None
) -> Experiment:
    """Return the experiment; `operations`: with many in flight, and a tenth of them one by one."""
    size = f"{keys:,} keys, R{replicas}"
    rows: list[Row] = []
    for system in SYSTEMS:
        for name, what in _WHAT:
            rows.append(Row(f"{system}-{name}", f"{system}: {what}, {size}", "/s", name, system))
            if name in ("put", "get"):
                rows.append(Row(f"{system}-{name}-p50", f"{system}: the same, p50", "µs", f"{name}_p50", system))
                rows.append(Row(f"{system}-{name}-p99", f"{system}: the same, p99", "µs", f"{name}_p99", system))
            rows.append(Row(f"{system}-{name}-cpu", f"{system}: the same, CPU of each", "µs", f"{name}_cpu", system))
    for name, what in _WHAT:
        rows.append(Row(name, f"{what}, by JetStream", "×", name, PENSTOCK, JETSTREAM, 1.0, at_least=True))
    return Experiment(
        systems=SYSTEMS,
        begin=partial(_begin, keys=keys, replicas=replicas, operations=operations),
        rounds=rounds or _ROUNDS,
        turn_seconds=keys * _SECONDS_A_KEY + operations * 5e-4,
        start_seconds=20.0 + keys * _SECONDS_A_KEY * 2,
        bytes_needed=GIB + 2 * replicas * (keys + 10 * operations) * _BYTES_A_KEY,
        rows=tuple(rows),
    )


class Bucket:
    """A bucket, as one client uses it."""

    def __init__(self, address: Address, processes: Mapping[str, int], keys: int) -> None:
        self._nats = NatsSocket(address, timeout_s=TIMEOUT_S)
        self._inbox = inbox().encode()
        self._nats.send(b"SUB %b 1\r\n" % self._inbox)
        self._nats.barrier()
        self._processes = dict(processes)
        self._keys = keys
        self._rest = b""  # the end of what was received, shorter than a token
        self._value = random.Random(1).randbytes(_VALUE_BYTES)  # noqa: S311 (content, no secret)

    def close(self) -> None:
        """Close the connection."""
        self._nats.close()

    def fill(self) -> None:
        """Put every key once."""
        self._exchange((self._put(key) for key in range(self._keys)), self._keys, _FILL_WINDOW)

    def put(self, count: int, window: int, chance: random.Random) -> Done:
        """Put values of random keys."""
        return self._timed((self._put(chance.randrange(self._keys)) for _ in range(count)), count, window)

    def get(self, count: int, window: int, chance: random.Random) -> Done:
        """Get values of random keys."""
        head = b"PUB $JS.API.DIRECT.GET.%b.%bk" % (_STREAM.encode(), _PREFIX)
        tail = b" %b 0\r\n\r\n" % self._inbox
        frames = (b"%b%08d%b" % (head, chance.randrange(self._keys), tail) for _ in range(count))
        return self._timed(frames, count, window)

    def watch(self) -> Done:
        """Take the first values of all keys."""
        watch = Stopwatch(self._processes)
        name, target = f"w{time.monotonic_ns()}", inbox()
        self._nats.send(b"SUB %b 2\r\n" % target.encode())
        config = {
            "name": name,
            "deliver_policy": "last_per_subject",
            "deliver_subject": target,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "filter_subject": f"{_PREFIX.decode()}>",
        }
        body = msgspec.json.encode({"stream_name": _STREAM, "config": config})
        subject = f"$JS.API.CONSUMER.CREATE.{_STREAM}.{name}.{config['filter_subject']}".encode()
        self._nats.send(b"PUB %b %b %d\r\n%b\r\n" % (subject, self._inbox, len(body), body))
        self._receive(self._keys, b"MSG %b" % _PREFIX)
        seconds, cpu_seconds = watch.read()
        self._nats.send(b"UNSUB 2\r\n")
        self._nats.barrier()
        self._rest = b""
        self._nats.request(f"$JS.API.CONSUMER.DELETE.{_STREAM}.{name}", {})
        return Done(seconds, sum(cpu_seconds.values()), (), self._keys)

    def _put(self, key: int) -> bytes:
        return b"PUB %bk%08d %b %d\r\n%b\r\n" % (_PREFIX, key, self._inbox, _VALUE_BYTES, self._value)

    def _timed(self, frames: Iterator[bytes], count: int, window: int) -> Done:
        made = list(frames)  # before the watch starts
        watch = Stopwatch(self._processes)
        latencies_s = self._exchange(iter(made), count, window)
        seconds, cpu_seconds = watch.read()
        return Done(seconds, sum(cpu_seconds.values()), latencies_s, count)

    def _exchange(self, frames: Iterator[bytes], count: int, window: int) -> list[float]:
        """Send all frames, `window` of them without an answer at most; return the times of each with a window of 1."""
        token, open_count, latencies_s = b"MSG %b 1 " % self._inbox, 0, list[float]()
        sent = 0
        while sent < count or open_count:
            more = min(window - open_count, count - sent, _CHUNK)
            began_s = time.perf_counter()
            if more > 0:
                self._nats.send(b"".join([next(frames) for _ in range(more)]))
                sent += more
                open_count += more
            open_count -= self._receive(1, token)
            if window == 1:
                latencies_s.append(time.perf_counter() - began_s)
        return latencies_s

    def _receive(self, least: int, token: bytes) -> int:
        """Receive until at least so many messages began; return how many. OperationalError for an error."""
        found = 0
        while found < least:
            data = self._rest + self._nats.socket.recv(_READ_BYTES)
            if len(data) == len(self._rest):
                raise OperationalError("nats-server closed the connection")
            for mark in _ERRORS:
                if (at := data.find(mark)) >= 0:
                    said = data[max(0, at - _EXCERPT_BYTES) : at + _EXCERPT_BYTES].decode("utf-8", "replace")
                    raise OperationalError(f"a request was refused: {said}")
            if b"PING\r\n" in data:
                self._nats.send(b"PONG\r\n")
            found += data.count(token)
            self._rest = data[1 - len(token) :]
        return found


@contextmanager
def _begin(folder: Path, *, keys: int, replicas: int, operations: int) -> Iterator[Turn]:
    with ExitStack() as stack:
        buckets: dict[str, Bucket] = {}
        for name in SYSTEMS:
            server = api_server(name, folder / name, replicas, stack)
            address = server.create(_STREAM, f"{_PREFIX.decode()}>", **_CONFIG)
            bucket = buckets[name] = Bucket(address, server.processes, keys)
            stack.callback(bucket.close)
            bucket.fill()

        def turn(name: str, round_number: int) -> dict[str, float]:
            chance = random.Random(round_number)  # noqa: S311 (which keys, no secret)
            bucket, few = buckets[name], max(1, operations // 10)
            return (
                bucket.put(few, 1, chance).measures("put")
                | bucket.put(operations, WINDOW, chance).measures("puts")
                | bucket.get(few, 1, chance).measures("get")
                | bucket.get(operations, WINDOW, chance).measures("gets")
                | bucket.watch().measures("watch")
            )

        yield turn
