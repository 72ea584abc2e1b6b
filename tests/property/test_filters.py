"""Filters over whole batches, against what each message says of itself."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.base.subjects import matches
from penstock.batch import codec
from penstock.client.read.batches import messages_of
from penstock.client.read.filters import Filter
from tests.groups import Columns, encoded

NAMES = ("A", "AB", "a", "X-Y")
VALUES = ("", "1", "12", "v w", "(.*)", "ü", "a:b")
LINES = st.one_of(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES), st.sampled_from(("", " ", "\t "))).map(
        lambda one: f"{one[0]}:{one[2]}{one[1]}{one[2]}".encode()
    ),
    st.sampled_from((b"A", b":1", b"", b"\xff: \xfe", b"A: \xff", b" A: 1", b"A : 1", b"A: 1\n", b"NATS/1.0")),
)
BLOCKS = st.none() | st.lists(LINES, max_size=4).map(lambda lines: b"\r\n".join((b"NATS/1.0", *lines))).flatmap(
    lambda block: st.sampled_from((block, block + b"\r\n\r\n", block[8:]))
)
KEYS = st.sampled_from((None, b"", b"k", b"k1", b"\xff"))
SUBJECTS = st.sampled_from(("o.a", "o.b", "o.a.c"))
ROWS = st.lists(st.tuples(SUBJECTS, KEYS, BLOCKS), min_size=1, max_size=8)


def batch_of(rows: list[tuple[str, bytes | None, bytes | None]]) -> pa.RecordBatch:
    subjects, keys, blocks = zip(*rows, strict=True)
    columns = Columns([one.encode() for one in subjects], list(keys), [b"v"] * len(rows), list(blocks))
    return codec.check_rows(bytes(encoded(columns)))


@given(
    ROWS,
    KEYS,
    st.none() | st.sampled_from(("o.a", "o.*", "o.>")),
    st.dictionaries(st.sampled_from(NAMES), st.none() | st.sampled_from(VALUES), max_size=2),
)
@example([("o.a", None, b"NATS/1.0\r\nA: 1")], None, None, {"A": "1"})
@example([("o.a", None, b"A: 1\r\n\r\n")], None, None, {"A": None})
def test_what_is_wanted_is_what_a_message_says(
    rows: list[tuple[str, bytes | None, bytes | None]],
    key: bytes | None,
    subject: str | None,
    headers: dict[str, str | None],
) -> None:
    batch = batch_of(rows)
    wanted = [
        message
        for message in messages_of(batch)
        if (key is None or message.key == key)
        and (subject is None or matches(subject, message.subject))
        and all(
            name in message.headers if value is None else value in message.headers.get_all(name)
            for name, value in headers.items()
        )
    ]
    found = Filter(key=key, subject=subject, headers=headers).rows(batch)
    assert list(messages_of(found)) == wanted


def test_what_no_message_can_have_is_refused() -> None:
    for wrong in ({"headers": {"a b": None}}, {"headers": {"A": " x"}}, {"headers": {"": "x"}}, {"subject": "a..b"}):
        with pytest.raises(ValueError, match=r"header|subject"):
            Filter(**wrong)  # type: ignore[arg-type]
    assert Filter().rows(batch_of([("o.a", None, None)])).num_rows == 1
