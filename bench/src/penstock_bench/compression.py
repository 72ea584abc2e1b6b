"""`penstock bench compression`: savings of compressing a log, and its cost for the cleaner and for readers.

Rules: One log is made once, of JSON messages in batches of 100, so that the cleaner has to merge them in any case. In
each round, for no compression, LZ4 and Zstandard in turn, the cleaner cleans a copy of the log, and a client reads the
whole log from a broker; the run fails unless the checksum of all values is that of the log as it was made. The cleaner
runs in a process of its own, without the pauses of its rate limit. All files are in the page cache as far as memory
suffices: with a slower disk or network, compression gains more. A ratio is taken within a round.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from crc32c import crc32c

from penstock.base.config import Compression, StreamConfig
from penstock.base.errors import OperationalError
from penstock.base.limits import MIB
from penstock.batch import codec
from penstock.batch.reader import segment_files
from penstock.batch.schema import arrow_schema
from penstock.client.blocking import client as blocking
from penstock.commitlog import Log, LogConfig, LogFolder
from penstock.node.data_dir.log_creation_markers import LogCreationMarkers
from penstock.vfs.real import RealVfs
from penstock_bench.data_dirs import FIRST_US, append, flush, made_in, new_log, started
from penstock_bench.readers import joined_values
from penstock_bench.report import Figure
from penstock_bench.rounds import order_of

MESSAGES = 2_000_000
ROUNDS = 5
_STREAM = "events"
_ROWS = 100
_SEGMENT_BYTES = 16 * MIB
_MESSAGE_BYTES = 340  # with subject, and the overhead of a small batch
_MESSAGES_A_SECOND = 100_000  # for the time estimate, with a reserve
_TIMEOUT_S = 60.0
_CITIES = ("Berlin", "Nairobi", "Osaka", "Lima", "Oslo", "Toronto", "Perth", "Porto")
_STATES = ("placed", "paid", "packed", "sent", "returned")

Said = Callable[[str], None]
"""Receives the name of every finished step."""


class CompressionPlan(msgspec.Struct, frozen=True):
    """The log and the rounds to measure."""

    messages: int = MESSAGES
    rounds: int = ROUNDS

    @property
    def steps(self) -> int:
        """Number of steps that a run reports."""
        return 1 + len(Compression) * self.rounds

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        return self.steps * self.messages / _MESSAGES_A_SECOND

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most: the log, and its cleaned form before the old files are deleted."""
        return 256 * MIB + 2 * self.messages * _MESSAGE_BYTES


class Cleaned(msgspec.Struct, frozen=True):
    """The cost of one cleaning, in its own process."""

    seconds: float
    cpu_seconds: float
    size_bytes: int  # of the log afterwards


class CompressionResult(msgspec.Struct, frozen=True):
    """One codec in one round."""

    cleaned: Cleaned
    read_seconds: float


def make(folder: Path, plan: CompressionPlan) -> int:
    """Make a data directory with one stream; return the checksum of all its values."""
    chance = random.Random(1)  # noqa: S311 (content, no secret)
    crc = 0
    with made_in(folder) as (vfs, metadata):
        config = StreamConfig(name=_STREAM, subject=_STREAM, segment_bytes=_SEGMENT_BYTES)
        log = new_log(vfs, metadata, LogCreationMarkers(vfs), config)
        while (left := plan.messages - log.log_end) > 0:
            values = [_value(chance, log.log_end + row) for row in range(min(left, _ROWS))]
            crc = crc32c(b"".join(values), crc)
            append(log, _message(values), FIRST_US + log.log_end)
        flush(log)
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


def _message(values: list[bytes]) -> bytearray:
    import pyarrow as pa

    rows = len(values)
    columns = {"subject": [_STREAM] * rows, "key": [None] * rows, "value": values, "headers": [None] * rows}
    schema = arrow_schema()
    arrays = [pa.array(found, schema.field(name).type) for name, found in columns.items()]
    return codec.encode_arrow(pa.RecordBatch.from_arrays(arrays, names=list(columns)))


def _log_of(folder: Path) -> Path:
    (found,) = (folder / "streams").glob(f"*-{_STREAM}/0")
    return found


