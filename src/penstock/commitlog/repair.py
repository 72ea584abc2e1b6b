"""Repair (`SegmentRepair`): rewrite corrupt segments, taking batches from another replica where this log's are corrupt.

Rules: intact batches stay byte for byte; only what lies in a hole is requested. Offered batches must be committed or
the leader's: with the same leader epoch they are what was here. Bytes from a peer are untrusted: they are verified,
must continue the previous batch in offsets, times and leader epochs, and are rejected as a whole otherwise. No old file
is touched until the new one is complete, synced and read back. Bytes of the old file that cannot be parsed are kept in
a side file; its intact batches are in the new one. A crash or failure at any step leaves a log that is as corrupt as
before or less, and that a new `SegmentRepair` can repair; an instance is never reused. The cleaner does not run
meanwhile, and its files have other names.

| step for one corrupt segment, X.arrows              | files when it fails        | what the next try does        |
|-----------------------------------------------------|----------------------------|-------------------------------|
| 1. write X.1.mended, sync                           | X, part of X.1.mended      | rewrites it from the start    |
| 2. copy unparsable bytes to X.cut-P, sync           | … and part of X.cut-P      | completes that copy           |
| 3. read X.1.mended back, write X.1.index            | … and part of X.1.index    | same                          |
| then for all (`place`; log closed, then opened)     |                            |                               |
| 4. sync the folder                                  | X, X.1.mended, X.cut-P     | 1 to 3 again                  |
| 5. rename X.1.mended to X.1.arrows, sync the folder | X and X.1, or one of them  | the start takes X.1           |
| 6. remove X and its index, or rename X to X.cut-0   | X.1, and perhaps X         | the start removes X           |
| 7. move aside segments behind a truncation, strays  | X.1, and some of them      | moves the others aside        |
| 8. rewrite a lost lineage: new file, then rename    | as before, and lineage.new | the start rewrites it         |
| 9. both slots of the checkpoint, each synced        | one slot is outdated       | the start repairs it          |

    a corrupt segment    [ 0..9 ][ 10..19 ][#########][ 40..49 ]         holes: 20 to 40
    offered by a replica                    [ 15..29 ][ 30..59 ]         its cleaner has merged differently
    rewritten            [ 0..9 ][ 10..19 ][20..29][30..39][ 40..49 ]    what overlaps is cut to the hole

| offered for a hole                                        | then                                                |
|-----------------------------------------------------------|-----------------------------------------------------|
| batches of the epochs in the own lineage                  | they fill it                                        |
| the leader has other epochs: the own batches come from a  | the log is truncated there: nothing behind it was   |
| leadership whose messages there were never committed      | committed, and replication fetches it again         |
| the leader has nothing there (`ends`)                     | the same                                            |
| another replica has other epochs                          | error: that replica may be the wrong one            |
| the lineage is lost: the leader has epochs that lie       | they fill it; what is behind it here is as certain  |
| between those before and behind the hole                  | as before: followers compare it as usual            |
| the same, but they do not, or another replica has them    | as with other epochs, unless all around are of one  |
| log_start moved past the hole meanwhile (`begins`)        | the log starts behind it                            |

Each replica has its own segment boundaries. Where another replica has compacted, it may have no row for the begin or
the end of a segment here, only a batch that covers it from beyond. Then two segments become one file:

| no row is left                         | then                       | if there is no such segment                    |
|----------------------------------------|----------------------------|------------------------------------------------|
| for the end of a segment               | one file with the next     | truncated there; the follower refetches it     |
| for its begin, and a producer's batch, | one file with the previous | the log starts behind it                       |
| which covers no other, is next         |                            |                                                |
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError, OperationalError, RemoteError
from penstock.batch import codec
from penstock.batch.header import NO_RUN, BatchHeader
from penstock.batch.schema import SCHEMA_BYTES, check_schema_message, schema_message
from penstock.commitlog.errors import is_shortage
from penstock.commitlog.files import checkpoint as checkpoints
from penstock.commitlog.files import files, index
from penstock.commitlog.files import lineage as lineages
from penstock.commitlog.files.batch_walk import Walk, Window
from penstock.commitlog.files.checkpoint import Checkpoint, CheckpointFile
from penstock.commitlog.files.files import LogFolder
from penstock.commitlog.files.index import PackedEntries
from penstock.commitlog.files.lineage import LineageEntry
from penstock.commitlog.incremental_task import IncrementalTask
from penstock.commitlog.segment import segment_scan
from penstock.commitlog.segment.damage import Damage
from penstock.commitlog.segment.segment import Segment
from penstock.vfs import Buffer, File, Vfs

_base_offset = attrgetter("base_offset")
_ANY_EPOCH = 2**63


class RepairError(OperationalError):
    """The log cannot be repaired with what was offered; it is unchanged."""


class _NoRowError(RepairError):
    """Compaction has left no row from `offset` to `end_offset`, or to the end of the file (None), and no batch in the
    file may cover these offsets: a batch of a neighbouring segment may.
    """

    def __init__(self, offset: int, end_offset: int | None) -> None:
        super().__init__(f"no row is left from {offset} {'on' if end_offset is None else f'to {end_offset}'}")
        self.end_offset = end_offset


class MissingRange(NamedTuple):
    """Missing offsets. `offset`: the first one that was not offered yet."""

    offset: int
    end_offset: int


class _Mended(NamedTuple):
    """A rewritten segment that is not yet in place."""

    old_paths: tuple[str, ...]
    kept_paths: frozenset[str]  # unparsable bytes of these could not be copied: they are kept under other names
    written_path: str
    path: str
    base_offset: int
    end_offset: int
    size_bytes: int
    ranges: int  # number of corrupt ranges


class SegmentRepair(IncrementalTask):
    """Call `run` in a disk thread until `is_done`. Whenever `hole` is not None, call `offer`, `ends` or `begins` first.
    Then call `place` once, in a disk thread, while the log is closed; then reopen the log in any case.
    """

    def __init__(
        self,
        folder: LogFolder,
        segments: Sequence[Segment],
        damage: Sequence[Damage],
        values: Checkpoint,
        lineage: tuple[LineageEntry, ...] | None,
    ) -> None:
        """`segments`, `damage`, `lineage`: of the log, which accepts nothing meanwhile. `values`: its current
        checkpoint values.

        `lineage` None: some of it is lost; it is rewritten, too.
        """
        self.offered_bytes = 0
        self.ranges = 0  # number of corrupt ranges
        self.has_kept = False  # side files were created, for unparsable bytes or stray files
        self._folder = folder
        self._vfs = folder.vfs
        self._values = values
        self._lineage = lineage
        self._hole: MissingRange | None = None
        self._offered = b""
        self._is_leaders = False  # the offered batches are the leader's
        self._damage = {one.file: one for one in damage}
        self._segments = sorted((*segments, *_missing(segments, damage)), key=_base_offset)
        self._strays = self._find_strays(damage)
        # Below log_start only if lost segments are restored there; removed messages stay removed.
        self._begin = min([values.log_start, *(one.base_offset for one in _missing(segments, damage))])
        self._end: int | None = None  # the log is truncated there
        self._mended: list[_Mended] = []
        super().__init__()

    def _find_strays(self, damage: Sequence[Damage]) -> list[str]:
        """Return segment files that overlap others and so do not belong to the log."""
        known = {one.path for one in self._segments}
        return [
            one.file
            for one in damage
            if one.file not in known
            and one.end_offset == one.base_offset
            and files.base_offset_of(one.file.rpartition("/")[2]) is not None
        ]

    @property
    def truncates(self) -> bool:
        """True if the log will end earlier than it did, because its leader says so."""
        return self._end is not None

    # Answers of other replicas.

    @property
    def hole(self) -> MissingRange | None:
        """Range to request from another replica before the next `run`; None: nothing is needed."""
        hole = self._hole
        is_told = hole is None or self._offered or self._end is not None or self._begin > hole.offset
        return None if is_told else hole

    def offer(self, data: bytes, *, leads: bool) -> None:
        """Offer another replica's batches; the first one must hold the first offset of the hole. `run` checks them.

        `leads`: they come from the current leader.
        """
        assert self.hole is not None
        self._offered, self._is_leaders = data, leads
        self.offered_bytes += len(data)

    def ends(self) -> None:
        """Declare that the leader has nothing there: what follows here was never committed."""
        assert self.hole is not None
        self._end = self.hole.offset

    def begins(self, log_start: int) -> None:
        """Declare that the log starts at `log_start` by now."""
        assert self.hole is not None
        assert log_start > self.hole.offset, (log_start, self.hole)
        self._begin = log_start

    def _checked(self, offset: int) -> Iterator[tuple[BatchHeader, Buffer]]:
        data, self._offered = memoryview(self._offered), b""
        position = 0
        while position < len(data):
            try:
                prefix = codec.read_header(data[position : position + codec.PREFIX_BYTES])
                message = data[position : position + prefix.size_bytes]
                header = codec.verify(message)
            except CorruptionError as error:
                raise RepairError(f"a replica offers an invalid batch: {error}") from None
            fits = header.base_offset <= offset < header.end_offset if not position else header.base_offset == offset
            if not fits:
                raise RepairError(
                    f"a replica offers a batch from {header.base_offset} to {header.end_offset} for offset {offset}"
                )
            yield header, message
            position += header.size_bytes
            offset = header.end_offset

    # Rewriting.

    def _work(self) -> Generator[int, None, None]:
        groups = [[one] for one in self._segments]  # each group becomes one file
        number = 0
        while number < len(groups):
            group = groups[number]
            is_last = number == len(groups) - 1
            is_given_up = group[-1].end_offset <= self._begin and not is_last
            if is_given_up or not any(map(self._is_damaged, group)):
                number += 1
                continue
            ranges = self.ranges
            try:
                yield from self._mend(group, is_last=is_last)
            except _NoRowError as error:
                self.ranges = ranges
                number = self._join(groups, number, error)
                continue
            if self._end is not None:
                return
            number += 1

    def _join(self, groups: list[list[Segment]], number: int, error: _NoRowError) -> int:
        """Merge two segments into one file, as no row is left at their boundary; return the group to repair next."""
        if error.end_offset is None:
            groups[number] += groups.pop(number + 1)
            return number
        if not number:
            self._begin = error.end_offset  # the rest starts there
            return number
        before = groups[number - 1]
        if self._mended and self._mended[-1].old_paths[0] == before[0].path:
            self.ranges -= self._mended.pop().ranges
        before += groups.pop(number)
        return number - 1

    def _is_damaged(self, segment: Segment) -> bool:
        return bool(segment.damage) or segment.path in self._damage

    def _mend(self, group: Sequence[Segment], *, is_last: bool) -> Generator[int, None, None]:
        ranges = self.ranges
        written_path = files.repaired_path(files.following(group[0].path))
        with contextlib.ExitStack() as opened:
            target = self._vfs.open(written_path, create=True, make_folders=False)
            opened.callback(target.close)
            olds = []
            for segment in group:
                olds.append(old := _salvaged(self._vfs, segment, self._folder.ids))
                if old.file is not None:
                    opened.callback(old.file.close)
            target.truncate(0)
            target.write_at(0, schema_message(*self._folder.ids))
            writer = _RepairedFile(target, self._lowest_offset(group[0], olds[0]))
            for segment, old in zip(group, olds, strict=True):
                yield from self._fill(segment, old, writer)
                if self._end is not None:
                    break
            self._end_file(writer, is_last=is_last)
            target.sync()
            kept_paths = set()
            for segment, old in zip(group, olds, strict=True):
                # Only now that the file is complete; otherwise each try would leave a copy.
                for position, end_position in old.aside:
                    if not self._copy_aside(old, position, end_position):
                        kept_paths.add(segment.path)
                    yield end_position - position
            end_offset = self._end if self._end is not None else max(group[-1].end_offset, self._begin)
            base_offset = end_offset if writer.base_offset is None else writer.base_offset
            if writer.base_offset is None and self._end is None and not is_last:
                return  # all of it is below log_start by now: the next start removes it
            path = self._path_of(base_offset, group)
            entries = yield from self._read_back(target, base_offset, end_offset)
            if entries:
                index.write_index(self._vfs, path, entries)
            self._mended.append(
                _Mended(
                    tuple(one.path for one in group),
                    frozenset(kept_paths),
                    written_path,
                    path,
                    base_offset,
                    end_offset,
                    target.size(),
                    self.ranges - ranges,
                )
            )

    def _end_file(self, writer: _RepairedFile, *, is_last: bool) -> None:
        if self._end is None and not is_last:
            writer.end()
        elif (end := writer.cut()) is not None:
            self._end = end  # no row is lost: the follower fetches a batch that covers it

    def _path_of(self, base_offset: int, group: Sequence[Segment]) -> str:
        """Return the path of the file that begins at `base_offset`; never that of an old file."""
        for segment in group:
            if files.base_offset_of(segment.path.rpartition("/")[2]) == base_offset:
                return files.following(segment.path)
        return self._folder.segment_path(base_offset)  # log_start moved into it meanwhile

    def _lowest_offset(self, segment: Segment, old: _SalvagedSegment) -> int:
        """Return the lowest begin of the segment's file. For a lost first segment only the log's start is known."""
        was_there = old.file is not None or segment.size_bytes > 0
        return segment.base_offset if was_there or segment is not self._segments[0] else 0

    def _copy_aside(self, old: _SalvagedSegment, position: int, end_position: int) -> bool:
        """Copy unparsable bytes to a side file; return True on success."""
        if old.file is None:
            return False
        try:
            files.copy_aside(self._vfs, old.file, position, end_position)
        except OSError:
            return False
        self.has_kept = True
        return True

    def _fill(self, segment: Segment, old: _SalvagedSegment, writer: _RepairedFile) -> Generator[int, None, None]:
        offset = segment.base_offset
        before = self._epoch_before(segment)
        window = None if old.file is None else Window(old.file, old.size_bytes)
        moved = 0
        for number in range(old.sound.count):
            entry = old.sound.entry(number)
            extent = entry.extent()
            yield from self._fill_hole(offset, extent.base_offset, writer, (before, entry.leader_epoch))
            if self._end is not None:
                return
            offset, before = extent.end_offset, entry.leader_epoch
            if offset <= self._begin:
                continue
            assert window is not None
            data = window.read(extent.position, extent.size_bytes)
            writer.add(codec.verify(data, file=segment.path, position=extent.position), data)
            moved += 2 * extent.size_bytes
            if moved >= limits.CLEANING_SLICE_BYTES:
                yield moved
                moved = 0
        yield moved
        if offset < segment.end_offset:
            around = before, self._epoch_behind(segment)
            yield from self._fill_hole(offset, segment.end_offset, writer, around)

    def _fill_hole(
        self, offset: int, end: int, writer: _RepairedFile, around: tuple[int, int]
    ) -> Generator[int, None, None]:
        """`around`: the leader epochs before and behind the hole."""
        if offset < end:
            self.ranges += 1
        while max(offset, self._begin) < end:
            offset = max(offset, self._begin)
            self._hole = MissingRange(offset, end)
            while self.hole is not None:
                yield 0
            self._hole = None
            if self._end is not None:
                return
            if self._begin > offset:
                writer.restart()
                continue
            moved = 0
            for header, data in list(self._checked(offset)):
                if offset >= end:
                    break
                if not self._is_of_this_log(header.leader_epoch, offset, around):
                    self._end = offset
                    return
                stop = min(header.end_offset, end)
                writer.add_part(header, data, offset, stop)
                offset = stop
                moved += header.size_bytes
            yield moved

    def _is_of_this_log(self, leader_epoch: int, offset: int, around: tuple[int, int]) -> bool:
        """True if an offered batch fits here, False if the log ends here. RepairError if only the leader may say."""
        before, behind = around
        if self._lineage is not None:
            found = [entry.leader_epoch for entry in self._lineage if entry.start_offset <= offset]
            is_ours = bool(found) and found[-1] == leader_epoch
        elif self._is_leaders:
            is_ours = before <= leader_epoch <= behind
        else:
            is_ours = before == leader_epoch == behind
        if not is_ours and not self._is_leaders:
            raise RepairError(f"a replica that is not the leader offers leader epoch {leader_epoch} at offset {offset}")
        return is_ours

    def _epoch_before(self, segment: Segment) -> int:
        if self._lineage is not None:
            return 0  # not needed
        earlier = [one for one in self._segments if one.base_offset < segment.base_offset]
        lineage = segment_scan.lineage_of(self._vfs, earlier)
        return lineage[-1].leader_epoch if lineage else 0

    def _epoch_behind(self, segment: Segment) -> int:
        if self._lineage is not None:
            return _ANY_EPOCH
        later = [one for one in self._segments if one.base_offset > segment.base_offset]
        lineage = segment_scan.lineage_of(self._vfs, later)
        return lineage[0].leader_epoch if lineage else _ANY_EPOCH

    def _read_back(self, target: File, base_offset: int, end_offset: int) -> Generator[int, None, bytearray]:
        """Verify what was written; return its index entries."""
        entries = bytearray()
        moved = 0
        walk = Walk(target, position=SCHEMA_BYTES, end_position=target.size(), offset=base_offset)
        for position, header in walk:
            entries += index.pack_entry(position, header)
            moved += header.size_bytes
            if moved >= limits.CLEANING_SLICE_BYTES:
                yield moved
                moved = 0
        if walk.mistake is not None:
            raise OSError(f"{target.path} fails verification after the write: {walk.mistake}")
        if walk.offset != end_offset:
            raise RepairError(f"{target.path} ends at offset {walk.offset}, not at {end_offset}")
        return entries

    # Putting the files in place.

    def place(self) -> None:
        """Put the rewritten files in place. OSError, PenstockError: the files are as a crash would leave them."""
        self._folder.sync()  # the side files
        for one in self._mended:
            self._vfs.rename(one.written_path, one.path)
            self._folder.sync()
            for old_path in one.old_paths:
                if old_path in one.kept_paths:
                    self._put_aside(old_path)
                else:
                    self._vfs.remove(old_path)
                files.remove_beside(self._vfs, old_path)
        if self._end is not None:
            for segment in reversed(self._segments):
                if segment.base_offset > self._mended[-1].base_offset:
                    self._put_aside(segment.path)
                    files.remove_beside(self._vfs, segment.path)
        for path in self._strays:
            self._put_aside(path)
        self._folder.sync()
        if self._lineage is None:
            lineages.rewrite(self._vfs, self._folder.path, self._lineage_anew())
        self._write_checkpoint()

    def _lineage_anew(self) -> tuple[LineageEntry, ...]:
        """Return the lineage from the batches, all of which are valid now."""
        mended = self._mended_of()
        segments = []
        for segment in self._segments:
            if self._end is not None and segment.base_offset > self._mended[-1].base_offset:
                break
            if (one := mended.get(segment.path)) is not None:
                entries = PackedEntries(b"")
                segments.append(Segment(one.path, one.base_offset, one.end_offset, one.size_bytes, 0, entries))
            elif segment.end_offset > self._begin:
                segments.append(segment)
        return segment_scan.lineage_of(self._vfs, segments)

    def _mended_of(self) -> dict[str, _Mended]:
        """Map each old path to its rewrite; of several old files, only the last one."""
        return {one.old_paths[-1]: one for one in self._mended}

    def _put_aside(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._vfs.rename(path, files.side_path(self._vfs, path, 0))
            self.has_kept = True

    def _write_checkpoint(self) -> None:
        last = self._segments[-1]
        mended = self._mended_of()
        if self._end is not None:
            anew: _Mended | None = self._mended[-1]
        else:
            anew = mended.get(last.path)
        if anew is None:
            file = self._vfs.open(last.path)
            try:
                file.sync()
                place = (last.base_offset, file.size(), last.end_offset)
            finally:
                file.close()
        else:
            place = (anew.base_offset, anew.size_bytes, anew.end_offset)
        base_offset, position, end = place
        values = self._values._replace(
            flushed_end=end,
            segment_base=base_offset,
            segment_position=position,
            log_start=min(self._begin, end),
            committed_end=min(self._values.committed_end, end),
        )
        found = checkpoints.read(self._vfs, self._folder.path)
        sequence = 0 if found.newest is None else found.newest.sequence
        checkpoint = CheckpointFile(self._vfs, self._folder.path, sequence, found.slot, is_alone=found.is_alone)
        for _ in range(checkpoints.SLOTS):  # no slot may hold outdated values
            checkpoint.write(values)
            checkpoint.sync()
        self._folder.sync()


def _missing(segments: Sequence[Segment], damage: Sequence[Damage]) -> Iterator[Segment]:
    """Return lost segments that the log is to begin with."""
    paths = {one.path for one in segments}
    first = min((one.base_offset for one in segments), default=None)
    for one in damage:
        base_offset = files.base_offset_of(one.file.rpartition("/")[2])
        if one.file in paths or base_offset is None or one.end_offset in (None, one.base_offset):
            continue
        assert one.end_offset is not None
        if first is None or one.end_offset <= first:  # otherwise another file has replaced it
            yield Segment(one.file, one.base_offset, one.end_offset, 0, 0, PackedEntries(b""), (one,))


class _SalvagedSegment(NamedTuple):
    """The intact batches of a corrupt segment, and the byte ranges that cannot be parsed."""

    file: File | None
    sound: PackedEntries
    aside: tuple[tuple[int, int], ...]  # byte ranges that cannot be parsed
    size_bytes: int


def _salvaged(vfs: Vfs, segment: Segment, ids: tuple[int, int]) -> _SalvagedSegment:
    """Scan a corrupt segment; its file, if any, stays open. RepairError if a newer version wrote it."""
    try:
        file = vfs.open(segment.path, read_only=True)
    except FileNotFoundError:
        return _SalvagedSegment(None, PackedEntries(b""), (), 0)
    except OSError as error:
        if is_shortage(error):
            raise  # the disk is fine
        return _SalvagedSegment(None, PackedEntries(b""), ((0, 1),), 0)
    try:
        return _understood(vfs, segment, file, ids)
    except OSError as error:
        file.close()
        if is_shortage(error):
            raise
        return _SalvagedSegment(None, PackedEntries(b""), ((0, 1),), 0)
    except BaseException:
        file.close()
        raise


def _understood(vfs: Vfs, segment: Segment, file: File, ids: tuple[int, int]) -> _SalvagedSegment:
    size_bytes = file.size()
    head = file.read_at(0, SCHEMA_BYTES)
    aside: list[tuple[int, int]] = []
    newer = ""
    try:
        if check_schema_message(head, file=file.path) != ids:  # another stream's: none of it belongs here
            return _SalvagedSegment(file, PackedEntries(b""), ((0, size_bytes),), size_bytes)
    except CorruptionError:
        aside.append((0, len(head)))
    except RemoteError as error:
        aside.append((0, len(head)))
        newer = error.message
    scan = segment_scan.scan_segment(
        vfs,
        file,
        base_offset=segment.base_offset,
        size_bytes=size_bytes,
        flushed_position=size_bytes,
        end_offset=segment.end_offset,
        by_marks=False,  # otherwise batches inside a message could be mistaken for batches of the log
    )
    entries = PackedEntries(bytes(scan.entries))
    if newer and not entries.count:  # it has batches of ours, so only the format number is corrupt
        raise RepairError(f"{file.path} cannot be mended: {newer}")
    return _SalvagedSegment(file, entries, (*aside, *_between(entries, size_bytes)), size_bytes)


def _between(entries: PackedEntries, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges between and behind the batches found."""
    position = SCHEMA_BYTES
    for number in range(entries.count):
        extent = entries.extent(number)
        if extent.position > position:
            yield position, extent.position
        position = extent.end_position
    if position < size_bytes:
        yield position, size_bytes


