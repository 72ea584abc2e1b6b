"""Last messages of subjects that were looked up, in memory: a get of a key that is read often reads no file.

Rules: what is kept of a subject is its last message below an offset, the `end` of the look-up. The leader's table of
last offsets (`LastSequences`) says whether a message came since: it begins with the first look-up. The table is dropped
when the leadership ends, and when rows are hidden or compacted away, and what is kept is void then. All partitions of a
broker share LAST_ROWS_BYTES_MAX; what was not asked for the longest goes first. Its offset stays for longer, in a table
of 32 to 64 bytes a subject, so that no subject index is read for it again.

| the table has                | kept is                                | the last message is              |
|------------------------------|----------------------------------------|----------------------------------|
| the subject, at an offset    | the message at that offset             | the one kept                     |
| the subject, at an offset    | another one, or nothing                | at that offset: one row is read  |
| not the subject              | a message, not older than the table    | the one kept, or there is none   |
| not the subject              | an offset, not older than the table    | at that offset: one row is read  |
| not the subject              | nothing, or something older            | searched for                     |
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from penstock.base import limits
from penstock.base.ids import PartitionKey
from penstock.commitlog import FoundRow
from penstock.hot.subject_table import SubjectTable
from penstock.ingest.last_sequences import LastSequences
from penstock.node.partition.partition import Partition

_ENTRY_BYTES = 700  # of an entry beside the bytes of its message


class KnownRows(NamedTuple):
    """Last messages of some subjects, None where there is none; of others the offsets, or neither."""

    lasts: LastSequences
    rows: dict[str, FoundRow | None]
    offsets: dict[str, int]


class _Kept(NamedTuple):
    identity: object  # of the `LastSequences`
    end: int
    found: FoundRow | None
    size_bytes: int


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
        self._kept: dict[tuple[PartitionKey, str], _Kept] = {}  # the one asked for last comes last

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

    def known(self, partition: Partition, subjects: Sequence[str], visible_end: int) -> KnownRows | None:
        """Return what is known of plain subjects; None: nothing can be kept of this partition now."""
        if partition.leadership is None or not partition.knows_hidden or partition.stream.config.compact:
            return None
        lasts = partition.keep_lasts()
        if lasts.is_compacted:
            return None
        known, table, key, log_start = KnownRows(lasts, {}, {}), lasts.table, partition.key, partition.log_start
        places = self._places_of(partition, lasts)
        for subject in subjects:
            name = subject.encode()
            last = table.find(name, 0, len(name))
            kept = self._kept.get((key, subject))
            if kept is not None and kept.identity is not lasts.identity:
                self._drop((key, subject))
                kept = None
            if last >= visible_end:
                continue  # not committed yet: an earlier one is the last
            found = None if kept is None else kept.found
            if found is not None and found.row.offset >= visible_end:
                continue  # found by a later request
            if last >= 0 and (found is None or found.row.offset != last):
                if last >= log_start:
                    known.offsets[subject] = last
                else:
                    known.rows[subject] = None
            elif kept is not None and (last >= 0 or table.known_from <= kept.end):
                self._kept[key, subject] = self._kept.pop((key, subject))
                known.rows[subject] = found if found is not None and found.row.offset >= log_start else None
            elif (place := places.find(name, 0, len(name))) >= log_start:
                known.offsets[subject] = place
        return known

    def keep(self, partition: Partition, lasts: LastSequences, end: int, found: Mapping[str, FoundRow | None]) -> None:
        """Keep what was found below `end` while `lasts` was the partition's table."""
        if partition.lasts is not lasts:
            return
        for subject, one in found.items():
            key = partition.key, subject
            self._drop(key)
            size_bytes = _ENTRY_BYTES + len(subject)
            if one is not None:
                size_bytes += sum(map(len, (one.row.key or b"", one.row.value or b"", one.row.headers or b"")))
            if size_bytes > self._bytes_max:
                continue
            self._kept[key] = _Kept(lasts.identity, end, one, size_bytes)
            self._size_bytes += size_bytes
        while self._size_bytes > self._bytes_max:
            self._drop(next(iter(self._kept)))
        if end >= lasts.table.known_from:
            _note(self._places_of(partition, lasts), [one for one in found.values() if one is not None])

    def _drop(self, key: tuple[PartitionKey, str]) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            self._size_bytes -= kept.size_bytes


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
