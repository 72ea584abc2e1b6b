"""Whatever bytes come in, in whatever pieces: whole frames come out, or a RemoteError, and memory stays bounded."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import API_OF_REQUEST, APIS, FetchRequest
from penstock.wire import (
    HEAD_BYTES,
    Frame,
    FrameDecoder,
    decode_request,
    decode_response,
    encode_checked_head,
    encode_head,
)
from tests.extent import examples

FRAMES = st.lists(
    st.builds(
        Frame,
        api=st.integers(0, 2**13 - 1),
        version=st.integers(0, 2**16 - 1),
        correlation_id=st.integers(0, 2**32 - 1),
        body=st.binary(max_size=300),
        # Both sides of the size from which a raw part gets memory of its own.
        raw=st.one_of(
            st.binary(max_size=50), st.integers(32_760, 32_780).map(lambda size: bytes(range(256)) * (size // 256))
        ),
        is_checked=st.booleans(),
    ),
    max_size=6,
)
CUTS = st.lists(st.integers(1, 5_000), min_size=1, max_size=30)


def encoded(frame: Frame) -> bytes:
    raw = bytes(frame.raw)
    if frame.is_checked:
        head = (frame.api, frame.version, frame.correlation_id, frame.body, len(raw))
        return encode_checked_head(*head, (raw,) if frame.api % 2 else None) + raw
    return encode_head(frame.api, frame.version, frame.correlation_id, frame.body, len(raw)) + raw


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    out, position, turn = [], 0, 0
    while position < len(data):
        out.append(data[position : position + cuts[turn % len(cuts)]])
        position += len(out[-1])
        turn += 1
    return out


def all_frames(decoder: FrameDecoder) -> list[Frame]:
    out = []
    while (frame := decoder.next_frame()) is not None:
        out.append(frame._replace(raw=bytes(frame.raw)))
    return out


@given(FRAMES, CUTS)
def test_any_split_gives_the_same_frames(frames: list[Frame], cuts: list[int]) -> None:
    decoder = FrameDecoder(10**6)
    out = []
    for piece in pieces(b"".join(map(encoded, frames)), cuts):
        decoder.receive(piece)
        out += all_frames(decoder)
    assert out == frames
    assert not decoder.in_frame


@given(FRAMES, CUTS, st.lists(st.booleans(), min_size=1, max_size=5))
def test_what_is_read_straight_into_its_place_gives_the_same_frames(
    frames: list[Frame], cuts: list[int], copied: list[bool]
) -> None:
    decoder = FrameDecoder(10**6)
    data = b"".join(map(encoded, frames))
    out, position, turn = [], 0, 0
    while position < len(data):
        cut = cuts[turn % len(cuts)]
        if copied[turn % len(copied)]:
            decoder.receive(data[position : position + cut])
        else:
            place = decoder.buffer()
            piece = data[position : position + min(cut, len(place))]
            cut = len(piece)
            place[:cut] = piece
            decoder.received(cut)
        position += cut
        turn += 1
        out += all_frames(decoder)
    assert out == frames
    assert not decoder.in_frame


@given(FRAMES, CUTS, st.data())
def test_any_single_flipped_bit_among_frames_with_checksums_is_found(
    frames: list[Frame], cuts: list[int], data: st.DataObject
) -> None:
    sent = [frame._replace(is_checked=True, api=frame.api | 1) for frame in frames] or [Frame(1, 1, 1, b"", b"", True)]
    whole = bytearray(b"".join(map(encoded, sent)))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    decoder = FrameDecoder(10**6)
    out: list[Frame] = []
    error: RemoteError | None = None
    for piece in pieces(bytes(whole), cuts):
        decoder.receive(piece)
        try:
            while (frame := decoder.next_frame()) is not None:
                out.append(frame._replace(raw=bytes(frame.raw)))
        except RemoteError as caught:
            error = caught
    assert error is not None
    assert error.code in (ErrorCode.DAMAGED_FRAME, ErrorCode.TOO_LARGE)
    assert out == sent[: len(out)]
    assert len(out) < len(sent)


@given(st.binary(max_size=2_000), CUTS, st.integers(12, 500))
def test_hostile_bytes_give_frames_within_the_limit_or_one_lasting_error(
    data: bytes, cuts: list[int], limit: int
) -> None:
    decoder = FrameDecoder(limit)
    errors: list[RemoteError] = []
    for piece in pieces(data, cuts):
        decoder.receive(piece)
        try:
            for frame in all_frames(decoder):
                assert not errors
                assert len(frame.body) + len(frame.raw) + HEAD_BYTES - 4 <= limit
        except RemoteError as error:
            errors.append(error)
        assert decoder.buffered_bytes <= (0 if errors else limit + 4)
    assert all(error is errors[0] for error in errors)
    refusals = (ErrorCode.BAD_FRAME, ErrorCode.DAMAGED_FRAME, ErrorCode.TOO_LARGE)
    assert all(error.code in refusals for error in errors)


@given(st.binary(max_size=400), st.sampled_from(sorted(APIS)))
@settings(max_examples=examples(300))
def test_a_hostile_body_is_refused_or_read_and_never_anything_else(body: bytes, api: int) -> None:
    frame = Frame(api, APIS[api].version_max, 1, body, b"")
    with contextlib.suppress(RemoteError):
        assert isinstance(decode_request(frame), APIS[api].request)
    with contextlib.suppress(RemoteError):
        assert isinstance(decode_response(frame, APIS[api].request), APIS[api].response)


@given(st.data())
def test_a_request_survives_the_wire(data: st.DataObject) -> None:
    request = data.draw(
        st.builds(
            FetchRequest,
            stream_id=st.integers(1, 2**63 - 1),
            partition=st.integers(0, 2**31 - 1),
            offset=st.integers(0, 2**63 - 1),
            leader_epoch=st.none() | st.integers(0, 2**32 - 1),
        )
    )
    from penstock.wire import encode_request

    decoder = FrameDecoder(10_000)
    decoder.receive(encode_request(request, 7))
    frame = decoder.next_frame()
    assert frame is not None
    assert frame.correlation_id == 7
    assert frame.api == API_OF_REQUEST[FetchRequest].api
    assert decode_request(frame) == request
