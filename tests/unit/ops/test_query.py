"""Which conditions of a filter narrow what is fetched: never more than the filter passes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ops.query import _Bounds, _conditions, _distinct, _narrowed, headers_maps

OFFSET, SUBJECT, TIME, PARTITION, OTHER = map(pc.field, ("offset", "subject", "timestamp", "partition", "x"))
AT = datetime(2026, 11, 28, 10, 0, 0, 5, UTC)
US = timedelta(microseconds=1)
NOTHING = _Bounds()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (OFFSET == 7, NOTHING._replace(offset=7, offset_end=8)),
        ((OFFSET >= 5) & (OFFSET < 10) & (OTHER == "b"), NOTHING._replace(offset=5, offset_end=10)),
        ((OFFSET > 5) & ((OFFSET <= 10) & (OFFSET > 3)), NOTHING._replace(offset=6, offset_end=11)),
        ((OFFSET > 5) | (OFFSET < 3), NOTHING),
        (((OFFSET > 5) | (OTHER == 1)) & (PARTITION == 2), NOTHING._replace(partition=2)),
        (~(OFFSET > 5), NOTHING),
        (OFFSET.isin([3, 4]), NOTHING),
        (OFFSET.isin([3, 4]) & (OFFSET > 3), NOTHING._replace(offset=4)),
        (SUBJECT.isin(['x")) and (offset >= 5) and (("y', 'é"q']), NOTHING),
        ((pc.field("s", "a and offset >= 5 and b") == 3) & (OFFSET < 3), NOTHING),
        (PARTITION > 1, NOTHING),
        (OFFSET == -1, NOTHING),
        ((TIME >= AT) & (TIME < AT + US), NOTHING._replace(time=AT, time_end=AT + US)),
        ((TIME > AT) & (TIME <= AT), NOTHING._replace(time=AT, time_end=AT + US)),
        (SUBJECT == "orders.eu", NOTHING._replace(subject="orders.eu")),
        (SUBJECT != "orders.eu", NOTHING),
        (SUBJECT == "no subject", NOTHING),
        (SUBJECT == "o.a\\b", NOTHING),  # pyarrow's text has escapes
        (SUBJECT == 'o.a"b', NOTHING),
        (SUBJECT == "orders.*", NOTHING),
        ((SUBJECT == 'x") and (offset > 5') & (OFFSET < 3), NOTHING._replace(offset_end=3)),
        ((OTHER == "a) and (offset == 1) and (b") & (OFFSET < 3), NOTHING._replace(offset_end=3)),
        ((OTHER == "a\\") & (SUBJECT == "b"), NOTHING._replace(subject="b")),
    ],
)
def test_only_what_holds_for_all_rows_narrows(where, expected) -> None:
    assert _narrowed(_conditions(str(where))) == expected


TEXTS = st.lists(
    st.sampled_from(
        ['"', "\\", " and ", " or ", "(", ")", "{", "}", "[", "]", "offset >= 5", 'subject == "a"', "x", "\n"]
    ),
    max_size=8,
).map("".join)
SIMPLE = st.one_of(
    st.builds(lambda text: text == SUBJECT, TEXTS),
    st.builds(lambda text: text == OTHER, TEXTS),
    st.builds(lambda texts: OTHER.isin(texts), st.lists(TEXTS, min_size=1, max_size=3)),
    st.builds(lambda numbers: OFFSET.isin(numbers), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
    st.builds(lambda number: number <= OFFSET, st.integers(0, 9)),
    st.builds(lambda number: number > OFFSET, st.integers(0, 9)),
    st.integers(0, 1).map(PARTITION.__eq__),
)
WHERE = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.builds(lambda one, other: one & other, inner, inner),
        st.builds(lambda one, other: one | other, inner, inner),
        st.builds(lambda one: ~one, inner),
    ),
    max_leaves=6,
)


@given(WHERE, st.lists(TEXTS, min_size=1, max_size=4))
def test_a_row_that_passes_a_filter_is_within_its_bounds(where, texts) -> None:
    subjects = [*texts, "a"]
    rows = pa.table(
        {
            "offset": pa.array(range(10), pa.int64()),
            "partition": pa.array([number % 2 for number in range(10)], pa.int32()),
            "subject": [subjects[number % len(subjects)] for number in range(10)],
            "x": [texts[number % len(texts)] for number in range(10)],
        }
    )
    bounds = _narrowed(_conditions(str(where)))
    for row in rows.filter(where).to_pylist():
        assert bounds.offset <= row["offset"] < bounds.offset_end
        assert bounds.has_partition(row["partition"])
        assert bounds.subject in (None, row["subject"])


def test_repeated_names_get_a_suffix() -> None:
    assert _distinct(["a", "a", "a_1", "A"]) == ["a", "a_2", "a_1", "A"]
    assert _distinct(["id", "ID", "Id"], by_case=False) == ["id", "ID_1", "Id_2"]


def test_headers_become_maps_of_lists() -> None:
    blocks = pa.array([b"NATS/1.0\r\nColour: red\r\nColour: blue\r\nSize: \xff\r\n\r\n", None], pa.binary())
    assert headers_maps(blocks).to_pylist() == [
        [("Colour", ["red", "blue"]), ("Size", ["\N{REPLACEMENT CHARACTER}"])],
        None,
    ]
    assert headers_maps(blocks.slice(1)).to_pylist() == [None]
