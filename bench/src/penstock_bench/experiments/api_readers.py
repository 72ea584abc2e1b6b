"""`penstock bench api-readers`: consumers without acks through JetStream's API, in Penstock and in JetStream.

Rules: Both servers get the same requests from a raw connection, those of nats.go's ordered consumers. The log is read
from the page cache. Each turn counts all messages, in order; a message that does not come ends it. The CPU of all
servers counts: broker and nats-server, or the nats-server with JetStream. The publisher whose acks are timed is a
process of its own: what the many consumers are sent is read by another one.

| measure | requests                                                                                                   |
|---------|------------------------------------------------------------------------------------------------------------|
| pull    | 500 messages at first, and as many as are missing of 500 once 250 or fewer are on their way                |
| push    | one push consumer with flow control, each of whose messages is answered                                    |
| many    | the ack latency of a publisher of RATE messages a second, alone and beside many push consumers of them all |
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock.base.limits import GIB
from penstock_bench.experiments.experiment import Experiment, Row, Turn
from penstock_bench.load.ack_latencies import ack_latencies, p99
from penstock_bench.load.nats_socket import NatsSocket, inbox
from penstock_bench.machine.processes import Stopwatch
from penstock_bench.systems.api_servers import JETSTREAM, PENSTOCK, SYSTEMS, api_server
from penstock_bench.systems.brokers import TIMEOUT_S, until

_LOG, _LIVE = "bench", "live"  # streams: one that is full, one of new messages
_VALUE = bytes(256)
_FILL_WINDOW = 2_000
_PULL_MESSAGES = 500  # as nats.go
_MESSAGE = b" $JS.ACK."  # each delivery has one such reply subject
_FLOW = b"$JS.FC."
_READ_BYTES = 1 << 18
RATE = 100
_ROUNDS = 5
_PAGE_BYTES = 4_096


class Server(NamedTuple):
    """A system: its address, all process ids, and that of the process which holds the consumers."""

    address: Address
    processes: Mapping[str, int]
    holder: int


class Counted:
    """Counts deliveries in a stream of bytes, and collects the flow-control messages."""

    def __init__(self) -> None:
        self.messages = 0
        self.flow: list[bytes] = []  # reply subjects
        self._rest = b""

    def take(self, data: bytes) -> None:
        """Take the next bytes."""
        data = self._rest + data
        end = data.rfind(b"\r\n") + 2 if b"\r\n" in data else 0  # no subject goes on behind it
        whole, self._rest = data[:end], data[end:]
        self.messages += whole.count(_MESSAGE)
        begin = whole.find(_FLOW)
        while begin >= 0:
            end = whole.find(b" ", begin)
            self.flow.append(whole[begin:end])
            begin = whole.find(_FLOW, end)


def experiment(
    messages: int = 300_000, readers: int = 1_000, seconds: float = 5.0, rounds: int | None = None
) -> Experiment:
    """Return the experiment; `seconds`: of publishing alone, and beside the readers."""
    rows: list[Row] = []
    for system in SYSTEMS:
        for name in ("pull", "push"):
            what = f"{system}: ordered {name} consumer, {messages:,} messages of {len(_VALUE)} bytes"
            rows.append(Row(f"{system}-{name}", what, "/s", name, system))
            rows.append(Row(f"{system}-{name}-cpu", "the same, CPU of all servers", "s", f"{name}_cpu", system))
        beside = f"{system}: {readers:,} consumers of {RATE} messages/s"
        rows.append(Row(f"{system}-ack", f"{beside}, p99 of acks", "ms", "p99_ms", system))
        rows.append(Row(f"{system}-p99", f"{beside}, p99 of acks, by that without", "×", "p99_times", system))
        rows.append(Row(f"{system}-memory", f"{beside}, memory of each", "bytes", "reader_bytes", system))
        rows.append(Row(f"{system}-many-cpu", f"{beside}, CPU of all servers", "cores", "many_cpu", system))
    for name in ("pull", "push"):
        what = f"ordered {name} consumer, by JetStream"
        rows.append(Row(name, what, "×", name, PENSTOCK, JETSTREAM, 1.0, at_least=True))
        rows.append(Row(f"{name}-cpu", f"{what}: CPU", "×", f"{name}_cpu", PENSTOCK, JETSTREAM, 1.2))
    return Experiment(
        systems=SYSTEMS,
        begin=partial(_begin, messages=messages, readers=readers, seconds=seconds),
        rounds=rounds or _ROUNDS,
        turn_seconds=messages * 2e-5 + 2 * seconds + readers * 1e-3,
        start_seconds=15.0 + messages * 2e-5,
        bytes_needed=GIB + 2 * messages * 2 * len(_VALUE),
        rows=tuple(rows),
    )


@contextmanager
def _begin(folder: Path, *, messages: int, readers: int, seconds: float) -> Iterator[Turn]:
    with ExitStack() as stack:
        servers = {name: _started(name, folder / name, stack) for name in SYSTEMS}
        for server in servers.values():
            _fill(server.address, messages)

        def turn(name: str, _: int) -> dict[str, float]:
            server = servers[name]
            return _pull(server, messages) | _push(server, messages) | _many(server, readers, seconds)

        yield turn


def _started(system: str, folder: Path, stack: ExitStack) -> Server:
    """Start a system, and create the streams, once the API is served and delivers."""
    found = api_server(system, folder, 1, stack)
    for stream in (_LOG, _LIVE):
        found.create(stream, f"{stream}.>")

    def delivers() -> bool:
        with NatsSocket(found.address, timeout_s=TIMEOUT_S) as nats:
            _consumer(nats, _LOG, {})
        return True

    until(delivers, "consumers can be made")
    return Server(found.address, found.processes, next(iter(found.processes.values())))


def _consumer(nats: NatsSocket, stream: str, config: Mapping[str, Any]) -> str:
    """Create an ephemeral consumer; return its name."""
    wanted = {"ack_policy": "none", "mem_storage": True, "num_replicas": 1, "inactive_threshold": 300_000_000_000}
    body = {"stream_name": stream, "config": {**wanted, **config}}
    return str(nats.request(f"$JS.API.CONSUMER.CREATE.{stream}", body)["name"])


def _fill(address: Address, messages: int) -> None:
    with NatsSocket(address, timeout_s=TIMEOUT_S) as nats:
        reply = inbox().encode()
        nats.send(b"SUB %b 1\r\n" % reply)
        sent = acked = 0
        while acked < messages:
            more = min(_FILL_WINDOW - (sent - acked), messages - sent)
            nats.send(b"PUB bench.x %b %d\r\n%b\r\n" % (reply, len(_VALUE), _VALUE) * more)
            sent += more
            acked += len(nats.deliveries())


def _pull(server: Server, messages: int) -> dict[str, float]:
    """Read all with pull requests."""
    with NatsSocket(server.address, timeout_s=TIMEOUT_S) as nats:
        reply, name = inbox().encode(), _consumer(nats, _LOG, {})
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{_LOG}.{name}".encode()
        nats.send(b"SUB %b 1\r\n" % reply)
        watch, counted, asked = Stopwatch(server.processes), Counted(), 0
        while counted.messages < messages:
            if asked - counted.messages <= _PULL_MESSAGES // 2:
                more = _PULL_MESSAGES - (asked - counted.messages)
                body = msgspec.json.encode({"batch": more, "expires": 30_000_000_000, "idle_heartbeat": 5_000_000_000})
                nats.send(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(body), body))
                asked += more
            counted.take(_received(nats))
        return _measures("pull", watch, messages) | _deleted(nats, _LOG, name)


def _push(server: Server, messages: int) -> dict[str, float]:
    """Read all with a push consumer."""
    with NatsSocket(server.address, timeout_s=TIMEOUT_S) as nats:
        target = inbox()
        nats.send(b"SUB %b 1\r\n" % target.encode())
        nats.barrier()
        with NatsSocket(server.address, timeout_s=TIMEOUT_S) as other:
            watch, counted = Stopwatch(server.processes), Counted()
            config = {"deliver_subject": target, "flow_control": True, "idle_heartbeat": 5_000_000_000}
            name = _consumer(other, _LOG, config)
            while counted.messages < messages:
                counted.take(_received(nats))
                _answer(nats, counted)
            return _measures("push", watch, messages) | _deleted(other, _LOG, name)


def _many(server: Server, readers: int, seconds: float) -> dict[str, float]:
    """Publish alone, then beside many push consumers."""
    with ExitStack() as stack:
        asking = stack.enter_context(NatsSocket(server.address, timeout_s=TIMEOUT_S))
        reader = stack.enter_context(NatsSocket(server.address, timeout_s=TIMEOUT_S))
        alone = _latencies(server, seconds)
        prefix = inbox()
        # nats-server does not see the interest of a subscription with wildcards in a deliver subject.
        reader.send(b"".join(b"SUB %b.%d %d\r\n" % (prefix.encode(), one, one + 1) for one in range(readers)))
        reader.barrier()
        counted, ends = Counted(), threading.Event()

        def drain() -> None:
            while not ends.is_set():
                try:
                    counted.take(_received(reader))
                    _answer(reader, counted)
                except (OSError, OperationalError):
                    return

        before = _resident_bytes(server.holder)
        config = {"deliver_policy": "new", "flow_control": True, "idle_heartbeat": 5_000_000_000}
        names = [
            _consumer(asking, _LIVE, {**config, "deliver_subject": f"{prefix}.{number}"}) for number in range(readers)
        ]
        thread = threading.Thread(target=drain)
        thread.start()
        watch = Stopwatch(server.processes)
        try:
            beside = _latencies(server, seconds)
            _, cpu = watch.read()
            wanted = readers * len(beside)
            until(lambda: counted.messages >= wanted, f"{wanted} messages have come")
            grown = _resident_bytes(server.holder) - before
        finally:
            ends.set()
            reader.socket.shutdown(2)
            thread.join()
        for name in names:
            asking.request(f"$JS.API.CONSUMER.DELETE.{_LIVE}.{name}", {})
        return {
            "p99_ms": 1e3 * p99(beside),
            "p99_times": p99(beside) / p99(alone),
            "reader_bytes": grown / readers,
            "many_cpu": sum(cpu.values()) * RATE / len(beside),  # not by the time that the publisher needs to start
        }


def _latencies(server: Server, seconds: float) -> list[float]:
    return ack_latencies(server.address, f"{_LIVE}.x", RATE, seconds, len(_VALUE), TIMEOUT_S)


def _resident_bytes(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def _received(nats: NatsSocket) -> bytes:
    data = nats.socket.recv(_READ_BYTES)
    if not data:
        raise OperationalError("nats-server closed the connection")
    if b"PING\r\n" in data:
        nats.send(b"PONG\r\n")
    return data


def _answer(nats: NatsSocket, counted: Counted) -> None:
    if counted.flow:
        nats.send(b"".join(b"PUB %b 0\r\n\r\n" % reply for reply in counted.flow))
        counted.flow.clear()


def _measures(name: str, watch: Stopwatch, messages: int) -> dict[str, float]:
    seconds, cpu_seconds = watch.read()
    return {name: messages / seconds, f"{name}_cpu": sum(cpu_seconds.values())}


def _deleted(nats: NatsSocket, stream: str, name: str) -> dict[str, float]:
    """Delete a consumer; no measures."""
    with NatsSocket(nats.socket.getpeername()[:2], timeout_s=TIMEOUT_S) as other:
        other.request(f"$JS.API.CONSUMER.DELETE.{stream}.{name}", {})
    return {}
