"""Who was told that a message is not stored: it must not be in the log, now or later.

Rules: a refusal is held against the message from the moment in which the publisher hears it, whoever gave it: a leader,
or one that was deposed and does not know it yet. Nothing is excused.

| the publisher hears                       | what is held against it                                           |
|-------------------------------------------|-------------------------------------------------------------------|
| that nobody listened                      | everything: no broker got it                                      |
| an error with the reason outcome_unknown  | nothing                                                           |
| any other error                           | everything                                                        |
| an error of an append                     | everything, where the code says that nothing was appended         |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base.errors import ErrorCode, RemoteError
from penstock.sim.checks import Checks, History

if TYPE_CHECKING:
    from penstock.sim.broker import Surroundings

_IN_DOUBT = b'"reason":"%b"' % ErrorCode.OUTCOME_UNKNOWN.encode()
_NOT_APPENDED = frozenset(
    {
        ErrorCode.NOT_LEADER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.OVERLOADED,
        ErrorCode.READ_ONLY,
        ErrorCode.STORAGE_FAILED,
        ErrorCode.STREAM_NOT_FOUND,
        ErrorCode.STREAM_CHANGED,
        ErrorCode.NOT_YET,
        ErrorCode.KEY_ELSEWHERE,
        ErrorCode.KEY_MOVING,
        ErrorCode.NOT_AUTHORIZED,
        ErrorCode.UNAUTHENTICATED,
    }
)


class _Published(NamedTuple):
    """A message that nobody has answered yet."""

    histories: tuple[History, ...]  # where it may be stored: in one of them
    value: bytes


class Refusals:
    """All messages that are published, and what is said of them."""

    def __init__(self, around: Surroundings, checks: Checks) -> None:
        self._around = around
        self._checks = checks
        self._published: dict[bytes, _Published] = {}  # by reply subject

    def published(self, reply: bytes, histories: tuple[History, ...], value: bytes) -> None:
        """A message was handed to the brokers that listen."""
        self._published[reply] = _Published(histories, value)

    def acked(self, reply: bytes) -> None:
        """Its publisher has heard that it is stored."""
        self._published.pop(reply, None)

    def refused(self, reply: bytes, body: bytes) -> None:
        """Its publisher has heard why not; an empty body: nobody listened."""
        published = self._published.pop(reply, None)
        if published is not None and _IN_DOUBT not in body:
            for history in published.histories:
                self._hold(history, published.value, body.decode() or "no responders")

    def append_refused(self, history: History, values: Sequence[bytes], error: RemoteError) -> None:
        """A client has heard why its append failed."""
        if error.code in _NOT_APPENDED and error.details.get("reason") != ErrorCode.OUTCOME_UNKNOWN:
            for value in values:
                self._hold(history, value, str(error))

    def _hold(self, history: History, value: bytes, why: str) -> None:
        self._around.count("refusals that are held")
        self._checks.refused(history, value, why)


def commands_in(commands: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Reply subject and body of each PUB of ready-made answers."""
    position = 0
    while (line_end := commands.find(b"\r\n", position)) >= 0:
        _, reply, size = commands[position:line_end].split()
        body_end = line_end + 2 + int(size)
        yield reply, commands[line_end + 2 : body_end]
        position = body_end + 2
