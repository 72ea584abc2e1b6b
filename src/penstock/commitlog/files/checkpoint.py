"""Checkpoint: the flushed offset (`flushed_end`), high watermark (`committed_end`) and log start offset of a log.

Rules: there are two slots. One is known to be on disk; only the other is written until it has been synced, so a power
loss always leaves one intact. The checkpoint is written after every flush, after the acks, so that a killed broker
leaves a correct flushed_end. It is synced once a second: after a power loss the scan is longer, and corruption in it is
taken for a torn tail. The first write allocates the room of both slots. Only a move of log_start is synced before
segments are removed because of it. An empty, short or corrupt file counts as no checkpoint and does not prevent a
start.

    slot 0 │ 4, synced      │ 4, synced         │ 7, being written │      the sequence number in the slot
    slot 1 │ 5, written     │ 6, written, synced│ 6, synced        │

Slot n begins at byte 4096 · n; 96 bytes, little-endian:

| byte | type | field                 | byte | type | field                                      |
|------|------|-----------------------|------|------|--------------------------------------------|
| 0    | 8 B  | `penckpt1`            | 48   | u64  | position in it up to which bytes are synced|
| 8    | u64  | sequence, rising by 1 | 56   | u64  | log_start                                  |
| 16   | u64  | stream id             | 64   | i64  | last timestamp (µs)                        |
| 24   | u32  | partition             | 72   | u64  | committed_end; 0: not known                |
| 28   | u32  | leader epoch          | 80   | u64  | zeros                                      |
| 32   | u64  | flushed_end           | 88   | u32  | zeros                                      |
| 40   | u64  | its segment's base    | 92   | u32  | CRC-32C of the bytes 0 to 91               |
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.commitlog.files import files
from penstock.hot.crc import crc32c
from penstock.vfs import File, Vfs

MARK = b"penckpt1"
SLOT_STEP_BYTES = 4096
SLOT_BYTES = 96
SLOTS = 2
_FILE_BYTES = (SLOTS - 1) * SLOT_STEP_BYTES + SLOT_BYTES
_SYNC_INTERVAL_US = limits.CHECKPOINT_SYNC_INTERVAL_MS * 1000
_BODY = struct.Struct("<8sQQIIQQQQqQ12x")
_CRC = struct.Struct("<I")
_NUMBER_MAX = 2**63  # the highest possible log end offset
assert _BODY.size + _CRC.size == SLOT_BYTES


class Checkpoint(NamedTuple):
    """Values of one slot."""

    sequence: int
    stream_id: int
    partition: int
    leader_epoch: int
    flushed_end: int
    segment_base: int
    segment_position: int
    log_start: int
    last_timestamp_us: int
    committed_end: int = 0


def is_of_new_log(checkpoint: Checkpoint) -> bool:
    """True if it is that of a log without a message, a removal or a leader so far."""
    return not any(
        (
            checkpoint.leader_epoch,
            checkpoint.flushed_end,
            checkpoint.segment_base,
            checkpoint.log_start,
            checkpoint.last_timestamp_us,
            checkpoint.committed_end,
        )
    )


def pack_slot(checkpoint: Checkpoint, sequence: int | None = None) -> bytes:
    """Return the SLOT_BYTES bytes of a slot; `sequence` takes the place of the checkpoint's own."""
    body = _BODY.pack(MARK, checkpoint.sequence if sequence is None else sequence, *checkpoint[1:])
    return body + _CRC.pack(crc32c(body))


def unpack_slot(data: bytes, *, file: str = "", position: int = 0) -> Checkpoint:
    """Parse a slot; raise CorruptionError if it is invalid."""
    if len(data) != SLOT_BYTES:
        raise CorruptionError(file, position, f"a checkpoint of {SLOT_BYTES} bytes", f"{len(data)} bytes")
    mark, *values = _BODY.unpack_from(data)
    if mark != MARK:
        raise CorruptionError(file, position, f"the mark {MARK!r}", repr(mark))
    (wanted,) = _CRC.unpack_from(data, _BODY.size)
    if (crc := crc32c(data[: _BODY.size])) != wanted:
        raise CorruptionError(file, position, f"CRC-32C {wanted:08x}", f"{crc:08x}")
    found = Checkpoint(*values)
    if max(found) > _NUMBER_MAX:
        raise CorruptionError(file, position, "numbers up to 2**63", str(found))
    return found


