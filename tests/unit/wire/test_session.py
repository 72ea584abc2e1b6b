"""The session against a peer made of bytes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import (
    Api,
    ApiVersions,
    BrokerLimits,
    FetchRequest,
    FetchResponse,
    HelloRequest,
    HelloResponse,
    StatusRequest,
    TruncateRequest,
    api_versions,
)
from penstock.wire import FrameDecoder, decode_request, encode_error, encode_head, encode_response_head
from penstock.wire.session import Answered, Broken, HelloReceived, Refused, Session, SessionState
from tests.checked_frames import checked
from tests.extent import each_change

HELLO = HelloResponse(broker_id=1, broker_version="1", cluster_id="c", format_version=1, api_versions=api_versions())
FETCHED = FetchResponse(log_start=0, committed_end=5, base_offset=0, end_offset=5, format_version=1, leader_epoch=1)
FETCH = FetchRequest(stream_id=1, offset=0)
NEVER_S = 1e9


def ready(hello: HelloResponse = HELLO) -> Session:
    session = Session("test", "1")
    session.hello(0.0, 10.0)
    assert session.receive(checked(encode_response_head(Api.HELLO, 1, 1, hello)), 0.1) == [HelloReceived(hello)]
    return session


def fetched(correlation_id: int, raw: bytes = b"") -> bytes:
    return checked(encode_response_head(Api.FETCH, 1, correlation_id, FETCHED, len(raw)) + raw)


def test_the_first_frame_is_a_hello_that_says_what_the_client_speaks() -> None:
    session = Session("test" * 1000, "1")
    decoder = FrameDecoder(limits.HELLO_BYTES_MAX)
    decoder.receive(session.hello(0.0, 10.0))
    frame = decoder.next_frame()
    assert frame is not None
    hello = decode_request(frame)
    assert isinstance(hello, HelloRequest)
    assert hello.api_versions == api_versions()
    assert session.state is SessionState.HELLO_SENT


def test_answers_find_their_requests_in_any_order_and_any_pieces() -> None:
    session = ready()
    first, _ = session.request(FETCH, 1.0, NEVER_S)
    second, _ = session.request(FETCH, 1.0, NEVER_S)
    data = fetched(second, b"two") + fetched(first, b"one")
    events = [event for position in range(len(data)) for event in session.receive(data[position : position + 1], 2.0)]
    assert events == [Answered(second, FETCHED, b"two"), Answered(first, FETCHED, b"one")]
    assert session.in_flight == 0


def test_a_large_answer_is_read_into_its_own_place() -> None:
    session = ready()
    number, _ = session.request(FETCH, 1.0, NEVER_S)
    raw = bytes(range(256)) * 4096
    data = fetched(number, raw)
    events = []
    reads = 0
    assert session.missing_raw_bytes == 0
    while data:
        place = session.buffer()
        missing = session.missing_raw_bytes
        assert missing in (0, len(place))
        taken = data[: len(place)]
        place[: len(taken)] = taken
        events += session.received(len(taken), 2.0)
        data = data[len(taken) :]
        reads += 1
    assert events == [Answered(number, FETCHED, raw)]
    assert reads == 2
    assert missing > 0
    assert session.missing_raw_bytes == 0
    session.closed(RemoteError(ErrorCode.STOPPING, "over"))
    session.buffer()[:1] = b"x"
    assert session.received(1, 2.0) == []


def test_the_time_that_an_answer_had_is_a_round_number() -> None:
    session = ready()
    session.request(FETCH, 1.00007, 11.0)
    event, *_ = session.expire(11.0)
    assert isinstance(event, Refused)
    assert "did not answer fetch within 10 s" in str(event.error)


def test_a_refusal_has_the_class_of_its_code() -> None:
    session = ready()
    number, _ = session.request(FETCH, 1.0, NEVER_S)
    error = RemoteError(ErrorCode.OFFSET_OUT_OF_RANGE, "gone", log_start=4)
    (event,) = session.receive(checked(encode_error(Api.FETCH, 1, number, error)), 2.0)
    assert isinstance(event, Refused)
    assert event.error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert event.error.details == {"log_start": 4}


def test_a_deadline_passes_and_the_late_answer_is_ignored() -> None:
    session = ready()
    number, _ = session.request(FETCH, 1.0, 5.0)
    other, _ = session.request(FETCH, 1.0, 9.0)
    assert session.next_deadline_s() == 5.0
    assert session.receive(fetched(other), 4.0) == [Answered(other, FETCHED, b"")]
    (event,) = session.expire(5.0)
    assert isinstance(event, Refused)
    assert event.error.code == ErrorCode.TIMED_OUT
    assert "fetch within 4 s" in str(event.error)
    assert (session.next_deadline_s(), session.in_flight) == (None, 1)
    assert session.receive(fetched(number), 6.0) == []
    assert (session.state, session.in_flight) == (SessionState.READY, 0)


def test_a_broker_that_says_nothing_at_all_until_a_deadline_is_taken_for_dead() -> None:
    session = ready()
    number, _ = session.request(FETCH, 1.0, 5.0)
    other, _ = session.request(FETCH, 2.0, 50.0)
    refused, broken = session.expire(5.0)
    assert isinstance(refused, Refused)
    assert refused.correlation_id == number
    assert isinstance(broken, Broken)
    assert broken.lost == (other,)
    assert session.state is SessionState.CLOSED


def test_a_dead_broker_is_found_also_when_every_caller_gives_up_before_the_deadline() -> None:
    session = ready()
    number, _ = session.request(FETCH, 1.0, 5.0)
    session.give_up(number)
    assert session.next_deadline_s() == 5.0
    (broken,) = session.expire(5.0)
    assert isinstance(broken, Broken)
    assert broken.lost == ()


def test_a_caller_who_gave_up_is_told_nothing_while_the_broker_lives() -> None:
    session = ready()
    number, _ = session.request(FETCH, 1.0, 5.0)
    other, _ = session.request(FETCH, 1.0, 9.0)
    session.give_up(number)
    assert session.receive(fetched(other), 4.0) == [Answered(other, FETCHED, b"")]
    assert session.expire(5.0) == []
    assert (session.next_deadline_s(), session.in_flight, session.state) == (None, 1, SessionState.READY)


def test_a_hello_that_is_not_answered_is_taken_for_dead_too() -> None:
    session = Session("test", "1")
    session.hello(0.0, 3.0)
    assert [type(event) for event in session.expire(3.0)] == [Refused, Broken]


def test_requests_in_flight_are_bounded_by_the_smaller_limit() -> None:
    session = ready(
        HelloResponse(
            broker_id=1,
            broker_version="1",
            cluster_id="c",
            format_version=1,
            api_versions=api_versions(),
            limits=BrokerLimits(in_flight_requests_max=2),
        )
    )
    number, _ = session.request(FETCH, 1.0, NEVER_S)
    session.request(FETCH, 1.0, NEVER_S)
    assert session.is_full
    # Giving up does not free the slot: the broker still works on it.
    session.give_up(number)
    assert session.is_full
    assert session.receive(fetched(number), 2.0) == []
    assert not session.is_full


@pytest.mark.parametrize(
    ("offered", "older"),
    [
        ((ApiVersions(api=Api.FETCH, version_min=7, version_max=9),), "upgrade the client"),
        ((ApiVersions(api=Api.FETCH, version_min=0, version_max=0),), "upgrade the broker"),
        ((), "upgrade the broker"),
    ],
)
def test_a_request_that_the_broker_does_not_speak_is_refused_here(offered: tuple[ApiVersions, ...], older: str) -> None:
    hello = HelloResponse(broker_id=1, broker_version="0.7.1", cluster_id="c", format_version=1, api_versions=offered)
    session = ready(hello)
    with pytest.raises(RemoteError, match=f"broker has version 0.7.1, and this client 1; .*fetch.*: {older}") as caught:
        session.request(FETCH, 1.0, NEVER_S)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_a_broker_that_would_remove_what_is_to_stay_is_not_asked() -> None:
    offered = (ApiVersions(api=Api.TRUNCATE, version_min=1, version_max=1),)
    hello = HelloResponse(broker_id=1, broker_version="0.3.0", cluster_id="c", format_version=1, api_versions=offered)
    session = ready(hello)
    request = TruncateRequest(stream_id=1, before=10)
    session.request(request, 1.0, NEVER_S)
    with pytest.raises(RemoteError, match="upgrade the broker"):
        session.request(msgspec.structs.replace(request, keep=3), 1.0, NEVER_S)


def test_a_field_that_the_broker_does_not_know_is_told_with_both_versions() -> None:
    session = ready()
    number, _ = session.request(FETCH, 1.0, NEVER_S)
    text = "create_stream: Object contains unknown field `discard` - at `$.config`"
    answer = checked(encode_error(Api.FETCH, 1, number, RemoteError(ErrorCode.BAD_REQUEST, text, api=1)))
    (refused,) = session.receive(answer, 2.0)
    assert isinstance(refused, Refused)
    assert refused.error.message.startswith(f"{text}; the broker has version ")
    assert refused.error.details["api"] == 1


@pytest.mark.parametrize(
    "data",
    [
        fetched(99),
        checked(encode_head(Api.GET, 1, 2, b"\x80", 0)),
        checked(encode_head(Api.FETCH, 1, 2, b"\x80", 0)),
        checked(encode_head(Api.FETCH, 1, 2, b"\xc1", 0)),
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"HTTP/1.1 400 Bad Request\r\n",
    ],
    ids=["not asked", "other request", "no fields", "no MessagePack", "too short", "too long", "HTTP"],
)
def test_nonsense_from_the_broker_closes_the_session_and_loses_what_was_in_flight(data: bytes) -> None:
    session = ready()
    number, _ = session.request(FETCH, 1.0, NEVER_S)
    assert number == 2
    (event,) = session.receive(data, 2.0)
    assert isinstance(event, Broken)
    assert event.lost == (number,)
    assert session.state is SessionState.CLOSED
    assert session.receive(fetched(number), 3.0) == []


@pytest.mark.parametrize("wrapped", [checked, bytes])  # one that could not read our first frame knows of no checksums
def test_the_brokers_word_on_a_bad_frame_is_told(wrapped: Callable[[bytes], bytes]) -> None:
    session = ready()
    session.request(StatusRequest(), 1.0, NEVER_S)
    said = encode_error(0, 0, 0, RemoteError(ErrorCode.TOO_LARGE, "no more than 5 bytes"))
    (event,) = session.receive(wrapped(said), 2.0)
    assert isinstance(event, Broken)
    assert event.error.code == ErrorCode.TOO_LARGE


def test_a_refused_hello_ends_the_session_with_the_brokers_reason() -> None:
    session = Session("test", "1")
    session.hello(0.0, 3.0)
    (event,) = session.receive(encode_error(Api.HELLO, 1, 1, RemoteError(ErrorCode.OVERLOADED, "full")), 1.0)
    assert isinstance(event, Broken)
    assert event.error.code == ErrorCode.OVERLOADED


def test_an_answer_without_checksums_is_not_believed() -> None:
    session = ready()
    number, _ = session.request(FETCH, 1.0, NEVER_S)
    (event,) = session.receive(encode_response_head(Api.FETCH, 1, number, FETCHED), 2.0)
    assert isinstance(event, Broken)
    assert event.lost == (number,)
    assert "without checksums" in event.error.message


@each_change
def test_a_damaged_answer_ends_the_session() -> None:
    session = ready()
    number, _ = session.request(FETCH, 1.0, NEVER_S)
    damaged = bytearray(fetched(number))
    damaged[-1] ^= 0x40
    (event,) = session.receive(damaged, 2.0)
    assert isinstance(event, Broken)
    assert (event.lost, event.error.code) == ((number,), ErrorCode.DAMAGED_FRAME)
