"""The socket protocol: frames, the bodies of requests and answers, and a session as its asking side sees it."""

from __future__ import annotations

import struct
from functools import cache
from random import Random

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.hot.crc import crc32c
from penstock.messages import APIS, ErrorBody, HelloRequest, HelloResponse, api_versions
from penstock.wire import Frame, FrameDecoder, encode_checked_head, encode_head
from penstock.wire.bodies import (
    decode_answer_body,
    decode_request,
    decode_request_body,
    decode_response,
    refusal_in,
    request_body,
    request_versions,
)
from penstock.wire.session import Answered, Broken, Event, HelloReceived, Refused, Session
from tests.fuzz.shapes import DEEP, as_msgpack, made_msgpack, maker_of
from tests.fuzz.target import Cover, Modules, Target

_CHECKED_HEAD_BYTES = 24
_FRAME_BYTES_MAX = 100_000
_OF_FRAMES = frozenset({ErrorCode.BAD_FRAME, ErrorCode.DAMAGED_FRAME, ErrorCode.TOO_LARGE})
_OF_REQUESTS = frozenset({ErrorCode.BAD_REQUEST, ErrorCode.UNSUPPORTED_VERSION})
_SPECS = tuple(APIS.values())
_encoder = msgspec.msgpack.Encoder()
_error_maker = maker_of(ErrorBody)
_hello_maker = maker_of(HelloResponse)

