"""Keys in base64: both modes take the same ones, whatever a Python's own reader makes of too much padding."""

from __future__ import annotations

from itertools import product

from tests import hot_modes
from tests.fuzz.targets import TARGETS

TEXTS = [bytes(text) for size in range(1, 7) for text in product(b"A=/", repeat=size)]
TEXTS += [bytes(text) for text in product(b"A=", repeat=8)]


def message(text: bytes) -> bytes:
    block = b"NATS/1.0\r\nPenstock-Key-Base64: %b\r\n\r\n" % text
    return b"HMSG a.b 1 %d %d\r\n%bv\r\n" % (len(block), len(block) + 1, block)


@hot_modes.needs_compiled
def test_both_modes_take_the_same_keys() -> None:
    ingest = TARGETS["ingest"].run
    for begin in range(0, len(TEXTS), 100):
        data = b"\x80\x00" + b"".join(map(message, TEXTS[begin : begin + 100]))
        assert ingest(hot_modes.running, data) == ingest(hot_modes.plain, data)


def test_too_much_padding_is_refused() -> None:
    memory = hot_modes.plain("memory")
    for text in (b"12P8=", b"12P8==", b"12P8====", b"=", b"A===", b"AAA"):
        target = bytearray(b"before")
        assert not memory.append_base64(target, text, 0, len(text)), text
        assert target == b"before"
    target = bytearray()
    assert memory.append_base64(target, b"12P8", 0, 4)
    assert len(target) == 3
