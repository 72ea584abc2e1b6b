"""CRC-32C (Castagnoli) with the processor's instruction, through the `crc32c` package.

The checksum of Kafka, iSCSI and ext4: `crc32c(b"123456789") == 0xE3069283`.
"""

from __future__ import annotations

from crc32c import crc32c

__all__ = ["crc32c", "crc32c_with_gap"]

_ZERO_DIGITS = b"00000000"


def crc32c_with_gap(data: bytes | bytearray | memoryview, gap: int) -> int:
    """Return the CRC-32C of `data` with the 8 bytes at `gap` taken as the digits `00000000`."""
    view = memoryview(data)
    return crc32c(view[gap + 8 :], crc32c(_ZERO_DIGITS, crc32c(view[:gap])))
