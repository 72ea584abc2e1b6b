"""Compiled and plain checks of a message's metadata say the same, whatever the bytes are."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.config import Compression
from penstock.batch import codec, layout
from tests import hot_modes
from tests.batch_samples import ROWS, message_of, sealed

pytestmark = hot_modes.needs_compiled

NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 4, 7, 8, 2**31 - 1, 2**32, 2**63 - 1]) | st.integers(0, 300)
DIGITS = st.text("0123456789abcdefABCDEFgZ /:@`", min_size=1, max_size=20).map(str.encode)


@st.composite
def nearly_messages(draw: st.DrawFn) -> bytes:
    """A message in which some things are wrong, mostly under a checksum that fits."""
    message = message_of(draw(ROWS) * draw(st.sampled_from([1, 1, 30])))
    if (wished := draw(st.sampled_from(Compression))) is not Compression.NONE:
        message = bytearray(codec.compressed(message, wished)[0])
    for _ in range(draw(st.integers(0, 3))):
        match draw(st.sampled_from(["number", "digits", "bytes", "cut"])):
            case "number":
                positions = [layout.BODY_LENGTH_POSITION, layout.ROWS_POSITION, *range(layout.NODES_POSITION, 456, 8)]
                position = draw(st.sampled_from([*positions, *range(layout.BUFFERS_POSITION, 720, 8)]))
                layout.INT64.pack_into(message, position, draw(NUMBERS))
            case "digits":
                digits = draw(DIGITS)
                position = draw(st.integers(88, 280 - len(digits)))
                message[position : position + len(digits)] = digits
            case "bytes":
                position = draw(st.integers(0, 719) | st.sampled_from([91, 310, 348, 349]))
                message[position] = draw(st.integers(0, 255))
            case "cut":
                return bytes(message[: draw(st.integers(0, len(message)))])
    return bytes(sealed(message) if draw(st.booleans()) else message)


def checker(module: ModuleType) -> Any:
    return module.MessageChecker(module.MessageLayout(*codec.LAYOUT))


@given(nearly_messages() | st.binary(max_size=800) | st.binary(max_size=700).map(lambda end: layout.TEMPLATE + end))
def test_both_find_the_same(data: bytes) -> None:
    plain = checker(hot_modes.plain("message"))
    running = checker(hot_modes.running("message"))
    for kind in (bytes, bytearray, memoryview):
        assert hot_modes.outcome(running.header, kind(data)) == hot_modes.outcome(plain.header, kind(data))
        assert hot_modes.outcome(running.message, kind(data)) == hot_modes.outcome(plain.message, kind(data))
