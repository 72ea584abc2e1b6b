"""The receivers of `penstock bench latency`: processes that record when each message is available to the program.

Rules: The arrival time is taken as soon as the program has the value, before it reads the value's bytes. Then every
byte is touched (CRC-32C), as a consumer would do. A receiver yields `ready` when no message can be missed any more, and
its result when it has all messages or its time is up.

| product   | path from the log to the program                                                            |
|-----------|---------------------------------------------------------------------------------------------|
| Penstock  | its asyncio client, following: long poll, `sendfile`, all checks, decoding into Arrow       |
| JetStream | an ordered consumer (no acks, flow control, heartbeats), read from a raw socket             |

So JetStream's figure contains no client library at all, and Penstock's all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from array import array
from collections.abc import Iterator

import msgspec

from penstock.base.addresses import Address
from penstock.client.aio import Client, connect
from penstock_bench.load.content import Content, Tally
from penstock_bench.load.nats_socket import NatsSocket, inbox
from penstock_bench.load.schedule import SchedulePlan, index_of
from penstock_bench.load.timed_socket import TimedSocket

READY = "ready"
_HEARTBEAT_NS = 5_000_000_000  # as nats-py's ordered consumer


class LatencyReceiveTask(msgspec.Struct, frozen=True):
    """The expected messages and their stream; `server` is Penstock's broker, or the nats-server with JetStream."""

    server: Address
    stream: str
    plan: SchedulePlan
    seconds_max: float  # for everything


class Received(msgspec.Struct, frozen=True):
    """The outcome. Times are nanoseconds of the monotonic clock, listed by message; 0: never arrived."""

    arrived_ns: list[int]
    content: Content
    cpu_s: float
    gave_up_ns: int  # time at which waiting ended


class _Arrivals:
    def __init__(self, plan: SchedulePlan) -> None:
        self._plan = plan
        self._arrived = array("q", bytes(8 * plan.count))
        self._tally = Tally()

    @property
    def is_complete(self) -> bool:
        return self._tally.messages >= self._plan.count

    def take(self, value: bytes | memoryview, arrived_ns: int) -> None:
        """Record one message. A message of another plan, or a repeated message, makes the content differ."""
        self._tally.add((value,))
        index = index_of(value)
        if index < self._plan.count and not self._arrived[index]:
            self._arrived[index] = arrived_ns

    def result(self) -> Received:
        return Received(self._arrived.tolist(), self._tally.content(), time.process_time(), time.monotonic_ns())


def follow_penstock(task: LatencyReceiveTask) -> Iterator[str | Received]:
    """Worker: follow the log through Penstock's client."""
    import pyarrow  # noqa: F401 (decoding imports it: not while the first message waits)

    arrivals = _Arrivals(task.plan)
    with asyncio.Runner() as runner:
        client = runner.run(_connected(task.server))
        _calm()
        yield READY
        runner.run(_follow(client, task, arrivals))
    yield arrivals.result()


async def _connected(server: Address) -> Client:
    return await connect(str(server), name="penstock-bench")


async def _follow(client: Client, task: LatencyReceiveTask, arrivals: _Arrivals) -> None:
    async with client:
        batches = client.read(task.stream, 0, follow=True, columns=("value",))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(task.seconds_max), contextlib.aclosing(batches):
                async for batch in batches:
                    values = batch.column("value")
                    now_ns = time.monotonic_ns()
                    for value in values:
                        arrivals.take(memoryview(value.as_buffer()), now_ns)
                    if arrivals.is_complete:
                        return


def follow_jetstream(task: LatencyReceiveTask) -> Iterator[str | Received]:
    """Worker: follow the stream by an ordered consumer, without a client library."""
    deliver = inbox()
    config = {
        "deliver_subject": deliver,
        "deliver_policy": "all",
        "ack_policy": "none",
        "max_deliver": 1,
        "flow_control": True,
        "idle_heartbeat": _HEARTBEAT_NS,
        "mem_storage": True,
        "num_replicas": 1,
    }
    arrivals = _Arrivals(task.plan)
    with TimedSocket(task.server, deliver) as link:
        with NatsSocket(task.server) as asking:
            request = {"stream_name": task.stream, "config": config}
            asking.request(f"$JS.API.CONSUMER.CREATE.{task.stream}", request)
        _calm()
        yield READY
        deadline_s = time.monotonic() + task.seconds_max
        while not arrivals.is_complete and (left_s := deadline_s - time.monotonic()) > 0:
            if link.wait(left_s):
                _take(link, arrivals)
    yield arrivals.result()


def _take(link: TimedSocket, arrivals: _Arrivals) -> None:
    now_ns, deliveries = link.receive()
    for delivery in deliveries:
        if not delivery.headers:
            arrivals.take(delivery.payload, now_ns)
        elif delivery.reply is not None:  # flow control; a heartbeat needs no answer
            link.send(b"PUB %b 0\r\n\r\n" % delivery.reply)


def _calm() -> None:
    gc.collect()
    gc.freeze()
