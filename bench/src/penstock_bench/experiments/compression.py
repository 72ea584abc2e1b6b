"""`penstock bench compression`: savings of compressing a log, and its cost for the cleaner and for readers.

Rules: One log is made once, of JSON messages in batches of 100, so that the cleaner has to merge them in any case. In
each round, for no compression, LZ4 and Zstandard in turn, the cleaner cleans a copy of the log, and a client reads the
whole log from a broker; the run fails unless the checksum of all values is that of the log as it was made. The cleaner
runs in a process of its own, without the pauses of its rate limit. All files are in the page cache as far as memory
suffices: with a slower disk or network, compression gains more. A ratio is taken within a round.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
from crc32c import crc32c

from penstock.base.config import Compression, StreamConfig
from penstock.base.errors import OperationalError
from penstock.base.limits import MIB
from penstock.client.blocking import client as blocking
from penstock.commitlog import Log, LogConfig, LogFolder
from penstock.node.data_dir.log_creation_markers import LogCreationMarkers
from penstock.vfs.real import RealVfs
from penstock_bench.experiments import data_dirs
from penstock_bench.experiments.data_dirs import FIRST_US, log_of
from penstock_bench.experiments.experiment import ROUNDS, Experiment, Row, Turn, last
from penstock_bench.load.readers import joined_values
from penstock_bench.machine import worker

MESSAGES = 2_000_000
_STREAM = "events"
_ROWS = 100
_SEGMENT_BYTES = 16 * MIB
_MESSAGE_BYTES = 340  # with subject, and the overhead of a small batch
_MESSAGES_A_SECOND = 100_000  # for the time estimate, with a reserve
_TIMEOUT_S = 60.0
_CITIES = ("Berlin", "Nairobi", "Osaka", "Lima", "Oslo", "Toronto", "Perth", "Porto")
_STATES = ("placed", "paid", "packed", "sent", "returned")


def experiment(messages: int = MESSAGES, rounds: int | None = None) -> Experiment:
    """Return the experiment. Its disk space: the log, and its cleaned form before the old files are deleted."""
    plain = Compression.NONE
    rows = [Row("before", f"{messages:,} messages: on the disk before", "MB", "before_mb", plain, once=last)]
    for name in Compression:
        rows += [
            Row(f"{name}-size", f"{name}: on the disk", "MB", "size_mb", name, once=last),
            Row(f"{name}-clean", f"{name}: cleaned in", "s", "seconds", name),
            Row(f"{name}-clean-cpu", f"{name}: CPU of that", "s", "cpu_seconds", name),
            Row(f"{name}-read", f"{name}: read in", "s", "read_seconds", name),
        ]
        if name != plain:
            against = "against plain"
            rows += [
                Row(f"{name}-size-ratio", f"{name}: on the disk, {against}", "×", "size_mb", name, plain, once=last),
                Row(f"{name}-clean-ratio", f"{name}: cleaning, {against}", "×", "seconds", name, plain),
                Row(f"{name}-read-ratio", f"{name}: reading, {against}", "×", "read_seconds", name, plain),
            ]
    return Experiment(
        systems=tuple(Compression),
        begin=partial(_begin, messages=messages),
        rounds=rounds or ROUNDS,
        warm_up=False,
        all_count=True,
        start_seconds=0.0,
        turn_seconds=messages / _MESSAGES_A_SECOND,
        bytes_needed=256 * MIB + 2 * messages * _MESSAGE_BYTES,
        rows=tuple(rows),
    )


@contextmanager
def _begin(folder: Path, *, messages: int) -> Iterator[Turn]:
    made, work = folder / "made", folder / "work"
    crc = make(made, messages)
    before_mb = data_dirs.size_of(log_of(made, _STREAM)) / 1e6

    def turn(name: str, _: int) -> dict[str, float]:
        data_dirs.clone(made, work, log_of(made, _STREAM))
        cost = in_a_process(work, Compression(name))
        read_seconds = read(work, messages, crc)
        shutil.rmtree(work)
        return {**msgspec.structs.asdict(cost), "read_seconds": read_seconds, "before_mb": before_mb}

    yield turn


def make(folder: Path, messages: int) -> int:
    """Make a data directory with one stream; return the checksum of all its values."""
    chance = random.Random(1)  # noqa: S311 (content, no secret)
    crc = 0
    with data_dirs.made_in(folder) as (vfs, metadata):
        config = StreamConfig(name=_STREAM, subject=_STREAM, segment_bytes=_SEGMENT_BYTES)
        log = data_dirs.new_log(vfs, metadata, LogCreationMarkers(vfs), config)
        while (left := messages - log.log_end) > 0:
            values = [_value(chance, log.log_end + row) for row in range(min(left, _ROWS))]
            crc = crc32c(b"".join(values), crc)
            data_dirs.append(log, data_dirs.encoded({"value": values}, _STREAM), FIRST_US + log.log_end)
        data_dirs.flush(log)
        log.close()
    return crc


def _value(chance: random.Random, number: int) -> bytes:
    """Return about 230 bytes of JSON, a quarter of which is random."""
    return (
        b'{"order":"%016x","number":%d,"customer":{"id":%d,"city":"%s"},"state":"%s","total":%d.%02d,"currency":"EUR",'
        b'"items":[{"article":"A-%05d","count":%d},{"article":"A-%05d","count":%d}],"placed":"2026-01-%02dT%02d:%02d"}'
    ) % (
        chance.getrandbits(64),
        number,
        chance.randrange(100_000),
        chance.choice(_CITIES).encode(),
        chance.choice(_STATES).encode(),
        chance.randrange(500),
        chance.randrange(100),
        chance.randrange(20_000),
        chance.randrange(1, 9),
        chance.randrange(20_000),
        chance.randrange(1, 9),
        chance.randrange(1, 29),
        chance.randrange(24),
        chance.randrange(60),
    )


class CleanTask(msgspec.Struct, frozen=True):
    """A data directory with one stream, and the codec of its log."""

    folder: str
    compression: Compression


class Cleaned(msgspec.Struct, frozen=True):
    """The cost of one cleaning, in its own process."""

    seconds: float
    cpu_seconds: float
    size_mb: float  # of the log afterwards


def in_a_process(folder: Path, compression: Compression) -> Cleaned:
    """Run `clean` in a process of its own. Raise OperationalError if it fails."""
    return worker.run_alone(clean, CleanTask(str(folder), compression), "cleaning of the log")


def clean(task: CleanTask) -> Iterator[Cleaned]:
    """Worker: clean the log."""
    folder = Path(task.folder)
    path = log_of(folder, _STREAM)
    config = LogConfig(segment_bytes=_SEGMENT_BYTES, compression=task.compression)
    stream_id = int(path.parent.name.partition("-")[0])
    log_folder = LogFolder(RealVfs(folder), str(path.relative_to(folder)), stream_id, 0)
    log = Log.open(log_folder, config, now_us=FIRST_US)
    log.note_committed(log.log_end)
    began, cpu = time.perf_counter(), time.process_time()
    data_dirs.clean(log)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    size_mb = log.size_bytes / 1e6
    log.close()
    yield Cleaned(seconds, cpu, size_mb)


def read(folder: Path, messages: int, crc: int) -> float:
    """Return the seconds in which a client reads the whole stream. Raise OperationalError if its content differs."""
    with data_dirs.started(folder) as (ready, _), blocking.connect(ready.client, timeout=_TIMEOUT_S) as client:
        next(client.messages(_STREAM, end=1))  # imports of the first call are not part of the reading cost
        began = time.perf_counter()
        found = count = 0
        for batch in client.read(_STREAM):
            found = crc32c(joined_values(batch), found)
            count += batch.num_rows
        seconds = time.perf_counter() - began
    if (count, found) != (messages, crc):
        raise OperationalError(f"{count:,} messages were read that are not the {messages:,} that were made")
    return seconds
