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
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.base.config import Compression
from penstock.base.errors import OperationalError
from penstock.base.limits import MIB
from penstock.batch import codec
from penstock.batch.reader import open_segment, segment_files
from penstock.batch.schema import arrow_schema
from penstock.commitlog import Log, LogConfig, LogFolder, Survey
from penstock.vfs import Vfs
from penstock.vfs.real import RealVfs
from penstock_bench.report import Figure
from penstock_bench.rounds import order_of
from penstock_bench.unsynced import UnsyncedVfs

MESSAGES = 10_000_000
KEYS = 1_000_000
ROUNDS = 5
_LOG = "log/0"
_IDS = (1, 0)
_ROWS = 10_000
_VALUE_BYTES = 224
_MESSAGE_BYTES = 280  # with key, subject and the fixed-width columns
_SEGMENT_BYTES = 64 * MIB
_LATER_US = 10**9  # current time of a compaction, after the last timestamp
_COPY_BYTES = 4 * MIB
_MESSAGES_A_SECOND = 250_000  # for the time estimate, with a reserve

Said = Callable[[str], None]
"""Receives the name of every finished step."""


class CompactionPlan(msgspec.Struct, frozen=True):
    """The log and the rounds to measure."""

    messages: int = MESSAGES
    keys: int = KEYS
    rounds: int = ROUNDS
    compression: Compression = Compression.NONE

    @property
    def steps(self) -> int:
        """Number of steps that a run reports."""
        return 1 + 2 * self.rounds

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        return self.steps * self.messages / _MESSAGES_A_SECOND

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most: the log, a copy or its compacted form, and a reserve."""
        return 64 * MIB + 3 * self.messages * _MESSAGE_BYTES


class Compacted(msgspec.Struct, frozen=True):
    """The cost of one compaction or copy, in its own process."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int = 0  # resident memory
    longest_slice_seconds: float = 0.0  # the broker schedules other work between slices
    size_bytes: int = 0  # of the log afterwards, or of the copy


