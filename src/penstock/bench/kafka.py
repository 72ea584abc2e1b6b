"""A Kafka that somebody runs, written to by librdkafka through the `confluent-kafka` package.

Rules: nothing is contacted but the address that was given, and the brokers that it names. Every round gets a topic of
one partition and one replica, which is deleted behind it. A variant says what differs from the defaults of the client
and the broker, and that is all that differs, but for two things: a message is as large as the broker takes it, and its
own process, as everybody's generator. A round is over when librdkafka has reported every message as delivered.

Theory: a Kafka client batches, compresses and checksums what its broker stores as it came, so a part of the product's
work is done in the generator, and is counted there. How much a message costs it stands in the report, beside the rate
that the same generator reaches against librdkafka's own mock broker, which stores nothing and lives in its process.
A window is a bound on what is not reported yet; how that becomes requests is librdkafka's matter (`linger.ms`).

| variant                | what it is                                                              |
|------------------------|-------------------------------------------------------------------------|
| `kafka`                | all defaults: acks=all, linger.ms=5, acked from the page cache          |
| `kafka-linger-0`       | the same with linger.ms=0: a lone message is sent at once               |
| `kafka-acks-1`         | the same with linger.ms=0 and acks=1: with one replica the same promise |
| `kafka-fsync`          | the topic with flush.messages=1: synced before the ack                  |
| `kafka-fsync-linger-0` | the same with linger.ms=0                                               |
| `kafka-null`           | librdkafka's mock broker, linger.ms=0: the generator's ceiling          |
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.addresses import Address, parse_address
from penstock.base.errors import OperationalError
from penstock.bench import worker
from penstock.bench.content import Content, Tally
from penstock.bench.extras import KAFKA, imported
from penstock.bench.frames import Pool, sent_content
from penstock.bench.generator import GENERATOR, Load, Published
from penstock.bench.processes import cpu_seconds_of, listening_on
from penstock.bench.readers import Clock, Consumed, ReadTask, chained
from penstock.bench.systems import Log, System, Variant, time_for

if TYPE_CHECKING:
    import confluent_kafka

_FETCHED_AT_ONCE = 10_000
_PARTITION = 0
_QUEUE_MESSAGES = 100_000  # librdkafka's default; a larger window needs more room
_NO_LINGER = {"linger.ms": "0"}
_SYNCED = {"flush.messages": "1"}

# What is in no variant. The broker takes 1 MiB and a little by default; librdkafka would refuse before it is asked.
_PRODUCER = {"message.max.bytes": "1048588"}
_QUIET = {"log_level": "0"}  # what matters comes as an error; the log repeats it twenty times a second


class KafkaTask(msgspec.Struct, frozen=True):
    """A load, where it goes, librdkafka's settings, and whose CPU time is taken beside the generator's own."""

    settings: dict[str, str]
    topic: str
    load: Load
    watched: dict[str, int] = {}


class _Settings(NamedTuple):
    """A row of the table: what differs from the defaults of the producer, and of the topic."""

    name: str
    title: str
    producer: dict[str, str]
    topic: dict[str, str]


_TABLE = (
    _Settings("kafka", "Kafka (default: linger 5 ms)", {}, {}),
    _Settings("kafka-linger-0", "Kafka, linger 0", _NO_LINGER, {}),
    _Settings("kafka-acks-1", "Kafka, linger 0, acks 1", {**_NO_LINGER, "acks": "1"}, {}),
    _Settings("kafka-fsync", "Kafka, synced before ack", {}, _SYNCED),
    _Settings("kafka-fsync-linger-0", "Kafka, synced before ack, linger 0", _NO_LINGER, _SYNCED),
)
CEILING = "kafka-null"
"""The variant that is the generator's own."""

NAMES = (*(one.name for one in _TABLE), CEILING)
"""Of the variants."""


def variants(address: Address, *, start_s: float = limits.BENCH_START_S) -> tuple[Variant, ...]:
    """Those of the Kafka that listens on `address`, and answers within `start_s`."""
    products = (Variant(one.name, one.title, "kafka", _running(address, one, start_s)) for one in _TABLE)
    return (*products, Variant(CEILING, "mock Kafka broker, in the generator", "none", _mock))


def _running(address: Address, settings: _Settings, start_s: float) -> Callable[[Path], AbstractContextManager[System]]:
    @contextmanager
    def start(folder: Path) -> Iterator[System]:
        yield KafkaSystem(address, settings.producer, settings.topic, start_s=start_s)

    return start


