"""Check: a message that was refused is not in the log, now or later.

Rules: A refusal counts from the moment when the publisher receives it, from a leader or from a deposed leader that does
not know so yet. One case is excused, for DEPOSED_US_MAX, the time until a deposed leader becomes mute: a new leader
refuses a message that the deposed one has appended. That append has no effect unless all ISR members are lost and the
deposed leader leads again with the longest log.

| the publisher receives                    | the message counts as refused                                     |
|-------------------------------------------|-------------------------------------------------------------------|
| no responders                             | always: no broker received it                                     |
| an error with the reason outcome_unknown  | never                                                             |
| an error of a new leader                  | unless the deposed leader received it, too                        |
| an error of one member of a queue group   | always: no other member received it                               |
| any other error                           | always                                                            |
| an error of an append                     | if the error code says that nothing was appended                  |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.node.step import NatsAnswers
from penstock.testing.simulation import inspector
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory

if TYPE_CHECKING:
    from penstock.testing.simulation.broker.broker import SimBroker, Surroundings

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
        ErrorCode.STREAM_FULL,
        ErrorCode.NOT_YET,
        ErrorCode.KEY_ELSEWHERE,
        ErrorCode.KEY_MOVING,
        ErrorCode.NOT_AUTHORIZED,
        ErrorCode.UNAUTHENTICATED,
    }
)


@dataclass(slots=True)
class _Published:
    """A message without an answer so far. `brokers`: its receivers."""

    histories: tuple[PartitionHistory, ...]  # it may be stored in one of these
    value: bytes
    brokers: tuple[str, ...]
    is_excused: bool = False


class Refusals:
    """All published messages and their answers."""

    def __init__(self, around: Surroundings, checks: Checks) -> None:
        self._around = around
        self._checks = checks
        self._published: dict[bytes, _Published] = {}  # by reply subject

    def published(
        self, reply: bytes, histories: tuple[PartitionHistory, ...], value: bytes, brokers: tuple[str, ...]
    ) -> None:
        """Record that a message was delivered to these brokers."""
        self._published[reply] = _Published(histories, value, brokers)

    def answered(self, broker: SimBroker, answers: Sequence[NatsAnswers]) -> None:
        """Excuse refusals of a new leader, before their publishers receive them (see the rules)."""
        for one in answers:
            if _ERROR in one.commands:
                for reply, body in commands_in(one.commands):
                    published = self._published.get(reply)
                    if published is not None and _ERROR in body and _IN_DOUBT not in body:
                        published.is_excused |= self._is_excused(broker, published)

    def _is_excused(self, broker: SimBroker, published: _Published) -> bool:
        split = published.histories[0].split
        if len(published.histories) > 1 and not (split is not None and split.is_by_leaders):
            return False  # no other member of the queue group received it
        if set(published.brokers) == {broker.name}:
            return False
        return any(self._is_new(broker, history) for history in published.histories)

    def _is_new(self, broker: SimBroker, history: PartitionHistory) -> bool:
        assert broker.node is not None
        now_us = self._around.scheduler.now_us
        look = inspector.partition(broker.node, history.stream_id, history.partition)
        own_epoch = 0 if look is None else look.leader_epoch
        if own_epoch < max(history.leaders, default=0):
            return False  # the broker is deposed itself
        return now_us - history.led_us.get(own_epoch, now_us) <= DEPOSED_US_MAX

    def acked(self, reply: bytes) -> None:
        """Forget a message whose publisher received an ack."""
        self._published.pop(reply, None)

    def refused(self, reply: bytes, body: bytes) -> None:
        """Record the error that the publisher received; an empty body means no responders."""
        published = self._published.pop(reply, None)
        if published is not None and not published.is_excused and _IN_DOUBT not in body:
            for history in published.histories:
                self._hold(history, published.value, body.decode() or "no responders")

    def append_refused(self, history: PartitionHistory, values: Sequence[bytes], error: RemoteError) -> None:
        """Record the error that a client received for its append."""
        if error.code in _NOT_APPENDED and error.details.get("reason") != ErrorCode.OUTCOME_UNKNOWN:
            for value in values:
                self._hold(history, value, str(error))

    def _hold(self, history: PartitionHistory, value: bytes, why: str) -> None:
        self._around.count("refusals that are held")
        self._checks.refused(history, value, why)


def commands_in(commands: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return reply subject and body of each PUB in encoded answers."""
    position = 0
    while (line_end := commands.find(b"\r\n", position)) >= 0:
        _, reply, size = commands[position:line_end].split()
        body_end = line_end + 2 + int(size)
        yield reply, commands[line_end + 2 : body_end]
        position = body_end + 2
