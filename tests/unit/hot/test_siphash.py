"""SipHash-2-4-128: known answers of its authors, and compiled as plain."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import hot_modes

MODES = [pytest.param(hot_modes.running, marks=hot_modes.needs_compiled), hot_modes.plain]
KEY = bytes(range(16))
VECTORS = [  # number of bytes 0, 1, 2, …, and their hash
    (0, "a3817f04ba25a8e66df67214c7550293"),
    (1, "da87c1d86b99af44347659119b22fc45"),
    (2, "8177228da4a45dc7fca38bdef60affe4"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("size", "expected"), VECTORS)
def test_known_answers(mode: Any, size: int, expected: str) -> None:
    assert mode("siphash").SipHash(KEY).digest(bytes(range(size))).hex() == expected


@hot_modes.needs_compiled
@given(st.binary(min_size=16, max_size=16), st.binary(max_size=300))
def test_compiled_as_plain(key: bytes, text: bytes) -> None:
    compiled, plain = (mode("siphash").SipHash(key).digest(text) for mode in (hot_modes.running, hot_modes.plain))
    assert compiled == plain


@pytest.mark.parametrize("mode", MODES)
def test_every_byte_the_size_and_the_key_count(mode: Any) -> None:
    texts = {b"a" * size for size in range(40)}
    texts |= {b"a" * at + b"b" + b"a" * (size - at - 1) for size in range(40) for at in range(size)}
    hashes = {mode("siphash").SipHash(key).digest(text) for key in (KEY, bytes(16)) for text in texts}
    assert len(hashes) == 2 * len(texts)


@pytest.mark.parametrize("mode", MODES)
def test_a_key_of_another_length_is_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match="a key of 15 bytes"):
        mode("siphash").SipHash(bytes(15))
