"""Last messages of subjects that were looked up, in memory: a get of a key that is read often reads no file.

Rules: what is kept of a subject is its last message below an offset, the `end` of the look-up. The leader's table of
last offsets (`LastSequences`) says whether a message came since: it begins with the first look-up. The table is dropped
when the leadership ends, and when rows are hidden or compacted away, and what is kept is void then. All partitions of a
broker share LAST_ROWS_BYTES_MAX; the oldest goes first, unless it was asked for since it was passed over last. Its
offset stays for longer, in a table of 32 to 64 bytes a subject, so that no subject index is read for it again.

`hot.kept_rows` tells what is certain of a subject, and answers JetStream's gets out of what is kept. What is not
certain is looked for in the table of offsets, then searched for.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from penstock.base import limits
from penstock.base.ids import PartitionKey
from penstock.commitlog import FoundRow
from penstock.hot.kept_rows import AT, CERTAIN, KeptRow, kept_state
from penstock.hot.subject_table import SubjectTable
from penstock.ingest.last_sequences import LastSequences
from penstock.node.partition.partition import Partition

_ENTRY_BYTES = 700  # of an entry beside the bytes of its message


class KnownRows(NamedTuple):
    """Last messages of some subjects, None where there is none; of others the offsets, or neither."""

    lasts: LastSequences
    rows: dict[str, FoundRow | None]
    offsets: dict[str, int]


class KeptLasts(NamedTuple):
    """Kept messages of one partition at one time, for answers out of it (`hot.kept_rows.answer_kept`)."""

    rows: dict[bytes, KeptRow]  # by subject
    lasts: LastSequences
    log_start: int
    visible_end: int


class _Places(NamedTuple):
    """Offsets of last messages that were found since the `LastSequences` knew all from `known_from` on."""

    identity: object
    known_from: int
    table: SubjectTable


class LastRows:
    """The last messages of one broker's partitions."""

    def __init__(self) -> None:
        self._bytes_max = limits.LAST_ROWS_BYTES_MAX
        self._size_bytes = 0
        self._places: dict[PartitionKey, _Places] = {}
        self._kept: dict[PartitionKey, dict[bytes, KeptRow]] = {}  # by subject
        self._order: dict[KeptRow, None] = {}  # the first one is the next to go, unless it was used meanwhile

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
        """Return all that is kept of a partition; None: nothing."""
        rows = self._kept.get(partition.key)
        lasts = None if rows is None else self._lasts_of(partition)
        if rows is None or lasts is None:
            return None
        return KeptLasts(rows, lasts, partition.log_start, partition.visible_end)

    def known(self, partition: Partition, subjects: Sequence[str], visible_end: int) -> KnownRows | None:
        """Return what is known of plain subjects; None: nothing can be kept of this partition now."""
        if (lasts := self._lasts_of(partition)) is None:
            return None
        known, table, rows = KnownRows(lasts, {}, {}), lasts.table, self._kept.get(partition.key, {})
        log_start, places = partition.log_start, self._places_of(partition, lasts)
        for subject in subjects:
            name = subject.encode()
            last, one = table.find(name, 0, len(name)), rows.get(name)
            if last >= visible_end:
                continue  # not committed yet: an earlier one is the last
            if one is not None and one.identity is not lasts.identity:
                self._drop(one)
                one = None
            if one is not None and one.offset >= visible_end:
                continue  # found by a later request
            state = kept_state(one, last, table.known_from, lasts.identity)
            if state == CERTAIN:
                assert one is not None
                one.is_used = True
                known.rows[subject] = one.found if one.offset >= log_start else None
            elif state == AT and last < log_start:
                known.rows[subject] = None
            elif state == AT:
                known.offsets[subject] = last
            elif (place := places.find(name, 0, len(name))) >= log_start:
                known.offsets[subject] = place
        return known

    def keep(self, partition: Partition, lasts: LastSequences, end: int, found: Mapping[str, FoundRow | None]) -> None:
        """Keep what was found below `end` while `lasts` was the partition's table."""
        if partition.lasts is not lasts:
            return
        for subject, one in found.items():
            name = subject.encode()
            if (before := self._kept.get(partition.key, {}).get(name)) is not None:
                self._drop(before)
            size_bytes, offset, value = _ENTRY_BYTES + len(name), -1, b""
            if one is not None:
                offset, value = one.row.offset, one.row.value or b""
                headers = one.row.headers or b""
                # headers twice: they are in the header block of an answer, too
                size_bytes += sum(map(len, (one.row.key or b"", value, headers, headers)))
            if size_bytes > self._bytes_max:
                continue
            kept = KeptRow(partition.key, lasts.identity, name, end, one, offset, value)
            kept.size_bytes = size_bytes
            self._kept.setdefault(partition.key, {})[name] = kept
            self._order[kept] = None
            self._size_bytes += size_bytes
        while self._size_bytes > self._bytes_max:
            oldest = next(iter(self._order))
            if oldest.is_used:
                oldest.is_used = False
                self._order[oldest] = self._order.pop(oldest)
            else:
                self._drop(oldest)
        if end >= lasts.table.known_from:
            _note(self._places_of(partition, lasts), [one for one in found.values() if one is not None])

    def _drop(self, kept: KeptRow) -> None:
        del self._order[kept]
        self._size_bytes -= kept.size_bytes
        rows = self._kept[kept.owner]
        del rows[kept.subject]
        if not rows:
            del self._kept[kept.owner]


def _note(table: SubjectTable, found: Sequence[FoundRow]) -> None:
    """Record where the last messages of their subjects are."""
    if found:
        names = [one.row.subject or b"" for one in found]
        ends, offsets = (
            array("i", accumulate(map(len, names), initial=0)),
            array("q", [one.row.offset for one in found]),
        )
        table.take(memoryview(ends), memoryview(b"".join(names)), memoryview(offsets), 0, len(found))
        table.written()
