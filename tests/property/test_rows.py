"""The look at every row: the same compiled and plain, and the same as Arrow and `base.subjects` say of each row."""

from __future__ import annotations

import struct

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.subjects import matches, subject_mistake
from penstock.batch import codec, layout
from penstock.batch.schema import arrow_schema
from penstock.hot.rows import BatchRows
from tests import hot_modes
from tests.batch_samples import ROWS, Row, message_of

TOKENS = st.sampled_from(
    [b"a", b"b", b"*", b">", b"", b"$JS", b"_INBOX", "größe".encode(), b"a*", b"\xc3", b" ", b"\x7f"]
)
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)
PATTERNS = st.sampled_from(["a", "a.b", "*", ">", "*.b", "a.>", "a.*", "*.*", "$JS.>", "größe.*", "a.*.b", "a*"])
NUMBERS = st.sampled_from([-(2**31), -1, 0, 1, 2, 2**24, 2**31 - 1]) | st.integers(0, 60)


@st.composite
def hostile_messages(draw: st.DrawFn) -> bytes:
    """What `verify` would pass, were its checksum right; the body and the null counts say anything."""
    rows = draw(ROWS | st.lists(SUBJECTS.map(lambda text: Row(text, text, None, b"x")), min_size=1, max_size=20))
    message = message_of(rows)
    for _ in range(draw(st.integers(0, 2))):
        match draw(st.sampled_from(["end", "byte", "nulls"])):
            case "end":
                number = draw(st.sampled_from([5, 8, 11, 14]))
                begin, size = layout.BUFFERS.unpack_from(message, layout.BUFFERS_POSITION)[2 * number :][:2]
                place = layout.BODY_POSITION + begin + 4 * draw(st.integers(0, size // 4 - 1))
                struct.pack_into("<i", message, place, draw(NUMBERS))
            case "byte":
                place = draw(st.integers(layout.BODY_POSITION, len(message) - 1))
                message[place] = draw(st.integers(0, 255))
            case "nulls":
                node = draw(st.sampled_from([7, 9, 11]))
                (nulls,) = layout.INT64.unpack_from(message, layout.NODES_POSITION + 8 * node)
                if nulls:  # a column without nulls has no bits
                    count = layout.INT64.unpack_from(message, layout.ROWS_POSITION)[0]
                    layout.INT64.pack_into(message, layout.NODES_POSITION + 8 * node, draw(st.integers(1, count)))
    return bytes(message)


def arrow_finds_it_sound(message: bytes) -> bool:
    nodes = layout.NODES.unpack_from(message, layout.NODES_POSITION)
    count = nodes[0]
    parts = codec.buffers(message)
    for column in range(4):
        validity, ends, values = parts[4 + 3 * column : 7 + 3 * column]
        kind = arrow_schema().field(2 + column).type
        own = [pa.py_buffer(validity) if len(validity) else None, pa.py_buffer(ends), pa.py_buffer(values)]
        try:
            array = pa.Array.from_buffers(kind, count, own, null_count=nodes[2 * (2 + column) + 1])
            array.validate(full=True)
        except pa.ArrowException:
            return False
        numbers = ends.cast("B").cast("i")
        if (numbers[0], numbers[-1]) != (0, len(values)):
            return False
    return True


@given(hostile_messages())
def test_what_arrow_finds_sound_is_sound(message: bytes) -> None:
    assert (BatchRows(message, codec.LAYOUT).mistake() is None) == arrow_finds_it_sound(message)


@given(st.lists(SUBJECTS, min_size=1, max_size=8), PATTERNS)
def test_the_first_subject_that_is_refused_is_the_one_that_the_rules_refuse(
    subjects: list[bytes], pattern: str
) -> None:
    def is_refused(subject: bytes) -> bool:
        try:
            text = subject.decode()
        except UnicodeDecodeError:
            return True
        return subject_mistake(text) is not None or not matches(pattern, text)

    message = message_of([Row(subject, None, b"", None) for subject in subjects])
    expected = next(filter(is_refused, subjects), None)
    assert BatchRows(message, codec.LAYOUT).refused_subject(pattern.encode()) == expected


@given(ROWS, st.integers(0, 40))
def test_the_widest_is_the_widest_or_within_the_limit(rows: list[Row], limit: int) -> None:
    found = BatchRows(message_of(rows), codec.LAYOUT)
    messages = [len(row.value or b"") + len(row.headers or b"") for row in rows]
    keys = [len(row.key or b"") for row in rows]
    headers = [len(row.headers or b"") for row in rows]
    for widest, sizes in ((found.widest_message, messages), (found.widest_key, keys), (found.widest_headers, headers)):
        assert widest(limit) == (sum(sizes) if sum(sizes) <= limit else max(sizes))


@hot_modes.needs_compiled
@given(hostile_messages(), PATTERNS, st.integers(0, 40))
def test_both_modes_find_the_same(message: bytes, pattern: str, limit: int) -> None:
    outcomes = []
    for module in (hot_modes.running("rows"), hot_modes.plain("rows")):
        rows = module.BatchRows(message, codec.LAYOUT)
        found = [hot_modes.outcome(rows.mistake)]
        if found[0][1] is None:
            found += [hot_modes.outcome(rows.refused_subject, pattern.encode())]
            measures = (rows.widest_message, rows.widest_key, rows.widest_headers)
            found += [hot_modes.outcome(measure, limit) for measure in measures]
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]
