"""Queries by subject of a log that is cleaned, cut, lost in crashes and harmed, against a read of all rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from penstock.base import limits
from penstock.base.config import Compression
from penstock.base.errors import RemoteError
from penstock.base.subjects import matches
from penstock.batch import codec
from penstock.commitlog import (
    LiveSubjectQueries,
    LogConfig,
    LogCutError,
    LogView,
    SubjectQueries,
    SubjectRanges,
    SubjectRow,
    check_subject_indexes,
)
from penstock.live.row_set import NONE, RowSet
from penstock.vfs.memory import MemoryVfs
from tests.damage import content, write
from tests.extent import examples
from tests.groups import Columns, encoded
from tests.logs import DIRECTORY, clean_all, give_up_before
from tests.property.cleaned import CleanedLog

SUBJECTS = (
    *("a", "a.b", "a.b.c", "a-b", "a.c.ü", "b.1", "b.2", "b.20", "$JS.a", "z." + 70 * "y"),
    *(f"n.{n}" for n in range(30)),
)
PATTERNS = ("a", "a.*", "a.>", "*.b", "*.*.c", ">", "b.*", "b.2", "n.*", "$JS.*", "nothing.>", "a.b.c")


def rows_of(view: LogView, end: int) -> list[tuple[int, str]]:
    """Offset and subject of every message."""
    found: list[tuple[int, str]] = []
    for _, data in view.batches(view.log_start, end):
        rows = codec.check_rows(data)
        found += zip(rows.column(0).to_pylist(), rows.column(2).to_pylist(), strict=True)
    # What covers the offsets of erased rows has no subject.
    return [row for row in found if view.log_start <= row[0] < end and row[1]]


def reached(view: LogView, patterns: list[str], offset: int, end: int) -> set[int]:
    """Offsets that a reader of the patterns looks at."""
    ranges = SubjectRanges(view, patterns)
    found: set[int] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SKIPPED_ROWS_PER_MATCH", 1)
        while offset < end:
            low, high = ranges.at(offset)
            assert offset <= low <= high <= view.log_end
            assert offset < high
            found.update(range(low, min(high, end)))
            offset = high
    return found


def table(rows: list[tuple[int, str]]) -> list[SubjectRow]:
    """What there is to know of each subject, in byte order."""
    offsets: dict[str, list[int]] = {}
    for offset, subject in rows:
        offsets.setdefault(subject, []).append(offset)
    found = [SubjectRow(subject, len(these), these[0], these[-1]) for subject, these in offsets.items()]
    return sorted(found, key=lambda row: row.subject.encode())


def wrong_subject_indexes(view: LogView) -> set[str]:
    """The ones that were reported; a power loss may well harm an offset index."""
    return {mistake.file for mistake in view.wrong_indexes if not mistake.file.endswith(".index")}


def check(view: LogView, end: int, subject: str, patterns: list[str], after: str, limit: int, offset: int) -> None:
    """Compare every query with a read of all rows."""
    rows = rows_of(view, end)
    known = {row.subject: row for row in table(rows)}
    wanted = [row for row in rows if any(matches(pattern, row[1]) for pattern in patterns)]
    queries = SubjectQueries(view, end)
    assert queries.of(subject) == known.get(subject)
    assert queries.last(subject) == (known[subject].last if subject in known else None)
    behind = [row for row in table(wanted) if row.subject.encode() > after.encode()]
    assert queries.matching(patterns, after=after, limit=limit) == behind[:limit]
    assert queries.count(patterns) == len(wanted)
    assert queries.next(patterns, offset) == next((at for at, _ in wanted if at >= offset), None)
    looked_at = reached(view, patterns, offset, end)
    assert [at for at, _ in wanted if at >= offset] == [at for at, _ in wanted if at in looked_at]
    assert not wrong_subject_indexes(view)
    names = [*SUBJECTS, "absent", subject]
    for makes_indexes in (True, False):
        asked = SubjectQueries(view, end, makes_indexes=makes_indexes)
        lasts = asked.last_of_many([one.encode() for one in names])
        assert lasts == [known[one].last if one in known else -1 for one in names]
        check_counts(asked, names, known)


def check_counts(queries: SubjectQueries, names: list[str], known: dict[str, SubjectRow]) -> None:
    """Compare the numbers of messages, which need not be found beyond those that are wanted."""
    for most in (1, 2, 5, 1_000_000):
        numbers = queries.counts_of_many([one.encode() for one in names], most, hides_oldest=False)
        for one, number in zip(names, numbers, strict=True):
            there = known[one].messages if one in known else 0
            assert min(there, most) <= number <= there, one


def check_lasts(view: LogView, end: int) -> None:
    """Compare the last messages that are not hidden, and their numbers, with a read of all rows."""
    known, names = {row.subject: row for row in table(rows_of(view, end))}, [*SUBJECTS, "absent"]
    queries = SubjectQueries(view, end)
    lasts = queries.last_of_many([one.encode() for one in names])
    assert lasts == [known[one].last if one in known else -1 for one in names]
    check_counts(queries, names, known)


def check_live(view: LogView, end: int, subject: str, patterns: list[str], after: str, limit: int, begin: int) -> None:
    """Compare the queries of live rows with a read of them."""
    rows = rows_of(view, end)
    known = {row.subject: row for row in table(rows)}
    wanted = [row for row in rows if any(matches(pattern, row[1]) for pattern in patterns)]
    queries = LiveSubjectQueries(view, end)
    assert queries.of(subject) == known.get(subject)
    assert queries.last(subject) == (known[subject].last if subject in known else None)
    behind = [row for row in table(wanted) if row.subject.encode() > after.encode()]
    assert queries.matching(patterns, after=after, limit=limit) == behind[:limit]
    assert queries.count(patterns) == len(wanted)
    reached, total = begin, 0
    for count, part_end in queries.count_from(patterns, begin):
        assert part_end > reached
        total += count
        reached = part_end
        assert total == sum(begin <= at < reached for at, _ in wanted)
    assert reached == max(begin, end)


class IndexedLog(CleanedLog):
    """A log whose subjects are indexed by the cleaner, or when a query comes."""

    @initialize(
        segment_bytes=st.sampled_from([4096, 9000, 40_000]),
        compact=st.booleans(),
        indexes=st.booleans(),
        compression=st.sampled_from(Compression),
    )
    def start(self, segment_bytes: int, compact: bool, indexes: bool, compression: Compression) -> None:
        config = LogConfig(segment_bytes, compact=compact, indexes_subjects=indexes, compression=compression)
        self.open(config, 10_000_000)
        self.views: list[LogView] = []
        self.hidden = NONE

    @rule(subjects=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=8), copies=st.integers(1, 12))
    def append(self, subjects: list[str], copies: int) -> None:
        for _ in range(copies):
            names = [one.encode() for one in subjects]
            columns = Columns(names, names, [b"v" * 50] * len(names), None)
            place = {
                "base_offset": self.log.log_end,
                "timestamp_us": self.now_us,
                "leader_epoch": self.log.leader_epoch,
            }
            data = bytes(encoded(columns, **place))
            self.log.append(data, codec.read_header(data))
            self.rows += names

    @precondition(lambda self: self.task is None)
    @rule(subjects=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=8), copies=st.integers(5, 25))
    def go_on(self, subjects: list[str], copies: int) -> None:
        """Several segments more, all of which are cleaned."""
        self.append(subjects, copies)
        self.append(subjects[:1], copies)
        self.commit()
        clean_all(self.log, self.now_us)

    @precondition(lambda self: self.task is None)  # it may find its segment removed
    @rule(part=st.floats(0, 1))
    def raise_start(self, part: float) -> None:
        if (removal := give_up_before(self.log, round(self.log.committed_end * part))) is not None:
            removal.run()
            self.log.removed(removal)

    @rule(
        places=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=5),
        length=st.sampled_from([1, 1, 2, 9, 200]),
        is_secure=st.booleans(),
    )
    def hide(self, places: list[float], length: int, is_secure: bool) -> None:
        self.commit()
        for begin in (int(place * self.committed_end) for place in places):
            self.hidden |= RowSet.of_runs([(begin, min(begin + length, self.committed_end))])
        self.log.hide(self.hidden, self.hidden if is_secure else NONE)

    @rule(
        subject=st.sampled_from(SUBJECTS),
        patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3),
        after=st.sampled_from(["", *SUBJECTS]),
        limit=st.integers(1, 50),
        parts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
        subjects_max=st.sampled_from([1, 1_000]),
    )
    def query_live_rows(
        self,
        subject: str,
        patterns: list[str],
        after: str,
        limit: int,
        parts: tuple[float, float],
        subjects_max: int,
    ) -> None:
        view = self.log.view().hiding(self.hidden)
        length = view.log_end - view.log_start
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "LIVE_SUBJECTS_MAX", subjects_max)
            for end in {view.log_end, view.log_start + round(length * parts[0])}:
                check_live(view, end, subject, patterns, after, limit, view.log_start + round(length * parts[1]))

    @rule()
    def look(self) -> None:
        self.views = [*self.views[-2:], self.log.view()]

    @rule(
        subject=st.sampled_from(SUBJECTS),
        patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3),
        after=st.sampled_from(["", *SUBJECTS]),
        limit=st.integers(1, 50),
        parts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    )
    def query(self, subject: str, patterns: list[str], after: str, limit: int, parts: tuple[float, float]) -> None:
        view = self.log.view()
        length = view.log_end - view.log_start
        for end in {view.log_end, view.log_start + round(length * parts[0])}:
            offset = view.log_start + round(length * parts[1])
            check_lasts(view.hiding(self.hidden), end)
            check(view, end, subject, patterns, after, limit, offset)

    @precondition(lambda self: self.views)
    @rule(subject=st.sampled_from(SUBJECTS), patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3))
    def query_what_was(self, subject: str, patterns: list[str]) -> None:
        view = self.views[0]
        try:
            check(view, view.log_end, subject, patterns, "", 5, view.log_start)
        except (LogCutError, RemoteError):
            with pytest.raises((LogCutError, RemoteError)):  # it is gone for every reader
                rows_of(view, view.log_end)

    @rule(number=st.integers(0, 50), place=st.floats(0, 1), harm=st.sampled_from(["flip", "cut", "remove", "zeros"]))
    def harm(self, number: int, place: float, harm: str) -> None:
        """The disk harms an index: it is found before it is believed."""
        paths = [f"{DIRECTORY}/{name}" for name in self.vfs.list(DIRECTORY) if name.endswith(".subjects")]
        if not paths:
            return
        path = paths[number % len(paths)]
        harm_file(self.vfs, path, place, harm)
        view = self.log.view()
        queries, rows = SubjectQueries(view, view.log_end), rows_of(view, view.log_end)
        for row in table(rows):
            assert queries.of(row.subject) == row
        assert queries.count([">", "$JS.>"]) == len(rows)
        for _ in check_subject_indexes(view, 0, view.log_end):  # finds what no query read
            pass
        assert wrong_subject_indexes(view) <= {path}

    def teardown(self) -> None:
        self.vfs = MemoryVfs()


def harm_file(vfs: MemoryVfs, path: str, place: float, harm: str) -> None:
    """Flip a bit, cut the file, remove it, or fill some of it with zeros."""
    data: Any = bytearray(content(vfs, path))
    at = min(int(len(data) * place), len(data) - 1)
    if harm == "remove":
        vfs.remove(path)
    elif harm == "cut":
        vfs.open(path).truncate(at)
    else:
        length = 1 if harm == "flip" else 64
        data[at : at + length] = bytes([data[at] ^ 4]) if harm == "flip" else bytes(len(data[at : at + length]))
        write(vfs, path, 0, bytes(data))


TestIndexedLog = IndexedLog.TestCase
TestIndexedLog.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