@contextmanager
def _mock(folder: Path) -> Iterator[System]:
    yield MockSystem()


class MockLog(Log):
    """What librdkafka's mock broker acks and forgets."""

    def publish(self, load: Load) -> Published:
        """See `Log`."""
        task = KafkaTask({**_PRODUCER, **_NO_LINGER, **_QUIET, "test.mock.num.brokers": "1"}, "bench", load)
        return worker.run(publish, task, timeout_s=time_for(load))

    def read_back(self, *, ordered: bool) -> None:
        """See `Log`."""


class MockSystem(System):
    """No product: a broker inside the generator."""

    @contextmanager
    def log(self) -> Iterator[Log]:
        """See `System`."""
        yield MockLog()


class KafkaLog(Log):
    """A topic of one partition."""

    def __init__(self, system: KafkaSystem, topic: str) -> None:
        self.address = system.address
        self.topic = topic
        self.processes = system.processes
        self._system = system

    def publish(self, load: Load) -> Published:
        """See `Log`."""
        settings = {**_PRODUCER, **self._system.producer, **_client(self.address)}
        task = KafkaTask(settings, self.topic, load, dict(self.processes))
        return worker.run(publish, task, timeout_s=time_for(load))

    def read_back(self, *, ordered: bool) -> Content:
        """See `Log`: through librdkafka's consumer, which verifies the CRC of every batch."""
        tally = Tally()
        with _reading(self.address, self.topic) as reader:
            for values in reader.values():
                tally.add(values)
        return tally.content(ordered=ordered)


@contextmanager
def _reading(address: Address, topic: str) -> Iterator[_Reader]:
    """A consumer that is connected; OperationalError for what it cannot do."""
    kafka = imported(KAFKA)
    settings = {"group.id": topic, "enable.auto.commit": "false", "check.crcs": "true"}
    consumer = kafka.Consumer({**_client(address), **settings})
    try:
        yield _Reader(kafka, consumer, topic)
    except kafka.KafkaException as error:
        raise _failed(address, error) from None
    finally:
        consumer.close()


class _Reader:
    """A consumer of one partition, which knows how many messages it holds now."""

    def __init__(self, kafka: Any, consumer: confluent_kafka.Consumer, topic: str) -> None:
        self._kafka = kafka
        self._consumer = consumer
        self._place = kafka.TopicPartition(topic, _PARTITION, 0)
        _, self._end = consumer.get_watermark_offsets(self._place, timeout=limits.BENCH_START_S)

    def values(self) -> Iterator[list[bytes]]:
        """Of all messages from the first on, some at a time. It ends early when nothing comes: the count says so."""
        self._consumer.assign([self._place])
        left = self._end
        while left > 0:
            found = self._consumer.consume(min(left, _FETCHED_AT_ONCE), limits.BENCH_STALL_S)
            if not found:
                return
            for message in found:
                if message.error() is not None:
                    raise self._kafka.KafkaException(message.error())
            left -= len(found)
            yield [message.value() or b"" for message in found]


def read(task: ReadTask) -> Iterator[Consumed]:
    """A worker: a topic as single messages."""
    with _reading(parse_address(task.address), task.stream) as reader:
        next(reader.values(), None)  # as every reader: a first read, which nobody times
        clock = Clock(task.watched)
        yield clock.consumed([chained(itertools.chain.from_iterable(reader.values())) for _ in range(task.passes)])


def _client(address: Address) -> dict[str, str]:
    return {"bootstrap.servers": str(address), **_QUIET}


def _failed(address: Address, error: Exception) -> OperationalError:
    """What librdkafka says, as an error of ours."""
    return OperationalError(f"Kafka at {address}: {error.args[0].str()}")


