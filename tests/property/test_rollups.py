"""A log with rollups of subjects, against all that was ever appended: what goes went for one, and what is to go goes.

Crashes lose what was not synced, names included; what is not committed may be cut off, and then nothing has gone for
it. Keys may be compacted too, and messages expire: neither takes a rollup before what is to go for it, and no older
message of a key counts again because a rollup has taken the newer one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from penstock.base import limits
from penstock.base.config import Compression
from penstock.batch.codec import NOBODY, BatchProducer, check_rows
from penstock.commitlog import LogConfig, LogState
from tests.expiring import Row, Told, append_told, offsets_of
from tests.extent import examples
from tests.keyed import batches_of
from tests.logs import clean_all
from tests.property.cleaned import CleanedLog
from tests.property.test_expiry import run_key

S = 1_000_000
SUBJECTS = [b"a", b"b", b"c\xc3\xa4"]


@st.composite
def told(draw: st.DrawFn) -> Told:
    headers = {}
    if (rollup := draw(st.sampled_from([None, None, None, None, "sub", "SUB", "all"]))) is not None:
        headers["Nats-Rollup"] = rollup
    if draw(st.sampled_from([False, False, False, True])):
        headers["Nats-TTL"] = "2s"
    key = draw(st.none() | st.sampled_from([b"k", b"l"]))
    value = draw(st.sampled_from([b"v", b"v", b"v" * 300, None]))
    return Told(headers, key, value, draw(st.sampled_from(SUBJECTS)))


def is_rollup(row: Row) -> bool:
    return row.told.headers.get("Nats-Rollup", "").lower() == "sub"


class RolledLog(CleanedLog):
    """`rows`: all that was appended and not lost."""

    @initialize(
        segment_bytes=st.sampled_from([4096, 9000]),
        window_s=st.sampled_from([0, 0, 2]),
        compact=st.booleans(),
        expires=st.sampled_from([False, False, True]),
        rolls_up=st.sampled_from([True, True, True, True, False]),
        compression=st.sampled_from(Compression),
        bytes_max=st.sampled_from([40, 200, 1_000_000]),
    )
    def start(
        self,
        segment_bytes: int,
        window_s: int,
        compact: bool,
        expires: bool,
        rolls_up: bool,
        compression: Compression,
        bytes_max: int,
    ) -> None:
        self.key_bytes_max = limits.COMPACTION_KEY_BYTES_MAX
        limits.COMPACTION_KEY_BYTES_MAX = bytes_max  # so that passes end early, and judge a few segments at a time
        config = LogConfig(
            segment_bytes=segment_bytes,
            segment_age_us=8 * S,
            rolls_up=rolls_up,
            expires=expires,
            compact=compact,
            compaction_lag_us=window_s * S,
            dedup_window_us=window_s * S,
            tombstone_retention_us=5 * S,
            compression=compression,
        )
        self.was_allowed = self.always_allowed = rolls_up
        self.counts_from = 0  # rollups before that may have gone while they meant nothing
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

    @rule(rolls_up=st.booleans())
    def alter(self, rolls_up: bool) -> None:
        if rolls_up and not self.config.rolls_up:
            self.counts_from = self.log.log_end
        self.was_allowed = self.was_allowed or rolls_up
        self.always_allowed = self.always_allowed and rolls_up
        self.config = replace(self.config, rolls_up=rolls_up)
        self.log.configure(self.config)

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
        self.clean()

    @precondition(lambda self: self.task is None)
    @rule(subject=st.sampled_from(SUBJECTS), is_producers=st.booleans())
    def purge(self, subject: bytes, is_producers: bool) -> None:
        """As a key-value store does it, with a time to live; a producer's batch of one message has to stay."""
        self.append([Told(subject=subject)], 1, is_producers)  # type: ignore[call-arg]
        self.append([Told({"Nats-Rollup": "sub", "Nats-TTL": "2s"}, subject=subject), Told()], 1, False)  # type: ignore[call-arg]
        self.append([Told(value=b"v" * 300)], 20, False)  # type: ignore[call-arg]
        self.commit()
        self.now_us += 8 * S
        self.clean()

    @precondition(lambda self: self.task is None)
    @rule()
    def clean(self) -> None:
        """All that is to be done, and what was put off for a minute or for the passes before."""
        for _ in range(3):
            clean_all(self.log, self.now_us)
            self.now_us += limits.COMPACTION_RETRY_MS * 1_000 * limits.ROLLUP_PASSES_SHARE
        self.check_what_is_to_go()

    def rollups_of(self, row: Row, end: int) -> list[Row]:
        """Those before `end` that came behind it."""
        behind = self.rows[row.offset + 1 : end]
        return [one for one in behind if is_rollup(one) and one.told.subject == row.told.subject]

    def check_what_is_to_go(self) -> None:
        """Of what was judged, all has gone that a rollup came behind, but for what must cover offsets."""
        if not self.config.rolls_up:
            return
        view = self.log.view()
        found = set(offsets_of(view))
        old_us = self.now_us - self.config.passes_lag_us
        end = 0
        for segment in view.segments[:-1]:
            is_old = segment.last_timestamp_us <= old_us
            if not is_old or segment.end_offset > self.log.committed_end or segment.entries is not None:
                break
            end = segment.end_offset
        batches = [one for one in batches_of(view) if one[0].end_offset <= end]
        bases = [segment.base_offset for segment in view.segments]
        for _, run_of in groupby(
            enumerate(batches), lambda one: (segment_of(bases, one[1]), run_key(one[0], one[1][0]))
        ):
            rows = [self.rows[at] for _, (_, data) in run_of for at in check_rows(data).column(0).to_pylist()]
            for row in rows:
                rollups = self.rollups_of(row, end)
                if len(rows) > 1 and any(one.offset >= self.counts_from or one.offset in found for one in rollups):
                    assert self.config.compact, (row, rows)
                    older = [one for one in self.rows[: row.offset] if one.told.key == row.told.key]
                    assert row.told.key is not None
                    assert [one for one in older if one.offset in found], "else it could have gone"

    @invariant()
    def nothing_goes_without_a_reason(self) -> None:
        found = offsets_of(self.log.view())
        assert found == sorted(set(found))
        offsets = set(found)
        assert offsets <= {row.offset for row in self.rows}
        for row in self.rows:
            if row.offset in offsets:
                continue
            assert row.offset < self.committed_end
            if self.was_allowed and self.rollups_of(row, self.committed_end):
                continue
            if self.config.expires and "Nats-TTL" in row.told.headers and row.timestamp_us + 2 * S <= self.now_us:
                continue
            newer = [one for one in self.rows if one.told.key == row.told.key and one.offset > row.offset]
            assert self.config.compact
            assert row.told.key is not None
            assert newer or row.told.value is None

    @invariant()
    def what_went_for_a_rollup_does_not_come_back(self) -> None:
        """A rollup whose time is over goes only once no older message of its subject is left."""
        if not self.always_allowed:
            return
        found = set(offsets_of(self.log.view()))
        for row in self.rows:
            if row.offset in found or not is_rollup(row):
                continue
            behind = self.rows[row.offset + 1 : self.committed_end]
            if self.rollups_of(row, self.committed_end) or (
                self.config.compact and any(one.told.key == row.told.key is not None for one in behind)
            ):
                continue
            if self.config.compact and row.told.value is None:
                continue  # it goes as a tombstone
            older = [one for one in self.rows[: row.offset] if one.told.subject == row.told.subject]
            assert not [one for one in older if one.offset in found], row

    @invariant()
    def the_last_row_of_all_is_there(self) -> None:
        if self.rows and self.log.log_end:
            assert self.log.log_end - 1 in set(offsets_of(self.log.view())), "or its timestamp would be forgotten"

    @invariant()
    def no_key_comes_back(self) -> None:
        if not self.config.compact:
            return
        found = set(offsets_of(self.log.view()))
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
            limits.COMPACTION_KEY_BYTES_MAX = self.key_bytes_max
            assert self.log.state is LogState.WRITABLE
            assert not self.log.damage


def segment_of(bases: list[int], batch: tuple[object, bytes]) -> int:
    """Where its segment begins."""
    offset = check_rows(batch[1]).column(0)[0].as_py()
    return max(base for base in bases if base <= offset)


RolledLog.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestRolledLog = RolledLog.TestCase