class CheckpointRead(NamedTuple):
    """Content of a checkpoint file: the newest valid slot with its number, and the errors of invalid slots."""

    newest: Checkpoint | None
    mistakes: tuple[CorruptionError, ...]
    slot: int
    is_alone: bool = False  # no other slot is valid
    bad_slots: tuple[int, ...] = ()
    unused: CorruptionError | None = None  # the error in bytes that belong to no slot

    @property
    def all_mistakes(self) -> tuple[CorruptionError, ...]:
        """Errors of the slots and of the unused bytes."""
        return self.mistakes if self.unused is None else (*self.mistakes, self.unused)


def read(vfs: Vfs, directory: str) -> CheckpointRead:
    """Read the checkpoint of a log. A never written slot is no error; a missing file gives an empty result."""
    try:
        file = vfs.open(f"{directory}/{files.CHECKPOINT}", read_only=True)
    except FileNotFoundError:
        return CheckpointRead(None, (), 1)
    try:
        content = file.read_at(0, _FILE_BYTES + 1)
    finally:
        file.close()
    found: list[tuple[Checkpoint, int]] = []
    mistakes, bad_slots = [], []
    for slot in range(SLOTS):
        position = slot * SLOT_STEP_BYTES
        data = content[position : position + SLOT_BYTES]
        if not data.strip(b"\0"):
            continue
        try:
            found.append((unpack_slot(data, file=file.path, position=position), slot))
        except CorruptionError as error:
            mistakes.append(error)
            bad_slots.append(slot)
    newest, slot = max(found, default=(None, 1))
    return CheckpointRead(
        newest, tuple(mistakes), slot, len(found) == 1, tuple(bad_slots), _unused_mistake(content, file.path)
    )


def is_whole(vfs: Vfs, directory: str) -> bool:
    """True if a log has a checkpoint and no slot is corrupt: then the newest one was not lost. OSError."""
    found = read(vfs, directory)
    return found.newest is not None and not found.mistakes


def _unused_mistake(content: bytes, path: str) -> CorruptionError | None:
    """Return the error if bytes between or behind the slots are not zero; nothing else reads or writes them."""
    padding = content[SLOT_BYTES:SLOT_STEP_BYTES]
    if rest := padding.lstrip(b"\0"):
        return CorruptionError(path, SLOT_BYTES + len(padding) - len(rest), "zeros", rest[:1].hex())
    if len(content) > _FILE_BYTES:
        return CorruptionError(path, _FILE_BYTES, "the end of the file", "more bytes")
    return None


def clear_unused(vfs: Vfs, directory: str) -> None:
    """Zero the bytes that belong to no slot. Safe in any thread, as no slot is touched. OSError."""
    file = vfs.open(f"{directory}/{files.CHECKPOINT}")
    try:
        if file.size() > SLOT_BYTES:
            file.write_at(SLOT_BYTES, bytes(min(file.size(), SLOT_STEP_BYTES) - SLOT_BYTES))
        if file.size() > _FILE_BYTES:
            file.truncate(_FILE_BYTES)
        file.sync()
    finally:
        file.close()


