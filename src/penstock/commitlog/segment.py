"""Segments: the one that is written, and the sealed ones before it.

Rules: only the active segment grows, at its end. A sealed one never changes until it is removed as a whole. A segment
costs no open file once it is flushed, and no memory per batch: readers open it, and its index, by name.

| kind           | entries of its batches                                    | open file |
|----------------|-----------------------------------------------------------|-----------|
| active         | arrays in memory                                          | yes       |
| sealed         | the active one's arrays, until its index file is written  | until then|
| sealed, flushed| its index file                                            | no        |
| damaged        | in memory, from a scan; gaps where the damage is          | no        |
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from penstock.batch.header import BatchHeader
from penstock.batch.schema import SCHEMA_BYTES, schema_message
from penstock.commitlog import files, remains
from penstock.commitlog.index import ActiveEntries, Entries, PackedEntries
from penstock.vfs import File, Vfs


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of the log that cannot be read. Nothing of it is ever deleted or cut.

    `base_offset` to `end_offset` are the offsets that are lost with it (`end_offset` None: to an unknown end; equal to
    base_offset: none). `position` is the byte in `file` where it begins.
    """

    file: str
    position: int
    base_offset: int
    end_offset: int | None
    reason: str

    def holds(self, offset: int) -> bool:
        """Whether `offset` is among the lost ones."""
        return self.base_offset <= offset and (self.end_offset is None or offset < self.end_offset)


class Segment:
    """One segment as readers see it. Treat it as a value; only `entries` and `damage` may be learnt later.

    `entries` None: they are in the index file.
    """

    __slots__ = ("base_offset", "damage", "end_offset", "entries", "last_timestamp_us", "path", "size_bytes")

    def __init__(
        self,
        path: str,
        base_offset: int,
        end_offset: int,
        size_bytes: int,
        last_timestamp_us: int,
        entries: Entries | None,
        damage: tuple[Damage, ...] = (),
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.size_bytes = size_bytes
        self.last_timestamp_us = last_timestamp_us
        self.entries = entries
        self.damage = damage


Places = list[tuple[int, BatchHeader]]
"""Positions and headers of batches, in order."""


class ActiveSegment:
    """The segment that is written, with the entries of its batches.

    `places` are the entries that are not in the index file yet, `places_from` is the number of the first of them.
    """

    __slots__ = (
        "_bases",
        "_max",
        "_min",
        "_positions",
        "base_offset",
        "count",
        "file",
        "path",
        "places",
        "places_from",
        "size_bytes",
    )

    def __init__(self, file: File, base_offset: int, size_bytes: int) -> None:
        self.file = file
        self.path = file.path
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.count = 0
        self.places: Places = []
        self.places_from = 0
        self._bases = array("q")
        self._positions = array("q")
        self._min = array("q")
        self._max = array("q")

    def add(self, header: BatchHeader) -> None:
        """Note the batch that was written at the end of the file."""
        self.places.append((self.size_bytes, header))
        self._bases.append(header.base_offset)
        self._positions.append(self.size_bytes)
        self._min.append(header.min_timestamp_us)
        self._max.append(header.max_timestamp_us)
        self.size_bytes += header.size_bytes
        # Last: a reader in another thread trusts the arrays up to `count`.
        self.count += 1

    def load(self, entries: PackedEntries) -> None:
        """Note batches that recovery found in the file (and in the index file)."""
        columns = entries.columns()
        self._bases, self._positions = columns.base_offsets, columns.positions
        self._min, self._max = columns.min_timestamps_us, columns.max_timestamps_us
        self.count = self.places_from = entries.count

    def take_places(self) -> tuple[int, Places]:
        """Number of the first entry that the index file lacks, and all of these; they are then the caller's."""
        taken = self.places_from, self.places
        self.places_from = self.count
        self.places = []
        return taken

    def first_timestamp_us(self) -> int | None:
        """Timestamp of the first message, None while it is empty."""
        return self._min[0] if self.count else None

    def seen(self, end_offset: int, last_timestamp_us: int, damage: tuple[Damage, ...] = ()) -> Segment:
        """The segment as it is now, for readers."""
        columns = (self._bases, self._positions, self._min, self._max)
        entries = ActiveEntries(columns, self.count, end_offset, self.size_bytes)
        return Segment(self.path, self.base_offset, end_offset, self.size_bytes, last_timestamp_us, entries, damage)


def clear_the_way(vfs: Vfs, directory: str, base_offset: int, stream_id: int, partition: int) -> None:
    """Put a file aside that has a new segment's name and is not what an earlier attempt left behind; or OSError."""
    path = files.segment_path(directory, base_offset)
    try:
        file = vfs.open(path, read_only=True)
    except FileNotFoundError:
        return
    try:
        is_ours = remains.is_unfinished_segment(file, file.size(), (stream_id, partition))
    finally:
        file.close()
    if not is_ours:
        vfs.rename(path, files.side_path(vfs, path, 0))


def create(
    vfs: Vfs, directory: str, base_offset: int, stream_id: int, partition: int, *, make_folders: bool = False
) -> ActiveSegment:
    """A new, empty segment file with its schema message, not synced; or OSError.

    A file of that name is written anew: see `clear_the_way`.
    """
    file = vfs.open(files.segment_path(directory, base_offset), create=True, make_folders=make_folders)
    try:
        file.truncate(0)
        file.write_at(0, schema_message(stream_id, partition))
    except OSError:
        file.close()
        raise
    return ActiveSegment(file, base_offset, SCHEMA_BYTES)
