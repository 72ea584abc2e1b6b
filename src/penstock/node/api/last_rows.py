"""Last messages of subjects that were looked up, in memory: a get of a key that is read often reads no file.

Rules: what is kept of a subject is its last message below an offset, the `end` of the look-up. The leader's table of
last offsets (`LastSequences`) says whether a message came since: it begins with the first look-up. The table is dropped
when the leadership ends, and when rows are hidden or compacted away, and what is kept is void then. All partitions of a
broker share LAST_ROWS_BYTES_MAX; the oldest goes first, unless it was asked for since it was passed over last. Its
offset stays for longer, in a table of 32 to 64 bytes a subject, so that no subject index is read for it again.
A message on such a subject takes the place of what is kept as it is written; it is told once it is shown.
What is not kept is looked up at once where the page cache has it (`LastRows.find`), and its batch stays in memory.

`hot.kept_rows` tells what is certain of a subject, and answers JetStream's gets out of what is kept. What is not
certain is looked for in the table of offsets, then searched for.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import PenstockError
from penstock.base.ids import PartitionKey
from penstock.batch.codec import LAYOUT
from penstock.batch.picking import PickedRow
from penstock.commitlog import LiveSubjectQueries, LogView, batches_at, row_at
from penstock.hot.kept_rows import AT, CERTAIN, KeptRow, KeptRows, kept_state
from penstock.hot.subject_table import SubjectTable
from penstock.ingest.last_sequences import LastSequences
from penstock.node.api.kept_batches import KeptBatches
from penstock.node.partition.partition import Partition
from penstock.vfs.page_cache import ColdError


class KnownRows(NamedTuple):
    """Last messages of some subjects, None where there is none; of others the offsets, or neither."""

    lasts: LastSequences
    rows: dict[str, PickedRow | None]
    offsets: dict[str, int]


class KeptLasts(NamedTuple):
    """Kept messages of one partition at one time, for answers out of it (`hot.kept_rows.answer_kept`)."""

    partition: Partition
    rows: dict[bytes, KeptRow]  # by subject
    lasts: LastSequences
    log_start: int
    end: int  # of the messages that tell the last ones
    until_us: int = 0  # all this holds until this elapsed time, unless the node has an event before


class _Places(NamedTuple):
    """Offsets of last messages that were found since the `LastSequences` knew all from `known_from` on."""

    identity: object
    known_from: int
    table: SubjectTable


class LastRows:
    """The last messages of one broker's partitions."""

    def __init__(self) -> None:
        self._rows = KeptRows(limits.LAST_ROWS_BYTES_MAX)
        self._batches = KeptBatches(limits.LAST_BATCHES_BYTES_MAX)
        self._places: dict[PartitionKey, _Places] = {}

    def _places_of(self, partition: Partition, lasts: LastSequences) -> SubjectTable:
        """Return the table of a partition, a new one if the last one is void."""
        found, known_from = self._places.get(partition.key), lasts.table.known_from
        if found is None or found.identity is not lasts.identity or found.known_from != known_from:
            table = SubjectTable(limits.SUBJECT_TABLE_MAX, 0, partition.budget.tables)
            self._places.pop(partition.key, None)
            while len(self._places) >= limits.LAST_ROWS_PARTITIONS_MAX:
                del self._places[next(iter(self._places))]
            found = self._places[partition.key] = _Places(lasts.identity, known_from, table)
        return found.table

    def _lasts_of(self, partition: Partition) -> LastSequences | None:
        """Return the partition's table; None: nothing can be kept of it now."""
        if partition.leadership is None or not partition.knows_hidden or partition.stream.config.compact:
            return None
        lasts = partition.keep_lasts()
        return None if lasts.is_compacted else lasts

    def kept(self, partition: Partition) -> KeptLasts | None:
        """Return all that is kept of a partition; None: nothing can be kept of it now."""
        if (lasts := self._lasts_of(partition)) is None:
            return None
        rows = self._rows.of(partition.key)
        return KeptLasts(partition, {} if rows is None else rows, lasts, partition.log_start, partition.lasts_end)

    def find(self, kept: KeptLasts, names: Sequence[bytes]) -> KeptLasts:
        """Look plain subjects up, as far as the page cache has what is read for them, and keep their last messages.

        `kept` holds now; return it with them. The others are for a request, which reads the disk, or tells why not.
        """
        partition, lasts = kept.partition, kept.lasts
        lasts.kept = self._rows
        with contextlib.suppress(PenstockError, OSError, IndexError):  # IndexError: a malformed batch
            view = partition.live_view()
            vfs = view.vfs.cached(reads_max=limits.CACHED_READS_MAX, bytes_max=limits.LASTS_BYTES_MAX)
            if vfs is not None and len(view.segments) <= limits.CACHED_SEGMENTS_MAX:
                self._find(kept, names, view.reading(vfs))
        rows = self._rows.of(partition.key)
        return kept._replace(rows={} if rows is None else rows)

    def _find(self, kept: KeptLasts, names: Sequence[bytes], view: LogView) -> None:
        """ColdError: the disk is needed for the rest. PenstockError, OSError, IndexError: a request will tell."""
        rows, lasts, owner = self._rows, kept.lasts, kept.partition.key
        places, table = self._places_of(kept.partition, lasts), lasts.table
        found, unknown = dict[int, bytes](), list[bytes]()
        for name in names:
            last = table.find(name, 0, len(name))
            if last < 0 and (last := places.find(name, 0, len(name))) < kept.log_start:
                unknown.append(name)
            elif kept.log_start <= last < kept.end:  # else an earlier one is the last, or none
                found[last] = name
        if unknown:
            searched = LiveSubjectQueries(view, kept.end, _refuse_summing).last_of_many(unknown)
            absent = [name for name, last in zip(unknown, searched, strict=True) if last < 0]
            for name in absent:
                rows.keep(KeptRow(owner, lasts.identity, name, kept.end))
            present = {last: name for name, last in zip(unknown, searched, strict=True) if last >= 0}
            found |= present
            if present and kept.end >= table.known_from:
                _note(places, [*present.values()], [*present])
        left = self._keep_of_batches(kept, found, view)
        for offset in left[: limits.FOUND_ON_LOOP_MAX]:
            if (one := row_at(view, offset)) is not None and one.row.subject == found[offset]:
                row = KeptRow(owner, lasts.identity, found[offset], kept.end)
                row.put(offset, one.row.timestamp_us, one.row.key, one.row.value, one.row.headers)
                rows.keep(row)

    def _keep_of_batches(self, kept: KeptLasts, wanted: dict[int, bytes], view: LogView) -> list[int]:
        """Keep messages at these offsets, each with its subject, out of small batches; return the other offsets."""
        key, identity = kept.partition.key, kept.lasts.identity
        left = list[int]()
        for offset in sorted(wanted):
            data = self._batches.find(key, identity, offset)
            if data is None:
                left.append(offset)
            else:
                self._rows.keep_rows(key, identity, kept.end, data, LAYOUT, [offset], [wanted[offset]])
        read = batches_at(view, left, limits.LAST_BATCH_BYTES_MAX) if left else ()
        for header, data in read:
            self._batches.keep(key, identity, header.base_offset, header.end_offset, data)
            these = [one for one in left if header.base_offset <= one < header.end_offset]
            left = [one for one in left if one >= header.end_offset or one < header.base_offset]
            names = [wanted[one] for one in these]
            self._rows.keep_rows(key, identity, kept.end, data, LAYOUT, these, names)
        return left

    def known(self, partition: Partition, subjects: Sequence[str], end: int) -> KnownRows | None:
        """Return what is known of plain subjects; None: nothing can be kept of this partition now."""
        if (lasts := self._lasts_of(partition)) is None:
            return None
        known, table, rows = KnownRows(lasts, {}, {}), lasts.table, self._rows.of(partition.key) or {}
        log_start, places = partition.log_start, self._places_of(partition, lasts)
        for subject in subjects:
            name = subject.encode()
            last, one = table.find(name, 0, len(name)), rows.get(name)
            if last >= end:
                continue  # not committed yet: an earlier one is the last
            if one is not None and one.identity is not lasts.identity:
                self._rows.drop(one)
                one = None
            if one is not None and one.offset >= end:
                continue  # found by a later request
            state = kept_state(one, last, table.known_from, lasts.identity)
            if state == CERTAIN:
                assert one is not None
                one.is_used = True
                known.rows[subject] = _row(one) if one.offset >= log_start else None
            elif state == AT and last < log_start:
                known.rows[subject] = None
            elif state == AT:
                known.offsets[subject] = last
            elif (place := places.find(name, 0, len(name))) >= log_start:
                known.offsets[subject] = place
        return known

    def keep(self, partition: Partition, lasts: LastSequences, end: int, found: Mapping[str, PickedRow | None]) -> None:
        """Keep what was found below `end` while `lasts` was the partition's table."""
        if partition.lasts is not lasts:
            return
        lasts.kept = self._rows
        for subject, row in found.items():
            kept = KeptRow(partition.key, lasts.identity, subject.encode(), end)
            if row is not None:
                kept.put(row.offset, row.timestamp_us, row.key, row.value, row.headers)
            self._rows.keep(kept)
        if end >= lasts.table.known_from:
            present = [row for row in found.values() if row is not None]
            places = self._places_of(partition, lasts)
            _note(places, [row.subject or b"" for row in present], [row.offset for row in present])


def _row(kept: KeptRow) -> PickedRow | None:
    """Return the kept message."""
    if kept.offset < 0:
        return None
    return PickedRow(kept.offset, kept.timestamp_us, kept.subject, kept.key, kept.value, kept.headers)


def _note(table: SubjectTable, names: list[bytes], offsets: list[int]) -> None:
    """Record where the last messages of their subjects are."""
    if names:
        ends = array("i", accumulate(map(len, names), initial=0))
        table.take(memoryview(ends), memoryview(b"".join(names)), memoryview(array("q", offsets)), 0, len(names))
        table.written()


def _refuse_summing(size_bytes: int) -> None:
    """Rows are summed up by subject, which takes long."""
    if size_bytes:
        raise ColdError("rows are summed up by a disk thread")
