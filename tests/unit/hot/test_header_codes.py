"""Codes of headers: the same compiled and plain, of any bytes, and none is read beyond them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import hot_modes

NAMES = (b"Kind", b"Kinder")
KNOWN = ({b"a": 1, b"": 2}, {b"x y": 16})
OTHERS = (8, 64)
PIECES = st.sampled_from(
    [
        b"NATS/1.0",
        b"\r\n",
        b"\r",
        b"\n",
        b"Kind",
        b"Kinder",
        b":",
        b" ",
        b"\t",
        b"a",
        b"x y",
        b"kind",
        b"\0",
        b"\r\n\r\n",
    ]
)
BLOCKS = st.lists(PIECES, max_size=16).map(b"".join)


def codes_of(module: ModuleType, blocks: pa.Array) -> list[int]:
    made = module.HeaderCodes(NAMES, KNOWN, lambda place, value: OTHERS[place])
    validity, offsets, data = blocks.buffers()
    found: Any = made.read(
        None if validity is None else memoryview(validity),
        memoryview(offsets),
        memoryview(b"") if data is None else memoryview(data),
        blocks.offset,
        len(blocks),
    )
    return memoryview(found).cast("i").tolist()


@pytest.mark.parametrize("load", [hot_modes.running, hot_modes.plain])
def test_names_match_exactly_and_the_first_counts(load: Any) -> None:
    blocks = [
        b"NATS/1.0\r\nKind:a\r\nKinder: \t x y \t\r\n\r\n",
        b"NATS/1.0\r\nKind: other\r\nKind: a\r\n\r\n",
        b"NATS/1.0\r\nkind: a\r\nKind : a\r\nKinds: a\r\n\r\n",
        b"NATS/1.0\r\nX: Kind: a\r\nKind:\r\n\r\nKinder: x y\r\n",
        b"NATS/1.0\r\nKinder: z\r\nKind: a",
        b"Kind: a\r\n\r\n",
        None,
        b"",
    ]
    array = pa.array(blocks, pa.binary())
    expected = [17, 8, 0, 2, 65, 0, 0, 0]
    assert codes_of(load("header_codes"), array) == expected
    assert codes_of(load("header_codes"), array[3:6]) == expected[3:6]
    assert codes_of(load("header_codes"), array[:0]) == []


@hot_modes.needs_compiled
@given(st.lists(st.none() | BLOCKS | st.binary(max_size=40), max_size=5), st.integers(0, 3))
def test_both_read_the_same(blocks: list[bytes | None], skipped: int) -> None:
    array = pa.array(blocks, pa.binary())[skipped:]
    assert codes_of(hot_modes.running("header_codes"), array) == codes_of(hot_modes.plain("header_codes"), array)


@pytest.mark.parametrize("load", [hot_modes.running, hot_modes.plain])
def test_offsets_beyond_the_data_and_wrong_calls_are_errors(load: Any) -> None:
    module = load("header_codes")
    made = module.HeaderCodes(NAMES, KNOWN, lambda place, value: 0)
    for offsets in ((0, 9), (-4, 0), (4, 0)):
        view = memoryview(b"".join(each.to_bytes(4, "little", signed=True) for each in offsets))
        with pytest.raises(ValueError, match="of 4 bytes"):
            made.read(None, view, memoryview(b"Kind"), 0, 1)
    with pytest.raises(IndexError):
        made.read(None, memoryview(bytes(4)), memoryview(b""), 0, 1)
    with pytest.raises(ValueError, match="validity"):
        made.read(memoryview(b""), memoryview(bytes(8)), memoryview(b""), 0, 1)
    for names, known in ((NAMES, KNOWN[:1]), ((), ()), ((b"a",) * 17, ({},) * 17)):
        with pytest.raises(ValueError, match="names of headers"):
            module.HeaderCodes(names, known, None)
    with pytest.raises((TypeError, AttributeError)):
        module.HeaderCodes((b"Kind",), (None,), None).read(
            None, memoryview(b"\0\0\0\0\x0f\0\0\0"), memoryview(b"NATS/1.0\r\nKind:"), 0, 1
        )
