"""Messages in and out of frames: versions, types, errors."""

from __future__ import annotations

import msgspec
import pytest

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import (
    Api,
    ApiVersions,
    CreateStreamRequest,
    FetchRequest,
    HelloResponse,
    StatusRequest,
    StatusResponse,
    api_versions,
)
from penstock.wire import (
    Frame,
    FrameDecoder,
    decode_request,
    decode_response,
    encode_error,
    encode_request,
    encode_response_head,
    request_versions,
)


def only_frame(data: bytes) -> Frame:
    decoder = FrameDecoder(10**6)
    decoder.receive(data)
    frame = decoder.next_frame()
    assert frame is not None
    return frame


def request_frame(api: int, body: object, version: int = 1) -> Frame:
    return Frame(api, version, 5, msgspec.msgpack.encode(body), b"")


def test_a_request_with_an_enum_and_a_config_survives() -> None:
    request = CreateStreamRequest(config=StreamConfig(name="a", subject="a.>"))
    assert decode_request(only_frame(encode_request(request, 3))) == request


def test_a_field_that_a_newer_client_sends_is_ignored() -> None:
    body = {"stream_id": 1, "offset": 2, "colour": "red"}
    assert decode_request(request_frame(Api.FETCH, body)) == FetchRequest(stream_id=1, offset=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"stream_id": 1}, "missing required field `offset`"),
        ({"stream_id": 1, "offset": "2"}, r"Expected `int`, got `str` - at `\$.offset`"),
        ({"stream_id": 1, "offset": -1}, r"at `\$.offset`"),
        ({"stream_id": 0, "offset": 1}, r"at `\$.stream_id`"),
        ({"stream_id": 1, "offset": 2**63}, r"at `\$.offset`"),
        ([], "Expected `object`"),
    ],
)
def test_a_bad_request_names_its_field(body: object, reason: str) -> None:
    with pytest.raises(RemoteError, match=reason) as caught:
        decode_request(request_frame(Api.FETCH, body))
    assert caught.value.code == ErrorCode.BAD_REQUEST


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x91" * 100_000, b"\x81\xa1q" + b"\x91" * 100_000 + b"\xc0", b"\xdf\xff\xff\xff\xff"]
)
def test_malformed_messagepack_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(RemoteError) as caught:
        decode_request(Frame(Api.STATUS, 1, 1, body, b""))
    assert caught.value.code == ErrorCode.BAD_REQUEST


@pytest.mark.parametrize(("api", "version"), [(Api.FETCH, 0), (Api.FETCH, 4), (999, 1)])
def test_what_is_not_spoken_is_told(api: int, version: int) -> None:
    with pytest.raises(RemoteError) as caught:
        decode_request(request_frame(api, {}, version))
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_an_error_comes_back_as_the_broker_raised_it() -> None:
    error = RemoteError(ErrorCode.OFFSET_OUT_OF_RANGE, "no such offset", log_start=3, committed_end=9)
    frame = only_frame(encode_error(Api.FETCH, 1, 5, error))
    assert (frame.api, frame.correlation_id) == (Api.FETCH, 5)
    with pytest.raises(RemoteError) as caught:
        decode_response(frame, FetchRequest)
    assert (caught.value.code, caught.value.message, caught.value.details) == (error.code, error.message, error.details)


def test_the_details_of_an_error_cannot_name_our_own_parameters() -> None:
    body = {"error": {"code": "odd", "message": "m", "details": {"self": 1, "code": 2, "message": 3, "n": 4}}}
    with pytest.raises(RemoteError) as caught:
        decode_response(request_frame(Api.FETCH, body), FetchRequest)
    assert (caught.value.code, caught.value.details) == ("odd", {"n": 4})


def test_an_answer_to_something_else_or_of_another_shape_is_a_bad_frame() -> None:
    for frame in (
        request_frame(Api.GET, {}),
        request_frame(Api.FETCH, {"log_start": "x"}),
        request_frame(Api.FETCH, 5),
    ):
        with pytest.raises(RemoteError) as caught:
            decode_response(frame, FetchRequest)
        assert caught.value.code == ErrorCode.BAD_FRAME


def test_a_response_head_is_followed_by_its_raw_part() -> None:
    body = {
        "broker_id": 1,
        "broker_version": "9",
        "cluster_id": "c",
        "address": "h:1",
        "started_us": 5,
        "uptime_ms": 6,
        "nats": {"state": "connected"},
    }
    status = msgspec.convert(body, StatusResponse)
    frame = only_frame(encode_response_head(Api.STATUS, 1, 9, status, 4) + b"tail")
    assert decode_response(frame, StatusRequest) == status
    assert frame.raw == b"tail"


def test_both_sides_settle_on_the_newest_version_that_they_share() -> None:
    def versions(*offered: ApiVersions) -> dict[int, int]:
        hello = HelloResponse(broker_id=1, broker_version="1", cluster_id="", format_version=1, api_versions=offered)  # type: ignore[arg-type]
        return request_versions(hello)

    newer = {
        Api.FETCH: 3,
        Api.CREATE_STREAM: 3,
        Api.APPEND_AT: 2,
        Api.ALTER_STREAM: 3,
        Api.DELETE_STREAM: 2,
        Api.TRUNCATE: 2,
    }
    assert versions(*api_versions()) == {int(api): newer.get(api, 1) for api in Api}
    assert versions(ApiVersions(api=7, version_min=1, version_max=5)) == {7: 3}
    assert versions(ApiVersions(api=7, version_min=1, version_max=1)) == {7: 1}
    assert versions(ApiVersions(api=7, version_min=4, version_max=5)) == {}
    assert versions(ApiVersions(api=4321, version_min=1, version_max=1)) == {}
