"""Checksums of rows: the same however the rows are cut and packed, and others as soon as one row is another."""

from __future__ import annotations

from random import Random

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.config import Compression
from penstock.batch import codec
from penstock.commitlog.verify.checksums import RangeSum, RangeSums, rows_between
from tests.batch_samples import ROWS, Row, message_of

STEP = limits.VERIFY_RANGE_OFFSETS
BASES = st.integers(0, 3).map(lambda ranges: max(0, ranges * STEP - 5))
"""So that a range ends among the rows, or none does."""


def batch_of(rows: list[Row], base_offset: int, timestamp_us: int = 7) -> bytes:
    return bytes(message_of(rows, base_offset=base_offset, timestamp_us=timestamp_us))


def regrouped(rows: list[Row], base_offset: int, random: Random) -> list[pa.RecordBatch]:
    """The same rows, as another cleaner may have left them."""
    batches = []
    at = 0
    while at < len(rows):
        count = random.randint(1, len(rows) - at)
        data: codec.Buffer = batch_of(rows[at : at + count], base_offset + at)
        match random.choice(("plain", "lz4", "zstd", "thinned")):
            case "plain":
                batches.append(codec.check_rows(data))
            case "thinned":  # taken out of a larger batch, as compaction does it
                whole = codec.check_rows(batch_of(rows, base_offset))
                mask = pa.array([at <= number < at + count for number in range(len(rows))])
                batches.append(whole.filter(mask))
            case kind:
                data, _ = codec.compressed(data, Compression(kind))
                batches.append(codec.check_rows(data))
        at += count
    return batches


def sums(batches: list[pa.RecordBatch], begin: int = 0, end: int = limits.OFFSET_MAX) -> tuple[RangeSum, ...]:
    found = RangeSums(begin, end)
    for batch in batches:
        found.add(batch)
    return found.finish()


@given(ROWS, BASES, st.randoms(use_true_random=False))
def test_batches_and_compression_make_no_difference(rows: list[Row], base_offset: int, random: Random) -> None:
    wanted = sums([codec.check_rows(batch_of(rows, base_offset))])
    assert sum(one.rows for one in wanted) == len(rows)
    assert all(one.begin <= one.first_offset <= one.last_offset < one.end for one in wanted)
    assert all(one.end - one.begin == STEP and one.begin % STEP == 0 for one in wanted[1:-1])
    assert sums(regrouped(rows, base_offset, random)) == wanted


@given(ROWS, BASES, st.integers(0, 80), st.integers(0, 80), st.randoms(use_true_random=False))
def test_a_part_of_a_log_has_the_checksums_of_its_rows(
    rows: list[Row], base_offset: int, skipped: int, taken: int, random: Random
) -> None:
    begin, end = base_offset + skipped, base_offset + skipped + taken
    part = rows[skipped : skipped + taken]
    found = sums(regrouped(rows, base_offset, random), begin, end)
    assert sum(one.rows for one in found) == len(part)
    if part:
        alone = sums([codec.check_rows(batch_of(part, begin))], begin, end)
        assert found == alone


@given(ROWS, BASES, st.integers(1, 5), st.randoms(use_true_random=False))
def test_it_goes_on_elsewhere(rows: list[Row], base_offset: int, at_once: int, random: Random) -> None:
    """As with a broker that is asked slice by slice, and keeps nothing in between."""
    wanted = sums([codec.check_rows(batch_of(rows, base_offset))], base_offset)
    carried = None
    done: list[RangeSum] = []
    for at in range(0, len(rows), at_once):
        slice_ = RangeSums(base_offset, start=base_offset + at, carried=carried)
        seen = random.randrange(at + 1)  # a batch may have rows that were counted before
        for batch in regrouped(rows[seen : at + at_once], base_offset + seen, random):
            slice_.add(batch)
        slice_.settle()
        done += slice_.done
        carried = slice_.going_on
    assert carried is not None
    assert (*done, carried) == wanted


CHANGES = st.sampled_from(("subject", "key", "value", "headers", "null", "shift", "gone", "time"))


@given(ROWS, st.integers(0, 80), CHANGES, st.randoms(use_true_random=False))
def test_any_change_of_a_row_is_seen(rows: list[Row], place: int, change: str, random: Random) -> None:
    place %= len(rows)
    one = rows[place]
    others, base_offset, timestamp_us = list(rows), 100, 7
    match change:
        case "subject":
            others[place] = one._replace(subject=one.subject + b"x")
        case "key" | "value" | "headers":
            others[place] = one._replace(**{change: (getattr(one, change) or b"") + b"\0"})
        case "null":  # and what is empty is not null
            others[place] = one._replace(value=b"" if one.value is None else None)
        case "shift":
            base_offset += 1
        case "time":
            timestamp_us += 1
        case "gone":
            others.pop(place)
    before = sums([codec.check_rows(batch_of(rows, 100))])
    after = sums([codec.check_rows(batch_of(others, base_offset, timestamp_us))]) if others else ()
    assert before != after
    if change in {"subject", "key", "value", "headers"}:
        ((was,), (is_,)) = before, after
        assert sum(one != other for one, other in zip(was.crcs, is_.crcs, strict=True)) <= 2, "of one column"


def test_bytes_beneath_a_null_do_not_count() -> None:
    bounds = pa.py_buffer(b"".join(number.to_bytes(4, "little") for number in (0, 1, 3, 4)))
    validity = pa.py_buffer(bytes([0b101]))
    column = pa.Array.from_buffers(pa.binary(), 3, [validity, bounds, pa.py_buffer(b"a??b")])
    clean = codec.check_rows(batch_of([Row(b"s", None, value, None) for value in (b"a", None, b"b")], 0))
    dirty = clean.set_column(4, "value", column)
    assert dirty.equals(clean)
    assert sums([dirty]) == sums([clean])


@given(ROWS, st.integers(0, 80), st.integers(0, 80))
def test_rows_one_by_one(rows: list[Row], skipped: int, taken: int) -> None:
    batches = [codec.check_rows(batch_of(rows[:5], 10)), *(
        [codec.check_rows(batch_of(rows[5:], 15))] if rows[5:] else []
    )]  # fmt: skip
    found = list(rows_between(batches, 10 + skipped, 10 + skipped + taken))
    assert [one[0] for one in found] == list(range(10 + len(rows)))[10 + skipped : 10 + skipped + taken]
    assert [(one[2].encode(), *one[3:]) for one in found] == rows[skipped : skipped + taken]
    assert {one[1] for one in found} <= {7}
