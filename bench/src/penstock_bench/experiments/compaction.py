"""`penstock bench compaction`: cost of key compaction of a long log, beside a plain copy of the same files.

Rules: The log is made once, of messages with random keys, with one sync for all. Each round compacts it anew and copies
its segments, in turn; a copied file is synced once, at its end. Each runs in a process of its own, so that its memory
and CPU can be measured, with all files in the page cache as far as memory suffices. The compaction is the code of a
broker's disk thread, without the pauses that the cleaner's rate limit makes between slices. With a compression, the
cleaner's code compresses the log beforehand, so the compaction has to decompress its input, and the compressed files
are copied. The run fails unless the last message of each key is still at its offset after a compaction.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from penstock.base.config import Compression
from penstock.base.errors import OperationalError
from penstock.base.limits import MIB
from penstock.batch import codec
from penstock.batch.reader import open_segment, segment_files
from penstock.commitlog import Log, LogConfig, LogFolder, Survey
from penstock.vfs import Vfs
from penstock.vfs.real import RealVfs
from penstock_bench.experiments.data_dirs import UnsyncedVfs, clean, clone, encoded, flush
from penstock_bench.experiments.experiment import ROUNDS, Experiment, Row, Turn, last
from penstock_bench.machine import worker

MESSAGES = 10_000_000
KEYS = 1_000_000
_LOG = "log/0"
_IDS = (1, 0)
_ROWS = 10_000
_VALUE_BYTES = 224
_MESSAGE_BYTES = 280  # with key, subject and the fixed-width columns
_SEGMENT_BYTES = 64 * MIB
_LATER_US = 10**9  # current time of a compaction, after the last timestamp
_COPY_BYTES = 4 * MIB
_MESSAGES_A_SECOND = 250_000  # for the time estimate, with a reserve


def experiment(
    messages: int = MESSAGES, keys: int = KEYS, rounds: int | None = None, compression: Compression = Compression.NONE
) -> Experiment:
    """Return the experiment. Its disk space: the log, a copy or its compacted form, and a reserve."""
    which = f"{messages:,} messages of {keys:,} keys"
    reach = 4.0 if messages >= MESSAGES and compression is Compression.NONE else None
    return Experiment(
        systems=("compact", "copy"),
        begin=partial(_begin, messages=messages, keys=keys, compression=compression),
        rounds=rounds or ROUNDS,
        warm_up=False,
        all_count=True,
        start_seconds=0.0,
        turn_seconds=messages / _MESSAGES_A_SECOND,
        bytes_needed=64 * MIB + 3 * messages * _MESSAGE_BYTES,
        rows=(
            Row("compaction-ratio", f"{which}: compaction against a copy", "×", "seconds", "compact", "copy", reach),
            Row("compaction-seconds", f"{which}: compaction", "s", "seconds", "compact"),
            Row("compaction-cpu", f"{which}: CPU of it", "s", "cpu_seconds", "compact"),
            Row("copy-seconds", "a copy of their {size_mb:,.0f} MB", "s", "seconds", "copy"),
            Row("compaction-peak", f"{which}: resident, at most", "MiB", "peak_mib", "compact", once=max),
            Row("compaction-slice", f"{which}: longest slice", "s", "longest_slice_seconds", "compact", once=max),
            Row("compaction-before", f"{which}: on the disk before", "MB", "size_mb", "copy", once=last),
            Row("compaction-after", f"{which}: on the disk afterwards", "MB", "size_mb", "compact", once=last),
        ),
    )


@contextmanager
def _begin(folder: Path, *, messages: int, keys: int, compression: Compression) -> Iterator[Turn]:
    made = folder / "made"
    made.mkdir()
    last_offsets = make(made, messages, keys, compression)

    def turn(name: str, _: int) -> dict[str, float]:
        work = folder / name
        clone(made, work, made / _LOG)
        cost = in_a_process(name, work, compression)
        if name == "compact":
            check(work, last_offsets)
        shutil.rmtree(work)
        return msgspec.structs.asdict(cost)

    yield turn


def make(folder: Path, messages: int, keys: int, compression: Compression = Compression.NONE) -> array[int]:
    """Make a log in `folder`; return the last offset of each key, -1 for a key without messages."""
    chance = random.Random(1)  # noqa: S311 (content, no secret)
    last_offsets = array("q", [-1]) * keys
    log = _opened(UnsyncedVfs(folder), compression, compact=False)
    log.start_epoch(1)
    while (left := messages - log.log_end) > 0:
        rows = min(left, _ROWS)
        of_rows = [chance.randrange(keys) for _ in range(rows)]
        for row, key in enumerate(of_rows):
            last_offsets[key] = log.log_end + row
        columns = {
            "key": [b"customer-%08d" % key for key in of_rows],
            "value": [chance.randbytes(8) * (_VALUE_BYTES // 8)] * rows,
        }
        message = encoded(columns, "orders.new")
        header = codec.renumber(message, base_offset=log.log_end, timestamp_us=log.log_end, leader_epoch=1)
        log.append(message, header)
    if compression is not Compression.NONE:
        flush(log)
        log.note_committed(log.log_end)
        clean(log)
    log.close()
    os.sync()
    return last_offsets


def _opened(vfs: Vfs, compression: Compression, *, compact: bool) -> Log:
    config = LogConfig(segment_bytes=_SEGMENT_BYTES, compact=compact, compression=compression)
    return Log.open(LogFolder(vfs, _LOG, *_IDS), config, now_us=0)


class LogTask(msgspec.Struct, frozen=True):
    """The folder of a log, and its codec."""

    folder: str
    compression: Compression


class Cost(msgspec.Struct, frozen=True):
    """The cost of one compaction or copy, in its own process."""

    seconds: float
    cpu_seconds: float
    peak_mib: float = 0.0  # resident memory
    longest_slice_seconds: float = 0.0  # the broker schedules other work between slices
    size_mb: float = 0.0  # of the log afterwards, or of the copy


def in_a_process(what: str, folder: Path, compression: Compression = Compression.NONE) -> Cost:
    """Run `compact` or `copy` in a process of its own. Raise OperationalError if it fails."""
    work = {"compact": compact, "copy": copy}[what]
    return worker.run_alone(work, LogTask(str(folder), compression), f"{what} of the log")


def compact(task: LogTask) -> Iterator[Cost]:
    """Worker: compact the log."""
    log = _opened(RealVfs(Path(task.folder)), task.compression, compact=True)
    log.note_committed(log.log_end)
    began, cpu = time.perf_counter(), time.process_time()
    longest = 0.0
    now_us = log.last_timestamp_us + _LATER_US
    while log.wants_cleaning(now_us):
        cleaning = log.clean(now_us)
        while cleaning is not None and not cleaning.is_done:
            slice_began = time.perf_counter()
            cleaning.run()
            longest = max(longest, time.perf_counter() - slice_began)
        if cleaning is not None:
            log.cleaned(cleaning, now_us)
            if isinstance(cleaning, Survey) and not cleaning.judged:
                break
    if (disposal := log.dispose()) is not None:
        disposal.run()
        log.disposed()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024 / MIB
    size_mb = log.size_bytes / 1e6
    log.close()
    yield Cost(seconds, cpu, peak_mib, longest, size_mb)


def copy(task: LogTask) -> Iterator[Cost]:
    """Worker: copy the segments of the log."""
    folder = Path(task.folder)
    target = folder / "copy"
    target.mkdir()
    began, cpu = time.perf_counter(), time.process_time()
    size_bytes = 0
    for path in segment_files(folder / _LOG):
        with path.open("rb", buffering=0) as source, (target / path.name).open("wb", buffering=0) as file:
            while data := source.read(_COPY_BYTES):
                size_bytes += file.write(data)
            os.fdatasync(file.fileno())
    yield Cost(time.perf_counter() - began, time.process_time() - cpu, size_mb=size_bytes / 1e6)


def check(work: Path, last_offsets: array[int]) -> None:
    """Raise OperationalError unless the last message of each key is there, at its offset."""
    wanted = {offset for offset in last_offsets if offset >= 0}
    for path in segment_files(work / _LOG):
        with open_segment(path) as reader:
            for batch in reader:
                wanted.difference_update(batch.column("offset").to_pylist())
    if wanted:
        raise OperationalError(f"{len(wanted)} keys have lost their last message, as that at offset {min(wanted)}")
