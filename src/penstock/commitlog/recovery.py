"""Recovery: reads a log's folder at start and restores a consistent log.

Rules: nothing is deleted because it could not be understood. Flushed data is never truncated; if it cannot be read,
that is corruption: it is reported, the log becomes read-only, and all else stays readable. Unflushed data may be torn:
it is cut off there, and if a valid batch lies behind the cut, the cut bytes are kept in a side file. What stays beyond
flushed_end is rewritten and synced, because an earlier sync may have failed and left it in the page cache only. Below
flushed_end, batches covered by the index are not read (see `segment_scan`); readers find corruption there.

| found                                     | flushed         | beyond           | no checkpoint             |
|-------------------------------------------|-----------------|------------------|---------------------------|
| invalid bytes, no valid batch behind      | corruption      | cut              | cut, bytes kept           |
| invalid bytes, a valid batch behind       | corruption      | cut, bytes kept  | corruption                |
| schema message short or invalid           | corrupt (0 rows)| cut at byte 0    | last: cut; others: corrupt|
| segment of another stream or newer format | corruption      | corruption       | corruption                |
| segment that cannot be opened or read     | corruption      | corruption       | corruption                |
| offsets missing between two segments      | corruption      | later ones aside | corruption                |
| log_start beyond what was flushed or found| checkpoint corrupt (0 rows); all segments count           |
| no segment at all                         | corruption      | corruption       | new log unless `must_exist`|
| checkpoint of a new log, no lineage; no segment, or an unfinished one, and not `must_exist`: a new log            |
| anything, with `must_exist`               |                 |                  | corrupt (0 rows), no cut  |
| index missing, short, corrupt             | rebuilt         | rebuilt          | rebuilt                   |

Of a segment rewritten by the cleaner or a repair, the newest generation counts. Older generations and unfinished
rewrites are removed if the log has no corruption; so a segment with an older generation beside it is read completely.

Segments below log_start are not removed here: a `Removal` takes them, as if retention had just moved log_start. "Aside"
is a rename to `<segment>.cut-0`.

The segment and the checkpoint of a new log are synced together: a crash may leave any of them without the other.

A torn tail is found by `segment_scan.scan_segment`; `Recovery._decide` tells it from corruption, and `_cut_tail` cuts
it. Only bytes whose origin is understood are deleted. All others are kept in a side file until a person decides:

| bytes that are cut off                                                       | may be deleted               |
|------------------------------------------------------------------------------|------------------------------|
| none, or zeros                                                               | yes                          |
| parts of a schema message of this log, else zeros                            | yes: a crash during a roll   |
| the next batches, the last one incomplete, with valid headers                | unless they may be flushed   |
| a complete, valid batch anywhere; anything else                              | no                           |
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from penstock.base import limits
from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch import codec, layout
from penstock.batch.schema import SCHEMA_BYTES, check_schema_message, schema_message
from penstock.commitlog.errors import IndexDamagedError, LogMissingError, is_shortage
from penstock.commitlog.files import checkpoint as checkpoints
from penstock.commitlog.files import files, index
from penstock.commitlog.files.batch_walk import ResyncBounds, find_behind
from penstock.commitlog.files.checkpoint import Checkpoint, CheckpointFile
from penstock.commitlog.files.files import LogFolder
from penstock.commitlog.files.index import FileEntries, PackedEntries
from penstock.commitlog.files.lineage import BatchLineage
from penstock.commitlog.segment import segment, segment_scan
from penstock.commitlog.segment.damage import Damage
from penstock.commitlog.segment.segment import ActiveSegment, Segment
from penstock.commitlog.segment.segment_scan import SegmentScan, TornTail
from penstock.vfs import File, is_nfs_leftover

_ALL = 2**63
_MARK = layout.TEMPLATE[: layout.BODY_LENGTH_POSITION]


@dataclass(frozen=True, slots=True)
class CutTail:
    """Unflushed bytes that recovery removed from the log. `kept_as`: their side file, if any."""

    file: str
    position: int
    length_bytes: int
    kept_as: str | None
    reason: str


@dataclass(slots=True)
class RecoveredLog:
    """The recovered log. `active` None: there is corruption, and nothing may be written."""

    sealed: list[Segment] = field(default_factory=list)
    active: ActiveSegment | None = None
    log_start: int = 0
    log_end: int = 0
    flushed_end: int = 0  # below log_end only if the tail of a corrupt log could not be synced
    last_timestamp_us: int = 0
    leader_epoch: int = 0
    checkpoint: Checkpoint | None = None
    slot: int = 1  # the checkpoint's slot
    is_alone: bool = False  # no other slot is valid
    damage: list[Damage] = field(default_factory=list)
    cuts: list[CutTail] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    told: list[BatchLineage] = field(default_factory=list)  # leader epochs according to the batches that were read
    retired: tuple[str, ...] = ()  # segments below log_start (perhaps only their indexes), to be removed
    has_unused: bool = False  # bytes outside the checkpoint's slots are not zero
    is_slot_lost: bool = False  # a checkpoint slot is invalid; it may have been the newest
    is_new: bool = False  # nothing was there: the segment and the folder are not synced yet

    def left_as(self, checkpoint: Checkpoint) -> bool:
        """True if the checkpoint file has exactly these values, and both of its slots are valid."""
        found = self.checkpoint
        return found is not None and not self.is_slot_lost and found._replace(sequence=0) == checkpoint


@dataclass(slots=True)
class _ScannedSegment:
    """One segment file and its scan. `foreign`: the reason why it is not treated as part of this log."""

    path: str
    base_offset: int
    next_base: int | None
    size_bytes: int
    flushed_position: int | None
    foreign: str | None = None
    scan: SegmentScan | None = None  # None: it was not scanned, as its index agrees with it
    last_timestamp_us: int = 0
    refusal: OSError | None = None  # the reason why it cannot be written

    def has_batches(self) -> bool:
        """True if the segment has any valid batch."""
        scan = self.scan
        if scan is None or scan.head is not None or scan.entries:
            return True
        return scan.torn is not None and scan.torn.whole is not None

    @property
    def end_offset(self) -> int:
        """The segment's end offset, including corrupt ranges."""
        if self.scan is None:
            assert self.next_base is not None
            return self.next_base
        lost_end = max((damage.end_offset or 0 for damage in self.scan.damage), default=0)
        return max(self.scan.end_offset, lost_end)


