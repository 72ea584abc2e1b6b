"""Frames of Frugal, version 0: a context's headers in front of a Thrift message. Bytes in, bytes out.

    ┌────────────┬─────────┬────────────┬──────────────────────────────────┬────────────────┐
    │ u32 size   │ u8      │ u32 size   │ u32 size, name, u32 size, value, │ Thrift message │
    │ of what    │ version │ of the     │ and so on                        │ to the end     │
    │ follows    │ 0       │ headers    │                                  │                │
    └────────────┴─────────┴────────────┴──────────────────────────────────┴────────────────┘

Rules: numbers are big-endian, names and values UTF-8. Of two headers of one name the last one counts, as in Frugal. A
decoder trusts no size: each is checked against what is left, and against the limits of a context. What is wrong is a
`FrameError` with its byte. A name that begins with `_` is Frugal's own:

| header         | request, message of a scope     | answer              | in `Context`                    |
|----------------|---------------------------------|---------------------|---------------------------------|
| `_opid`        | decimal u64, required           | that of the request | none: it belongs to the call    |
| `_cid`         | text                            | that of the request | `correlation_id`                |
| `_timeout`     | milliseconds that are left      | –                   | `timeout_ms`                    |
| `_topic_<var>` | a variable of a scope's subject | –                   | `topic`                         |
| other `_…`     | passed on                       | ignored             | `reserved`                      |
| the rest       | the user's                      | the user's          | `headers`, `response_headers`   |
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from penstock.frugal.context import (
    CORRELATION_ID,
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    OPERATION_ID,
    TIMEOUT,
    TIMEOUT_MS_DEFAULT,
    TOPIC,
    Context,
)
from penstock.frugal.errors import FrameError
from penstock.hot.frugal_frames import NONE, read_frame, write_frame

VERSION = 0
FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of a frame: the most that NATS can be told to carry in a message."""
TIMEOUT_MS_MAX = 24 * 60 * 60 * 1_000
"""A received `_timeout` counts up to a day: what is longer is taken for that."""
OPERATION_ID_MAX = 2**64 - 1

_SMALL_FRAME = 8 * HEADERS_MAX
"""A frame of so many bytes has no more headers than a context may have."""
_SENT_TIMEOUT_MS_MAX = 2**63 - 1
_SIZE = Struct(">I")
_HEAD = Struct(">IBI")  # size, version, size of the headers


class Frame(NamedTuple):
    """A decoded frame. `headers` has all names, those of Frugal too; `message` is the Thrift message, maybe empty."""

    headers: dict[str, str]
    message: bytes


def encode_request(ctx: Context, operation_id: int, now: float, message: bytes) -> bytes:
    """Return the frame of a request, or of a scope's message; its time is what is left, 1 ms at least.

    FrameError: more than the limits allow.
    """
    left_ms = ctx.left_ms(now) or 1
    others = ctx.passed_on()
    frame = write_frame(ctx.correlation_id, operation_id, min(left_ms, _SENT_TIMEOUT_MS_MAX), others, message)
    return frame if len(frame) <= _SMALL_FRAME else _checked(frame, 3 + len(others))


def encode_answer(ctx: Context, operation_id: int, message: bytes) -> bytes:
    """Return the frame of the answer to a request that had this context and operation id. FrameError: as above."""
    others = ctx.response_headers
    frame = write_frame(ctx.correlation_id, operation_id, NONE, dict(others) if others else None, message)
    return frame if len(frame) <= _SMALL_FRAME else _checked(frame, 2 + len(others))


def _checked(frame: bytes, header_count: int) -> bytes:
    """Return a frame that was written. FrameError: it exceeds the limits."""
    if len(frame) - 4 > FRAME_BYTES_MAX:
        raise FrameError(f"{len(frame) - 4:,} bytes are more than a frame may have ({FRAME_BYTES_MAX:,})", 0)
    _check_headers(header_count, _SIZE.unpack_from(frame, 5)[0] - 8 * header_count)
    return frame


def decode_request(frame: bytes) -> tuple[Context, int, bytes]:
    """Return context, operation id and Thrift message of a request, or of a scope's message.

    FrameError: it is no frame, exceeds the limits, or its `_opid` is missing or no u64. A `_timeout` that is no number
    is Frugal's default, as in Frugal.
    """
    if (found := read_frame(frame)) is None:
        decoded = decode_frame(frame)
        return *received_context(decoded.headers), decoded.message
    correlation_id, operation_id, timeout_ms, others, start = found
    timeout_ms = TIMEOUT_MS_DEFAULT if timeout_ms == NONE else min(timeout_ms or 1, TIMEOUT_MS_MAX)
    if others:
        return _received(correlation_id, timeout_ms, others), operation_id, frame[start:]
    return Context.received(correlation_id, {}, timeout_ms=timeout_ms), operation_id, frame[start:]


