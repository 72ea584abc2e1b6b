"""The context of a call or of a published message: correlation id, headers, and the time that is left.

Rules: a context belongs to one call; `copy` gives one for the next. Names that begin with `_` are Frugal's own: a user
neither sets nor sees them as headers. The deadline is a time of the monotonic clock that the caller gives; over the
wire goes what is left of it, in milliseconds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Self

TIMEOUT_MS_DEFAULT = 5_000
"""Frugal's: what a call may take if its context names no time."""
HEADERS_MAX = 256
"""Most headers of one context: a message with more is refused."""
HEADER_BYTES_MAX = 64 * 1024
"""Most bytes of all names and values of one context together."""

CORRELATION_ID = "_cid"
OPERATION_ID = "_opid"
TIMEOUT = "_timeout"
TOPIC = "_topic_"
"""Prefix of the headers that hold the variables of a scope's subject."""


class Context:
    """The context that each call, publish and handler has.

    `correlation_id`: text that follows a request through all services; default: 32 hexadecimal digits. `timeout_ms`:
    what a call may take, or of a received context what was left when it came. `headers` go with the request,
    `response_headers` with its answer. `topic`: the variables of the subject that a message came on.
    ValueError: a name that is Frugal's own, or more than the limits above.
    """

    __slots__ = ("_headers", "_reserved", "_response_headers", "correlation_id", "deadline", "timeout_ms", "topic")

    def __init__(
        self,
        correlation_id: str | None = None,
        *,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    ) -> None:
        if type(timeout_ms) is not int or timeout_ms < 1:
            raise ValueError(f"timeout_ms is {timeout_ms!r}; give whole milliseconds, from 1 on")
        self.correlation_id = _new_id() if correlation_id is None else correlation_id
        self.timeout_ms = timeout_ms
        self.deadline = math.inf  # of the monotonic clock, once the call is under way
        self.topic: Mapping[str, str] = {}
        self._headers: dict[str, str] = {}
        self._reserved: dict[str, str] = {}
        self._response_headers: dict[str, str] = {}
        if headers:
            for name, value in headers.items() if isinstance(headers, Mapping) else headers:
                self.set_header(name, value)

    @classmethod
    def received(
        cls,
        correlation_id: str | None,
        headers: Mapping[str, str],
        *,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        topic: Mapping[str, str] | None = None,
        reserved: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the context of a request or message that came in. The decoder of it has checked names and limits.

        `reserved`: headers of Frugal's that this version does not know; they are passed on, and not shown.
        """
        made = cls.__new__(cls)
        made.correlation_id = _new_id() if correlation_id is None else correlation_id
        made.timeout_ms = timeout_ms
        made.deadline = math.inf
        made.topic = dict(topic) if topic else {}
        made._headers = dict(headers)  # noqa: SLF001
        made._reserved = dict(reserved) if reserved else {}  # noqa: SLF001
        made._response_headers = {}  # noqa: SLF001
        return made

    def answered(self, headers: Mapping[str, str]) -> None:
        """Take over the headers of the answer; its decoder has checked names and limits."""
        self._response_headers.update(headers)

    @property
    def reserved(self) -> Mapping[str, str]:
        """Headers of Frugal's that came in and that this version does not know: passed on with the next request."""
        return self._reserved

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the request or message."""
        return self._headers

    @property
    def response_headers(self) -> Mapping[str, str]:
        """The headers of the answer: a handler sets them, a caller reads them after the call."""
        return self._response_headers

    def set_header(self, name: str, value: str) -> None:
        """Set a header of the request or message."""
        _check(name, value, self._headers)
        self._headers[name] = value

    def set_response_header(self, name: str, value: str) -> None:
        """Set a header of the answer."""
        _check(name, value, self._response_headers)
        self._response_headers[name] = value

    def begin(self, now: Callable[[], float]) -> None:
        """Begin the call: from now on the time runs. A context whose time runs already keeps its deadline."""
        if self.deadline == math.inf:
            self.deadline = now() + self.timeout_ms / 1_000

    def left_ms(self, now: float) -> int:
        """Return the milliseconds that are left, 0 if none; before `begin`, the whole time."""
        if self.deadline == math.inf:
            return self.timeout_ms
        return max(0, math.ceil((self.deadline - now) * 1_000))

    def passed_on(self) -> dict[str, str]:
        """Return the headers of a request in a frame, besides its ids and its time. Read only."""
        if self._reserved or self.topic:
            topic = {TOPIC + name: value for name, value in self.topic.items()}
            return {**topic, **self._reserved, **self._headers}
        return self._headers

    def copy(self) -> Self:
        """Return a context for another call: same correlation id, request headers and deadline, no response headers."""
        made = self.received(
            self.correlation_id,
            self._headers,
            timeout_ms=self.timeout_ms,
            topic=self.topic,
            reserved=self._reserved,
        )
        made.deadline = self.deadline
        return made

    def __repr__(self) -> str:
        return f"Context({self.correlation_id!r}, timeout_ms={self.timeout_ms}, headers={dict(self._headers)!r})"


def _new_id() -> str:
    """Return 32 hexadecimal digits of chance. A UUID4 has so many; an object for it would cost more than its digits."""
    return os.urandom(16).hex()


def _check(name: str, value: str, held: Mapping[str, str]) -> None:
    """Raise ValueError if a header must not be set, or does not fit."""
    if {type(name), type(value)} != {str}:
        raise TypeError(f"the header {name!r} is {value!r}; name and value are str")
    if not name or name.startswith("_"):
        raise ValueError(f"the header {name!r} is Frugal's own; choose a name that does not begin with _")
    if len(held) >= HEADERS_MAX and name not in held:
        raise ValueError(f"the context has {HEADERS_MAX} headers already, the most of one")
    size = sum(len(each.encode()) + len(text.encode()) for each, text in held.items() if each != name)
    if size + len(name.encode()) + len(value.encode()) > HEADER_BYTES_MAX:
        raise ValueError(f"the header {name!r} makes the context larger than {HEADER_BYTES_MAX:,} bytes, its most")
