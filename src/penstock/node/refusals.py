"""What publishers are told is not stored: given once it is certain that no other broker stores the message.

Rules: a leader that was deposed may not know it yet. Its successor hears the same messages, and stores what the first
one refuses. So a refusal that holds only while this broker leads waits, where several brokers may lead the partition,
until the leadership is confirmed: a heartbeat that was sent after the message came is answered, all that the metadata
leader had decided by then is applied here, and the leadership is still the same one. Nobody else was subscribed when
NATS delivered the message. The heartbeat is sent at once, though not more often than every REFUSALS_CONFIRM_MS.

A refusal whose leadership ends before that is never given: the publisher hears from the successor, or nothing. Nor is
one that finds REFUSALS_WAITING_BYTES_MAX of them waiting, as where the metadata leader is away.

    refused ──alone──────────────────────────────────────────────▶ given
    refused ──several may lead──▶ waits ──leadership confirmed───▶ given
                                  waits ──leadership has ended───▶ dropped
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.node.standing import Beats
from penstock.node.step import Answers, Step
from penstock.replication.leader import Leadership

if TYPE_CHECKING:
    from penstock.node.partition import Partition

_CONFIRM_US = limits.REFUSALS_CONFIRM_MS * 1_000


class _Refusal(NamedTuple):
    partition: Partition
    leadership: Leadership  # in which it was decided
    answers: Answers
    after: int = 0  # the last heartbeat that was sent before the message came


class Refusals:
    """Those of all partitions of one broker. `settle` with each step."""

    def __init__(self) -> None:
        self._new: list[_Refusal] = []  # since the last step
        self._waiting: deque[_Refusal] = deque()
        self._size_bytes = 0
        self._asked_us = -_CONFIRM_US  # when a heartbeat was wanted last
        self._wants = False  # a heartbeat, for what has come since

    def add(self, partition: Partition, answers: Answers) -> None:
        """Give this once the leadership of `partition` is confirmed."""
        leadership = partition.leadership
        size_bytes = len(answers.commands)
        if leadership is not None and self._size_bytes + size_bytes <= limits.REFUSALS_WAITING_BYTES_MAX:
            self._size_bytes += size_bytes
            self._new.append(_Refusal(partition, leadership, answers))

    def settle(self, beats: Beats, now: Now, step: Step) -> bool:
        """Give what is certain; whether a heartbeat is to be sent now."""
        waiting = self._waiting
        if not (self._new or waiting):
            return False
        if self._new:
            waiting.extend(one._replace(after=beats.sent) for one in self._new)
            self._new.clear()
            self._wants = True
        while waiting and (waiting[0].after < beats.confirmed or not _is_led(waiting[0])):
            refusal = waiting.popleft()
            self._size_bytes -= len(refusal.answers.commands)
            if _is_led(refusal):
                step.publish.append(refusal.answers)
        self._wants = self._wants and bool(waiting) and waiting[-1].after >= beats.sent
        if not self._wants or now.elapsed_us < self._asked_us + _CONFIRM_US:
            return False
        self._asked_us, self._wants = now.elapsed_us, False
        return True

    @property
    def next_deadline_us(self) -> int | None:
        """When `settle` wants a heartbeat, at the latest."""
        return self._asked_us + _CONFIRM_US if self._wants else None


def _is_led(refusal: _Refusal) -> bool:
    return refusal.partition.leadership is refusal.leadership
