"""Who was told that a message is not stored: it must not be in the log, now or later.

Rules: a refusal is held against the message from the moment in which the publisher hears it, whoever gave it: a leader,
or one that was deposed and does not know it yet. One thing is excused, for DEPOSED_US_MAX, in which a deposed leader
becomes mute: a new leader refuses what the deposed one has taken. That comes to nothing, unless all who were in sync
are lost and the deposed one leads again, with the longest log.

| the publisher hears                       | what is held against it                                           |
|-------------------------------------------|-------------------------------------------------------------------|
| that nobody listened                      | everything: no broker got it                                      |
| an error with the reason outcome_unknown  | nothing                                                           |
| an error of a new leader                  | everything, unless the deposed one has got the message, too       |
| an error of one of a queue group          | everything: nobody else got it                                    |
| any other error                           | everything                                                        |
| an error of an append                     | everything, where the code says that nothing was appended         |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.node.step import NatsAnswers
from penstock.sim import inspector
from penstock.sim.checks import Checks, History

if TYPE_CHECKING:
    from penstock.sim.broker import SimBroker, Surroundings

DEPOSED_US_MAX = limits.SESSION_MS * 1_000 + 100_000  # clocks run at different rates
_ERROR = b'"error"'
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


@dataclass(slots=True)
class _Published:
    """A message that nobody has answered yet. `brokers`: who got it."""

    histories: tuple[History, ...]  # where it may be stored: in one of them
    value: bytes
    brokers: tuple[str, ...]
    is_excused: bool = False


class Refusals:
    """All messages that are published, and what is said of them."""

    def __init__(self, around: Surroundings, checks: Checks) -> None:
        self._around = around
        self._checks = checks
        self._published: dict[bytes, _Published] = {}  # by reply subject

    def published(self, reply: bytes, histories: tuple[History, ...], value: bytes, brokers: tuple[str, ...]) -> None:
        """A message was handed to these brokers."""
        self._published[reply] = _Published(histories, value, brokers)

    def answered(self, broker: SimBroker, answers: Sequence[NatsAnswers]) -> None:
        """A broker gives answers to publishers."""
        for one in answers:
            if _ERROR in one.commands:
                for reply, body in commands_in(one.commands):
                    published = self._published.get(reply)
                    if published is not None and _ERROR in body and _IN_DOUBT not in body:
                        published.is_excused |= self._is_excused(broker, published)

    def _is_excused(self, broker: SimBroker, published: _Published) -> bool:
        split = published.histories[0].split
        if len(published.histories) > 1 and not (split is not None and split.is_by_leaders):
            return False  # of a queue group nobody else got it
        if set(published.brokers) == {broker.name}:
            return False
        return any(self._is_new(broker, history) for history in published.histories)

    def _is_new(self, broker: SimBroker, history: History) -> bool:
        assert broker.node is not None
        now_us = self._around.scheduler.now_us
        look = inspector.partition(broker.node, history.stream_id, history.partition)
        own_epoch = 0 if look is None else look.leader_epoch
        if own_epoch < max(history.leaders, default=0):
            return False  # it is deposed itself
        return now_us - history.led_us.get(own_epoch, now_us) <= DEPOSED_US_MAX

    def acked(self, reply: bytes) -> None:
        """Its publisher has heard that it is stored."""
        self._published.pop(reply, None)

    def refused(self, reply: bytes, body: bytes) -> None:
        """Its publisher has heard why not; an empty body: nobody listened."""
        published = self._published.pop(reply, None)
        if published is not None and not published.is_excused and _IN_DOUBT not in body:
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