class KafkaSystem(System):
    """Kafka, where it runs. Its CPU time is known if it runs here, and for us."""

    def __init__(
        self,
        address: Address,
        producer: Mapping[str, str],
        topic: Mapping[str, str],
        *,
        start_s: float = limits.BENCH_START_S,
    ) -> None:
        self.address = address
        self._start_s = start_s
        self.producer = producer
        self._topic = dict(topic)
        kafka = imported(KAFKA)
        self._admin = imported("confluent_kafka.admin").AdminClient(_client(address))
        try:
            self._admin.list_topics(timeout=start_s)
        except kafka.KafkaException as error:
            raise _failed(address, error) from None
        process_id = listening_on(address)
        self.processes = {} if process_id is None else {"kafka": process_id}

    @contextmanager
    def log(self) -> Iterator[Log]:
        """See `System`."""
        admin = imported("confluent_kafka.admin")
        name = f"penstock-bench-{secrets.token_hex(8)}"
        new = admin.NewTopic(name, num_partitions=1, replication_factor=1, config=self._topic)
        self._done(self._admin.create_topics([new], request_timeout=self._start_s)[name])
        try:
            yield KafkaLog(self, name)
        finally:
            self._done(self._admin.delete_topics([name], request_timeout=self._start_s)[name])

    def _done(self, future: Any) -> None:
        kafka = imported(KAFKA)
        try:
            future.result(2 * self._start_s)  # librdkafka gives up before
        except kafka.KafkaException as error:
            raise _failed(self.address, error) from None


# The generator


def publish(task: KafkaTask) -> Iterator[Published]:
    """A worker: one load, to the end."""
    load = task.load
    count = min(load.publishers, load.messages)
    publishers = [_Publisher(task, number, count) for number in range(count)]
    watched = {**task.watched, GENERATOR: os.getpid()}
    with ThreadPoolExecutor(count) as threads:
        before = cpu_seconds_of(watched)
        started_s = time.perf_counter()
        for done in [threads.submit(one.run, started_s + load.seconds_max) for one in publishers]:
            done.result()
        seconds = time.perf_counter() - started_s
        after = cpu_seconds_of(watched)
    failures = [one.first_error for one in publishers if one.errors]
    yield Published(
        seconds=seconds,
        sent=sent_content([(one.pool, one.sent) for one in publishers]),
        acks=sum(one.acks for one in publishers),
        errors=sum(one.errors for one in publishers),
        first_error=failures[0] if failures else "",
        cpu_seconds={name: after[name] - before[name] for name in watched},
    )


class _Publisher:
    """One producer: what it has sent, and what was reported. Its callbacks run in the thread that polls: its own."""

    def __init__(self, task: KafkaTask, number: int, count: int) -> None:
        kafka = imported(KAFKA)
        load = task.load
        self.sent = 0
        self.acks = 0
        self.errors = 0
        self.first_error = ""
        self._quota = load.messages // count + (number < load.messages % count)
        self._window = load.window_in_effect // count
        seed = load.seed * limits.BENCH_PUBLISHERS_MAX + number
        self.pool = Pool("", "", load.size, self._quota, seed, bytes_max=limits.BENCH_POOL_BYTES_MAX // count)
        self._messages = [{"value": bytes(value)} for value in self.pool.values(self.pool.count)]
        self._topic = task.topic
        self._kafka = kafka
        room = max(_QUEUE_MESSAGES, self._window)
        self._producer = kafka.Producer({**task.settings, "queue.buffering.max.messages": str(room)})
        # So that the first message does not wait for the addresses of the brokers, which a connection to NATS has too.
        self._producer.list_topics(task.topic, timeout=limits.BENCH_START_S)

    def run(self, stop_s: float) -> None:
        """Send and poll until everything is reported; OperationalError when nothing moves any more."""
        while (answered := self.acks + self.errors) < self._quota:
            room = min(self._window - (self.sent - answered), self._quota - self.sent)
            if room > 0:
                self._send(room)
            elif self._producer.poll(limits.BENCH_STALL_S) == 0 and self.acks + self.errors == answered:
                raise OperationalError(
                    f"Kafka reported nothing for {limits.BENCH_STALL_S:g} s, {answered:,} of {self._quota:,} are there"
                )
            self._producer.poll(0)
            if time.perf_counter() >= stop_s:
                self._quota = min(self._quota, self.sent)

    def _send(self, room: int) -> None:
        start = self.sent % len(self._messages)
        wanted = self._messages[start : start + room]
        taken = self._producer.produce_batch(self._topic, wanted, partition=_PARTITION, on_delivery=self._reported)
        self.sent += taken
        if taken < len(wanted):
            raise OperationalError(f"librdkafka took {taken:,} of {len(wanted):,} messages")

    def _reported(self, error: Any, message: Any) -> None:
        if error is None:
            self.acks += 1
            return
        self.errors += 1
        self.first_error = self.first_error or str(error)
