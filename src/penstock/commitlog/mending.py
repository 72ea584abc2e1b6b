"""Mending: the damaged segments of a log are written anew, with another replica's batches where their own are damaged.

Rules: what is sound here stays as it is, byte for byte; only what lies in a hole is asked for. What may be offered is
what is committed, or what the leader has: of the same leader epoch that is what was here. Bytes of a peer are hostile:
what is offered is verified, has to go on where the batch before it ends, in offsets, times and leader epochs, and is
refused as a whole if it does not. Nothing of an old file is touched until the new one is whole, synced and read back;
of the old one, the bytes that could not be understood are kept in a side file, and what was sound in it is in the new
one. A crash or a failure at any step leaves a log that is damaged, or less so, and that can be mended again: by another
Mending, never by the same one. The cleaner writes nothing of the log meanwhile, and its files have other names.

| step of one damaged segment, X.arrows               | files when it fails        | what the next try does        |
|-----------------------------------------------------|----------------------------|-------------------------------|
| 1. write X.1.mended, sync                           | X, part of X.1.mended      | writes it from its beginning  |
| 2. copy to X.cut-P what nobody understands, sync    | … and part of X.cut-P      | completes that copy           |
| 3. read X.1.mended back, write X.1.index            | … and part of X.1.index    | the same once more            |
| of all (`place`; the log is closed, then opened)    |                            |                               |
| 4. sync the folder                                  | X, X.1.mended, X.cut-P     | 1 to 3 once more              |
| 5. rename X.1.mended to X.1.arrows, sync the folder | X and X.1, or one of them  | the start takes X.1           |
| 6. remove X and its index, or rename X to X.cut-0   | X.1, and perhaps X         | the start removes X           |
| 7. put aside what is behind a cut, and strays       | X.1, and some of them      | puts the others aside         |
| 8. the lineage anew, if lost: beside, then renamed  | as before, and lineage.new | the start writes it anew      |
| 9. both slots of the checkpoint, each synced        | one slot tells of before   | the start writes it, or mends |

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

Each replica has segments of its own. Where another one has compacted, no row may be left of a segment here, or of where
it begins or ends, but a batch that covers it from beyond. So two segments become one file:

| no row is left                         | then                       | if there is no such segment                    |
|----------------------------------------|----------------------------|------------------------------------------------|
| of where a segment ends                | one file with that behind  | the log ends there; who follows gets the cover |
| of where it begins, and a producer's   | one file with that before  | the log begins behind it                       |
| batch, which covers no other, is next  |                            |                                                |
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch import codec
from penstock.batch.header import BatchHeader
from penstock.batch.schema import SCHEMA_BYTES, schema_message
from penstock.commitlog import checkpoint as checkpoints
from penstock.commitlog import epochs, files, index, rebuild, remains
from penstock.commitlog import lineage as lineages
from penstock.commitlog.checkpoint import Checkpoint, CheckpointFile
from penstock.commitlog.index import PackedEntries
from penstock.commitlog.left import Old, look_into
from penstock.commitlog.lineage import LineageEntry
from penstock.commitlog.mended_file import MendedFile, MendingError, NoRowError
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

    old_paths: tuple[str, ...]
    kept_paths: frozenset[str]  # of those some could not be copied: they stay, under other names
    written_path: str
    path: str
    base_offset: int
    end_offset: int
    size_bytes: int
    ranges: int  # of offsets that were damaged there


class Mending(SlicedWork):
    """`run` in a disk thread until `is_done`; while `hole` says what is wanted, `offer` it first, or say what it is
    instead. Then `place` it, in a disk thread, once, while the log is closed, and open the log anew in any case.
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
        groups = [[one] for one in self._segments]  # of each group one file is made
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
            except NoRowError as error:
                self.ranges = ranges
                number = self._join(groups, number, error)
                continue
            if self._end is not None:
                return
            number += 1

    def _join(self, groups: list[list[Segment]], number: int, error: NoRowError) -> int:
        """No row is left where a segment of this log ends, for the replica that gave them has others: then one file is
        made of two. Gives the number of the group that is to be mended now.
        """
        if error.end_offset is None:
            groups[number] += groups.pop(number + 1)
            return number
        if not number:
            self._begin = error.end_offset  # what is left begins there
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
        written_path = files.mended_path(files.following(group[0].path))
        with contextlib.ExitStack() as opened:
            target = self._vfs.open(written_path, create=True, make_folders=False)
            opened.callback(target.close)
            olds = []
            for segment in group:
                olds.append(old := look_into(self._vfs, segment, self._ids))
                if old.file is not None:
                    opened.callback(old.file.close)
            target.truncate(0)
            target.write_at(0, schema_message(*self._ids))
            writer = MendedFile(target, self._lowest_offset(group[0], olds[0]))
            for segment, old in zip(group, olds, strict=True):
                yield from self._fill(segment, old, writer)
                if self._end is not None:
                    break
            self._end_file(writer, is_last=is_last)
            target.sync()
            kept_paths = set()
            for segment, old in zip(group, olds, strict=True):
                # Not before all is there: else each try would leave a copy.
                for position, end_position in old.aside:
                    if not self._copy_aside(old, position, end_position):
                        kept_paths.add(segment.path)
                    yield end_position - position
            end_offset = self._end if self._end is not None else max(group[-1].end_offset, self._begin)
            base_offset = end_offset if writer.base_offset is None else writer.base_offset
            if writer.base_offset is None and self._end is None and not is_last:
                return  # all of it was given up meanwhile: the next start removes it
            path = self._path_of(base_offset, group)
            entries = yield from self._read_back(target, base_offset, end_offset)
            if entries:
                rebuild.write_index(self._vfs, path, entries)
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

    def _end_file(self, writer: MendedFile, *, is_last: bool) -> None:
        if self._end is None and not is_last:
            writer.end()
        elif (end := writer.cut()) is not None:
            self._end = end  # no row of it is lost, and who follows is given what covers it

    def _path_of(self, base_offset: int, group: Sequence[Segment]) -> str:
        """The name of the file that begins there: not at all that of one of the old ones."""
        for segment in group:
            if files.base_offset_of(segment.path.rpartition("/")[2]) == base_offset:
                return files.following(segment.path)
        return files.segment_path(self._directory, base_offset)  # it was given up in part

    def _lowest_offset(self, segment: Segment, old: Old) -> int:
        """Where its file may begin. Of one that the log was opened without only the log's start is known."""
        was_there = old.file is not None or segment.size_bytes > 0
        return segment.base_offset if was_there or segment is not self._segments[0] else 0

    def _copy_aside(self, old: Old, position: int, end_position: int) -> bool:
        """Whether the bytes that nobody understands are kept now."""
        if old.file is None:
            return False
        try:
            remains.copy_aside(self._vfs, old.file, position, end_position)
        except OSError:
            return False
        self.has_kept = True
        return True

    def _fill(self, segment: Segment, old: Old, writer: MendedFile) -> Generator[int, None, None]:
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
        """Have the log be what was written anew. OSError, PenstockError: it lies there as a crash would leave it."""
        self._vfs.sync_dir(self._directory)  # what was kept aside
        for one in self._mended:
            self._vfs.rename(one.written_path, one.path)
            self._vfs.sync_dir(self._directory)
            for old_path in one.old_paths:
                if old_path in one.kept_paths:
                    self._put_aside(old_path)
                else:
                    self._vfs.remove(old_path)
                self._vfs.remove(files.index_path(old_path))
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
        return epochs.joined(epochs.epochs_in(self._vfs, one) for one in segments)

    def _mended_of(self) -> dict[str, _Mended]:
        """What was made of each old file; of several, it is that of the last one."""
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
