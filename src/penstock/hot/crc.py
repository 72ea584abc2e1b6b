"""CRC-32C (Castagnoli) with the processor's own instruction, through the `crc32c` package.

It is the checksum of Kafka, iSCSI and ext4: `crc32c(b"123456789") == 0xE3069283`.
"""

from __future__ import annotations

from crc32c import crc32c

__all__ = ["crc32c", "crc32c_with_gap"]

_ZERO_DIGITS = b"00000000"


def crc32c_with_gap(data: bytes | bytearray | memoryview, gap: int) -> int:
    """CRC-32C of `data` in which the 8 bytes at `gap` count as the digits `00000000`."""
    view = memoryview(data)
    return crc32c(view[gap + 8 :], crc32c(_ZERO_DIGITS, crc32c(view[:gap])))