PIECES = (b"\xc0", b"\xc1", b"\x80", b"\x90", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff")
PIECES += (
    b"\xdb\x7f\xff\xff\xff",
    b"\xd9\xff",
    b"\xc4\x00",
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + bytes(7),
    b"\xa5error",
)


def sealed_frames(data: bytes) -> bytes:
    """Frames behind each other, as far as they can be told, with right checksums where they have any."""
    out = bytearray(data)
    position = 0
    while position + 16 <= len(out):
        frame_bytes, api, _, _, body_bytes = struct.unpack_from("<IHHII", out, position)
        end = min(position + 4 + frame_bytes, len(out))
        if api & 0xC000 == 0xC000 and position + _CHECKED_HEAD_BYTES <= len(out):
            start = position + _CHECKED_HEAD_BYTES
            covered = end if api & 0x2000 else min(start + body_bytes, end)
            struct.pack_into("<I", out, position + 16, crc32c(bytes(out[start:covered])))
            struct.pack_into("<I", out, position + 20, crc32c(bytes(out[position : position + 20])))
        position = max(end, position + 12)
    return bytes(out)


def _made_frame(chance: Random, api: int, body: bytes, correlation_id: int) -> bytes:
    raw = bytes(int(chance.random() * 20)) if chance.random() < 0.8 else bytes(40_000)
    if chance.random() < 0.6:
        covered = (raw,) if chance.random() < 0.5 else None
        return encode_checked_head(api, 1, correlation_id, body, len(raw), covered) + raw
    return encode_head(api, 1, correlation_id, body, len(raw)) + raw


def made_frames(chance: Random) -> bytes:
    """One to four frames; one of them may have a wrong length, under checksums that fit."""
    out = b""
    for number in range(1 + int(chance.random() * 4)):
        frame = _made_frame(chance, chance.choice((1, 7, 65, 0x1FFF)), b"b" * int(chance.random() * 9), number)
        if chance.random() < 0.2:
            patched = bytearray(frame)
            struct.pack_into("<I", patched, chance.choice((0, 12)), chance.choice((0, 11, 12, 13, 99_999, 2**32 - 1)))
            frame = bytes(patched)
        out += frame
    return sealed_frames(out) if chance.random() < 0.5 else out


def _step_of(data: bytes) -> int:
    """Where the reads end: an input has its own cut."""
    return 1 + (len(data) * 7 + (data[-1] if data else 0)) % 41


def _frames_of(data: bytes, step: int, *, into_buffer: bool) -> tuple[list[Frame], ErrorCode | None]:
    decoder = FrameDecoder(_FRAME_BYTES_MAX, 50_000)
    found: list[Frame] = []
    position = 0
    while position < len(data):
        if into_buffer:
            room = decoder.buffer()
            assert len(room) > 0
            piece = data[position : position + min(step, len(room))]
            room[: len(piece)] = piece
            decoder.received(len(piece))
        else:
            piece = data[position : position + step]
            decoder.receive(piece)
        position += len(piece)
        try:
            while (frame := decoder.next_frame()) is not None:
                found.append(frame._replace(raw=bytes(frame.raw)))
        except RemoteError as error:
            assert error.code in _OF_FRAMES, error
            try:
                decoder.next_frame()
            except RemoteError as again:
                assert again is error
            return found, ErrorCode(error.code)
        assert decoder.buffered_bytes <= _FRAME_BYTES_MAX + 4
        missing = decoder.missing_bytes
        assert missing is None or missing > 0 or not decoder.in_frame, missing
        assert 0 <= decoder.missing_raw_bytes <= _FRAME_BYTES_MAX
    return found, None


def frames(modules: Modules, data: bytes) -> object:
    """However they are cut, the same frames come out, and the same refusal or none."""
    whole, refused = _frames_of(data, max(1, len(data)), into_buffer=False)
    for into_buffer in (False, True):
        again, refused_again = _frames_of(data, max(_step_of(data), len(data) // 50), into_buffer=into_buffer)
        assert again == whole, (again, whole)
        assert (refused_again is None) == (refused is None), (refused, refused_again)
    return f"{len(whole)} {refused} {any(frame.is_checked for frame in whole)}"


def requests(modules: Modules, data: bytes) -> object:
    """A request of any number and version: one that an encoder makes again of it, or a refusal that says so."""
    if len(data) < 3:
        return "short"
    api, version, body = data[0], data[1] % 5, data[2:]
    try:
        request = decode_request_body(api, version, body)
    except RemoteError as error:
        assert error.code in _OF_REQUESTS, error
        return f"{api} {error.code} {error.message[:60].translate(_NO_DIGITS)}"
    assert request_body(decode_request(Frame(api, version, 1, body, b""))) == request_body(request)
    spec = APIS[api]
    assert spec.version_min <= request.version_needed() <= spec.version_max
    again_api, _, again = request_body(request)
    assert again_api == api
    assert request_body(decode_request_body(api, spec.version_max, again))[2] == again
    return f"{api} {version}"


_NO_DIGITS = str.maketrans("", "", "0123456789")


def made_request(chance: Random) -> bytes:
    """A request of each kind, in each version."""
    spec = _SPECS[int(chance.random() * len(_SPECS))]
    version = spec.version_min + int(chance.random() * (spec.version_max - spec.version_min + 1))
    if chance.random() < 0.03:
        version = chance.choice((0, 4))
    api = int(spec.api) if chance.random() < 0.98 else chance.choice((0, 17, 255))
    body = made_msgpack(chance, maker_of(spec.request)) if chance.random() < 0.995 else DEEP
    return bytes((api, version)) + body


def responses(modules: Modules, data: bytes) -> object:
    """An answer to each kind of request, or what a broker says that refuses it."""
    if len(data) < 2:
        return "short"
    spec = _SPECS[data[0] % len(_SPECS)]
    body = data[1:]
    said = refusal_in(body)
    frame = Frame(int(spec.api) if data[0] < 250 else 0, 1, 1, body, b"", True)
    try:
        response = decode_response(frame, spec.request)
    except RemoteError as error:
        is_own = said is not None and str(error) == str(said)
        assert is_own or error.code == ErrorCode.BAD_FRAME, error
        return f"{spec.api} {is_own} {'' if is_own else error.message[:60].translate(_NO_DIGITS)}"
    again = _encoder.encode(response)
    assert _encoder.encode(decode_answer_body(again, spec.request)) == again
    if isinstance(response, HelloResponse):
        for api, version in request_versions(response).items():
            assert APIS[api].version_min <= version <= APIS[api].version_max
    return f"{spec.api}"


def made_response(chance: Random) -> bytes:
    """An answer, or a refusal."""
    number = int(chance.random() * len(_SPECS))
    kind = chance.random()
    if kind < 0.1:
        return bytes((number,)) + as_msgpack({"error": _error_maker(chance, 0.1 if kind < 0.05 else 0.0)})
    if kind < 0.11:
        return bytes((number if kind < 0.105 else 255,)) + DEEP
    return bytes((number,)) + made_msgpack(chance, maker_of(_SPECS[number].response))


_ASKED = tuple(spec for spec in _SPECS if spec.request is not HelloRequest)
_WHOLE_HELLO = HelloResponse(
    broker_id=1, broker_version="1", cluster_id="c", format_version=1, api_versions=api_versions()
)


def _session(data: bytes) -> tuple[Session, bytes]:
    """One that has said hello, or one that has asked one thing of each of some kinds; and what the broker says then."""
    session = Session("fuzz", "1")
    session.hello(0.0, 10.0)
    if not data or data[0] & 1:
        return session, data[1:]
    events = session.receive(_checked(1, 1, _encoder.encode(_WHOLE_HELLO)), 1.0)
    assert isinstance(events[0], HelloReceived), events
    for number in range(8):
        spec = _ASKED[(data[0] // 2 + number) % len(_ASKED)]
        session.request(decode_request_body(int(spec.api), spec.version_max, _sound_body(int(spec.api))), 2.0, 12.0)
    return session, data[1:]


@cache
def _sound_body(api: int) -> bytes:
    """Of a request, the same ever since."""
    chance = Random(api)
    while True:
        body = as_msgpack(maker_of(APIS[api].request)(chance, 0.0))
        try:
            request = decode_request_body(api, APIS[api].version_max, body)
        except RemoteError:
            continue
        if request.version_needed() <= APIS[api].version_max:
            return body


def _checked(api: int, correlation_id: int, body: bytes, raw: bytes = b"") -> bytes:
    return encode_checked_head(api, 1, correlation_id, body, len(raw), (raw,)) + raw


def _events_of(data: bytes, step: int, *, into_buffer: bool) -> tuple[list[object], int]:
    session, said = _session(data)
    found: list[object] = []
    position = 0
    while position < len(said):
        if into_buffer:
            room = session.buffer()
            piece = said[position : position + min(step, len(room))]
            room[: len(piece)] = piece
            events = session.received(len(piece), 3.0)
        else:
            piece = said[position : position + step]
            events = session.receive(piece, 3.0)
        position += len(piece)
        found += map(_seen, events)
        if events and isinstance(events[-1], Broken):
            assert session.in_flight == 0
            assert not session.receive(b"more", 3.0)
            break
        assert session.missing_raw_bytes >= 0
    return found, session.in_flight


def _seen(event: Event) -> object:
    match event:
        case HelloReceived(hello):
            return "ready", _encoder.encode(hello)
        case Answered(correlation_id, response, raw):
            return "answered", correlation_id, _encoder.encode(response), bytes(raw)
        case Refused(correlation_id, error):
            return "refused", correlation_id, error.code
        case Broken(_, lost):
            return "broken", lost


def session(modules: Modules, data: bytes) -> object:
    """However the answers are cut, the same events; what cannot be one ends the session."""
    whole, left = _events_of(data, max(1, len(data)), into_buffer=False)
    again = _events_of(data, max(_step_of(data), len(data) // 50), into_buffer=len(data) % 2 == 1)
    assert again == (whole, left), (again, whole, left)
    return " ".join(str(one[0]) for one in whole)  # type: ignore[index]


def made_session(chance: Random) -> bytes:
    """The answer to a hello, or answers in some order to what was asked."""
    first = int(chance.random() * 200)
    if first & 1:
        body = made_msgpack(chance, _hello_maker) if chance.random() < 0.9 else as_msgpack({"error": {"code": "x"}})
        return bytes((first,)) + _made_frame(chance, 1, body, 1)
    out = bytes((first,))
    order = list(range(8))
    if chance.random() < 0.5:
        chance.shuffle(order)
    for number in order[: 1 + int(chance.random() * 8)]:
        spec = _ASKED[(first // 2 + number) % len(_ASKED)]
        kind = chance.random()
        if kind < 0.2:
            body = as_msgpack({"error": _error_maker(chance, 0.0)})
        else:
            body = as_msgpack(maker_of(spec.response)(chance, 0.0 if kind < 0.9 else 0.05))
        asked = number + 2 if chance.random() < 0.97 else chance.choice((0, 1, 99))
        raw = bytes(int(chance.random() * 20)) if chance.random() < 0.9 else bytes(40_000)
        frame = _checked(int(spec.api), asked, body, raw)
        out += frame if chance.random() < 0.97 else encode_head(int(spec.api), 1, asked, body, 0)
    return out


def _sealed_session(data: bytes) -> bytes:
    return data[:1] + sealed_frames(data[1:])


_ASKS = "it is for whoever asks: it takes nothing of a broker"

TARGETS: tuple[Target, ...] = (
    Target(
        "frames",
        frames,
        made_frames,
        (Cover("penstock.wire.frames", ("FrameDecoder",)),),
        seal=sealed_frames,
        memory_bytes=3 * 1024 * 1024,
    ),
    Target(
        "requests",
        requests,
        made_request,
        (Cover("penstock.wire.bodies", ("decode_request", "decode_request_body", "_decoder", "_reason")),),
        pieces=PIECES,
    ),
    Target(
        "responses",
        responses,
        made_response,
        (
            Cover(
                "penstock.wire.bodies",
                (
                    "decode_response",
                    "decode_answer_body",
                    "refusal_in",
                    "_remote_error",
                    "_text_keys",
                    "request_versions",
                    "_shared_version",
                    "_reason",
                ),
            ),
        ),
        pieces=PIECES,
    ),
    Target(
        "session",
        session,
        made_session,
        (
            Cover(
                "penstock.wire.session",
                ("Session",),
                {
                    **dict.fromkeys(("Session.expire", "Session.next_deadline_s", "Session.silent_s"), _ASKS),
                    **dict.fromkeys(("Session.data_arrived", "Session.give_up", "Session.is_full"), _ASKS),
                    "Session.request": "it refuses what an older broker does not know: see the unit tests",
                },
            ),
        ),
        seal=_sealed_session,
        memory_bytes=2 * limits.RESPONSE_BYTES_MAX,  # the memory of a large answer is given when it begins to come
    ),
)
