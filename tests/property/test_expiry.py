"""A log whose messages expire, against all that was ever appended: nothing goes early, and what is over goes.

Crashes lose what was not synced, names included; what is not committed may be cut off. Where keys are compacted too, an
older message of a key never counts again because the newer one has expired.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from penstock.base.config import Compression
from penstock.batch.codec import NOBODY, BatchProducer, check_rows
from penstock.batch.header import BatchHeader
from penstock.commitlog import Deciding, LogConfig, LogState, LogView
from penstock.live.row_set import NONE
from penstock.vfs.memory import Keep
from tests.expiring import Row, Told, append_told, offsets_of
from tests.extent import examples
from tests.keyed import batches_of
from tests.logs import clean_all
from tests.property.cleaned import CleanedLog

S = 1_000_000
TTLS = {"1": 1, "2s": 2, "0.1m": 6, "never": None, "00": None}


@st.composite
def told(draw: st.DrawFn) -> Told:
    headers = {}
    if (ttl := draw(st.none() | st.sampled_from(list(TTLS)))) is not None:
        headers["Nats-TTL"] = ttl
    if draw(st.sampled_from([False, False, True])):
        headers["Nats-Msg-Id"] = "x"
    key = draw(st.none() | st.sampled_from([b"a", b"b"]))
    return Told(headers, key, draw(st.sampled_from([b"v", b"v" * 300, None])))


class ExpiringLog(CleanedLog):
    """`rows`: all that was appended and not lost."""

    @initialize(
        segment_bytes=st.sampled_from([4096, 9000]),
        window_s=st.sampled_from([0, 0, 4]),
        compact=st.sampled_from([False, False, True]),
        expires=st.sampled_from([True, True, True, False]),
        compression=st.sampled_from(Compression),
    )
    def start(self, segment_bytes: int, window_s: int, compact: bool, expires: bool, compression: Compression) -> None:
        config = LogConfig(
            segment_bytes=segment_bytes,
            segment_age_us=8 * S,
            expires=expires,
            compact=compact,
            dedup_window_us=window_s * S,
            tombstone_retention_us=5 * S,
            compression=compression,
        )
        self.open(config, 10 * S)

    @rule(
        messages=st.lists(told(), min_size=1, max_size=8),
        copies=st.integers(1, 20),
        is_producers=st.sampled_from([False, False, False, True]),
    )
    def append(self, messages: list[Told], copies: int, is_producers: bool) -> None:
        for _ in range(copies):
            producer = BatchProducer(9, 1, self.sequence) if is_producers else NOBODY
            self.rows += append_told(self.log, messages, self.now_us, producer)
            self.sequence += len(messages) if is_producers else 0

    @rule(step_s=st.sampled_from([1, 3, 8]))
    def wait(self, step_s: int) -> None:
        self.now_us += step_s * S
        self.log.tick(self.now_us)

    @precondition(lambda self: self.task is None)
    @rule(messages=st.lists(told(), min_size=1, max_size=8), copies=st.integers(1, 20), step_s=st.integers(0, 3))
    def go_on(self, messages: list[Told], copies: int, step_s: int) -> None:
        """What happens to a stream for the most part."""
        self.append(messages, copies, is_producers=False)  # type: ignore[call-arg]
        self.commit()
        self.now_us += step_s * S
        clean_all(self.log, self.now_us)
        self.check_what_is_over()

    def over_us(self, row: Row) -> int | None:
        """When it may go, at the earliest."""
        seconds = TTLS.get(row.told.headers.get("Nats-TTL", ""))
        if seconds is None:
            return None
        lifetime_us = seconds * S
        if "Nats-Msg-Id" in row.told.headers:
            lifetime_us = max(lifetime_us, self.config.dedup_window_us)
        return row.timestamp_us + lifetime_us

    def is_over(self, row: Row) -> bool:
        over_us = self.over_us(row)
        return over_us is not None and over_us <= self.now_us

    def check_what_is_over(self) -> None:
        """Of what is sealed, all that is over has gone, but for one row where nothing else could cover its offsets."""
        if not self.config.expires or self.config.compact:
            return
        view = self.log.view()
        for segment in view.segments[:-1]:
            if segment.end_offset > self.committed_end:
                break
            if segment.entries is not None:
                continue  # it was cut: it has no index until a restart, and is left alone
            batches = [
                one for one in batches_of(view) if segment.base_offset <= one[0].base_offset < segment.end_offset
            ]
            for _, run_of in groupby(enumerate(batches), lambda one: run_key(one[0], one[1][0])):
                rows = [
                    self.rows[offset] for _, (_, data) in run_of for offset in check_rows(data).column(0).to_pylist()
                ]
                left = [row for row in rows if self.is_over(row) and row.offset != self.committed_end - 1]
                assert len(left) <= (len(rows) == 1), (left, rows)

    @property
    def shown(self) -> LogView:
        """What readers see."""
        return self.log.view().hiding(self.log.hidden)

    @invariant()
    def nothing_goes_early(self) -> None:
        found = offsets_of(self.shown)
        assert found == sorted(set(found))
        offsets = set(found)
        assert offsets <= {row.offset for row in self.rows}
        for row in self.rows:
            if row.offset in offsets:
                continue
            assert row.offset < self.committed_end
            if self.config.expires and self.is_over(row):
                continue
            newer = [one for one in self.rows if one.told.key == row.told.key and one.offset > row.offset]
            assert self.config.compact
            assert row.told.key is not None
            assert newer or row.told.value is None

    @invariant()
    def the_last_row_of_all_is_there(self) -> None:
        if self.rows and self.log.log_end:
            assert self.log.log_end - 1 in set(offsets_of(self.log.view())), "or its timestamp would be forgotten"

    @invariant()
    def no_key_comes_back(self) -> None:
        if not self.config.compact:
            return
        found = set(offsets_of(self.shown))
        last = {row.told.key: row for row in self.rows if row.told.key is not None}
        for key, row in last.items():
            if row.offset not in found:
                assert not [one for one in self.rows if one.told.key == key and one.offset in found]

    @invariant()
    def headers_are_right(self) -> None:
        end = 0
        for header, data in batches_of(self.log.view()):
            assert header.base_offset == end
            end = header.end_offset
            assert check_rows(data).num_rows == header.count
        assert end == self.log.log_end

    def teardown(self) -> None:
        if hasattr(self, "log"):
            assert self.log.state is LogState.WRITABLE
            assert not self.log.damage


def run_key(number: int, header: BatchHeader) -> tuple[int, int]:
    """What is alike for batches that may cover each other's offsets."""
    return (number + 1, 0) if header.producer_id else (0, header.leader_epoch)


