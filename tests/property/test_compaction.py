"""A log that is compacted, against all that was ever appended: whoever reads it knows of each key what is to be known.

Crashes lose what was not synced, names included. A reader may stop anywhere, and go on once more was compacted. The log
decides alone, or what it finds is hidden by marks, which are durable, or cannot be hidden at that moment; it may begin
to decide by marks once it has decided alone.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from penstock.base import limits
from penstock.base.config import Compression
from penstock.batch import codec
from penstock.batch.codec import NOBODY, BatchProducer
from penstock.commitlog import Deciding, LogConfig, LogState
from penstock.live.row_set import NONE
from penstock.vfs.memory import Keep
from tests.extent import examples
from tests.keyed import Row, Told, append_keyed, batches_of, rows_of
from tests.logs import clean_all
from tests.property.cleaned import CleanedLog

RETENTION_US = 100_000_000


MESSAGES = st.tuples(
    st.one_of(st.none(), st.sampled_from([b"a", b"b", b"c", b"", b"\xff\x00"])),
    st.one_of(st.none(), st.sampled_from([b"", b"1", b"2" * 300])),
)


def table(rows: list[Row], known: dict[bytes, bytes] | None = None) -> dict[bytes, bytes]:
    """What a reader of these rows knows of each key, who knew that before."""
    found = dict(known or {})
    for row in rows:
        if row.key is None:
            continue
        if row.value is None:
            found.pop(row.key, None)
        else:
            found[row.key] = row.value
    return found


class CompactedLog(CleanedLog):
    """`rows`: all that was appended and not lost."""

    @initialize(
        segment_bytes=st.sampled_from([4096, 9000, 40_000]),
        compression=st.sampled_from(Compression),
        lag_us=st.sampled_from([0, 3_000]),
        compact=st.sampled_from([True, True, True, False]),
        max_bytes=st.sampled_from([None, limits.MERGED_SHARE * 2_000]),  # no retention runs here: it bounds batches
        deciding=st.sampled_from([Deciding.ALONE, Deciding.BY_MARKS]),
    )
    def start(
        self,
        segment_bytes: int,
        lag_us: int,
        compact: bool,
        max_bytes: int | None,
        compression: Compression,
        deciding: Deciding,
    ) -> None:
        self.hidden = NONE  # by marks
        self.marks_from_the_start = deciding is Deciding.BY_MARKS
        self.least_bytes = limits.COMPRESSED_BATCH_BYTES_MIN
        limits.COMPRESSED_BATCH_BYTES_MIN = 1_000  # so that more of such small segments is compressed
        config = LogConfig(
            segment_bytes=segment_bytes,
            compact=compact,
            max_bytes=max_bytes,
            compaction_lag_us=lag_us,
            tombstone_retention_us=RETENTION_US,
            compression=compression,
            deciding=deciding,
        )
        self.open(config, 10_000_000)
        self.read: list[tuple[int, int, dict[bytes, bytes]]] = []  # readers: since when, up to where, what they know

    @rule(
        messages=st.lists(MESSAGES, min_size=1, max_size=8),
        step_us=st.integers(0, 2_000),
        copies=st.integers(1, 20),
        is_producers=st.sampled_from([False, False, False, True]),
    )
    def append(self, messages: list[Told], step_us: int, copies: int, is_producers: bool) -> None:
        for _ in range(copies):
            self.now_us += step_us
            producer = BatchProducer(9, 1, self.sequence) if is_producers else NOBODY
            self.rows += append_keyed(self.log, messages, self.now_us, producer)
            self.sequence += len(messages) if is_producers else 0

    @rule(wished=st.sampled_from(Compression))
    def alter(self, wished: Compression) -> None:
        self.config = replace(self.config, compression=wished)
        self.log.configure(self.config)

    @rule(step_us=st.sampled_from([1_000, RETENTION_US // 2, RETENTION_US]))
    def wait(self, step_us: int) -> None:
        self.now_us += step_us

    @precondition(lambda self: self.task is None)
    @rule(
        messages=st.lists(MESSAGES, min_size=1, max_size=8),
        copies=st.integers(1, 20),
        wait_us=st.sampled_from([0, RETENTION_US // 2, RETENTION_US]),
    )
    def go_on(self, messages: list[Told], copies: int, wait_us: int) -> None:
        """What happens to a stream for the most part."""
        self.append(messages, 10, copies, is_producers=False)  # type: ignore[call-arg]
        self.commit()
        self.now_us += self.config.compaction_lag_us + wait_us
        clean_all(self.log, self.now_us)
        while self.log.found is not None:
            self.hide(is_hidden=True)  # type: ignore[call-arg]
            clean_all(self.log, self.now_us)

    @precondition(lambda self: self.log.found is not None)
    @rule(is_hidden=st.sampled_from([True, True, True, False]))
    def hide(self, is_hidden: bool) -> None:
        """Marks hide what a survey has found, or there is no quorum for them."""
        found = self.log.found
        assert found is not None
        assert found.rows.end <= self.committed_end
        if is_hidden:
            self.hidden |= found.rows
            self.log.hide(self.hidden)
        self.log.decided(found, self.now_us, is_hidden=is_hidden)

    @precondition(lambda self: self.config.deciding is Deciding.ALONE)
    @rule()
    def raise_level(self) -> None:
        """From now on marks say what is gone, also what has gone before."""
        self.config = replace(self.config, deciding=Deciding.BY_MARKS)
        self.log.configure(self.config)

    @rule(keep=st.sampled_from(list(Keep)), seed=st.integers(0, 1_000))
    def crash(self, keep: Keep, seed: int) -> None:
        super().crash(keep, seed)  # type: ignore[call-arg]
        self.log.hide(self.hidden)

    @property
    def shown(self) -> list[Row]:
        """What readers see."""
        return rows_of(self.log.view().hiding(self.log.hidden))

    @rule(part=st.floats(0, 1))
    def read_some(self, part: float) -> None:
        """A reader begins, and comes so far."""
        end = round(self.committed_end * part)
        known = table([row for row in self.shown if row.offset < end])
        self.read.append((self.now_us, end, known))

    @invariant()
    def readers_know_all(self) -> None:
        found = self.shown
        wanted = table(self.rows)
        assert table(found) == wanted
        for since_us, end, known in self.read:
            if self.now_us - since_us < RETENTION_US:
                assert table([row for row in found if row.offset >= end], known) == wanted

    @invariant()
    def rows_are_what_was_appended(self) -> None:
        found = self.shown
        assert [self.rows[row.offset] for row in found] == found
        offsets = {row.offset for row in found}
        assert offsets >= {row.offset for row in self.rows if row.key is None}
        assert offsets >= {row.offset for row in self.rows if row.offset >= self.committed_end}
        young_us = self.now_us - self.config.compaction_lag_us
        assert offsets >= {row.offset for row in self.rows if row.timestamp_us > young_us}
        if not self.config.compact:
            assert found == self.rows
        if self.marks_from_the_start:
            assert found == [row for row in self.rows if row.offset not in self.hidden]

    @invariant()
    def headers_are_right(self) -> None:
        end = sequence = 0
        for header, data in batches_of(self.log.view()):
            assert header.base_offset == end
            end = header.end_offset
            rows = codec.check_rows(data)
            assert rows.num_rows == header.count
            if header.producer_id:
                assert header.producer_sequence >= sequence
                sequence = header.producer_sequence + header.end_offset - header.base_offset
        assert end == self.log.log_end

    def teardown(self) -> None:
        if hasattr(self, "log"):
            limits.COMPRESSED_BATCH_BYTES_MIN = self.least_bytes
            assert self.log.state is LogState.WRITABLE
            assert not self.log.damage


CompactedLog.TestCase.settings = settings(max_examples=examples(90), stateful_step_count=30, deadline=None)
TestCompactedLog = CompactedLog.TestCase
