"""What the decoded rows of readers hold in memory: as much as their size says, about."""

from __future__ import annotations

from penstock.base import limits
from penstock.base.ids import LeaderEpoch, Offset
from penstock.batch import codec
from penstock.jetstream.readers.chunks import Chunk, decoded
from penstock.messages import FetchResponse
from tests.groups import Columns, encoded

ROWS = 8


def fetched(key: bytes, value: bytes) -> tuple[Chunk, bytearray]:
    """Return the decoded rows of a fetch, and the bytes of its answer."""
    columns = Columns([b"orders.eu"] * ROWS, [key] * ROWS, [value] * ROWS, [b"NATS/1.0\r\nA: b\r\n\r\n"] * ROWS)
    raw = encoded(columns, timestamp_us=1)
    end = Offset(codec.read_header(raw).end_offset)
    response = FetchResponse(
        log_start=Offset(0),
        committed_end=end,
        base_offset=Offset(0),
        end_offset=end,
        format_version=1,
        leader_epoch=LeaderEpoch(1),
    )
    return decoded(0, response, raw, None), raw


def is_held(raw: bytearray) -> bool:
    try:
        raw.append(0)
    except BufferError:
        return True
    return False


def test_rows_of_large_keys_do_not_hold_the_answer_that_they_came_in() -> None:
    chunk, raw = fetched(b"k" * limits.KEY_BYTES_MAX, b"v")
    assert chunk.size_bytes < 4096
    assert not is_held(raw), f"{len(raw)} bytes are held, and {chunk.size_bytes} are counted"
    assert [one.count for one in chunk.rows] == [ROWS]


def test_values_are_not_copied() -> None:
    chunk, raw = fetched(b"k", b"v" * limits.KEY_BYTES_MAX)
    assert is_held(raw)
    assert chunk.size_bytes > len(raw) // 2