def clean(folder: Path, compression: Compression) -> Cleaned:
    """Clean the log in `folder`, in this process."""
    path = _log_of(folder)
    config = LogConfig(segment_bytes=_SEGMENT_BYTES, compression=compression)
    stream_id = int(path.parent.name.partition("-")[0])
    log_folder = LogFolder(RealVfs(folder), str(path.relative_to(folder)), stream_id, 0)
    log = Log.open(log_folder, config, now_us=FIRST_US)
    log.note_committed(log.log_end)
    began, cpu = time.perf_counter(), time.process_time()
    while (task := log.clean(0)) is not None:
        while not task.is_done:
            task.run()
        log.cleaned(task, 0)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    size_bytes = log.size_bytes
    log.close()
    return Cleaned(seconds, cpu, size_bytes)


def _cleaned(folder: Path, compression: Compression) -> Cleaned:
    """Run `clean` in a process of its own. Raise OperationalError if it fails."""
    command = [sys.executable, "-m", "penstock_bench.compression", compression, str(folder)]
    found = subprocess.run(command, capture_output=True, check=False)
    if found.returncode:
        said = found.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise OperationalError(f"the cleaning of the log failed: {said}")
    return msgspec.json.decode(found.stdout, type=Cleaned)


def _read(folder: Path, messages: int, crc: int) -> float:
    """Return the seconds in which a client reads the whole stream. Raise OperationalError if its content differs."""
    with started(folder) as (ready, _), blocking.connect(ready.client, timeout=_TIMEOUT_S) as client:
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


def run(plan: CompressionPlan, folder: Path, said: Said) -> list[Figure]:
    """Run the whole plan."""
    made = folder / "made"
    crc = make(made, plan)
    said(f"{plan.messages:,} messages made")
    size_bytes = sum(path.stat().st_size for path in segment_files(_log_of(made)))
    found: dict[str, list[CompressionResult]] = {one: [] for one in Compression}
    for number in range(plan.rounds):
        for name in order_of(list(found), number):
            work = folder / "work"
            _clone(made, work)
            os.sync()
            cleaned = _cleaned(work, Compression(name))
            found[name].append(CompressionResult(cleaned, _read(work, plan.messages, crc)))
            shutil.rmtree(work)
            said(name)
    return _figures(plan, found, size_bytes)


def _clone(made: Path, work: Path) -> None:
    """Clone the data directory: sealed segments are never written, so they are hard-linked."""
    sealed = {str(path) for path in segment_files(_log_of(made))[:-1]}

    def put(source: str, target: str) -> None:
        if source in sealed:
            os.link(source, target)
        else:
            shutil.copyfile(source, target)

    shutil.copytree(made, work, copy_function=put)


def _figures(plan: CompressionPlan, found: dict[str, list[CompressionResult]], size_bytes: int) -> list[Figure]:
    which = f"{plan.messages:,} messages"
    figures = [Figure("before", f"{which}: on the disk before", "MB", size_bytes / 1e6)]
    plain = found[Compression.NONE]
    for name, rounds in found.items():
        figures += [
            Figure(f"{name}-size", f"{name}: on the disk", "MB", rounds[-1].cleaned.size_bytes / 1e6),
            _median(f"{name}-clean", f"{name}: cleaned in", "s", [one.cleaned.seconds for one in rounds]),
            _median(f"{name}-clean-cpu", f"{name}: CPU of that", "s", [one.cleaned.cpu_seconds for one in rounds]),
            _median(f"{name}-read", f"{name}: read in", "s", [one.read_seconds for one in rounds]),
        ]
        if name != Compression.NONE:
            pairs = list(zip(rounds, plain, strict=True))
            cleaned = [one.cleaned.seconds / other.cleaned.seconds for one, other in pairs]
            read = [one.read_seconds / other.read_seconds for one, other in pairs]
            size = rounds[-1].cleaned.size_bytes / plain[-1].cleaned.size_bytes
            figures += [
                Figure(f"{name}-size-ratio", f"{name}: on the disk, against plain", "×", size),
                _median(f"{name}-clean-ratio", f"{name}: cleaning, against plain", "×", cleaned),
                _median(f"{name}-read-ratio", f"{name}: reading, against plain", "×", read),
            ]
    return figures


def _median(name: str, what: str, unit: str, values: list[float]) -> Figure:
    return Figure(name, what, unit, statistics.median(values), low=min(values), high=max(values))


def main(arguments: list[str]) -> None:
    """Clean the log in a folder with a codec; print the cost as JSON."""
    name, folder = arguments
    sys.stdout.buffer.write(msgspec.json.encode(clean(Path(folder), Compression(name))))


if __name__ == "__main__":
    main(sys.argv[1:])
