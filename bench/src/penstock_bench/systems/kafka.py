"""An externally run Kafka, written to by librdkafka through the `confluent-kafka` package.

Rules: Only the given address and the brokers that it names are contacted. Every round gets a topic of one partition and
one replica, which is deleted afterwards. A variant lists every difference from the defaults of client and broker, with
two exceptions: the producer's message size limit is the broker's, and the generator is a process of its own, as for
every product. A round ends when librdkafka has reported every message as delivered or failed.

Theory: A Kafka client batches, compresses and checksums, and the broker stores the result as it is, so a part of the
product's work is done and counted in the generator. The report shows the generator's CPU cost per message, and the rate
of the same generator against librdkafka's own mock broker, which stores nothing and lives in its process. A window
bounds the unreported messages; librdkafka combines them into requests (`linger.ms`).

| variant                | configuration                                                           |
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
from penstock_bench.extras import KAFKA, imported
from penstock_bench.load.content import Content, Tally
from penstock_bench.load.frames import Pool, sent_content
from penstock_bench.load.generator import GENERATOR, Load, Published
from penstock_bench.load.readers import Clock, Consumed, ReadTask, chained
from penstock_bench.machine import worker
from penstock_bench.machine.processes import Stopwatch, listening_on
from penstock_bench.systems.system import MeasuredLog, System, Variant, time_for

if TYPE_CHECKING:
    import confluent_kafka

_FETCHED_AT_ONCE = 10_000
_PARTITION = 0
_QUEUE_MESSAGES = 100_000  # librdkafka's default; a larger window needs a larger queue
_NO_LINGER = {"linger.ms": "0"}
_SYNCED = {"flush.messages": "1"}

# Common to all variants: the broker's default limit, slightly more than 1 MiB. librdkafka's default is lower.
_PRODUCER = {"message.max.bytes": "1048588"}
_QUIET = {"log_level": "0"}  # errors are reported to the caller; the log repeats them twenty times a second


class KafkaTask(msgspec.Struct, frozen=True):
    """A load, its topic, librdkafka's settings, and the processes whose CPU time is measured beside the generator's."""

    settings: dict[str, str]
    topic: str
    load: Load
    watched: dict[str, int] = {}


class _Settings(NamedTuple):
    """A row of the table: the differences from the defaults of the producer and of the topic."""

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
"""The variant that measures the generator itself."""

NAMES = (*(one.name for one in _TABLE), CEILING)
"""The names of the variants."""


def variants(address: Address, *, start_s: float = limits.BENCH_START_S) -> tuple[Variant, ...]:
    """Return the variants of the Kafka at `address`, which must answer within `start_s`."""
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


class MockLog(MeasuredLog):
    """A log that librdkafka's mock broker acks and drops."""

    def publish(self, load: Load) -> Published:
        task = KafkaTask({**_PRODUCER, **_NO_LINGER, **_QUIET, "test.mock.num.brokers": "1"}, "bench", load)
        return worker.run(publish, task, timeout_s=time_for(load))

    def read_back(self, *, ordered: bool) -> None:
        """Return None, because nothing is stored."""


class MockSystem(System):
    """No product: a broker inside the generator."""

    @contextmanager
    def log(self) -> Iterator[MeasuredLog]:
        yield MockLog()


class KafkaLog(MeasuredLog):
    """A topic of one partition."""

    def __init__(self, system: KafkaSystem, topic: str) -> None:
        self.address = system.address
        self.topic = topic
        self.processes = system.processes
        self._system = system

    def publish(self, load: Load) -> Published:
        settings = {**_PRODUCER, **self._system.producer, **_client(self.address)}
        task = KafkaTask(settings, self.topic, load, dict(self.processes))
        return worker.run(publish, task, timeout_s=time_for(load))

    def read_back(self, *, ordered: bool) -> Content:
        """Read through librdkafka's consumer, which verifies the CRC of every batch."""
        tally = Tally()
        with _reading(self.address, self.topic) as reader:
            for values in reader.values():
                tally.add(values)
        return tally.content(ordered=ordered)


@contextmanager
def _reading(address: Address, topic: str) -> Iterator[_Reader]:
    """Connect a consumer; librdkafka's errors become OperationalError."""
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
    """A consumer of one partition up to its current end."""

    def __init__(self, kafka: Any, consumer: confluent_kafka.Consumer, topic: str) -> None:
        self._kafka = kafka
        self._consumer = consumer
        self._place = kafka.TopicPartition(topic, _PARTITION, 0)
        _, self._end = consumer.get_watermark_offsets(self._place, timeout=limits.BENCH_START_S)

    def values(self) -> Iterator[list[bytes]]:
        """Yield all values from the first on, in lists. End early after a stall: the message count then differs."""
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
    """Worker: read a topic as single messages."""
    with _reading(parse_address(task.address), task.stream) as reader:
        next(reader.values(), None)  # an untimed first read, as in every reader
        clock = Clock(task.watched)
        yield clock.consumed([chained(itertools.chain.from_iterable(reader.values())) for _ in range(task.passes)])


def _client(address: Address) -> dict[str, str]:
    return {"bootstrap.servers": str(address), **_QUIET}


def _failed(address: Address, error: Exception) -> OperationalError:
    """Return the OperationalError for an error of librdkafka."""
    return OperationalError(f"Kafka at {address}: {error.args[0].str()}")


class KafkaSystem(System):
    """An external Kafka. Its CPU time is known if it runs on this machine and for this user."""

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
    def log(self) -> Iterator[MeasuredLog]:
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
            future.result(2 * self._start_s)  # librdkafka's own time-out is shorter
        except kafka.KafkaException as error:
            raise _failed(self.address, error) from None


# The generator


def publish(task: KafkaTask) -> Iterator[Published]:
    """Worker: publish one load to the end."""
    load = task.load
    count = min(load.publishers, load.messages)
    publishers = [_Publisher(task, number, count) for number in range(count)]
    watched = {**task.watched, GENERATOR: os.getpid()}
    with ThreadPoolExecutor(count) as threads:
        watch = Stopwatch(watched)
        end_s = time.perf_counter() + load.seconds_max
        for done in [threads.submit(one.run, end_s) for one in publishers]:
            done.result()
        seconds, cpu = watch.read()
    failures = [one.first_error for one in publishers if one.errors]
    yield Published(
        seconds=seconds,
        sent=sent_content([(one.pool, one.sent) for one in publishers]),
        acks=sum(one.acks for one in publishers),
        errors=sum(one.errors for one in publishers),
        first_error=failures[0] if failures else "",
        cpu_seconds=cpu,
    )


class _Publisher:
    """One producer: counts sent and reported messages. Its callbacks run in the thread of `run`, which polls."""

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
        # Fetch the broker addresses before the clock starts; connections to NATS are established before it, too.
        self._producer.list_topics(task.topic, timeout=limits.BENCH_START_S)

    def run(self, stop_s: float) -> None:
        """Send and poll until everything is reported. Raise OperationalError after a stall."""
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