class Recovery:
    """One recovery of the folder of one log."""

    def __init__(self, folder: LogFolder, *, must_exist: bool) -> None:
        self._folder = folder
        self._vfs = folder.vfs
        self._generations: dict[int, int] = {}
        self._doubled: set[int] = set()  # base offsets of segments with an older generation beside them
        self._must_exist = must_exist
        self._out = RecoveredLog()

    def run(self) -> RecoveredLog:
        """Read, decide, repair. OSError if the disk fails; LogMissingError."""
        out = self._out
        names = self._vfs.list(self._folder.path)
        strange = [name for name in names if not (files.is_known(name) or is_nfs_leftover(name))]
        out.notices += [f"{self._folder.path}/{name}: not a file of a log" for name in strange]
        out.checkpoint = point = self._read_checkpoint()
        generations = sorted(parsed for name in names if (parsed := files.parsed(name)) is not None)
        self._generations = dict(generations)  # the highest one counts
        self._doubled = {base for base, generation in generations if generation != self._generations[base]}
        bases = sorted(self._generations)
        if self._is_unfinished_log(point, names, bases):
            out.checkpoint = point = None
            out.slot, out.is_alone = 1, False
            bases = []
        flushed_end = 0 if point is None else point.flushed_end
        if point is not None:
            out.last_timestamp_us, out.leader_epoch = point.last_timestamp_us, point.leader_epoch
        if not bases:
            self._without_segments(point)
            return out
        found = self._scan_all(bases)
        if point is None and self._must_exist:
            path = f"{self._folder.path}/{files.CHECKPOINT}"
            reason = "the log exists, but no checkpoint can be read: whether its end was cut off is not known"
            out.damage.append(Damage(path, 0, bases[0], bases[0], reason))
        kept, cut_at = self._decide(found, flushed_end)
        newest = 0
        for one in kept:
            scan = one.scan
            if scan is not None:
                scan.damage[:] = [_without_removed(damage, out.log_start) for damage in scan.damage]
                out.damage += scan.damage
                out.told += scan.batch_lineage()
                out.leader_epoch = max(out.leader_epoch, scan.leader_epoch)
                one.last_timestamp_us = scan.last_timestamp_us
            # Keep timestamps ordered across unreadable segments: binary search relies on it.
            newest = one.last_timestamp_us = max(newest, one.last_timestamp_us)
        # The checkpoint's timestamp may belong to lost messages; the leader has other times then.
        out.last_timestamp_us = newest or out.last_timestamp_us
        out.log_end = out.flushed_end = kept[-1].end_offset
        if out.damage:
            self._keep_as_it_is(kept)
            self._sync_tail(kept, flushed_end)
        else:
            self._remove_superseded(names)
            self._retire(names, kept[0].base_offset)
            if cut_at is not None:
                self._cut(found, cut_at)
            self._make_writable(kept)
        return out

    def _read_checkpoint(self) -> Checkpoint | None:
        found = checkpoints.read(self._vfs, self._folder.path)
        self._out.notices += [str(mistake) for mistake in found.all_mistakes]
        self._out.has_unused = found.unused is not None
        self._out.is_slot_lost = bool(found.mistakes)
        self._out.slot, self._out.is_alone = found.slot, found.is_alone
        point = found.newest
        if point is not None and (point.stream_id, point.partition) != self._folder.ids:
            self._out.notices.append(f"{self._folder.path}/{files.CHECKPOINT}: of stream {point.stream_id}, not used")
            return None
        return point

    def _set_log_start(self, first_base: int) -> None:
        out = self._out
        wanted = first_base if out.checkpoint is None else out.checkpoint.log_start
        out.log_start = max(wanted, first_base)
        if wanted < first_base:
            path = self._folder.segment_path(wanted)
            reason = f"the log begins at offset {first_base}, not at {wanted}"
            if out.is_slot_lost:
                out.notices.append(f"{path}: {reason}; the corrupt checkpoint slot may have recorded that")
            else:
                out.damage.append(Damage(path, 0, wanted, first_base, reason))

    def _is_unfinished_log(self, point: Checkpoint | None, names: Sequence[str], bases: list[int]) -> bool:
        """True if there is no more than a crash leaves that came before the log was durable."""
        if self._must_exist or point is None or not checkpoints.is_of_new_log(point):
            return False
        if files.LINEAGE in names:  # messages came, though this checkpoint does not know yet
            return False
        if bases != [0] or self._generations[0]:
            return not bases
        try:
            with contextlib.closing(self._vfs.open(self._folder.segment_path(0), read_only=True)) as file:
                return segment.is_unfinished(file, file.size(), self._folder)
        except OSError as error:
            if is_shortage(error):
                raise
            return False  # it may have messages

    def _without_segments(self, point: Checkpoint | None) -> None:
        out = self._out
        if point is None:
            if self._must_exist:
                raise LogMissingError(
                    f"{self._folder.path}: a log was created here earlier, but it has no segment files"
                )
            out.active = segment.create(self._folder, 0, make_folders=True)
            out.is_new = True
            return
        path, end = self._folder.segment_path(point.segment_base), point.flushed_end
        out.log_start, out.log_end, out.flushed_end = min(point.log_start, end), end, end
        out.damage.append(Damage(path, 0, out.log_start, end, "the segment file is missing"))
        out.sealed.append(
            Segment(path, out.log_start, out.log_end, 0, out.last_timestamp_us, PackedEntries(b""), tuple(out.damage))
        )

    # Scanning: changes nothing.

    def _scan_all(self, bases: list[int]) -> list[_ScannedSegment]:
        """Scan the segments from log_start on; all segments if the checkpoint is implausible."""
        point = self._out.checkpoint
        nexts: list[int | None] = [*bases[1:], None]
        first = 0
        if point is not None:
            # An interrupted retention leaves whole segments below log_start; they are no part of the log.
            first = max(0, bisect_right(bases, point.log_start) - 1)
        found = [
            self._scan_segment(base, following) for base, following in zip(bases[first:], nexts[first:], strict=True)
        ]
        if (reason := self._start_mistake(found)) is not None:
            path = f"{self._folder.path}/{files.CHECKPOINT}"
            self._out.damage.append(Damage(path, 0, bases[0], bases[0], reason))
            self._out.log_start = bases[0]
            return [self._scan_segment(base, following) for base, following in zip(bases, nexts, strict=True)]
        self._set_log_start(bases[first])
        return found

    def _start_mistake(self, found: list[_ScannedSegment]) -> str | None:
        """Return why the log cannot begin at the checkpoint's log_start; None if it can."""
        if (point := self._out.checkpoint) is None:
            return None
        begin = f"it says that the log begins at offset {point.log_start}"
        if point.log_start > point.flushed_end:
            return f"{begin}, beyond {point.flushed_end} that was flushed"
        last = found[-1]
        if last.scan is not None and last.scan.damage:
            return None  # where a corrupt segment ends is not known
        end = last.base_offset if last.scan is None else max(last.base_offset, last.scan.end_offset)
        if point.log_start > end and last.foreign is None:
            return f"{begin}; the segments end at {end}"
        return None

    def _scan_segment(self, base_offset: int, next_base: int | None) -> _ScannedSegment:
        point = self._out.checkpoint
        if point is None:
            flushed_position = None
        elif base_offset == point.segment_base:
            flushed_position = point.segment_position
        else:
            flushed_position = _ALL if base_offset < point.segment_base else 0
        path = self._folder.segment_path(base_offset, self._generations[base_offset])
        found = _ScannedSegment(path, base_offset, next_base, 0, flushed_position)
        try:
            self._scan_if_needed(found)
        except OSError as error:
            if is_shortage(error):
                raise
            # Other segments remain readable.
            found.foreign = f"it cannot be read: {error.strerror or error}"
            found.scan = None
        return found

    def _scan_if_needed(self, found: _ScannedSegment) -> None:
        file = self._open_to_scan(found)
        try:
            found.size_bytes = file.size()
            mistake = self._schema_mistake(found, file)
            flushed = found.flushed_position is None or found.flushed_position == _ALL
            is_trusted = mistake is None and flushed and found.base_offset not in self._doubled
            if found.foreign is None and not (is_trusted and self._index_agrees(found)):
                self._scan(found, file, mistake)
        finally:
            file.close()

    def _open_to_scan(self, found: _ScannedSegment) -> File:
        """Open the last segment for writing, so that an error shows now and not at the first message."""
        if found.next_base is None:
            try:
                return self._vfs.open(found.path)
            except OSError as error:
                found.refusal = error
        return self._vfs.open(found.path, read_only=True)

    def _schema_mistake(self, found: _ScannedSegment, file: File) -> CorruptionError | None:
        try:
            ids = check_schema_message(file.read_at(0, SCHEMA_BYTES), file=found.path)
        except CorruptionError as error:
            return error
        except RemoteError as error:
            found.foreign = error.message
            return None
        if ids != self._folder.ids:
            found.foreign = (
                f"it is of stream {ids[0]}, partition {ids[1]}; expected {self._folder.ids[0]}, {self._folder.ids[1]}"
            )
        return None

    def _index_agrees(self, found: _ScannedSegment) -> bool:
        if found.next_base is None:
            return False
        try:
            file = self._vfs.open(files.index_path(found.path), read_only=True)
        except OSError:
            return False
        try:
            entries = FileEntries(file, end_position=found.size_bytes, end_offset=found.next_base)
            first, last = entries.extent(0), entries.extent(entries.count - 1)
        except (OSError, IndexDamagedError):
            return False
        finally:
            file.close()
        found.last_timestamp_us = last.max_timestamp_us
        return (first.position, first.base_offset) == (SCHEMA_BYTES, found.base_offset)

    def _scan(self, found: _ScannedSegment, file: File, schema_mistake: CorruptionError | None) -> None:
        vouched = None
        if schema_mistake is None and found.flushed_position and found.base_offset not in self._doubled:
            limit = min(found.flushed_position, found.size_bytes)
            vouched = segment_scan.vouched_head(self._vfs, file, base_offset=found.base_offset, flushed_position=limit)
        found.scan = scan = segment_scan.scan_segment(
            self._vfs,
            file,
            vouched=vouched,
            base_offset=found.base_offset,
            size_bytes=found.size_bytes,
            flushed_position=found.flushed_position,
            end_offset=found.next_base,
        )
        if schema_mistake is None:
            return
        may_cut = found.next_base is None if found.flushed_position is None else found.flushed_position == 0
        if may_cut:
            whole = find_behind(file, ResyncBounds(-1, found.size_bytes, 0, None))
            found.scan = SegmentScan(end_position=0, end_offset=found.base_offset)
            found.scan.torn = TornTail(0, schema_mistake, whole)
        else:
            position = schema_mistake.position
            scan.damage.insert(0, Damage.of(schema_mistake, position, found.base_offset, found.base_offset))

    # Deciding: changes only the scan results.

    def _decide(self, found: list[_ScannedSegment], flushed_end: int) -> tuple[list[_ScannedSegment], int | None]:
        """Return the segments that form the log, and the number of the one to cut (None: none)."""
        kept: list[_ScannedSegment] = []
        for number, one in enumerate(found):
            if kept and (end := kept[-1].end_offset) > one.base_offset:
                reason = f"it begins at offset {one.base_offset}, before the previous one ends at {end}"
                self._out.damage.append(Damage(one.path, 0, one.base_offset, one.base_offset, reason))
                continue
            kept.append(one)
            if one.scan is None and one.foreign is None:
                continue
            end = one.next_base if one.next_base is not None else flushed_end
            if one.foreign is not None:
                one.scan = SegmentScan(end_offset=one.base_offset)
                one.scan.damage.append(Damage(one.path, 0, one.base_offset, max(end, one.base_offset), one.foreign))
                continue
            scan = one.scan
            assert scan is not None
            if self._is_cut(found, number, kept, flushed_end):
                return kept, number
            if scan.torn is not None:
                scan.damage.append(Damage.of(scan.torn.mistake, scan.torn.position, scan.end_offset, None))
                scan.torn = None
            scan.complete_damage(one.path, max(end, scan.end_offset))
        return kept, None

    def _is_cut(self, found: list[_ScannedSegment], number: int, kept: list[_ScannedSegment], flushed_end: int) -> bool:
        one, later = found[number], found[number + 1 :]
        scan = one.scan
        assert scan is not None
        if scan.torn is None:
            if one.next_base is None or scan.end_offset >= one.next_base:
                return False
            if scan.damage or (self._out.checkpoint is not None and scan.end_offset < flushed_end):
                return False
            wanted = f"offset {scan.end_offset}, as the next segment begins at offset {one.next_base}"
            mistake = CorruptionError(one.path, scan.end_position, wanted, "the end of the file")
            scan.torn = TornTail(scan.end_position, mistake, None)
        damaged = bool(self._out.damage) or any(each.scan is not None and each.scan.damage for each in kept)
        if damaged or scan.end_offset < flushed_end or any(each.foreign is not None for each in later):
            return False
        return self._out.checkpoint is not None or not any(each.has_batches() for each in later)

    # Repairing.

    def _remove_superseded(self, names: Sequence[str]) -> None:
        """Remove unfinished rewrites and superseded generations.

        It runs before any cut; otherwise an old generation would come back once the new one is gone.
        """
        gone = [name for name in names if files.is_unfinished(name)]
        for name in names:
            found = files.parsed(name.replace(".index", ".arrows"))
            if found is not None and (found.generation or name.endswith(".arrows")):
                newest = self._generations.get(found.base_offset, -1)
                if found.generation != newest:
                    gone += [name, files.index_path(name)]
        gone += [name for name in names if name.endswith(".subjects") and not self._is_of_sealed(name)]
        if gone:
            self._folder.sync()  # a crash may have kept the new name off the disk
            for name in gone:
                self._vfs.remove(f"{self._folder.path}/{name}")
            self._folder.sync()

    def _is_of_sealed(self, name: str) -> bool:
        """True if a subject index may be that of a sealed segment; older versions leave others behind."""
        found = files.parsed(f"{name.removesuffix('.subjects')}.arrows")
        return (
            found is not None
            and found.generation == self._generations.get(found.base_offset)
            and found.base_offset != max(self._generations)
        )

    def _retire(self, names: Sequence[str], first_base: int) -> None:
        """Queue what lies below the log for removal after log_start is durable, not before.

        A flush may also have written an index for a segment that retention removed at the same moment.
        """
        point = self._out.checkpoint
        if point is None or first_base > point.log_start:
            return
        below: dict[int, None] = {}
        for name in names:  # sorted: the lowest offsets come first
            if (base := files.owner_of(name)) is not None:
                if base >= first_base:
                    break
                below[base] = None
        self._out.retired = tuple(self._folder.segment_path(base, self._generations.get(base, 0)) for base in below)

    def _keep_as_it_is(self, kept: list[_ScannedSegment]) -> None:
        for one in kept:
            entries = None if one.scan is None else one.scan.all_entries()
            damage = () if one.scan is None else tuple(one.scan.damage)
            end = one.end_offset
            self._out.sealed.append(
                Segment(one.path, one.base_offset, end, one.size_bytes, one.last_timestamp_us, entries, damage)
            )

    def _sync_tail(self, kept: list[_ScannedSegment], flushed_end: int) -> None:
        """Sync the tail of a corrupt log: readers see it, and a power loss must not take it back."""
        out = self._out
        try:
            for one in kept:
                if one.scan is not None and one.foreign is None:
                    self._write_again(one)
            if out.checkpoint is not None:
                # Otherwise an older checkpoint could count, beyond which corruption looks like a torn tail and is cut.
                sequence = out.checkpoint.sequence
                point = CheckpointFile(self._vfs, self._folder.path, sequence, out.slot, is_alone=out.is_alone)
                point.write_again(out.checkpoint)
                out.slot, out.is_alone = point.slot, False
            self._folder.sync()
        except OSError as error:
            out.flushed_end = min(max(flushed_end, out.log_start), out.log_end)
            text = f"{self._folder.path}: unflushed data cannot be synced, so readers do not get it: {error}"
            out.notices.append(text)

    def _cut(self, found: list[_ScannedSegment], number: int) -> None:
        """Remove what does not belong to the log, later segments first, so that a crash leaves no gap."""
        one, later = found[number], found[number + 1 :]
        scan = one.scan
        assert scan is not None
        assert scan.torn is not None
        torn = scan.torn
        for each in reversed(later):
            kept_as = None if self._may_go(each) else files.side_path(self._vfs, each.path, 0)
            if kept_as is None:
                self._vfs.remove(each.path)
            else:
                self._vfs.rename(each.path, kept_as)
            files.remove_beside(self._vfs, each.path)
            self._out.cuts.append(CutTail(each.path, 0, each.size_bytes, kept_as, str(torn.mistake)))
        if later:
            self._folder.sync()
        self._vfs.remove(files.subjects_path(one.path))  # of a sealed segment that is the active one now
        if torn.position < one.size_bytes or torn.position == 0:
            self._cut_tail(one, torn)

    def _cut_tail(self, one: _ScannedSegment, torn: TornTail) -> None:
        file = self._vfs.open(one.path)
        try:
            kept_as = None
            if not self._tail_may_go(file, one, torn):
                kept_as = files.copy_aside(self._vfs, file, torn.position, one.size_bytes)
                self._folder.sync()
            file.truncate(torn.position)
            if torn.position == 0:
                file.write_at(0, schema_message(*self._folder.ids))
                assert one.scan is not None
                one.scan.end_position = SCHEMA_BYTES
            file.sync()
        finally:
            file.close()
        size_bytes = one.size_bytes - torn.position
        self._out.cuts.append(CutTail(one.path, torn.position, size_bytes, kept_as, str(torn.mistake)))
        one.size_bytes = max(torn.position, SCHEMA_BYTES)

    def _may_go(self, one: _ScannedSegment) -> bool:
        if one.has_batches():
            return False
        file = self._vfs.open(one.path, read_only=True)
        try:
            return segment.is_unfinished(file, one.size_bytes, self._folder)
        finally:
            file.close()

    def _tail_may_go(self, file: File, one: _ScannedSegment, torn: TornTail) -> bool:
        if torn.whole is not None:
            return False
        if torn.position == 0:
            return segment.is_unfinished(file, one.size_bytes, self._folder)
        if self._out.checkpoint is None:
            # The tail may have been flushed.
            return files.is_zeros(file, torn.position, one.size_bytes)
        assert one.scan is not None
        return _is_unfinished_append(file, torn.position, one.size_bytes, one.scan.end_offset)

    def _make_writable(self, kept: list[_ScannedSegment]) -> None:
        out = self._out
        for one, following in pairwise(kept):
            if one.scan is not None:
                self._settle(one, one.scan)
            end = following.base_offset
            out.sealed.append(Segment(one.path, one.base_offset, end, one.size_bytes, one.last_timestamp_us, None))
        last = kept[-1]
        assert last.scan is not None
        if last.refusal is not None:
            raise last.refusal
        out.active = ActiveSegment(last.path, last.base_offset, last.size_bytes)
        is_indexed = self._settle(last, last.scan)
        out.active.resume(last.scan.head, PackedEntries(bytes(last.scan.entries)), is_indexed=is_indexed)
        if out.checkpoint is None or out.checkpoint.segment_base < last.base_offset:
            self._folder.sync()

    def _settle(self, one: _ScannedSegment, scan: SegmentScan) -> bool:
        """Make the segment durable and, if the disk allows it, its index valid; return True if it is."""
        self._write_again(one)
        if scan.head is None and not scan.entries:
            return True  # an empty segment
        try:
            index.write_index(self._vfs, one.path, scan.entries, 0 if scan.head is None else scan.head.count)
        except OSError:
            # A wrong index must not stay; without one, a reader rebuilds it.
            with contextlib.suppress(OSError):
                self._vfs.remove(files.index_path(one.path))
            return False
        return True

    def _write_again(self, one: _ScannedSegment) -> None:
        """Rewrite and sync what may be unsynced: after a failed sync, another sync without a write proves nothing."""
        position = min(one.flushed_position or 0, one.size_bytes)
        if position >= one.size_bytes:
            return
        file = self._vfs.open(one.path)
        try:
            while position < one.size_bytes:
                data = file.read_at(position, min(limits.SCAN_READ_BYTES, one.size_bytes - position))
                file.write_at(position, data)
                position += len(data)
            file.sync()
        finally:
            file.close()


def _without_removed(damage: Damage, log_start: int) -> Damage:
    """Return the corrupt range without the offsets below `log_start`: retention or a purge has removed those."""
    base = max(damage.base_offset, log_start)
    if damage.end_offset is not None:
        base = min(base, damage.end_offset)
    return replace(damage, base_offset=base)


def _is_unfinished_append(file: File, position: int, end_position: int, offset: int) -> bool:
    """True if from `position` on there is no more than a crash during appends from `offset` on leaves."""
    while position < end_position and not files.is_zeros(file, position, end_position):
        prefix = file.read_at(position, min(codec.PREFIX_BYTES, end_position - position))
        if len(prefix) < codec.PREFIX_BYTES:
            return prefix.startswith(_MARK[: len(prefix)])
        try:
            header = codec.read_header(prefix)
        except CorruptionError:
            return False
        if header.base_offset != offset:
            return False
        position += header.size_bytes
        offset = header.end_offset
    return True
