"""SipHash-2-4 with 128 bits of output: without its key no collision can be found.

Rules: for tables in memory whose entries are told apart by their hash alone; the key is random and never leaves the
process. Hashes that are stored, or that two processes must agree about, are another function (see `keyhash`).

Theory: with a secret key the output is as good as random, so that some of n texts collide with a chance of n² / 2¹²⁹:
10⁻²⁷ for a million. XXH64 would not do: there are pairs of texts that collide under every second seed.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.hot import load

_int = int

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_INIT_0 = 0x736F_6D65_7073_6575
_INIT_1 = 0x646F_7261_6E64_6F6D
_INIT_2 = 0x6C79_6765_6E65_7261
_INIT_3 = 0x7465_6462_7974_6573
_LONG = 0xEE
_LONG_AGAIN = 0xDD
_BYTES = 16


class SipHash:
    """The hash with one key, of 16 bytes. `low`, `high`: the halves of the last output."""

    __slots__ = ("_key_0", "_key_1", "high", "low")

    def __init__(self, key: bytes) -> None:
        if len(key) != _BYTES:
            raise ValueError(f"a key of {len(key)} bytes")
        text = key
        self._key_0 = load.uint64(text, 0)
        self._key_1 = load.uint64(text, 8)
        self.low = self.high = 0

    def digest(self, text: bytes) -> bytes:
        """Return the 16 bytes of the hash of a text."""
        self.hash(text, 0, len(text))
        return int(self.low).to_bytes(8, "little") + int(self.high).to_bytes(8, "little")

    def hash(self, text: bytes | bytearray, begin: _int, end: _int) -> None:
        """Set `low` and `high` to the hash of text[begin:end]; the caller has checked the bounds."""
        v0 = self._key_0 ^ _INIT_0
        v1 = self._key_1 ^ _INIT_1 ^ _LONG
        v2 = self._key_0 ^ _INIT_2
        v3 = self._key_1 ^ _INIT_3
        words = (end - begin) // 8
        for step in range(words + 3):  # all whole words, the rest with the size, and both halves of the output
            word = 0
            rounds = 4
            if step <= words:
                rounds = 2
                at = begin + 8 * step
                word = load.uint64(text, at) if step < words else _rest(text, at, end, end - begin)
                v3 ^= word
            elif step == words + 1:
                v2 ^= _LONG
            else:
                self.low = v0 ^ v1 ^ v2 ^ v3
                v1 ^= _LONG_AGAIN
            for _ in range(rounds):
                v0 = (v0 + v1) & _MASK
                v2 = (v2 + v3) & _MASK
                v1 = _left(v1, 13) ^ v0
                v3 = _left(v3, 16) ^ v2
                v0 = (_left(v0, 32) + v3) & _MASK
                v2 = (v2 + v1) & _MASK
                v1 = _left(v1, 17) ^ v2
                v3 = _left(v3, 21) ^ v0
                v2 = _left(v2, 32)
            v0 ^= word
        self.high = v0 ^ v1 ^ v2 ^ v3


def _rest(text: bytes | bytearray, begin: _int, end: _int, size: _int) -> _int:
    """Return the last word: less than 8 bytes, and the lowest byte of the size above them."""
    word = 0
    if not cython.compiled:
        word = int.from_bytes(text[begin:end], "little")
    else:
        at = end
        while at > begin:
            at -= 1
            word = word << 8 | text[at]
    return word | (size & 255) << 56


def _left(value: _int, bits: _int) -> _int:
    return (value << bits | value >> (64 - bits)) & _MASK
