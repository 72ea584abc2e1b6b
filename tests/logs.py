"""Logs for tests: batches whose content is computed from their offsets, and functions that read them back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, pairwise
from random import Random
from typing import TypeVar

from penstock.base import limits
from penstock.batch import codec
from penstock.batch.header import BatchHeader
from penstock.commitlog import FilterBudget, Log, LogConfig, LogFolder, LogView, Removal, TruncationTask
from penstock.commitlog.files import files
from penstock.commitlog.files.files import holds_messages
from penstock.commitlog.incremental_task import IncrementalTask
from penstock.vfs import Vfs
from penstock.vfs.encrypted import EncryptedVfs
from tests.encryption import encryption_keys
from tests.groups import Columns, encoded

_Task = TypeVar("_Task", bound=IncrementalTask)

DIRECTORY = "streams/00000007-orders/0"
STREAM_ID = 7
PARTITION = 0
SMALL = LogConfig(segment_bytes=4096)

_LATE_US = count(10**15, 10**9)
"""Times later than all that tests use, at large intervals."""

Message = tuple[int, int, bytes]
"""Offset, timestamp in µs, value."""


_random: Random | None = None  # not None while logs are encrypted


@contextmanager
def encrypted_logs() -> Iterator[None]:
    """Encrypt the logs of tests within the context; direct access of the tests to the disk is not affected."""
    global _random
    _random = Random(1)
    try:
        yield
    finally:
        _random = None


def as_logs_see(vfs: Vfs) -> Vfs:
    """Return the file system for logs: encrypted within `encrypted_logs`."""
    if _random is None or isinstance(vfs, EncryptedVfs):
        return vfs
    return EncryptedVfs(vfs, encryption_keys(), holds_messages, _random.randbytes)


def open_log(
    vfs: Vfs,
    config: LogConfig = SMALL,
    *,
    now_us: int = 0,
    must_exist: bool = False,
    filters: FilterBudget | None = None,
) -> Log:
    """Open the log that the tests use."""
    folder = LogFolder(as_logs_see(vfs), DIRECTORY, STREAM_ID, PARTITION)
    return Log.open(folder, config, now_us=now_us, must_exist=must_exist, filters=filters)


def value_of(offset: int, size_bytes: int = 40) -> bytes:
    """Return the value of the message at `offset`."""
    return b"message %d " % offset + b"." * size_bytes


def make_batch(
    base_offset: int, rows: int, timestamp_us: int, *, size_bytes: int = 40, leader_epoch: int = 1
) -> tuple[bytes, BatchHeader]:
    """Return a batch and its header."""
    columns = Columns(
        [b"orders.new"] * rows, None, [value_of(base_offset + row, size_bytes) for row in range(rows)], None
    )
    data = bytes(encoded(columns, base_offset=base_offset, timestamp_us=timestamp_us, leader_epoch=leader_epoch))
    return data, codec.read_header(data)


def append(log: Log, rows: int = 1, timestamp_us: int = 0, *, size_bytes: int = 40) -> list[Message]:
    """Append one batch; return its messages."""
    stamped = max(timestamp_us, log.last_timestamp_us)
    base = log.log_end
    log.append(*make_batch(base, rows, stamped, size_bytes=size_bytes, leader_epoch=max(1, log.leader_epoch)))
    return [(offset, stamped, value_of(offset, size_bytes)) for offset in range(base, base + rows)]


def flush(log: Log) -> None:
    """Flush everything, without the checkpoint: as a driver that is killed before it writes it."""
    task = log.flush()
    if task is not None:
        task.run()
        log.flushed(task)


def flush_and_note(log: Log) -> None:
    """Flush everything, and write the checkpoint."""
    flush(log)
    log.note_flushed()


def save(log: Log) -> None:
    """Flush everything, and update index and checkpoint, as a driver does within a second."""
    flush(log)
    log.tick(limits.CHECKPOINT_SYNC_INTERVAL_MS * 1_000)
    flush(log)


def finished(task: _Task | None) -> _Task:
    """Run a task to its end, as disk threads do."""
    assert task is not None
    while not task.is_done:
        task.run()
    return task


def clean_all(log: Log, now_us: int = 0) -> int:
    """Clean until nothing is left to do; return the number of rewritten segments."""
    count = 0
    while log.wants_cleaning(now_us):
        if (task := log.clean(now_us)) is not None:
            count += log.cleaned(finished(task), now_us)
    return count


def retain(log: Log, now_us: int) -> Removal | None:
    """Tick as a driver does, up to the removal, which the caller runs."""
    retention = log.tick(now_us)
    if retention is None:
        return None
    retention.run()
    return log.apply_retention(retention)


def give_up_before(log: Log, offset: int) -> Removal | None:
    """Have retention raise log_start to `offset`, or to flushed_end if that is lower."""
    config = log.config
    log.configure(replace(config, max_age_us=None, max_bytes=None, max_messages=log.log_end - offset))
    removal = retain(log, next(_LATE_US))
    log.configure(config)
    return removal


def run(log: Log, truncation: TruncationTask | None) -> None:
    """Truncate the log, as a driver does."""
    if truncation is not None:
        truncation.run()
        log.truncated(truncation)


def messages_in(data: bytes | memoryview) -> Iterator[Message]:
    """Yield the messages of whole batches; each batch is verified."""
    rest = memoryview(data)
    while len(rest):
        size = codec.read_header(rest).size_bytes
        batch = rest[:size]
        codec.verify(batch)
        batch = memoryview(codec.uncompressed(batch))
        _, _, values, _ = _columns(batch)
        yield from zip(codec.offsets(batch), codec.timestamps(batch), values, strict=True)
        rest = rest[size:]


def _columns(batch: memoryview) -> tuple[list[bytes], list[bytes], list[bytes], list[bytes]]:
    parts = codec.buffers(batch)[4:]
    columns = []
    for number in range(4):
        offsets = parts[3 * number + 1].cast("i")
        data = bytes(parts[3 * number + 2])
        columns.append([data[a:b] for a, b in pairwise(offsets)])
    return columns[0], columns[1], columns[2], columns[3]


def read_slices(
    vfs: Vfs, view: LogView, start: int | None = None, end: int | None = None, bytes_max: int = 3000
) -> list[Message]:
    """Return the messages from `start` to `end`, fetched slice by slice, as for a consumer."""
    offset = view.log_start if start is None else start
    begin = offset
    end = view.log_end if end is None else end
    found: list[Message] = []
    while (piece := view.slice(offset, end=end, bytes_max=bytes_max)) is not None:
        file = as_logs_see(vfs).open(piece.path, read_only=True)
        try:
            data = file.read_at(piece.position, piece.length)
        finally:
            file.close()
        assert len(data) == piece.length
        messages = list(messages_in(data))
        assert piece.base_offset == messages[0][0] <= offset < piece.end_offset == messages[-1][0] + 1 <= end
        found += messages
        offset = piece.end_offset
    return [message for message in found if begin <= message[0]]


def read_batches(view: LogView, start: int, end: int, *, reverse: bool = False) -> list[Message]:
    """Return the messages from `start` to `end`, read with `batches`, in ascending order."""
    parts = [list(messages_in(data)) for _, data in view.batches(start, end, reverse=reverse)]
    if reverse:
        parts.reverse()
    return [message for part in parts for message in part if start <= message[0] < end]


def log_files(vfs: Vfs) -> list[str]:
    """The files in the log's folder that `penstock dump` can read."""
    return [f"{DIRECTORY}/{name}" for name in vfs.list(DIRECTORY) if files.is_known(name)]
