"""Who was told that a message is not stored: it must not be in the log, now or later.

Rules: a refusal is held against the message from the moment in which the publisher hears it. What it is worth is found
out when the broker gives it: it leads then, or it was deposed and does not know it yet. Two things are excused, both
for DEPOSED_US_MAX at most, in which a deposed leader becomes mute; what it refuses later is a violation by itself.

| the publisher hears                       | what is held against it                                           |
|-------------------------------------------|-------------------------------------------------------------------|
| that nobody listened                      | everything: no broker got it                                      |
| an error with the reason outcome_unknown  | nothing                                                           |
| an error of a leader                      | everything, unless one that was deposed just now got it, too      |
| an error of a deposed leader              | nothing: its successor may have stored it                         |
| an error of one of a queue group          | everything: nobody else got it                                    |
| an error of an append                     | everything, where the code says that nothing was appended         |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.node.step import Answers
from penstock.sim import looks
from penstock.sim.checks import Checks, History
from penstock.sim.violation import ViolationError

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

    def answered(self, broker: SimBroker, answers: Sequence[Answers]) -> None:
        """A broker gives answers to publishers."""
        for one in answers:
            if _ERROR in one.commands:
                for reply, body in commands_in(one.commands):
                    published = self._published.get(reply)
                    if published is not None and _ERROR in body and _IN_DOUBT not in body:
                        published.is_excused |= self._is_excused(broker, published)

    def _is_excused(self, broker: SimBroker, published: _Published) -> bool:
        assert broker.node is not None
        split = published.histories[0].split
        if len(published.histories) > 1 and not (split is not None and split.is_by_leaders):
            return False  # of a queue group nobody else got it
        return any(self._is_deposed(broker, published, history) for history in published.histories)

    def _is_deposed(self, broker: SimBroker, published: _Published, history: History) -> bool:
        """Whether it may speak for a partition that another one leads already."""
        assert broker.node is not None
        now_us = self._around.scheduler.now_us
        look = looks.partition(broker.node, history.stream_id, history.partition)
        own_epoch = 0 if look is None else look.leader_epoch
        later = [epoch for epoch in history.leaders if epoch > own_epoch]
        if later:
            deposed_us = now_us - history.led_us[min(later)]
            if deposed_us > DEPOSED_US_MAX:
                text = (
                    f"{history.name()}: {broker.name} refuses a message in epoch {own_epoch}, and another one has led"
                )
                raise ViolationError(f"{text} for {deposed_us / 1e6:.1f} s")
            self._around.count("refusals of deposed leaders")
            return True
        if set(published.brokers) == {broker.name}:
            return False
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