class CheckpointFile:
    """Writes the slots. Only `sync` may run in a disk thread; all else is for the log's own task.

    `is_dirty`: the current values are not written, or not durably. `is_behind`: more was flushed than it names.
    `is_due`: the next flush must sync it.
    """

    __slots__ = (
        "_bad_slots", "_doubtful_sequence", "_file", "_is_alone", "_path", "_sequence", "_synced_sequence",
        "_synced_us", "_vfs", "is_behind", "is_dirty", "is_due", "slot",
    )  # fmt: skip

    def __init__(self, vfs: Vfs, directory: str, sequence: int, slot: int, *, is_alone: bool = False) -> None:
        """`sequence`, `slot` and `is_alone` describe the newest valid slot found; sequence 0: there is none."""
        self._vfs = vfs
        self._path = f"{directory}/{files.CHECKPOINT}"
        self._sequence = sequence
        self.slot = slot  # of the newest checkpoint …
        self._synced_sequence = -1  # … which is known to be on disk if its sequence is this
        self._is_alone = is_alone  # the other slot is empty: a failed write over this one would leave no checkpoint
        self._doubtful_sequence = -1  # its write or sync failed: a later successful sync proves nothing
        self._bad_slots: tuple[int, ...] = ()  # to be rewritten, the next one first
        self._file: File | None = None  # kept open between flushes while the log is awake
        self.is_behind = self.is_dirty = self.is_due = False
        self._synced_us = 0

    def begin(self, now_us: int) -> None:
        """Start the sync interval when a log opens."""
        self._synced_us = now_us

    @property
    def due_us(self) -> int:
        """Time at which a dirty checkpoint is to be written and synced."""
        return self._synced_us + _SYNC_INTERVAL_US

    def wants_sync(self, now_us: int) -> bool:
        """True if a sync is due. A clock that was set back does not delay it until the clock has caught up."""
        self._synced_us = min(self._synced_us, now_us)
        if not self.is_dirty or now_us < self.due_us:
            return False
        self._synced_us = now_us
        return True

    def will_sync(self) -> None:
        """Record that the checkpoint was written and that the next flush syncs it."""
        self.is_due = True
        self.is_dirty = False

    def write(self, checkpoint: Checkpoint, *, keeps_file: bool = False) -> None:
        """Write a slot and set its sequence, or raise OSError; the slot known to be on disk is untouched.

        `keeps_file`: keep the file open for the next write. Otherwise the file is looked up by name again.
        """
        self.is_dirty = True
        sequence = self._sequence + 1
        if not keeps_file:
            self.rest()
        try:
            if (file := self._file) is None:
                self._file = file = self._vfs.open(self._path, create=True, make_folders=False)
            if not self._sequence:
                file.write_at(0, bytes(SLOT_BYTES))  # reserve the room: a full disk must not prevent the second write
            if self._bad_slots:
                self.slot = self._bad_slots[0]  # the other slot may be the only valid one
                self._is_alone = False
            elif self._synced_sequence == self._sequence or self._is_alone:
                self._use_other_slot()
            self._sequence = sequence
            file.write_at(self.slot * SLOT_STEP_BYTES, pack_slot(checkpoint, sequence))
        except OSError:
            self._doubtful_sequence = self._sequence  # it may be partly written: no sync makes that a checkpoint
            self.rest()
            raise
        if not keeps_file:
            self.rest()
        self.is_behind = False

    def rewrite(self, slots: Iterable[int]) -> None:
        """Mark slots as corrupt on disk: a write is due, and the next ones go to these slots."""
        self._bad_slots = tuple(slots)
        if self._bad_slots:
            self.is_dirty = True

    def write_again(self, found: Checkpoint) -> None:
        """Make the checkpoint found at start durable: after a failed sync it may exist in the page cache only. OSError.

        Until then the other slot may be the only one on disk.
        """
        assert found.sequence == self._sequence, (found, self._sequence)
        if self._is_alone:
            self._use_other_slot()
        file = self._vfs.open(self._path)
        try:
            file.write_at(self.slot * SLOT_STEP_BYTES, pack_slot(found))
        finally:
            file.close()
        self.sync()

    def _use_other_slot(self) -> None:
        self.slot = 1 - self.slot
        self._is_alone = False

    def rest(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def sync(self) -> None:
        """Make the last write durable. OSError, also if the last write was incomplete."""
        sequence = self._sequence  # a later write may run meanwhile: then this slot is not known to be intact
        try:
            self._check_last_write()
            file = self._vfs.open(self._path)
            try:
                file.sync()
            finally:
                file.close()
            self._check_last_write()
        except OSError:
            self._doubtful_sequence = max(self._doubtful_sequence, sequence)
            self.is_dirty = True
            raise
        self._synced_sequence = sequence
        if self._bad_slots and self.slot == self._bad_slots[0]:
            self.rewrite(self._bad_slots[1:])

    def _check_last_write(self) -> None:
        if self._sequence == self._doubtful_sequence:
            raise OSError(errno.EIO, "the last checkpoint write is incomplete", self._path)
