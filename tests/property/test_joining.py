"""Small messages joined are what Arrow reads of each of them, behind each other; what is not sound is never joined."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import CorruptionError
from penstock.batch import codec, joining
from penstock.batch.schema import arrow_schema
from penstock.client.read.batches import OffsetRange, batches_of
from tests import hot_modes
from tests.batch_samples import MIXED, ROWS, SMALL, Row, message_of, resealed, with_buffer
from tests.extent import each_change, examples

EVERYTHING = (0, 2**63 - 1)
BYTES_MAX = 10**9
LOGS = st.lists(ROWS, min_size=1, max_size=8)


def joiner(mode: str):
    """A Joiner of the running modules, or of the plain ones."""
    of = getattr(hot_modes, mode)
    return of("join").Joiner(codec.LAYOUT, of("message").MessageChecker(codec.LAYOUT))


JOINERS = [joiner("running"), joiner("plain")]


def log_of(batches: Sequence[Sequence[Row]], base_offset: int = 0) -> tuple[bytes, list[int]]:
    """Messages behind each other, and the offset at which each ends."""
    out, ends = b"", []
    for number, rows in enumerate(batches):
        out += message_of(rows, base_offset=base_offset, timestamp_us=number)
        base_offset += len(rows)
        ends.append(base_offset)
    return out, ends


def read(message: memoryview) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(message), arrow_schema())


def begins_of(raw: bytes) -> list[int]:
    begins, position = [], 0
    while position < len(raw):
        begins.append(position)
        position += codec.read_header(memoryview(raw)[position:]).size_bytes
    return begins


@given(LOGS, st.integers(0, 2**40))
def test_joined_rows_are_those_of_the_messages(batches: list[list[Row]], base_offset: int) -> None:
    raw, ends = log_of(batches, base_offset)
    view = memoryview(raw)
    begins = begins_of(raw)
    wanted = pa.concat_batches([read(view[begin:]) for begin in begins])
    outcomes = []
    for one in JOINERS:
        found = one.gather(view, 0, base_offset, EVERYTHING, 10**6, BYTES_MAX, BYTES_MAX)
        assert tuple(found) == (begins, len(wanted), len(raw), ends[-1], 0, 0, len(batches) - 1)
        outcomes.append(tuple(one.join(view, found)[:2]))
        assert one.last(view) == begins[-1]
    assert outcomes[0] == outcomes[1]
    found = joining.gather(view, 0, base_offset, EVERYTHING, 10**6)
    joined = joining.join(view, found)
    assert joined.equals(wanted)
    assert joined.schema.equals(wanted.schema)


@given(LOGS, st.data())
def test_gathering_ends_where_a_limit_is(batches: list[list[Row]], data: st.DataObject) -> None:
    raw, ends = log_of(batches)
    view = memoryview(raw)
    begins = [*begins_of(raw), len(raw)]
    sizes = [end - begin for begin, end in pairwise(begins)]
    first = data.draw(st.integers(0, 1))
    stop = data.draw(st.integers(0, ends[-1] + 1))
    rows_max = data.draw(st.integers(0, ends[-1] + 1))
    bytes_max = data.draw(st.integers(0, len(raw) + 1))
    largest = data.draw(st.integers(0, max(sizes) + 1))
    count = 0
    while (
        count < len(batches)
        and first <= 0
        and ends[count] <= min(stop, rows_max)
        and begins[count + 1] <= bytes_max
        and sizes[count] <= largest
    ):
        count += 1
    for one in JOINERS:
        found = one.gather(view, 0, 0, (first, stop), rows_max, bytes_max, largest)
        assert found.begins == begins[:count]
        assert (found.rows, found.end_offset) == ((ends[count - 1],) * 2 if count else (0, 0))
        assert found.end == begins[count]


@each_change
@given(LOGS, st.data())
@settings(max_examples=examples(200))
def test_no_damaged_message_is_gathered(batches: list[list[Row]], data: st.DataObject) -> None:
    raw, ends = log_of(batches)
    place = data.draw(st.integers(0, len(raw) - 1))
    damaged = bytearray(raw)
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    number = sum(begin <= place for begin in begins_of(raw)) - 1
    for one in JOINERS:
        found = one.gather(memoryview(damaged), 0, 0, EVERYTHING, 10**6, BYTES_MAX, BYTES_MAX)
        assert len(found.begins) == number
    rows: list[int] = []
    covers = OffsetRange(0, ends[-1])
    found = batches_of(bytes(damaged), covers, covers, 10**6, source="x")
    with pytest.raises(CorruptionError):
        rows.extend(offset for batch in found for offset in batch.column("offset").to_pylist())
    assert rows == list(range(ends[number - 1] if number else 0))  # all that was before the damage


HOSTILE = st.lists(st.binary(max_size=400) | st.sampled_from([b"%08x" % size * 200 for size in (0, 736, 800, 2**31)]))


@given(HOSTILE.map(b"".join), st.integers(-10, 3_010), st.integers(0, 2**63 - 1))
def test_whatever_bytes_come_both_modes_do_the_same(raw: bytes, position: int, base_offset: int) -> None:
    outcomes = []
    for one in JOINERS:
        begin = min(max(position, 0), len(raw))
        found = one.gather(memoryview(raw), begin, base_offset, EVERYTHING, 10**6, BYTES_MAX, BYTES_MAX)
        assert tuple(found) == ([], 0, begin, base_offset, 0, 0, 0)
        outcomes.append(one.last(memoryview(raw)))
        assert 0 <= outcomes[-1] <= len(raw)
    assert outcomes[0] == outcomes[1]


def test_a_message_in_the_wrong_place_ends_the_gathering() -> None:
    raw = bytes(message_of(SMALL) + message_of(SMALL, base_offset=2))
    found = joining.gather(memoryview(raw), 0, 0, EVERYTHING, 100)
    assert (found.rows, found.end_offset) == (1, 1)
    with pytest.raises(CorruptionError, match=r"from offset 1.*from 2"):
        list(batches_of(raw, OffsetRange(0, 3), OffsetRange(0, 3), 100, source="x"))


@pytest.mark.parametrize(
    ("buffer", "position", "content"),
    [
        (11, 0, b"\x01\x00\x00\x00"),  # value offsets that begin behind 0
        (11, 16, b"\x01\x00\x00\x00"),  # that end before the values
        (11, 16, b"\xff\xff\xff\x7f"),  # and far behind them
        (11, 4, b"\xff\xff\xff\x7f"),  # that lead out of the values and back
        (11, 4, b"\xff\xff\xff\xff"),
        (6, 0, b"\xff"),  # a subject that is no UTF-8
        (7, 0, b"\x00"),  # more nulls than were counted
    ],
)
def test_rows_that_no_writer_makes_are_corruption_in_whatever_message(
    buffer: int, position: int, content: bytes
) -> None:
    good = bytes(message_of(MIXED))
    bad = bytes(with_buffer(message_of(MIXED, base_offset=4), buffer, position, content))
    raw = good + bad + bytes(message_of(MIXED, base_offset=8))
    with pytest.raises(CorruptionError):
        list(batches_of(raw, OffsetRange(0, 12), OffsetRange(0, 12), 100, source="x"))


def test_a_large_message_lies_where_it_lay_and_parts_small_ones() -> None:
    large = [Row(b"a", None, bytes(joining.SMALL_MESSAGE_BYTES), None)]
    raw, ends = log_of([SMALL, SMALL, large, MIXED, SMALL])
    view = memoryview(raw)
    found = list(batches_of(view, OffsetRange(0, ends[-1]), OffsetRange(0, ends[-1]), 100, source="x"))
    assert [batch.column("offset").to_pylist() for batch in found] == [[0, 1], [2], [3, 4, 5, 6, 7]]
    here = pa.py_buffer(view)
    values = found[1].column("value").buffers()[2]
    assert here.address <= values.address < here.address + here.size


def test_a_batch_with_more_rows_than_wanted_is_handed_out_in_parts() -> None:
    raw, ends = log_of([MIXED, SMALL, SMALL, MIXED])
    found = list(batches_of(raw, OffsetRange(0, ends[-1]), OffsetRange(1, 9), 3, source="x"))
    assert [batch.column("offset").to_pylist() for batch in found] == [[1, 2, 3], [4, 5], [6, 7, 8]]


@pytest.mark.parametrize("buffer", [1, 3])
def test_joined_rows_that_are_not_in_order_are_refused(buffer: int) -> None:
    raw, ends = log_of([SMALL, SMALL, SMALL])
    begins = begins_of(raw)
    wrong = raw[: begins[1]] + with_buffer(raw[begins[1] : begins[2]], buffer, 0, bytes(7) + b"\x80") + raw[begins[2] :]
    covers = OffsetRange(0, ends[-1])
    with pytest.raises(CorruptionError, match="offsets in order" if buffer == 1 else "timestamps in order"):
        list(batches_of(wrong, covers, covers, 1_000, source="a broker"))


def test_rows_of_a_message_that_stand_in_another_ones_place_are_refused() -> None:
    """Also where all headers together would allow them: else it would depend on how the log was fetched."""
    raw, _ = log_of([SMALL, MIXED])
    first = with_buffer(raw[: begins_of(raw)[1]], 1, 0, (2).to_bytes(8, "little"))
    wrong = first + raw[len(first) :]
    for one in JOINERS:
        assert one.gather(memoryview(wrong), 0, 0, EVERYTHING, 10**6, BYTES_MAX, BYTES_MAX).begins == []
    covers = OffsetRange(0, 1 + len(MIXED))
    with pytest.raises(CorruptionError, match="offsets in order from 0, all below 1"):
        list(batches_of(wrong, covers, covers, 1_000, source="a broker"))


@given(st.lists(st.tuples(ROWS, st.integers(1, 3), st.sampled_from([0, 1]), st.booleans()), min_size=1, max_size=8))
def test_what_is_merged_for_good_is_alike(batches: list[tuple[list[Row], int, int, bool]]) -> None:
    raw, offset, alike = b"", 7, True
    begins, ends, flags = [], [7], 0
    epoch = batches[0][1]
    for number, (rows, leader_epoch, flag, is_produced) in enumerate(batches):
        alike = alike and leader_epoch == epoch and not is_produced
        if alike:
            begins.append(len(raw))
            ends.append(offset + len(rows))
            flags |= flag
        message = message_of(rows, base_offset=offset, timestamp_us=number)
        raw += resealed(message, leader_epoch=leader_epoch, flags=flag, producer_id=int(is_produced))
        offset += len(rows)
    view = memoryview(raw)
    for one in JOINERS:
        found = one.gather(view, 0, 7, EVERYTHING, 10**6, BYTES_MAX, BYTES_MAX, epoch, 1)
        assert (found.begins, found.end_offset, found.flags) == (begins, ends[-1], flags)
        assert found.max_timestamp_us == max(0, len(begins) - 1)
        if flags:
            assert one.gather(view, 0, 7, EVERYTHING, 10**6, BYTES_MAX, BYTES_MAX, epoch, 0).flags == 0
