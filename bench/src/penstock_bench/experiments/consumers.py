"""`penstock bench consumers`: durable consumers with explicit acks through JetStream's API, in Penstock and JetStream.

Rules: Both servers get the same requests from raw connections. A turn makes its consumers, and deletes them. The CPU
and the memory of all servers count. A pull ends when the last ack is confirmed, and counts only if nothing is pending
and nothing was delivered twice. The publisher whose acks are timed is a process of its own, on a stream of its own.

| measure  | of                                                                                                     |
|----------|--------------------------------------------------------------------------------------------------------|
| pull     | one consumer that reads the whole log, BATCH messages a request, each acked                             |
| many     | durable consumers that all have a request waiting: memory and CPU while nothing comes                  |
| fan-out  | a message until all of them have it; the ack latency of a publisher of RATE messages/s, alone and beside |
| recovery | kill -9, until a consumer has a new message (of one replica)                                           |
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock.base.limits import GIB
from penstock_bench.experiments.experiment import Experiment, Row, Turn
from penstock_bench.load.ack_latencies import ack_latencies, p99
from penstock_bench.load.acking_reader import AckingReader
from penstock_bench.load.nats_socket import NatsSocket, inbox
from penstock_bench.machine.idle_resources import held
from penstock_bench.machine.processes import Stopwatch
from penstock_bench.systems.api_servers import (
    JETSTREAM,
    PENSTOCK,
    SYSTEMS,
    ApiServer,
    OneServer,
    api_server,
    one_server,
)
from penstock_bench.systems.brokers import TIMEOUT_S, until

BATCH = 500
RATE = 100
_LOG, _LIVE, _FAN = "bench", "live", "fan"  # streams: one that is full, of the timed publisher, of the many consumers
_VALUE = bytes(256)
_FILL_WINDOW = 2_000
_CREATE_WINDOW = 50
_EXPIRES_S = 300.0
_FAN_EVERY_S = 0.5
_ROUNDS = 5
_SECONDS_A_MESSAGE, _SECONDS_A_CONSUMER = 3e-5, 5e-3  # for the time estimate
_ACK_POLICY: Mapping[str, Any] = {"ack_policy": "explicit", "ack_wait": 60_000_000_000}


def experiment(
    messages: int = 200_000, consumers: int = 1_000, replicas: int = 1, seconds: float = 5.0, rounds: int | None = None
) -> Experiment:
    """Return the experiment; `seconds`: of idleness, of publishing alone, and beside the consumers."""
    rows: list[Row] = []
    pull = f"pull, explicit acks, {BATCH} a request, {len(_VALUE)} bytes, R{replicas}"
    many = f"{consumers:,} durable consumers, R{replicas}"
    for system in SYSTEMS:
        rows += _rows(system, pull, many, replicas)
    reach = 1.0 if replicas == 1 else 1.2
    rows.append(Row("pull", f"{pull}, by JetStream", "×", "pull", PENSTOCK, JETSTREAM, reach, 2.0, at_least=True))
    rows.append(Row("pull-cpu", f"{pull}, by JetStream: CPU", "×", "pull_cpu", PENSTOCK, JETSTREAM))
    rows.append(Row("memory", f"{many}, by JetStream: memory", "×", "consumer_bytes", PENSTOCK, JETSTREAM))
    rows.append(Row("fan", f"{many}, by JetStream: a message to all", "×", "fan_ms", PENSTOCK, JETSTREAM))
    return Experiment(
        systems=SYSTEMS,
        begin=partial(_begin, messages=messages, consumers=consumers, replicas=replicas, seconds=seconds),
        rounds=rounds or _ROUNDS,
        turn_seconds=messages * _SECONDS_A_MESSAGE + 3 * seconds + consumers * _SECONDS_A_CONSUMER + 5.0,
        start_seconds=15.0 + messages * _SECONDS_A_MESSAGE,
        bytes_needed=GIB + 2 * replicas * messages * 2 * len(_VALUE),
        rows=tuple(rows),
    )


def _rows(system: str, pull: str, many: str, replicas: int) -> Iterator[Row]:
    """Yield the rows of one system; goals are those of Penstock."""
    is_ours = system == PENSTOCK

    def row(name: str, what: str, unit: str, measure: str, goal: float | None = None) -> Row:
        return Row(f"{system}-{name}", f"{system}: {what}", unit, measure, system, reach=goal if is_ours else None)

    yield row("pull", pull, "/s", "pull")
    yield row("pull-cpu", "the same, CPU of all servers, a message", "µs", "pull_cpu")
    yield row("memory", f"{many}, memory of each", "bytes", "consumer_bytes", 3_000)
    yield row("idle-cpu", "the same while nothing comes, CPU of all servers", "%", "idle_percent", 3.0)
    yield row("fan", "the same, a message to all of them", "ms", "fan_ms", 2_000)
    yield row("ack", f"the same beside {RATE} messages/s of another stream, p99 of acks", "ms", "p99_ms")
    yield row("p99", "the same, by the p99 without consumers", "×", "p99_times", 2.0)
    if replicas == 1:
        yield row("recovery", "the same, from kill -9 to a delivery", "s", "recovery_s", 5.0)


@contextmanager
def _begin(folder: Path, *, messages: int, consumers: int, replicas: int, seconds: float) -> Iterator[Turn]:
    with ExitStack() as stack:
        servers: dict[str, ApiServer] = {}
        can_be_killed: dict[str, OneServer] = {}
        for name in SYSTEMS:
            if replicas == 1:
                servers[name] = can_be_killed[name] = one_server(name, folder / name, stack)
            else:
                servers[name] = api_server(name, folder / name, replicas, stack)
            server = servers[name]
            server.create(_LIVE, f"{_LIVE}.>")
            _fill(server.create(_LOG, f"{_LOG}.>"), messages)

        def turn(name: str, round_number: int) -> Mapping[str, float]:
            server = servers[name]
            found = _pull(server, f"pull{round_number + 1}", messages)
            many = _Many(server, consumers, seconds)
            try:
                found |= many.create() | many.idle() | many.fan_out()
                if name in can_be_killed:
                    found |= many.recovery(can_be_killed[name])
            finally:
                many.delete()
            return found

        yield turn


def _fill(address: Address, messages: int) -> None:
    with NatsSocket(address, timeout_s=TIMEOUT_S) as nats:
        reply = inbox().encode()
        nats.send(b"SUB %b 1\r\n" % reply)
        sent = acked = 0
        while acked < messages:
            more = min(_FILL_WINDOW - (sent - acked), messages - sent)
            nats.send(b"PUB %b.x %b %d\r\n%b\r\n" % (_LOG.encode(), reply, len(_VALUE), _VALUE) * more)
            sent += more
            acked += len(nats.deliveries())


def _pull(server: ApiServer, name: str, messages: int) -> dict[str, float]:
    """Read the whole log with a new consumer, and ack each message."""
    with NatsSocket(server.address, timeout_s=TIMEOUT_S) as asking:
        body = {"stream_name": _LOG, "config": {**_ACK_POLICY, "durable_name": name, "max_ack_pending": 2 * BATCH}}
        asking.request(f"$JS.API.CONSUMER.CREATE.{_LOG}.{name}", body)
        with AckingReader(server.address, timeout_s=TIMEOUT_S) as reader:
            watch = Stopwatch(server.processes)
            reader.pull_all(f"$JS.API.CONSUMER.MSG.NEXT.{_LOG}.{name}", messages, BATCH, _EXPIRES_S)
            seconds, cpu_seconds = watch.read()
        info = asking.request(f"$JS.API.CONSUMER.INFO.{_LOG}.{name}", {})
        asking.request(f"$JS.API.CONSUMER.DELETE.{_LOG}.{name}", {})
    left = {key: info[key] for key in ("num_pending", "num_ack_pending", "num_redelivered") if info.get(key)}
    if left or info["delivered"]["consumer_seq"] != messages:
        raise OperationalError(f"not every message was delivered once and acked: {left or info['delivered']}")
    return {"pull": messages / seconds, "pull_cpu": 1e6 * sum(cpu_seconds.values()) / messages}


class _Many:
    """Durable consumers of a stream, each with a request that waits, and what they cost."""

    def __init__(self, server: ApiServer, consumers: int, seconds: float) -> None:
        self._server = server
        self._count = consumers
        self._seconds = seconds
        self._reply = inbox().encode()
        self._address = server.create(_FAN, f"{_FAN}.>")

    def create(self) -> dict[str, float]:
        """Create all consumers."""
        before = self._resident_bytes()
        with NatsSocket(self._address, timeout_s=TIMEOUT_S) as nats:
            for begin in range(0, self._count, _CREATE_WINDOW):
                self._create_some(nats, range(begin, min(begin + _CREATE_WINDOW, self._count)))
        return {"consumer_bytes": (self._resident_bytes() - before) / self._count}

    def delete(self) -> None:
        """Delete the stream, and all consumers with it."""
        with NatsSocket(self._server.address, timeout_s=TIMEOUT_S) as nats:
            nats.request(f"$JS.API.STREAM.DELETE.{_FAN}", {})

    def idle(self) -> dict[str, float]:
        """Wait while nothing comes."""
        watch = Stopwatch(self._server.processes)
        time.sleep(self._seconds)
        seconds, cpu_seconds = watch.read()
        return {"idle_percent": 100 * sum(cpu_seconds.values()) / seconds}

    def fan_out(self) -> dict[str, float]:
        """Publish to all consumers, again and again, beside a publisher of another stream."""
        alone = ack_latencies(self._server.address, f"{_LIVE}.x", RATE, self._seconds, len(_VALUE), TIMEOUT_S)
        times_s: list[float] = []
        ends = threading.Event()
        with ExitStack() as stack:
            reader = stack.enter_context(AckingReader(self._address, timeout_s=TIMEOUT_S))
            publisher = stack.enter_context(NatsSocket(self._address, timeout_s=TIMEOUT_S))
            self._wait(reader, self._requests(range(self._count), 2 + round(self._seconds / _FAN_EVERY_S)))
            failures: list[Exception] = []
            go_on = _until_failure(lambda: times_s.append(self._once(reader, publisher)), ends, failures)
            thread = threading.Thread(target=go_on)
            thread.start()
            try:
                beside = ack_latencies(self._server.address, f"{_LIVE}.x", RATE, self._seconds, len(_VALUE), TIMEOUT_S)
            finally:
                ends.set()
                thread.join()
            if failures:
                raise failures[0]
        return {
            "fan_ms": 1e3 * statistics.median(times_s),
            "p99_ms": 1e3 * p99(beside),
            "p99_times": p99(beside) / p99(alone),
        }

    def recovery(self, server: OneServer) -> dict[str, float]:
        """Kill the server and start it; wait until a consumer has a new message."""
        began_s = time.monotonic()
        server.kill()
        server.start()

        def delivers() -> bool:
            with AckingReader(server.address, timeout_s=TIMEOUT_S) as reader:
                self._wait(reader, self._requests(range(1), 1))
                reader.nats.request(f"$JS.API.CONSUMER.INFO.{_FAN}.c{self._count - 1}", {})
                self._publish(reader.nats)
                reader.ack_until(lambda: reader.received > 0)
            return True

        until(delivers, "a consumer has a message again")
        return {"recovery_s": time.monotonic() - began_s}

    def _create_some(self, nats: NatsSocket, numbers: range) -> None:
        reply = inbox().encode()
        frames = [b"SUB %b 1\r\n" % reply]
        for number in numbers:
            body = msgspec.json.encode({"stream_name": _FAN, "config": {**_ACK_POLICY, "durable_name": f"c{number}"}})
            subject = f"$JS.API.CONSUMER.CREATE.{_FAN}.c{number}".encode()
            frames.append(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(body), body))
        nats.send(b"".join(frames))
        answered = 0
        while answered < len(numbers):
            for delivery in nats.deliveries():
                if b'"error"' in delivery.payload or delivery.headers:
                    raise OperationalError(f"a consumer was refused: {delivery.payload.decode('utf-8', 'replace')}")
                answered += 1
        nats.send(b"UNSUB 1\r\n")

    def _requests(self, numbers: range, batch: int) -> bytes:
        """Return a subscription and a waiting request for each of these consumers."""
        body = msgspec.json.encode({"batch": batch, "expires": round(1e9 * _EXPIRES_S)})
        frames = []
        for number in numbers:
            reply, subject = b"%b.%d" % (self._reply, number), f"$JS.API.CONSUMER.MSG.NEXT.{_FAN}.c{number}".encode()
            frames.append(b"SUB %b %d\r\n" % (reply, number + 1))
            frames.append(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(body), body))
        return b"".join(frames)

    def _wait(self, reader: AckingReader, requests: bytes) -> None:
        reader.nats.send(requests)
        reader.nats.barrier()

    def _once(self, reader: AckingReader, publisher: NatsSocket) -> float:
        """Publish a message; return the seconds until all consumers have it."""
        wanted = reader.received + self._count
        began_s = time.perf_counter()
        self._publish(publisher)
        reader.ack_until(lambda: reader.received >= wanted)
        return time.perf_counter() - began_s

    def _publish(self, nats: NatsSocket) -> None:
        nats.send(b"PUB %b.x %d\r\n%b\r\n" % (_FAN.encode(), len(_VALUE), _VALUE))

    def _resident_bytes(self) -> int:
        return sum(held(process_id).resident_bytes for process_id in self._server.processes.values())


def _until_failure(once: Callable[[], None], ends: threading.Event, failures: list[Exception]) -> Callable[[], None]:
    """Return the work of a thread: `once` now and again, until it is ended or fails."""

    def go_on() -> None:
        try:
            once()
            while not ends.wait(_FAN_EVERY_S):
                once()
        except (OperationalError, OSError) as error:
            failures.append(error)

    return go_on