class LogThatExpiresByMarks(ExpiringLog):
    """What a survey finds is hidden by marks, which are durable, or cannot be hidden at that moment."""

    def open(self, config: LogConfig, now_us: int) -> None:
        self.hidden = NONE
        super().open(replace(config, deciding=Deciding.BY_MARKS), now_us)

    @precondition(lambda self: self.log.found is not None)
    @rule(is_hidden=st.sampled_from([True, True, True, False]))
    def hide(self, is_hidden: bool) -> None:
        found = self.log.found
        assert found is not None
        assert found.rows.end <= self.committed_end
        if is_hidden:
            self.hidden |= found.rows
            self.log.hide(self.hidden)
        self.log.decided(found, self.now_us, is_hidden=is_hidden)

    @rule(keep=st.sampled_from(list(Keep)), seed=st.integers(0, 1_000))
    def crash(self, keep: Keep, seed: int) -> None:
        super().crash(keep, seed)  # type: ignore[call-arg]
        self.log.hide(self.hidden)

    def check_what_is_over(self) -> None:
        """Of what is sealed, all that is over is hidden; nothing is left of it where the cleaner has passed."""
        while self.log.found is not None:
            self.hide(is_hidden=True)  # type: ignore[call-arg]
            clean_all(self.log, self.now_us)
        if not self.config.expires or self.config.compact:
            return
        shown = set(offsets_of(self.shown))
        for segment in self.log.view().segments[:-1]:
            if segment.end_offset <= self.committed_end and segment.entries is None:
                rows = self.rows[segment.base_offset : segment.end_offset]
                assert not [row for row in rows if row.offset in shown and self.is_over(row)]

    @invariant()
    def what_is_not_hidden_is_there(self) -> None:
        assert offsets_of(self.shown) == [row.offset for row in self.rows if row.offset not in self.hidden]


LogThatExpiresByMarks.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestLogThatExpiresByMarks = LogThatExpiresByMarks.TestCase


ExpiringLog.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestExpiringLog = ExpiringLog.TestCase


def test_a_rewrite_that_a_truncation_voided_is_done_again_at_once() -> None:
    state = ExpiringLog()
    try:
        none = Compression.NONE
        state.start(segment_bytes=4096, window_s=0, compact=False, expires=True, compression=none)  # type: ignore[call-arg]
        state.go_on(messages=[Told({"Nats-TTL": "1"}, None, b"v", b"s")], copies=5, step_s=0)  # type: ignore[call-arg]
        state.wait(step_s=1)  # type: ignore[call-arg]
        state.begin()  # the survey
        state.end()
        state.begin()  # the rewrite
        state.append(messages=[Told({}, None, b"v", b"s")], copies=1, is_producers=False)  # type: ignore[call-arg]
        state.cut(part=0.0)  # type: ignore[call-arg]
        state.end()
        state.go_on(messages=[Told({}, None, b"v", b"s")], copies=1, step_s=0)  # type: ignore[call-arg]
    finally:
        state.teardown()
