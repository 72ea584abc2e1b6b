"""A log with hidden rows: every way out shows exactly the others, in order, before and after cleaning, and the cleaner
leaves nothing of what is hidden in the files but offsets and timestamps.

The log rolls, is cut, crashes and is opened again meanwhile. Followers and checks read what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from penstock.base.config import Compression
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.batch import projecting
from penstock.batch.codec import NOBODY, BatchProducer, check_rows
from penstock.client.read import batches
from penstock.client.read.batches import OffsetRange
from penstock.commitlog import LiveCounts, LogConfig, LogState, LogView, Masked
from penstock.live.row_set import NONE, RowSet
from penstock.messages import FetchRequest
from penstock.node.api.projections import Project
from penstock.node.partition.log_queries import FindOffset, GetMessage
from tests.expiring import Row, Told, append_told, offsets_of
from tests.extent import examples
from tests.logs import clean_all, log_files
from tests.property.cleaned import CleanedLog
from tests.property.test_expiry import ExpiringLog

S = 1_000_000
SUBJECTS = (b"s.a", b"s.b")


class Seen(NamedTuple):
    """A row as a reader sees it."""

    offset: int
    subject: str
    key: bytes | None
    value: bytes | None


class HidingLog(CleanedLog):
    """`rows`: all that was appended and not lost; `hidden`: those of them that readers are not shown."""

    @initialize(
        segment_bytes=st.sampled_from([4096, 9000]),
        window_s=st.sampled_from([0, 0, 4]),
        compression=st.sampled_from([Compression.NONE, Compression.NONE, Compression.ZSTD]),
        indexes=st.booleans(),
    )
    def start(self, segment_bytes: int, window_s: int, compression: Compression, indexes: bool) -> None:
        self.hidden = self.secure = NONE
        self.made = 0
        config = LogConfig(
            segment_bytes, 8 * S, dedup_window_us=window_s * S, compression=compression, indexes_subjects=indexes
        )
        self.open(config, 10 * S)
        self.append(3, 10, 30, is_producers=False)  # type: ignore[call-arg]

    @rule(
        count=st.integers(1, 6),
        copies=st.integers(1, 12),
        size_bytes=st.sampled_from([1, 30, 400]),
        is_producers=st.sampled_from([False, False, False, True]),
    )
    def append(self, count: int, copies: int, size_bytes: int, is_producers: bool) -> None:
        for _ in range(copies):
            told = [self.made_row(size_bytes) for _ in range(count)]
            producer = BatchProducer(9, 1, self.sequence) if is_producers else NOBODY
            self.rows += append_told(self.log, told, self.now_us, producer)
            self.sequence += count if is_producers else 0

    def made_row(self, size_bytes: int) -> Told:
        """A row that can be told from all others, each part of it."""
        self.made += 1
        mark = b"%08d" % self.made
        subject = SUBJECTS[self.made % 2] + b"." + mark
        return Told({"X": f"h{self.made:08d}"}, b"k" + mark, b"v" + mark + b"." * size_bytes, subject)

    @rule(
        places=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4),
        lengths=st.sampled_from([1, 2, 7, 60, 400]),
        is_secure=st.booleans(),
    )
    def hide(self, places: list[float], lengths: int, is_secure: bool) -> None:
        self.commit()
        for place in places:
            begin = int(place * self.committed_end)
            more = RowSet.of_runs([(begin, min(begin + lengths, self.committed_end))])
            self.hidden |= more
            self.secure |= more if is_secure else NONE
        self.log.hide(self.hidden, self.secure)

    @rule()
    def hide_every_second(self) -> None:
        self.commit()
        self.hidden |= RowSet.of(range(0, self.committed_end, 2))
        self.log.hide(self.hidden, self.secure)

    @rule(step_s=st.sampled_from([1, 8, 7_200]))
    def wait(self, step_s: int) -> None:
        self.now_us += step_s * S
        self.log.tick(self.now_us)

    @precondition(lambda self: self.task is None and not self.log.is_disposing)
    @rule()
    def clean_to_the_end(self) -> None:
        """Nothing of hidden rows is left in a file that may be rewritten."""
        self.commit()
        self.log.due_us(self.now_us)  # from when on the first deletion waits for others
        self.now_us += 8_000 * S
        self.log.tick(self.now_us)
        clean_all(self.log, self.now_us)
        assert not clean_all(self.log, self.now_us), "what is done is done"
        if (task := self.log.dispose()) is not None:
            task.run()
            self.log.disposed()
        if self.config.compression is not Compression.NONE:
            return
        view = self.log.view()
        for segment in view.segments[:-1]:
            if segment.entries is not None:
                continue  # it was cut: it has no index until a restart, and is left alone
            data = self.read(segment.path, 0, segment.size_bytes)
            for row in self.rows[segment.base_offset : segment.end_offset]:
                for part in (
                    row.told.value,
                    row.told.key,
                    row.told.subject,
                    f"h{row.told.value[1:9].decode()}".encode(),
                ):
                    assert (part in data) == (row.offset not in self.hidden), (row.offset, part)

    def shown(self, begin: int = 0) -> list[Seen]:
        return [
            Seen(row.offset, row.told.subject.decode(), row.told.key, row.told.value)
            for row in self.rows[begin:]
            if row.offset not in self.hidden
        ]

    def live_view(self) -> LogView:
        if self.log.hidden is None and self.hidden:  # it was opened again
            self.log.hide(self.hidden, self.secure)
        return self.log.view().hiding(self.log.hidden)

    @invariant()
    def batches_show_the_others(self) -> None:
        if not hasattr(self, "log"):
            return
        view = self.live_view()
        assert offsets_of(view) == [row.offset for row in self.shown()]
        behind = [rows_of(data) for _, data in view.batches(0, view.log_end, reverse=True)]
        assert [row for rows in reversed(behind) for row in rows] == self.shown()

    @rule(
        part=st.floats(0, 1, exclude_max=True),
        bytes_max=st.sampled_from([1, 2_000, 100_000]),
        subject=st.sampled_from([None, "s.a.*"]),
        back_s=st.integers(-1, 30),
    )
    def look(self, part: float, bytes_max: int, subject: str | None, back_s: int) -> None:
        self.a_consumer_reads_the_others(part, bytes_max)
        self.a_projection_shows_the_others(part, bytes_max, subject)
        for row in self.rows[int(part * len(self.rows)) :][:3]:
            self.one_message_is_found_or_not(row)
        self.times_are_those_of_the_others(back_s, part)

    def a_consumer_reads_the_others(self, part: float, bytes_max: int) -> None:
        start = round(part * self.log.log_end)
        found = [row for row in self.consumed(start, bytes_max) if row.offset >= start]
        assert found == self.shown(start)

    def consumed(self, offset: int, bytes_max: int) -> Iterator[Seen]:
        """Fetch as a client does, with its checks, and those of the broker on the epoch that it names."""
        view, leader_epoch = self.live_view(), self.log.leader_epoch
        while offset < view.log_end:
            assert self.log.epoch_end(leader_epoch).start_offset >= offset, "the broker would report a truncation"
            found = view.readable(offset, end=view.log_end, bytes_max=bytes_max)
            assert found is not None
            raw = found.data if isinstance(found, Masked) else self.read(found.path, found.position, found.length)
            assert found.base_offset <= offset < found.end_offset
            covers = OffsetRange(found.base_offset, found.end_offset)
            for batch in batches.batches_of(raw, covers, OffsetRange(offset, view.log_end), 100, source="broker"):
                yield from seen_in(batch)
            offset = found.end_offset
            leader_epoch = batches.last_epoch(raw, source="broker") if raw else self.log.leader_epoch

    def read(self, path: str, position: int, length: int) -> bytes:
        file = self.vfs.open(path, read_only=True)
        try:
            return file.read_at(position, length)
        finally:
            file.close()

    def a_projection_shows_the_others(self, part: float, bytes_max: int, subject: str | None) -> None:
        start, end = round(part * self.log.log_end), self.log.log_end
        columns = ("value", "subject", "key")
        found: list[tuple[object, ...]] = []
        offset, leader_epoch = start, self.log.leader_epoch
        while offset < end:
            assert self.log.epoch_end(leader_epoch).start_offset >= offset
            request = FetchRequest(
                stream_id=StreamId(1),
                partition=PartitionId(0),
                offset=Offset(offset),
                bytes_max=bytes_max,
                columns=columns,
                subjects=None if subject is None else (subject,),
            )
            query = Project(self.live_view(), self.vfs, end, request, is_indexed=True)
            query.run()
            assert query.end_offset > offset, "a consumer would stall"
            if query.raw:
                schema = projecting.schema_of(columns)
                for batch in projecting.from_stream(query.raw, query.raw_crc, schema, source="broker"):
                    found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
            offset = query.end_offset
            leader_epoch = self.log.leader_epoch if query.last_epoch is None else query.last_epoch
        wanted = [row for row in self.shown(start) if subject is None or row.subject.startswith("s.a.")]
        assert found == [(row.value, row.subject, row.key) for row in wanted]

    def one_message_is_found_or_not(self, row: Row) -> None:
        view, end = self.live_view(), self.log.log_end
        by_offset = GetMessage(view, end, offset=row.offset, key=None, subject=None)
        by_key = GetMessage(view, end, offset=None, key=row.told.key, subject=None)
        by_subject = GetMessage(view, end, offset=None, key=None, subject=row.told.subject.decode())
        for query in (by_offset, by_key, by_subject):
            if row.offset not in self.hidden:
                query.run()
                assert query.found_offset == row.offset
                continue
            with pytest.raises(RemoteError) as caught:
                query.run()
            assert caught.value.code == ErrorCode.MESSAGE_NOT_FOUND

    def times_are_those_of_the_others(self, back_s: int, part: float) -> None:
        view, end = self.live_view(), self.log.log_end
        wanted_us = self.now_us - back_s * S
        found = FindOffset(view, end, offset=None, timestamp_us=wanted_us, counts_rows=True)
        found.run()
        left = [row for row in self.rows if row.offset not in self.hidden]
        later = [row for row in left if row.timestamp_us >= wanted_us]
        assert found.offset == (later[0].offset if later else end)
        assert found.timestamp_us == (later[0].timestamp_us if later else None)
        assert found.live is not None
        assert found.live.rows == len(left)
        edges = (None, None) if not left else (left[0].offset, left[-1].offset)
        assert (found.live.first_offset, found.live.last_offset) == edges
        times = (None, None) if not left else (left[0].timestamp_us, left[-1].timestamp_us)
        assert (found.live.first_us, found.live.last_us) == times
        assert found.live.deleted == (left[-1].offset + 1 - left[0].offset - len(left) if left else 0)
        for stop in (start := round(part * end), end):
            wanted = [row for row in left if row.offset < stop]
            assert LiveCounts(view, stop).rows() == len(wanted)
            gone = LiveCounts(view, stop).gone()
            assert [one for one in range(stop) if one not in gone] == [row.offset for row in wanted]
        after = FindOffset(view, end, offset=start, timestamp_us=None)
        after.run()
        assert after.offset == start
        assert after.timestamp_us == next((row.timestamp_us for row in left if row.offset >= start), None)

    @invariant()
    def replicas_get_what_is_stored(self) -> None:
        if not hasattr(self, "log"):
            return
        stored, end = offsets_of(self.log.view()), 0
        assert {row.offset for row in self.shown()} <= set(stored)
        for header, data in self.log.view().batches(0, self.log.log_end):
            assert (header.base_offset, check_rows(data).num_rows) == (end, header.count)
            end = header.end_offset
        assert end == self.log.log_end
        assert not self.rows or stored[-1] == self.rows[-1].offset, "or its timestamp would be forgotten"

    def teardown(self) -> None:
        if hasattr(self, "log"):
            assert self.log.state is LogState.WRITABLE
            assert not self.log.damage
            assert log_files(self.vfs)


def rows_of(data: bytes) -> list[Seen]:
    return list(seen_in(check_rows(data)))


def seen_in(batch: object) -> Iterator[Seen]:
    columns = (batch.column(name).to_pylist() for name in ("offset", "subject", "key", "value"))  # type: ignore[attr-defined]
    return map(Seen._make, zip(*columns, strict=True))


class HidingAndExpiringLog(ExpiringLog):
    """Beside hidden rows, others expire or are compacted: each goes for its own reason, and no way back."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = NONE

    @rule(
        places=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=3),
        length=st.sampled_from([1, 3, 20, 60]),
        is_secure=st.booleans(),
    )
    def hide(self, places: list[float], length: int, is_secure: bool) -> None:
        self.commit()
        for begin in (int(place * self.committed_end) for place in places):
            self.hidden |= RowSet.of_runs([(begin, min(begin + length, self.committed_end))])
        self.log.hide(self.hidden, self.hidden if is_secure else NONE)

    @precondition(lambda self: self.task is None)
    @rule()
    def clean_to_the_end(self) -> None:
        self.log.due_us(self.now_us)
        self.now_us += 8_000 * S
        self.log.tick(self.now_us)
        self.commit()
        clean_all(self.log, self.now_us)

    def check_what_is_over(self) -> None:
        """A hidden row may be the one that stays to cover offsets."""

    @invariant()
    def nothing_goes_early(self) -> None:
        if not hasattr(self, "log"):
            return
        if self.log.hidden is None and self.hidden:  # it was opened again
            self.log.hide(self.hidden)
        stored = set(offsets_of(self.log.view()))
        shown = offsets_of(self.log.view().hiding(self.log.hidden))
        assert shown == sorted(one for one in stored if one not in self.hidden)
        counts = LiveCounts(self.log.view().hiding(self.log.hidden), self.log.log_end)
        assert counts.rows() == len(shown)
        gone = counts.gone()
        assert [one for one in range(self.log.log_end) if one not in gone] == shown
        last = {row.told.key: row.offset for row in self.rows}
        for row in self.rows:
            if row.offset in stored or row.offset in self.hidden or (self.config.expires and self.is_over(row)):
                continue
            assert self.config.compact
            assert row.told.key is not None
            assert last[row.told.key] > row.offset or row.told.value is None

    @invariant()
    def no_key_comes_back(self) -> None:
        """But by the deletion of a newer row, which is what was asked for."""


HidingLog.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestHidingLog = HidingLog.TestCase
HidingAndExpiringLog.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
TestHidingAndExpiringLog = HidingAndExpiringLog.TestCase
