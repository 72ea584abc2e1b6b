"""Mending: the damaged segments of a log are written anew, with another replica's batches where their own are damaged.

Rules: what is sound here stays as it is, byte for byte; only what lies in a hole is asked for. What may be offered is
what is committed, or what the leader has: of the same leader epoch that is what was here. Bytes of a peer are hostile:
what is offered is verified, has to go on where the batch before it ends, in offsets, times and leader epochs, and is
refused as a whole if it does not. Nothing of an old file is touched until the new one is whole, synced and read back;
of the old one, the bytes that could not be understood are kept in a side file, and what was sound in it is in the new
one. A crash at any point leaves a log that is damaged, or less so, and that can be mended again.

    a damaged segment    [ 0..9 ][ 10..19 ][#########][ 40..49 ]         holes: 20 to 40
    offered by a replica                    [ 15..29 ][ 30..59 ]         its cleaner has merged otherwise
    written anew         [ 0..9 ][ 10..19 ][20..29][30..39][ 40..49 ]    what stands over is cut to the hole

| what is found of a hole                                   | then                                                |
|-----------------------------------------------------------|-----------------------------------------------------|
| batches of the epochs that the lineage says               | they fill it                                        |
| the leader has other epochs: what is here comes from a    | the log ends where they begin: all behind it was    |
| leadership whose messages there were never committed      | never committed either, and is fetched as by anyone |
| the leader has nothing there (`ends`)                     | the same                                            |
| another replica has other epochs                          | nothing: that may be the one that is wrong          |
| the lineage was lost, too: the leader has epochs that fit | they fill it; what is behind it here is as certain  |
| between those before and behind the hole                  | as it was: whoever follows compares it              |
| … and they do not fit, or another replica has them        | as with other epochs, unless all around are of one  |
| it was given up meanwhile (`begins`)                      | the log begins behind it                            |
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch import codec
from penstock.batch.header import BatchHeader
from penstock.batch.schema import SCHEMA_BYTES, check_schema_message, schema_message
from penstock.commitlog import checkpoint as checkpoints
from penstock.commitlog import epochs, files, index, rebuild, remains
from penstock.commitlog import lineage as lineages
from penstock.commitlog.checkpoint import Checkpoint, CheckpointFile
from penstock.commitlog.errors import is_shortage
from penstock.commitlog.index import PackedEntries
from penstock.commitlog.lineage import LineageEntry
from penstock.commitlog.mended_file import MendedFile, MendingError
from penstock.commitlog.scan import Walk, Window
from penstock.commitlog.segment import Damage, Segment
from penstock.commitlog.sliced import SlicedWork
from penstock.vfs import Buffer, File, Vfs

_base_offset = attrgetter("base_offset")
_ANY_EPOCH = 2**63


class Hole(NamedTuple):
    """Offsets that are to be offered, from `offset` on; those before it have been."""

    offset: int
    end_offset: int


class _Mended(NamedTuple):
    """A segment that is written anew, and not in its place yet."""

    old_path: str
    written_path: str
    path: str
    base_offset: int
    end_offset: int
    size_bytes: int
    keeps_old: bool  # some of the old file could not be copied: it stays, under another name


class _Old(NamedTuple):
    """What is left of a damaged segment."""

    file: File | None
    sound: PackedEntries
    aside: tuple[tuple[int, int], ...]  # positions from where to where nothing can be understood
    size_bytes: int


class Mending(SlicedWork):
    """`run` in a disk thread until `is_done`; while `hole` says what is wanted, `offer` it first, or say what it is
    instead. Then `place` it, in a disk thread, while nothing else is at the log, and open the log anew.
    """

    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        ids: tuple[int, int],
        segments: Sequence[Segment],
        damage: Sequence[Damage],
        values: Checkpoint,
        lineage: tuple[LineageEntry, ...] | None,
    ) -> None:
        """`segments`, `damage`, `lineage`: of the log, which takes nothing. `values`: what its checkpoint would say.

        `lineage` None: some of it is lost; it is written anew, too.
        """
        self.offered_bytes = 0
        self.ranges = 0  # of offsets that were damaged
        self.has_kept = False  # what could not be understood, or does not belong to the log
        self._vfs = vfs
        self._directory = directory
        self._ids = ids
        self._values = values
        self._lineage = lineage
        self._hole: Hole | None = None
        self._offered = b""
        self._is_leaders = False  # what is offered is the leader's
        self._damage = {one.file: one for one in damage}
        self._segments = sorted((*segments, *_missing(segments, damage)), key=_base_offset)
        self._strays = self._find_strays(damage)
        # Below its start only where it has lost segments that it is to begin with: what was given up stays given up.
        self._begin = min([values.log_start, *(one.base_offset for one in _missing(segments, damage))])
        self._end: int | None = None  # the log is cut there
        self._mended: list[_Mended] = []
        super().__init__()

    def _find_strays(self, damage: Sequence[Damage]) -> list[str]:
        """Files that are no part of the log: they lie where others do."""
        known = {one.path for one in self._segments}
        return [
            one.file
            for one in damage
            if one.file not in known
            and one.end_offset == one.base_offset
            and files.base_offset_of(one.file.rpartition("/")[2]) is not None
        ]

    # What a replica says of the hole

    @property
    def hole(self) -> Hole | None:
        """What another replica is to be asked for, before `run` is called again."""
        hole = self._hole
        is_told = hole is None or self._offered or self._end is not None or self._begin > hole.offset
        return None if is_told else hole

    def offer(self, data: bytes, *, leads: bool) -> None:
        """Batches of another replica, the first of which holds the first offset of the hole; `run` looks at them.

        `leads`: of the leader, as it is in its epoch.
        """
        assert self.hole is not None
        self._offered, self._is_leaders = data, leads
        self.offered_bytes += len(data)

    def ends(self) -> None:
        """The leader has nothing there: what is here behind it was never committed."""
        assert self.hole is not None
        self._end = self.hole.offset

    def begins(self, log_start: int) -> None:
        """The log begins there by now."""
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
                raise MendingError(f"what a replica offers is not sound: {error}") from None
            fits = header.base_offset <= offset < header.end_offset if not position else header.base_offset == offset
            if not fits:
                raise MendingError(f"a replica offers {header.base_offset} to {header.end_offset} for {offset}")
            yield header, message
            position += header.size_bytes
            offset = header.end_offset

    # Writing anew

    def _work(self) -> Generator[int, None, None]:
        for number, segment in enumerate(self._segments):
            is_last = number == len(self._segments) - 1
            if segment.end_offset <= self._begin and not is_last:
                continue  # it was given up meanwhile
            if not self._is_damaged(segment):
                continue
            yield from self._mend(segment, is_last=is_last)
            if self._end is not None:
                return

    def _is_damaged(self, segment: Segment) -> bool:
        return bool(segment.damage) or segment.path in self._damage

    def _mend(self, segment: Segment, *, is_last: bool) -> Generator[int, None, None]:
        old = self._look_into(segment)
        path = files.following(segment.path)
        written_path = files.cleaned_path(path)
        target = self._vfs.open(written_path, create=True, make_folders=False)
        try:
            keeps_old = False
            target.truncate(0)
            target.write_at(0, schema_message(*self._ids))
            writer = MendedFile(target, segment.base_offset)
            yield from self._fill(segment, old, writer)
            writer.end()
            target.sync()
            for position, end_position in old.aside:  # not before all is there: else each try would leave a copy
                keeps_old = not self._copy_aside(segment.path, old, position, end_position) or keeps_old
                yield end_position - position
            end_offset = self._end if self._end is not None else max(segment.end_offset, self._begin)
            base_offset = end_offset if writer.base_offset is None else writer.base_offset
            if writer.base_offset is None and self._end is None and not is_last:
                return  # all of it was given up meanwhile: the next start removes it
            if base_offset != files.base_offset_of(segment.path.rpartition("/")[2]):  # it was given up in part
                path = files.segment_path(self._directory, base_offset)
            entries = yield from self._read_back(target, base_offset, end_offset)
            if entries:
                rebuild.write_index(self._vfs, path, entries)
            self._mended.append(
                _Mended(segment.path, written_path, path, base_offset, end_offset, target.size(), keeps_old)
            )
        finally:
            target.close()
            if old.file is not None:
                old.file.close()

    def _look_into(self, segment: Segment) -> _Old:
        """MendingError if it is of a format that this version does not know."""
        try:
            file = self._vfs.open(segment.path, read_only=True)
        except FileNotFoundError:
            return _Old(None, PackedEntries(b""), (), 0)
        except OSError as error:
            if is_shortage(error):
                raise  # the disk is well
            return _Old(None, PackedEntries(b""), ((0, 1),), 0)
        try:
            return self._understood(segment, file)
        except OSError as error:
            file.close()
            if is_shortage(error):
                raise
            return _Old(None, PackedEntries(b""), ((0, 1),), 0)
        except BaseException:
            file.close()
            raise

    def _understood(self, segment: Segment, file: File) -> _Old:
        size_bytes = file.size()
        head = file.read_at(0, SCHEMA_BYTES)
        aside: list[tuple[int, int]] = []
        newer = ""
        try:
            if check_schema_message(head, file=file.path) != self._ids:  # another stream's: none of it is ours
                return _Old(file, PackedEntries(b""), ((0, size_bytes),), size_bytes)
        except CorruptionError:
            aside.append((0, len(head)))
        except RemoteError as error:
            aside.append((0, len(head)))
            newer = error.message
        scan = rebuild.scan_segment(
            self._vfs,
            file,
            base_offset=segment.base_offset,
            size_bytes=size_bytes,
            flushed_position=size_bytes,
            end_offset=segment.end_offset,
            by_marks=False,  # else a message that holds batches could be taken for them
        )
        entries = PackedEntries(bytes(scan.entries))
        if newer and not entries.count:  # with batches of ours, it is the number of the format that is damaged
            raise MendingError(f"{file.path} cannot be mended: {newer}")
        return _Old(file, entries, (*aside, *_between(entries, size_bytes)), size_bytes)

    def _copy_aside(self, path: str, old: _Old, position: int, end_position: int) -> bool:
        """Whether the bytes that nobody understands are kept now."""
        if old.file is None:
            return False
        try:
            kept_as = files.side_path(self._vfs, path, position)
            remains.copy_aside(self._vfs, old.file, position, end_position, kept_as)
        except OSError:
            return False
        self.has_kept = True
        return True

    def _fill(self, segment: Segment, old: _Old, writer: MendedFile) -> Generator[int, None, None]:
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
        self, offset: int, end: int, writer: MendedFile, around: tuple[int, int]
    ) -> Generator[int, None, None]:
        """`around`: the leader epochs of what is before and behind it."""
        if offset < end:
            self.ranges += 1
        while max(offset, self._begin) < end:
            offset = max(offset, self._begin)
            self._hole = Hole(offset, end)
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
        """Whether what is offered goes here; False: the log ends here. MendingError: only the leader may say so."""
        before, behind = around
        if self._lineage is not None:
            found = [entry.leader_epoch for entry in self._lineage if entry.start_offset <= offset]
            is_ours = bool(found) and found[-1] == leader_epoch
        elif self._is_leaders:
            is_ours = before <= leader_epoch <= behind
        else:
            is_ours = before == leader_epoch == behind
        if not is_ours and not self._is_leaders:
            raise MendingError(f"a replica that does not lead offers leader epoch {leader_epoch} for {offset}")
        return is_ours

    def _epoch_before(self, segment: Segment) -> int:
        if self._lineage is not None:
            return 0  # nobody asks
        earlier = [one for one in self._segments if one.base_offset < segment.base_offset]
        lineage = epochs.joined(epochs.epochs_in(self._vfs, one) for one in earlier)
        return lineage[-1].leader_epoch if lineage else 0

    def _epoch_behind(self, segment: Segment) -> int:
        if self._lineage is not None:
            return _ANY_EPOCH
        later = [one for one in self._segments if one.base_offset > segment.base_offset]
        lineage = epochs.joined(epochs.epochs_in(self._vfs, one) for one in later)
        return lineage[0].leader_epoch if lineage else _ANY_EPOCH

    def _read_back(self, target: File, base_offset: int, end_offset: int) -> Generator[int, None, bytearray]:
        """What is written is what was meant; gives the entries of its index."""
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
            raise OSError(f"what was written to {target.path} reads otherwise: {walk.mistake}")
        if walk.offset != end_offset:
            raise MendingError(f"{target.path} comes to offset {walk.offset}, not to {end_offset}")
        return entries

    # Putting it in its place

    def place(self) -> None:
        """Have the log be what was written anew. OSError: it is damaged still, and can be mended again."""
        self._vfs.sync_dir(self._directory)  # what was kept aside
        for one in self._mended:
            self._vfs.rename(one.written_path, one.path)
            self._vfs.sync_dir(self._directory)
            if one.keeps_old:
                self._put_aside(one.old_path)
            else:
                self._vfs.remove(one.old_path)
            self._vfs.remove(files.index_path(one.old_path))
        if self._end is not None:
            for segment in reversed(self._segments):
                if segment.base_offset > self._mended[-1].base_offset:
                    self._put_aside(segment.path)
                    self._vfs.remove(files.index_path(segment.path))
        for path in self._strays:
            self._put_aside(path)
        self._vfs.sync_dir(self._directory)
        if self._lineage is None:
            lineages.rewrite(self._vfs, self._directory, self._lineage_anew())
        self._write_checkpoint()

    def _lineage_anew(self) -> tuple[LineageEntry, ...]:
        """As the batches say: all of them are sound now."""
        mended = {one.old_path: one for one in self._mended}
        segments = []
        for segment in self._segments:
            if self._end is not None and segment.base_offset > self._mended[-1].base_offset:
                break
            if (one := mended.get(segment.path)) is not None:
                entries = PackedEntries(b"")
                segments.append(Segment(one.path, one.base_offset, one.end_offset, one.size_bytes, 0, entries))
            elif segment.end_offset > self._begin:
                segments.append(segment)
        return epochs.joined(epochs.epochs_in(self._vfs, one) for one in segments)

    def _put_aside(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._vfs.rename(path, files.side_path(self._vfs, path, 0))
            self.has_kept = True

    def _write_checkpoint(self) -> None:
        last = self._segments[-1]
        mended = {one.old_path: one for one in self._mended}
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
        found = checkpoints.read(self._vfs, self._directory)
        sequence = 0 if found.newest is None else found.newest.sequence
        checkpoint = CheckpointFile(self._vfs, self._directory, sequence, found.slot, is_alone=found.is_alone)
        for _ in range(checkpoints.SLOTS):  # no slot may tell of what was there before
            checkpoint.write(values)
            checkpoint.sync()
        self._vfs.sync_dir(self._directory)


def _missing(segments: Sequence[Segment], damage: Sequence[Damage]) -> Iterator[Segment]:
    """Segments of which nothing is there: those that the log is to begin with."""
    paths = {one.path for one in segments}
    first = min((one.base_offset for one in segments), default=None)
    for one in damage:
        base_offset = files.base_offset_of(one.file.rpartition("/")[2])
        if one.file in paths or base_offset is None or one.end_offset in (None, one.base_offset):
            continue
        assert one.end_offset is not None
        if first is None or one.end_offset <= first:  # else it is of a file that another one has taken the place of
            yield Segment(one.file, one.base_offset, one.end_offset, 0, 0, PackedEntries(b""), (one,))


def _between(entries: PackedEntries, size_bytes: int) -> Iterator[tuple[int, int]]:
    """The positions of what lies between the batches that were found, and behind them."""
    position = SCHEMA_BYTES
    for number in range(entries.count):
        extent = entries.extent(number)
        if extent.position > position:
            yield position, extent.position
        position = extent.end_position
    if position < size_bytes:
        yield position, size_bytes
