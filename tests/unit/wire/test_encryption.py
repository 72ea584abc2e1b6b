"""Frames between brokers that have logged in: read by the other side alone, in their order, and as they were sent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import Api
from penstock.wire import Frame, FrameDecoder
from penstock.wire.encryption import FrameCipher

KEY = bytes(range(32))
BODY, RAW = b"the body of a request", b"what checks the secret of a user " * 10


def pair(key: bytes = KEY) -> tuple[FrameCipher, FrameCipher]:
    return FrameCipher(key, is_dialler=True), FrameCipher(key, is_dialler=False)


def received(*parts: bytes) -> Frame:
    """What the frame is that has these parts."""
    decoder = FrameDecoder(10 * limits.MIB)
    decoder.receive(b"".join(parts))
    frame = decoder.next_frame()
    assert frame is not None
    assert decoder.buffered_bytes == 0
    return frame


def is_refused(cipher: FrameCipher, frame: Frame) -> bool:
    with pytest.raises(RemoteError, match="does not decrypt") as caught:
        cipher.decrypted(frame)
    return caught.value.code == ErrorCode.DAMAGED_FRAME


@given(body=st.binary(max_size=300), raws=st.lists(st.binary(max_size=300)), number=st.integers(0, 2**32 - 1))
def test_what_was_encrypted_is_what_comes_and_lies_in_clear_nowhere(
    body: bytes, raws: list[bytes], number: int
) -> None:
    one, other = pair()
    for sender, receiver in ((one, other), (other, one), (one, other)):
        parts = sender.encrypted(Api.RAFT, 1, number, body, raws)
        whole = b"".join(parts)
        raw = b"".join(raws)
        assert receiver.decrypted(received(whole)) == Frame(Api.RAFT, 1, number, body, raw, True)
        assert all(len(clear) < 8 or clear not in whole for clear in (body, raw))


def test_a_large_raw_part_comes_whole() -> None:
    one, other = pair()
    raw = bytes(200) + RAW * 10_000
    frame = received(*one.encrypted(Api.FORWARD, 1, 7, BODY, (raw,)))
    assert other.decrypted(frame) == Frame(Api.FORWARD, 1, 7, BODY, raw, True)


def test_what_encryption_adds_is_what_the_limits_leave_room_for() -> None:
    one, _ = pair()
    frame = received(*one.encrypted(Api.RAFT, 1, 7, BODY, (RAW,)))
    assert len(frame.body) + len(frame.raw) == len(BODY) + len(RAW) + limits.FRAME_ENCRYPTION_BYTES


def test_batches_that_go_out_of_a_file_are_as_they_lie_there_and_their_size_is_sure() -> None:
    one, other = pair()
    (head,) = other.encrypted(Api.REPLICA_FETCH, 1, 7, BODY, (), clear_bytes=len(RAW))
    frame = received(head, RAW)
    assert one.decrypted(frame) == Frame(Api.REPLICA_FETCH, 1, 7, BODY, RAW, True)
    (head,) = other.encrypted(Api.REPLICA_FETCH, 1, 8, BODY, (), clear_bytes=len(RAW))
    assert is_refused(one, received(head, RAW)._replace(raw=RAW[:-1]))


def test_only_batches_go_out_in_clear() -> None:
    one, _ = pair()
    with pytest.raises(AssertionError):
        one.encrypted(Api.FORWARD, 1, 7, BODY, (), clear_bytes=10)


@pytest.mark.parametrize(
    "change",
    [
        {"api": Api.HEARTBEAT},
        {"version": 2},
        {"correlation_id": 8},
        {"raw": b""},
        {"body": b""},
        {"body": bytes(15)},
        {"body": bytes(16)},
        {"raw": bytes(len(RAW) + 16)},
        {"raw": RAW},
    ],
)
def test_no_part_of_a_frame_can_be_changed(change: dict[str, object]) -> None:
    one, other = pair()
    frame = received(*one.encrypted(Api.RAFT, 1, 7, BODY, (RAW,)))
    assert is_refused(other, frame._replace(**change))  # type: ignore[arg-type]


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_bit_of_it_can_be_changed(at: int, bit: int) -> None:
    one, other = pair()
    frame = received(*one.encrypted(Api.RAFT, 1, 7, BODY, (RAW,)))
    data = bytearray(frame.body + bytes(frame.raw))
    data[at % len(data)] ^= 1 << bit
    assert is_refused(other, frame._replace(body=bytes(data[: len(frame.body)]), raw=bytes(data[len(frame.body) :])))


@given(st.permutations(range(4)).filter(lambda order: list(order) != [0, 1, 2, 3]))
def test_frames_come_in_the_order_in_which_they_were_sent_or_not_at_all(order: Sequence[int]) -> None:
    one, other = pair()
    frames = [received(*one.encrypted(Api.RAFT, 1, 7, BODY, ())) for _ in range(4)]
    for expected, number in enumerate(order):
        if expected != number:
            assert is_refused(other, frames[number])
            return
        other.decrypted(frames[number])


def test_no_frame_comes_twice_or_back_to_who_has_sent_it() -> None:
    one, other = pair()
    frame = received(*one.encrypted(Api.RAFT, 1, 7, BODY, ()))
    other.decrypted(frame)
    assert is_refused(other, frame)
    assert is_refused(one, frame)


def test_who_does_not_know_the_key_says_and_reads_nothing() -> None:
    one, _ = pair()
    stranger = FrameCipher(bytes(32), is_dialler=False)
    assert is_refused(stranger, received(*one.encrypted(Api.RAFT, 1, 7, BODY, (RAW,))))
    assert is_refused(one, received(*stranger.encrypted(Api.RAFT, 1, 7, BODY, (RAW,))))
    assert is_refused(one, Frame(Api.RAFT, 1, 7, BODY, RAW, True))
