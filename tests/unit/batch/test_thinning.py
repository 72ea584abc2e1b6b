"""Messages lose rows, and still cover what they covered, one behind the other."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.batch import codec
from penstock.batch.codec import NOBODY, BatchProducer
from penstock.batch.thinning import SealedMessage, Thinner
from tests.groups import Columns, encoded


class Part(NamedTuple):
    """One message to be thinned: which of its rows stay, and what tells it from others."""

    keep: list[bool]
    next_epoch: bool = False
    is_producers: bool = False


PARTS = st.lists(
    st.builds(
        Part,
        st.lists(st.booleans(), min_size=1, max_size=4) | st.lists(st.just(False), min_size=1, max_size=3),
        st.sampled_from([False, False, True]),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=12,
)


def thinned(parts: list[Part], rows_max: int, bytes_max: int) -> tuple[list[SealedMessage], list[bytes]]:
    thinner = Thinner(rows_max, bytes_max)
    done: list[SealedMessage] = []
    offset, epoch = 100, 1
    for number, (keep, next_epoch, is_producers) in enumerate(parts):
        epoch += next_epoch
        keys = [b"%d" % (offset + row) for row in range(len(keep))]
        numbers = {"base_offset": offset, "timestamp_us": 10 * number, "leader_epoch": epoch}
        data = encoded(Columns([b"s"] * len(keep), keys, keys, None), **numbers)
        header = codec.renumber(
            data, **numbers, flags=1, producer=BatchProducer(7, 2, offset) if is_producers else NOBODY
        )
        done += thinner.add(bytes(data), header, pa.array(keep))
        offset = header.end_offset
    return done + thinner.end(), thinner.forced_keys


@given(PARTS, st.sampled_from([1, 3, 100]), st.sampled_from([1_000, 2_000, 100_000]))
def test_what_is_left_covers_all(parts: list[Part], rows_max: int, bytes_max: int) -> None:
    messages, forced = thinned(parts, rows_max, bytes_max)
    headers = [header for _, header in messages]
    size = sum(len(part.keep) for part in parts)
    assert (headers[0].base_offset, headers[-1].end_offset) == (100, 100 + size)
    assert all(one.end_offset == other.base_offset for one, other in pairwise(headers))
    epoch, offset = 1, 100
    told: dict[int, tuple[int, int, bool]] = {}  # of each offset its epoch, its time, and whether it is a producer's
    keep: set[int] = set()
    for number, part in enumerate(parts):
        epoch += part.next_epoch
        told |= {offset + row: (epoch, 10 * number, part.is_producers) for row in range(len(part.keep))}
        keep |= {offset + row for row, stays in enumerate(part.keep) if stays}
        offset += len(part.keep)
    found: set[int] = set()
    for data, header in messages:
        assert codec.verify(data) == header
        rows = codec.check_rows(data)
        offsets = rows.column("offset").to_pylist()
        assert [b"%d" % one for one in offsets] == rows.column("key").to_pylist() == rows.column("value").to_pylist()
        assert [(header.leader_epoch, time, bool(header.producer_id)) for time in codec.timestamps(data)] == [
            told[one] for one in offsets
        ]
        assert {told[one][0] for one in range(header.base_offset, header.end_offset)} == {header.leader_epoch}
        assert header.flags == 1
        if header.producer_id:
            assert (header.producer_id, header.producer_epoch, header.producer_sequence) == (7, 2, header.base_offset)
        found.update(offsets)
    assert found == keep | {int(key) for key in forced}
    assert not keep & {int(key) for key in forced}


def test_a_run_without_rows_keeps_its_last() -> None:
    gone = [False] * 3
    messages, forced = thinned([Part(gone), Part(gone), Part([True], next_epoch=True), Part(gone)], 100, 10_000)
    assert [(one.base_offset, one.end_offset, one.count) for _, one in messages] == [(100, 106, 1), (106, 110, 1)]
    assert forced == [b"105"]


def test_empty_offsets_before_the_first_row_are_covered_by_it() -> None:
    gone = [False] * 3
    messages, forced = thinned([Part(gone), Part(gone), Part([False, True, False]), Part(gone)], 1, 1)
    assert [(one.base_offset, one.end_offset, one.count) for _, one in messages] == [(100, 112, 1)]
    assert forced == []


def test_what_is_small_is_merged() -> None:
    messages, _ = thinned([Part([True, False]) for _ in range(10)], 4, 10_000)
    assert [one.count for _, one in messages] == [4, 4, 2]
    messages, _ = thinned([Part([True, False]) for _ in range(10)], 4, 1)
    assert [one.count for _, one in messages] == [1] * 10