class _RepairedFile:
    """Writes the file that replaces a corrupt segment: batches in order, each of which must continue the previous one.

    Offsets without rows after compaction are covered by the previous batch or by the next one, so the last batch is
    held back until the next one is known.

    Where the log starts inside a batch, the file starts where that batch starts, as in a log that was never corrupt: a
    producer's batch cannot be split, and of another batch the earlier rows may be the only ones left.
    """

    def __init__(self, file: File, lowest_offset: int) -> None:
        """`lowest_offset`: the file starts no lower."""
        self.base_offset: int | None = None  # of the first batch
        self._file = file
        self._lowest_offset = lowest_offset
        self._position = SCHEMA_BYTES
        self._waiting: tuple[BatchHeader, Buffer] | None = None
        self._empty_start: int | None = None  # no row was added from there on
        self._last_timestamp_us = 0
        self._last_epoch = 0

    def add(self, header: BatchHeader, data: Buffer) -> None:
        """Add the next batch unchanged. RepairError if it does not continue the previous one."""
        if header.min_timestamp_us < self._last_timestamp_us or header.leader_epoch < self._last_epoch:
            raise RepairError(
                f"the batch from {header.base_offset} on is of an earlier time or leader epoch than the one before"
            )
        self._last_timestamp_us, self._last_epoch = header.max_timestamp_us, header.leader_epoch
        if self._empty_start is not None:
            if not _may_cover(header, header):
                raise _NoRowError(self._empty_start, header.base_offset)
            message = bytearray(data)
            header, data = codec.covering(message, self._empty_start, header.end_offset), message
            self._empty_start = None
        self._write_waiting()
        if self.base_offset is None:
            self.base_offset = header.base_offset
        self._waiting = header, data

    def add_part(self, header: BatchHeader, data: Buffer, begin: int, end: int) -> None:
        """Add the batch's part from offset `begin` to `end`; of the first batch, all before, too. RepairError."""
        if self.base_offset is None and self._empty_start is None:
            begin = max(header.base_offset, self._lowest_offset)
        if (header.base_offset, header.end_offset) == (begin, end):
            self.add(header, data)
            return
        if not _may_cover(header, header):
            raise RepairError(f"a producer's batch from {header.base_offset} on overlaps a batch that is here")
        try:
            part = codec.part_of(data, begin, end)
        except CorruptionError as error:
            raise RepairError(f"a replica offers an invalid batch: {error}") from None
        if part is not None:
            self.add(codec.read_header(part), part)
        elif self._waiting is None:
            self._empty_start = begin if self._empty_start is None else self._empty_start
        elif _may_cover(self._waiting[0], header):
            message = bytearray(self._waiting[1])
            self._waiting = codec.covering(message, self._waiting[0].base_offset, end), message
        else:  # the next batch may cover it: `add` checks
            self._write_waiting()
            self._empty_start = begin

    def end(self) -> None:
        """End the file. _NoRowError."""
        if self._empty_start is not None:
            raise _NoRowError(self._empty_start, None)
        self._write_waiting()

    def cut(self) -> int | None:
        """End the last file of the log; return the offset from which the log is truncated for lack of rows, or None."""
        offset, self._empty_start = self._empty_start, None
        self._write_waiting()
        return offset

    def restart(self) -> None:
        """Discard everything written so far."""
        self._waiting = self._empty_start = self.base_offset = None
        self._position = SCHEMA_BYTES
        self._file.truncate(SCHEMA_BYTES)

    def _write_waiting(self) -> None:
        if self._waiting is not None:
            self._file.write_at(self._position, self._waiting[1])
            self._position += len(self._waiting[1])
            self._waiting = None


def _may_cover(covering: BatchHeader, covered: BatchHeader) -> bool:
    """True if one batch may cover the other's offsets; batches of producers and runs may not."""
    is_plain = not covering.producer_id and covering.run_id == NO_RUN
    return is_plain and covering.leader_epoch == covered.leader_epoch