def make(folder: Path, plan: CompactionPlan) -> array[int]:
    """Make a log in `folder`; return the last offset of each key, -1 for a key without messages."""
    import pyarrow as pa

    chance = random.Random(1)  # noqa: S311 (content, no secret)
    last = array("q", [-1]) * plan.keys
    log = _opened(UnsyncedVfs(folder), plan.compression, compact=False)
    log.start_epoch(1)
    schema = arrow_schema()
    while (left := plan.messages - log.log_end) > 0:
        rows = min(left, _ROWS)
        keys = [chance.randrange(plan.keys) for _ in range(rows)]
        for row, key in enumerate(keys):
            last[key] = log.log_end + row
        columns = {
            "subject": ["orders.new"] * rows,
            "key": [b"customer-%08d" % key for key in keys],
            "value": [chance.randbytes(8) * (_VALUE_BYTES // 8)] * rows,
            "headers": [None] * rows,
        }
        arrays = [pa.array(found, schema.field(name).type) for name, found in columns.items()]
        message = codec.encode_arrow(pa.RecordBatch.from_arrays(arrays, names=list(columns)))
        header = codec.renumber(message, base_offset=log.log_end, timestamp_us=log.log_end, leader_epoch=1)
        log.append(message, header)
    if plan.compression is not Compression.NONE:
        _compress(log)
    log.close()
    os.sync()
    return last


def _compress(log: Log) -> None:
    if (flush := log.flush()) is not None:
        flush.run()
        log.flushed(flush)
    log.note_committed(log.log_end)
    while (task := log.clean(0)) is not None:
        while not task.is_done:
            task.run()
        log.cleaned(task, 0)


def _opened(vfs: Vfs, compression: Compression, *, compact: bool) -> Log:
    config = LogConfig(segment_bytes=_SEGMENT_BYTES, compact=compact, compression=compression)
    return Log.open(LogFolder(vfs, _LOG, *_IDS), config, now_us=0)


def compact(folder: Path, compression: Compression = Compression.NONE) -> Compacted:
    """Compact the log in `folder`, in this process."""
    log = _opened(RealVfs(folder), compression, compact=True)
    log.note_committed(log.log_end)
    began, cpu = time.perf_counter(), time.process_time()
    longest = 0.0
    now_us = log.last_timestamp_us + _LATER_US
    while log.wants_cleaning(now_us):
        task = log.clean(now_us)
        while task is not None and not task.is_done:
            slice_began = time.perf_counter()
            task.run()
            longest = max(longest, time.perf_counter() - slice_began)
        if task is not None:
            log.cleaned(task, now_us)
            if isinstance(task, Survey) and not task.judged:
                break
    if (disposal := log.dispose()) is not None:
        disposal.run()
        log.disposed()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
    size_bytes = log.size_bytes
    log.close()
    return Compacted(seconds, cpu, peak_bytes, longest, size_bytes)


def copy(folder: Path, _: Compression = Compression.NONE) -> Compacted:
    """Copy the segments of the log in `folder`, in this process."""
    target = folder / "copy"
    target.mkdir()
    began, cpu = time.perf_counter(), time.process_time()
    size_bytes = 0
    for path in segment_files(folder / _LOG):
        with path.open("rb", buffering=0) as source, (target / path.name).open("wb", buffering=0) as file:
            while data := source.read(_COPY_BYTES):
                size_bytes += file.write(data)
            os.fdatasync(file.fileno())
    return Compacted(time.perf_counter() - began, time.process_time() - cpu, size_bytes=size_bytes)


def _in_a_process(what: str, folder: Path, compression: Compression = Compression.NONE) -> Compacted:
    """Run `compact` or `copy` in a process of its own. Raise OperationalError if it fails."""
    command = [sys.executable, "-m", "penstock_bench.compaction", what, str(folder), compression]
    found = subprocess.run(command, capture_output=True, check=False)
    if found.returncode:
        said = found.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise OperationalError(f"the {what} of the log failed: {said}")
    return msgspec.json.decode(found.stdout, type=Compacted)


def run(plan: CompactionPlan, folder: Path, said: Said) -> list[Figure]:
    """Run the whole plan."""
    made = folder / "made"
    made.mkdir()
    last = make(made, plan)
    said(f"{plan.messages:,} messages made")
    size_bytes = sum(path.stat().st_size for path in segment_files(made / _LOG))
    found: dict[str, list[Compacted]] = {"compact": [], "copy": []}
    for number in range(plan.rounds):
        for what in order_of(list(found), number):
            work = folder / what
            _clone(made, work)
            found[what].append(_in_a_process(what, work, plan.compression))
            if what == "compact":
                _check(work, last)
            shutil.rmtree(work)
            said(what)
    return _figures(plan, found["compact"], found["copy"], size_bytes)


def _clone(made: Path, work: Path) -> None:
    """Clone the log: sealed segments are never written, so they are hard-linked."""
    (work / _LOG).mkdir(parents=True)
    segments = segment_files(made / _LOG)
    for path in (made / _LOG).iterdir():
        target = work / _LOG / path.name
        if path in segments[:-1]:
            os.link(path, target)
        else:
            shutil.copyfile(path, target)


def _check(work: Path, last: array[int]) -> None:
    """Raise OperationalError unless the last message of each key is there, at its offset."""
    wanted = {offset for offset in last if offset >= 0}
    for path in segment_files(work / _LOG):
        with open_segment(path) as reader:
            for batch in reader:
                wanted.difference_update(batch.column("offset").to_pylist())
    if wanted:
        raise OperationalError(f"{len(wanted)} keys have lost their last message, as that at offset {min(wanted)}")


def _figures(
    plan: CompactionPlan, compacted: list[Compacted], copied: list[Compacted], size_bytes: int
) -> list[Figure]:
    which = f"{plan.messages:,} messages of {plan.keys:,} keys"
    is_judged = plan.messages >= MESSAGES and plan.compression is Compression.NONE
    ratios = [one.seconds / other.seconds for one, other in zip(compacted, copied, strict=True)]
    peak = max(one.peak_bytes for one in compacted) / MIB
    longest = max(one.longest_slice_seconds for one in compacted)
    left_bytes = compacted[-1].size_bytes
    reach = 4.0 if is_judged else None
    return [
        _median("compaction-ratio", f"{which}: compaction against a copy", "×", ratios, reach),
        _median("compaction-seconds", f"{which}: compaction", "s", [one.seconds for one in compacted]),
        _median("compaction-cpu", f"{which}: CPU of it", "s", [one.cpu_seconds for one in compacted]),
        _median("copy-seconds", f"a copy of their {size_bytes / 1e6:,.0f} MB", "s", [one.seconds for one in copied]),
        Figure("compaction-peak", f"{which}: resident, at most", "MiB", peak),
        Figure("compaction-slice", f"{which}: longest slice", "s", longest),
        Figure("compaction-before", f"{which}: on the disk before", "MB", size_bytes / 1e6),
        Figure("compaction-after", f"{which}: on the disk afterwards", "MB", left_bytes / 1e6),
    ]


def _median(name: str, what: str, unit: str, values: list[float], reach: float | None = None) -> Figure:
    return Figure(name, what, unit, statistics.median(values), reach, low=min(values), high=max(values))


def main(arguments: list[str]) -> None:
    """Run `compact` or `copy` with a folder and a codec; print the cost as JSON."""
    what, folder, compression = arguments
    found = {"compact": compact, "copy": copy}[what](Path(folder), Compression(compression))
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main(sys.argv[1:])
