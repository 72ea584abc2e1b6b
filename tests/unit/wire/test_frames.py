"""Frames: their bytes, their limits, their memory."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from penstock.base.errors import ErrorCode, RemoteError
from penstock.wire import HEAD_BYTES, Frame, FrameDecoder, encode_checked_head, encode_head


def test_the_bytes_of_a_frame() -> None:
    assert encode_head(7, 1, 258, b"ab", 3) + b"xyz" == bytes.fromhex(
        "11000000 0700 0100 02010000 02000000 6162 78797a"
    )


def test_the_bytes_of_a_frame_with_checksums() -> None:
    raw = b"xyz"
    assert encode_checked_head(7, 1, 258, b"ab", 3, (raw,)) + raw == bytes.fromhex(
        "19000000 07e0 0100 02010000 02000000 726539d7 7b664922 6162 78797a"
    )
    assert encode_checked_head(7, 1, 258, b"ab", 3, None) + raw == bytes.fromhex(
        "19000000 07c0 0100 02010000 02000000 3629a2e2 f1e3cd32 6162 78797a"
    )


@pytest.mark.parametrize("raw", [b"", b"xyz", bytes(40_000)], ids=["none", "small", "large"])
def test_a_frame_with_checksums_is_read_as_it_was_written(raw: bytes) -> None:
    for covered in ((raw,), (raw[:1], raw[1:]), None):
        decoder = FrameDecoder(100_000)
        decoder.receive(encode_checked_head(7, 1, 258, b"ab", len(raw), covered) + raw)
        assert decoder.next_frame() == Frame(7, 1, 258, b"ab", raw, True)
        assert not decoder.in_frame


@pytest.mark.parametrize("raw", [b"", b"xyz"], ids=["none", "raw part"])
def test_every_single_flipped_bit_is_found(raw: bytes) -> None:
    whole = encode_checked_head(7, 1, 258, b"body", len(raw), (raw,)) + raw
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        decoder = FrameDecoder(1_000)
        decoder.receive(damaged)
        with pytest.raises(RemoteError) as caught:
            decoder.next_frame()
        assert caught.value.code in (ErrorCode.DAMAGED_FRAME, ErrorCode.TOO_LARGE), bit


def test_nobody_waits_for_the_bytes_of_a_length_that_has_changed() -> None:
    decoder = FrameDecoder(10_000_000)
    head = bytearray(encode_checked_head(7, 1, 258, b"body", 0, ()))
    head[2] ^= 0x40  # 4 MiB more
    decoder.receive(head)
    with pytest.raises(RemoteError) as caught:
        decoder.next_frame()
    assert caught.value.code == ErrorCode.DAMAGED_FRAME


def test_damage_in_a_large_raw_part_is_found_at_its_end_and_nothing_of_it_is_handed_out() -> None:
    raw = bytes(range(256)) * 400
    damaged = bytearray(raw)
    damaged[70_000] ^= 1
    decoder = FrameDecoder(1_000_000)
    decoder.receive(encode_checked_head(7, 1, 1, b"x", len(raw), (raw,)) + damaged[:-1])
    assert decoder.next_frame() is None
    decoder.receive(damaged[-1:])
    for _ in range(2):
        with pytest.raises(RemoteError, match="damaged on its way"):
            decoder.next_frame()
    assert decoder.buffered_bytes == 0


def test_a_head_with_checksums_comes_byte_by_byte() -> None:
    decoder = FrameDecoder(1_000)
    whole = encode_checked_head(7, 1, 258, b"body", 3, (b"xyz",)) + b"xyz"
    for position in range(len(whole) - 1):
        decoder.receive(whole[position : position + 1])
        assert decoder.next_frame() is None
        assert decoder.missing_bytes in (None, len(whole) - position - 1)
    decoder.receive(whole[-1:])
    assert decoder.next_frame() == Frame(7, 1, 258, b"body", b"xyz", True)


def test_a_length_beyond_the_limit_is_refused_after_four_bytes() -> None:
    decoder = FrameDecoder(100)
    decoder.receive(struct.pack("<I", 101))
    with pytest.raises(RemoteError, match="101 bytes is over the limit of 100") as caught:
        decoder.next_frame()
    assert caught.value.code == ErrorCode.TOO_LARGE
    assert caught.value.details == {"frame_bytes": 101, "frame_bytes_max": 100}


def test_a_length_shorter_than_the_head_is_refused() -> None:
    decoder = FrameDecoder(100)
    decoder.receive(struct.pack("<I", 11))
    with pytest.raises(RemoteError, match="shorter than its head") as caught:
        decoder.next_frame()
    assert caught.value.code == ErrorCode.BAD_FRAME


@pytest.mark.parametrize(("body_bytes", "code"), [(39, ErrorCode.BAD_FRAME), (21, ErrorCode.TOO_LARGE)])
def test_a_body_that_cannot_be_is_refused_before_it_comes(body_bytes: int, code: ErrorCode) -> None:
    decoder = FrameDecoder(100, body_bytes_max=20)
    decoder.receive(struct.pack("<IHHII", 50, 7, 1, 1, body_bytes))
    with pytest.raises(RemoteError) as caught:
        decoder.next_frame()
    assert caught.value.code == code


def test_after_a_refusal_nothing_more_is_kept_or_read() -> None:
    decoder = FrameDecoder(100)
    decoder.receive(struct.pack("<I", 1000))
    with pytest.raises(RemoteError):
        decoder.next_frame()
    decoder.receive(encode_head(1, 1, 1, b"", 0))
    assert decoder.buffered_bytes == 0
    with pytest.raises(RemoteError):
        decoder.next_frame()


def test_the_limit_can_be_raised_after_the_hello() -> None:
    decoder = FrameDecoder(50)
    decoder.receive(encode_head(1, 1, 1, b"hello", 0))
    assert decoder.next_frame() is not None
    decoder.frame_bytes_max = decoder.body_bytes_max = 1000
    decoder.receive(encode_head(2, 1, 2, bytes(500), 0))
    frame = decoder.next_frame()
    assert frame is not None
    assert len(frame.body) == 500


def test_a_large_raw_part_is_handed_over_without_copying_and_arrow_can_lie_on_it() -> None:
    raw = bytes(range(256)) * 4096
    decoder = FrameDecoder(2**21)
    data = encode_head(7, 1, 1, b"x", len(raw)) + raw
    for position in range(0, len(data), 65_536):
        decoder.receive(data[position : position + 65_536])
    frame = decoder.next_frame()
    assert frame is not None
    assert isinstance(frame.raw, memoryview)
    assert frame.raw.readonly
    buffer = pa.py_buffer(frame.raw)
    assert buffer.size == len(raw)
    assert buffer.address % 8 == 0
    # What comes next does not disturb it.
    decoder.receive(encode_head(7, 1, 2, b"", 0) * 100)
    assert decoder.next_frame() is not None
    assert bytes(frame.raw) == raw


def test_a_large_raw_part_is_read_into_the_memory_that_is_handed_over() -> None:
    given: list[bytearray] = []

    def allocate(size: int) -> bytearray:
        given.append(bytearray(b"?" * size))
        return given[-1]

    raw = bytes(range(256)) * 1024
    decoder = FrameDecoder(2**20, allocate=allocate)
    decoder.receive(encode_head(7, 1, 1, b"x", len(raw)) + raw[:10])
    assert decoder.next_frame() is None
    assert given == []  # no memory for what may never come
    assert decoder.missing_bytes == len(raw) - 10
    place = decoder.buffer()
    assert len(place) == len(raw) - 10  # never into what comes behind it
    place[:] = raw[10:]
    decoder.received(len(place) - 1)
    assert decoder.next_frame() is None
    assert (decoder.buffered_bytes, decoder.missing_bytes) == (len(raw) - 1, 1)
    assert len(decoder.buffer()) == 1
    decoder.received(1)
    frame = decoder.next_frame()
    assert frame is not None
    assert frame.raw == raw
    given[0][0] = 1
    assert frame.raw[0] == 1  # the very memory


def test_each_byte_of_a_large_frame_is_copied_once() -> None:
    raw_bytes, given = 2 * 2**20, []

    def allocate(size: int) -> bytearray:
        given.append(size)
        return bytearray(size)

    decoder = FrameDecoder(raw_bytes + 100, allocate=allocate)
    piece = bytes(4096)
    decoder.receive(encode_head(7, 1, 1, b"", raw_bytes))
    for number in range(raw_bytes // len(piece)):
        assert decoder.next_frame() is None
        decoder.receive(piece)
        # All but the first piece goes where it stays: what is moved with each read never grows.
        assert len(decoder._buffer) <= (HEAD_BYTES + len(piece) if number == 0 else 0)
    assert decoder.next_frame() is not None
    assert given == [raw_bytes]


def test_many_small_frames_in_one_read() -> None:
    decoder = FrameDecoder(1000)
    decoder.receive(b"".join(encode_head(1, 1, number, b"body", 3) + b"raw" for number in range(10_000)))
    numbers = []
    while (frame := decoder.next_frame()) is not None:
        assert (frame.body, frame.raw) == (b"body", b"raw")
        numbers.append(frame.correlation_id)
    assert numbers == list(range(10_000))
    assert not decoder.in_frame


def test_an_end_in_the_middle_of_a_frame_can_be_told() -> None:
    decoder = FrameDecoder(10**6)
    whole = encode_head(1, 1, 1, b"body", 100_000) + bytes(100_000)
    for cut in (1, 3, HEAD_BYTES, HEAD_BYTES + 2, HEAD_BYTES + 4, len(whole) - 1):
        decoder = FrameDecoder(10**6)
        decoder.receive(whole[:cut])
        assert decoder.next_frame() is None
        assert decoder.in_frame
    decoder.receive(whole[-1:])
    assert decoder.next_frame() is not None
    assert not decoder.in_frame


def test_nobody_waits_for_a_head_with_checksums_that_the_frame_has_no_room_for() -> None:
    for frame_bytes in (12, 19):
        decoder = FrameDecoder(1_000)
        decoder.receive(struct.pack("<IHHII", frame_bytes, 0xC000 + 7, 1, 258, 0))
        with pytest.raises(RemoteError, match="shorter than its head") as caught:
            decoder.next_frame()
        assert caught.value.code == ErrorCode.BAD_FRAME
