"""Pull requests, and the status messages that readers send."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from penstock.hot.deliveries import Pull

REQUEST_BYTES_MAX = 4_096
"""A pull request is a few numbers."""
_S_NS = 1_000_000_000
_INT64_MAX = 2**63 - 1


class BadPullError(ValueError):
    """A pull request that is refused; the text goes to the client."""


class PullPriority(NamedTuple):
    """The priority part of a pull request."""

    is_given: bool = False  # it is JSON, so it may say something
    group: str = ""
    pin: str = ""
    priority: int = 0
    min_pending: int = 0
    min_ack_pending: int = 0

    def mistake(self, policy: str) -> str:
        """Return what is wrong with it for a consumer with that policy; nats-server tells it after all limits."""
        if (self.min_pending or self.min_ack_pending) and policy != "overflow":
            return "Not a Overflow Priority consumer"
        if self.pin and policy != "pinned_client":
            return "Not a Pinned Client Priority consumer"
        return "" if 0 <= self.priority <= 9 else "Priority must be between 0 and 9"


class PullRequest(NamedTuple):
    """A pull request, and its priority."""

    pull: Pull
    priority: PullPriority = PullPriority()


class _PullJson(msgspec.Struct):
    expires: int | None = None  # ns
    batch: int | None = None
    max_bytes: int | None = None
    no_wait: bool | None = None
    idle_heartbeat: int | None = None
    min_pending: int | None = None
    min_ack_pending: int | None = None
    id: str | None = None
    group: str | None = None
    priority: int | None = None


_decode = msgspec.json.Decoder(_PullJson).decode


def parsed_pull(payload: bytes, reply: bytes, now_us: int) -> PullRequest:
    """Return the request of a MSG.NEXT payload: empty, a number, or JSON. Raise BadPullError."""
    text = payload.strip()
    pull = Pull(reply, b"", 1, now_us)
    if not text:
        return PullRequest(pull)
    if not text.startswith(b"{"):
        if text.removeprefix(b"-").isdigit() and len(text) < 19:
            pull.batch = int(text)
        return PullRequest(pull)
    if len(text) > REQUEST_BYTES_MAX:
        raise BadPullError(f"{len(text)} bytes")
    try:
        found = _decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadPullError(str(error)) from None
    heartbeat_ns, expires_ns = _bounded(found.idle_heartbeat), _bounded(found.expires)
    if heartbeat_ns > 0 and 2 * heartbeat_ns > expires_ns:
        raise BadPullError("heartbeat value too large")
    pull.batch = _bounded(found.batch)
    pull.bytes_left = max(0, _bounded(found.max_bytes))
    pull.has_limit = pull.bytes_left > 0
    pull.no_wait = bool(found.no_wait)
    pull.heartbeat_us = max(0, heartbeat_ns) // 1_000
    if expires_ns:
        pull.expires_us = now_us + expires_ns // 1_000
    least = _bounded(found.min_pending), _bounded(found.min_ack_pending)
    return PullRequest(pull, PullPriority(True, found.group or "", found.id or "", found.priority or 0, *least))


def _bounded(number: int | None) -> int:
    if number is None:
        return 0
    if not -_INT64_MAX <= number <= _INT64_MAX:
        raise BadPullError(f"number {str(number)[:32]} is out of range")
    return number


def go_duration(us: int) -> str:
    """Return a duration as Go prints it, such as 1m30s and 1.5ms."""
    if us < 1_000:
        return f"{us}µs" if us else "0s"
    if us < 1_000_000:
        return f"{_decimal(us, 1_000)}ms"
    whole_s, rest_us = divmod(us, 1_000_000)
    hours, minutes = whole_s // 3_600, whole_s // 60 % 60
    text = f"{_decimal(whole_s % 60 * 1_000_000 + rest_us, 1_000_000)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


def _decimal(number: int, unit: int) -> str:
    whole, rest = divmod(number, unit)
    digits = f"{rest:0{len(str(unit)) - 1}}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def status(code: int, text: str, **headers: Any) -> bytes:
    """Return the header block of a status message; `_` in the names of headers stands for `-`."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0 {code} {text}\r\n{lines}\r\n".encode()


def frame(inbox: bytes, block: bytes, reply: bytes = b"", groups: bytes = b"") -> bytes:
    """Return a status message for an inbox as a frame of the leaf connection; `groups`: see `Pull`."""
    if groups:
        queue = b"+ %b %b" % (reply, groups) if reply else b"| %b" % groups
        return b"HMSG %b %b %d %d\r\n%b\r\n" % (inbox, queue, len(block), len(block), block)
    answer = b"%b " % reply if reply else b""
    return b"HMSG %b %b%d %d\r\n%b\r\n" % (inbox, answer, len(block), len(block), block)
