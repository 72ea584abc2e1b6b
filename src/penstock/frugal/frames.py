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
from penstock.hot.frugal_frames import decode_block, encode_block

VERSION = 0
FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of a frame: the most that NATS can be told to carry in a message."""
TIMEOUT_MS_MAX = 24 * 60 * 60 * 1_000
"""A received `_timeout` counts up to a day: what is longer is taken for that."""
OPERATION_ID_MAX = 2**64 - 1

_SMALL_BLOCK = 8 * HEADERS_MAX
"""A block of headers of so many bytes has no more headers than a context may have."""
_SIZE = Struct(">I")
_HEAD = Struct(">IBI")  # size, version, size of the headers


class Frame(NamedTuple):
    """A decoded frame. `headers` has all names, those of Frugal too; `message` is the Thrift message, maybe empty."""

    headers: dict[str, str]
    message: bytes


def encode_frame(headers: Mapping[str, str], message: bytes) -> bytes:
    """Return the frame of headers and a Thrift message. FrameError: more than the limits allow."""
    block = encode_block(headers if type(headers) is dict else dict(headers))
    if len(block) > _SMALL_BLOCK:
        _check_headers(len(headers), len(block) - 8 * len(headers))
    size = 5 + len(block) + len(message)
    if size > FRAME_BYTES_MAX:
        raise FrameError(f"{size:,} bytes are more than a frame may have ({FRAME_BYTES_MAX:,})", 0)
    return b"".join((_HEAD.pack(size, VERSION, len(block)), block, message))


def decode_frame(frame: bytes) -> Frame:
    """Return headers and message of a frame. FrameError: it is none, or exceeds the limits."""
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
    headers = decode_block(frame, 9, end) if block_size <= _SMALL_BLOCK else None
    return Frame(_decode_headers(frame, 9, end) if headers is None else headers, frame[end:])


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


def request_headers(ctx: Context, operation_id: int, now: float) -> dict[str, str]:
    """Return the headers of a request, or of a scope's message; its time is what is left, 1 ms at least."""
    headers = {
        CORRELATION_ID: ctx.correlation_id,
        OPERATION_ID: str(operation_id),
        TIMEOUT: str(ctx.left_ms(now) or 1),
    }
    if ctx.topic:
        headers.update({TOPIC + name: value for name, value in ctx.topic.items()})
    headers.update(ctx.reserved)
    headers.update(ctx.headers)
    return headers


def answer_headers(ctx: Context, operation_id: int) -> dict[str, str]:
    """Return the headers of the answer to a request that had this context and operation id."""
    headers = {CORRELATION_ID: ctx.correlation_id, OPERATION_ID: str(operation_id)}
    if ctx.response_headers:
        headers.update(ctx.response_headers)
    return headers


def received_context(headers: Mapping[str, str]) -> tuple[Context, int]:
    """Return the context of a request or of a scope's message, and its operation id.

    FrameError: `_opid` is missing or no u64. A `_timeout` that is no number is Frugal's default, as in Frugal.
    """
    operation_id = read_operation_id(headers)
    correlation_id = headers.get(CORRELATION_ID)
    timeout = headers.get(TIMEOUT)
    timeout_ms = TIMEOUT_MS_DEFAULT if timeout is None else read_timeout_ms(timeout)
    if len(headers) == 1 + (correlation_id is not None) + (timeout is not None):
        return Context.received(correlation_id, {}, timeout_ms=timeout_ms), operation_id
    shown: dict[str, str] = {}
    topic: dict[str, str] = {}
    reserved: dict[str, str] = {}
    for name, value in headers.items():
        if not name.startswith("_"):
            shown[name] = value
        elif name.startswith(TOPIC):
            topic[name.removeprefix(TOPIC)] = value
        elif name not in _KNOWN:
            reserved[name] = value
    ctx = Context.received(correlation_id, shown, timeout_ms=timeout_ms, topic=topic, reserved=reserved)
    return ctx, operation_id


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


def take_answer_headers(ctx: Context, headers: Mapping[str, str]) -> None:
    """Give a context the user's headers of the answer."""
    if len(headers) > 2 or not _IDS.issuperset(headers):
        ctx.answered({name: value for name, value in headers.items() if not name.startswith("_")})


_IDS = frozenset((CORRELATION_ID, OPERATION_ID))
