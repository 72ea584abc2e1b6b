"""The consumers that are measured: each with the variant whose log it reads and the function that writes the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock_bench.load import readers
from penstock_bench.load.content import Content, difference
from penstock_bench.load.generator import Load
from penstock_bench.load.readers import Consumed, ReadTask
from penstock_bench.machine import worker
from penstock_bench.measure.rounds import untrue
from penstock_bench.systems import kafka, liftbridge
from penstock_bench.systems.system import JetStreamLog, MeasuredLog, PenstockLog


def _published(log: MeasuredLog, load: Load) -> tuple[Content, str | None]:
    """Write a log through NATS; the broker forms the batches."""
    published = log.publish(load)
    return published.sent, untrue(log, published, ordered=True)


def _loaded(log: MeasuredLog, load: Load) -> tuple[Content, str | None]:
    """Write a log as a bulk writer does, in batches of many rows."""
    assert isinstance(log, PenstockLog)
    sent = log.load(load)
    found = log.read_back(ordered=True)
    return sent, difference(sent, found)


Write = Callable[[MeasuredLog, Load], tuple[Content, str | None]]
"""Fills a log; returns its content, and the reason if it is void."""


class Reader(NamedTuple):
    """A process that reads (`load.readers`), the variant whose log it reads, and the function that writes the log."""

    name: str
    title: str
    variant: str
    read: Callable[[MeasuredLog, Content], Consumed]
    write: Write = _published


def _from_penstock(work: Callable[[ReadTask], Iterator[Consumed]]) -> Callable[[MeasuredLog, Content], Consumed]:
    def read(log: MeasuredLog, sent: Content) -> Consumed:
        assert isinstance(log, PenstockLog)
        address = log.client_address
        task = ReadTask(address, log.stream.name, log.subject, sent.messages, watched=dict(log.processes))
        return worker.run(work, task, timeout_s=_time_for(sent))

    return read


def _from_jetstream(log: MeasuredLog, sent: Content) -> Consumed:
    assert isinstance(log, JetStreamLog)
    task = ReadTask(f"nats://{log.nats}", log.stream, log.subject, sent.messages, watched=dict(log.processes))
    return worker.run(readers.read_nats_py, task, timeout_s=_time_for(sent))


def _from_kafka(log: MeasuredLog, sent: Content) -> Consumed:
    assert isinstance(log, kafka.KafkaLog)
    task = ReadTask(str(log.address), log.topic, "", sent.messages, watched=dict(log.processes))
    return worker.run(kafka.read, task, timeout_s=_time_for(sent))


def _from_liftbridge(log: MeasuredLog, sent: Content) -> Consumed:
    assert isinstance(log, liftbridge.LiftbridgeLog)
    task = ReadTask(str(log.service), log.stream, log.subject, sent.messages, watched=dict(log.processes))
    return worker.run(liftbridge.read, task, timeout_s=_time_for(sent))


def _through_sendfile(log: MeasuredLog, sent: Content) -> Consumed:
    assert isinstance(log, PenstockLog)
    files = log.files(".arrows")
    consumed = readers.through_sendfile(files, readers.PASSES)
    if (found := consumed.found.value_bytes) != (wanted := sum(file.stat().st_size for file in files)):
        raise OperationalError(f"{found:,} of {wanted:,} bytes came through sendfile")
    return msgspec.structs.replace(consumed, found=sent)  # the receiver reads no value, so there is nothing to compare


def _time_for(sent: Content) -> float:
    return 4 * limits.BENCH_STALL_S + readers.PASSES * sent.messages / 10_000


READERS = (
    Reader("penstock-batches", "Penstock, Arrow batches", "penstock", _from_penstock(readers.read_batches)),
    Reader(
        "penstock-blocking",
        "Penstock, Arrow batches, blocking client",
        "penstock",
        _from_penstock(readers.read_blocking),
    ),
    Reader(
        "penstock-loaded",
        "Penstock, Arrow batches, loaded in bulk",
        "penstock",
        _from_penstock(readers.read_batches),
        _loaded,
    ),
    Reader(
        "penstock-encrypted-batches",
        "Penstock, encrypted, Arrow batches",
        "penstock-encrypted",
        _from_penstock(readers.read_batches),
    ),
    Reader(
        "penstock-encrypted-loaded",
        "Penstock, encrypted, loaded in bulk",
        "penstock-encrypted",
        _from_penstock(readers.read_batches),
        _loaded,
    ),
    Reader("penstock-messages", "Penstock, single messages", "penstock", _from_penstock(readers.read_messages)),
    Reader("nats-py", "JetStream, nats-py's ordered consumer", "jetstream", _from_jetstream),
    Reader("confluent-kafka", "Kafka, confluent-kafka's consumer", "kafka", _from_kafka),
    Reader("grpc", "Liftbridge, a gRPC subscription", "liftbridge", _from_liftbridge),
    Reader("sendfile", "sendfile of the same segments (limit)", "penstock", _through_sendfile),
)


def readers_of(variants: Sequence[str]) -> list[Reader]:
    """Return the readers of logs of these variants."""
    return [reader for reader in READERS if reader.variant in variants]