def decode_answer(frame: bytes) -> tuple[str, Mapping[str, str], bytes]:
    """Return operation id, the user's headers and the Thrift message of an answer.

    FrameError: it is no frame, or exceeds the limits. The operation id may be any text; "": there is none.
    """
    if (found := read_frame(frame)) is None:
        headers, message = decode_frame(frame)
        return headers.get(OPERATION_ID, ""), _shown(headers), message
    _, operation_id, _, others, start = found
    return str(operation_id), _shown(others) if others else {}, frame[start:]


def _shown(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not name.startswith("_")}


def decode_frame(frame: bytes) -> Frame:
    """Return headers and message of any frame. FrameError: it is none, or exceeds the limits."""
    if len(frame) < _HEAD.size:
        raise FrameError(f"{len(frame)} bytes are no frame, which has {_HEAD.size} at least", 0)
    size, version, block_size = _HEAD.unpack_from(frame)
    if size != len(frame) - 4:
        raise FrameError(f"the frame says that {size:,} bytes follow, and {len(frame) - 4:,} do", 0)
    if size > FRAME_BYTES_MAX:
        raise FrameError(f"{size:,} bytes are more than a frame may have ({FRAME_BYTES_MAX:,})", 0)
    if version != VERSION:
        raise FrameError(f"version {version} is not known, only {VERSION} is", 4)
    end = 9 + block_size
    if end > len(frame):
        raise FrameError(f"the headers have {block_size:,} bytes, and {len(frame) - _HEAD.size:,} are left", 5)
    return Frame(_decode_headers(frame, 9, end), frame[end:])


def _decode_headers(frame: bytes, start: int, end: int) -> dict[str, str]:
    """Return the headers of a block, each of them checked: the error has its byte."""
    headers: dict[str, str] = {}
    position, count = start, 0
    while position < end:
        count += 1
        name, after = _decode_text(frame, position, end, "name")
        value, position = _decode_text(frame, after, end, "value")
        headers[name] = value
        _check_headers(count, position - start - 8 * count, position)
    return headers


def _decode_text(frame: bytes, position: int, end: int, what: str) -> tuple[str, int]:
    """Return a name or value that begins at `position`, and the position behind it."""
    begin = position + 4
    if begin > end:
        raise FrameError(f"{end - position} bytes are left for the size of a header's {what}, which has 4", position)
    (size,) = _SIZE.unpack_from(frame, position)
    if size > end - begin:
        raise FrameError(f"a header's {what} has {size:,} bytes, and {end - begin:,} are left", position)
    try:
        return frame[begin : begin + size].decode(), begin + size
    except UnicodeDecodeError as error:
        raise FrameError(f"a header's {what} is not UTF-8", begin + error.start) from None


def _check_headers(count: int, size: int, position: int = 5) -> None:
    if count > HEADERS_MAX:
        raise FrameError(f"more than {HEADERS_MAX} headers, the most of one context", position)
    if size > HEADER_BYTES_MAX:
        raise FrameError(f"more than {HEADER_BYTES_MAX:,} bytes of headers, the most of one context", position)


def received_context(headers: Mapping[str, str]) -> tuple[Context, int]:
    """Return the context of a request or of a scope's message with these headers, and its operation id.

    FrameError: `_opid` is missing or no u64.
    """
    operation_id = read_operation_id(headers)
    timeout = headers.get(TIMEOUT)
    timeout_ms = TIMEOUT_MS_DEFAULT if timeout is None else read_timeout_ms(timeout)
    return _received(headers.get(CORRELATION_ID), timeout_ms, headers), operation_id


def _received(correlation_id: str | None, timeout_ms: int, headers: Mapping[str, str]) -> Context:
    shown: dict[str, str] = {}
    topic: dict[str, str] = {}
    reserved: dict[str, str] = {}
    for name, value in headers.items():
        if not name.startswith("_"):
            shown[name] = value
        elif name.startswith(TOPIC):
            topic[name.removeprefix(TOPIC)] = value
        elif is_reserved(name):
            reserved[name] = value
    return Context.received(correlation_id, shown, timeout_ms=timeout_ms, topic=topic, reserved=reserved)


def is_reserved(name: str) -> bool:
    """True for a header that is Frugal's own and has no meaning in this version: it is passed on."""
    return name.startswith("_") and name not in _KNOWN and not name.startswith(TOPIC)


_KNOWN = frozenset((CORRELATION_ID, OPERATION_ID, TIMEOUT))


def read_operation_id(headers: Mapping[str, str]) -> int:
    """Return the operation id of a frame. FrameError: it is missing, or no u64 in decimal digits."""
    text = headers.get(OPERATION_ID)
    if text is None:
        raise FrameError(f"the header {OPERATION_ID} is missing", 5)
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= OPERATION_ID_MAX):
        raise FrameError(f"the header {OPERATION_ID} is {text[:40]!r}; it is a whole number from 0 to 2**64 - 1", 5)
    return int(text)


def read_timeout_ms(text: str) -> int:
    """Return the milliseconds of a `_timeout`: from 1 to a day; what is no number is Frugal's default."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return TIMEOUT_MS_DEFAULT
    if text.startswith("-"):
        return 1
    return min(max(1, int(digits[:20])), TIMEOUT_MS_MAX)
