"""Refusals that only a partition's leader may send: delayed until its leadership is confirmed.

Rules: a deposed leader may not know it yet, and its successor receives the same messages and stores what the first one
refuses. So if several brokers may lead the partition, a refusal that is valid only for the leader waits until the
leadership is confirmed: a heartbeat sent after the message arrived is answered, all that the metadata leader had
decided by then is applied here, and the leadership is still the same one. Then no other broker was subscribed when NATS
delivered the message. The heartbeat is sent at once, but at most every REFUSALS_CONFIRM_MS.

A refusal whose leadership ends before that is dropped: the publisher gets the successor's answer, or none. So is one
beyond REFUSALS_WAITING_BYTES_MAX of waiting ones, as while the metadata leader is away.

Offset commits refused because they lie beyond the end of a log wait likewise (`DeferredRefusal`): a deposed leader does
not know what its successor has stored. So do look-ups that no lease covers (`leader_leases`). They are settled after
COMMIT_REFUSAL_WAIT_MS at the latest.

    refused ──alone──────────────────────────────────────────────▶ sent
    refused ──several may lead──▶ waits ──leadership confirmed───▶ sent
                                  waits ──leadership has ended───▶ dropped
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.fair_shares import FairShares
from penstock.node.quorum.registration import HeartbeatNumbers
from penstock.node.step import NatsAnswers, Step
from penstock.replication.leader import Leadership

if TYPE_CHECKING:
    from penstock.node.partition.partition import Partition

_CONFIRM_US = limits.REFUSALS_CONFIRM_MS * 1_000
_DOUBT_US = limits.COMMIT_REFUSAL_WAIT_MS * 1_000


class _Refusal(NamedTuple):
    partition: Partition
    leadership: Leadership  # in which it was decided
    answers: NatsAnswers
    after: int = 0  # last heartbeat sent before the message arrived


class DeferredRefusal(Protocol):
    """A refusal that is valid only if the partition's leadership has not changed since the decision."""

    def is_led(self) -> bool:
        """True if it has not changed, as far as this broker knows."""

    def is_over(self) -> bool:
        """True if it has changed for good, as far as this broker knows."""

    def settle(self, *, is_certain: bool) -> None:
        """Send the refusal if it is certain, or continue without it."""


class _Doubted(NamedTuple):
    doubt: DeferredRefusal
    by: str  # the user whose share it takes
    deadline_us: int
    after: int = 0


class DeferredRefusals:
    """The waiting refusals of one broker. Call `settle` with each step."""

    def __init__(self) -> None:
        self._new: list[_Refusal] = []  # since the last step
        self._waiting: deque[_Refusal] = deque()
        self._new_doubts: list[_Doubted] = []
        self._doubted: deque[_Doubted] = deque()  # oldest first, and so by heartbeat and deadline
        self._doubts_by_user = FairShares()
        self._size_bytes = 0
        self._asked_us = -_CONFIRM_US  # time of the last requested heartbeat
        self._wants = False  # a heartbeat is needed for new refusals

    def add(self, partition: Partition, answers: NatsAnswers) -> None:
        """Send `answers` once the leadership of `partition` is confirmed."""
        leadership = partition.leadership
        size_bytes = len(answers.commands)
        if leadership is not None and self._size_bytes + size_bytes <= limits.REFUSALS_WAITING_BYTES_MAX:
            self._size_bytes += size_bytes
            self._new.append(_Refusal(partition, leadership, answers))

    def doubt(self, doubt: DeferredRefusal, by: str, now: Now) -> None:
        """Settle this once the leadership is confirmed, or lost, or after COMMIT_REFUSAL_WAIT_MS.

        `by`: the user whose share it takes (`Authorization.sharer`). If the share is used up, it is settled as
        uncertain at once.
        """
        if self._doubts_by_user.fits(by, 1, limits.DEFERRED_COMMIT_REFUSALS_MAX):
            self._doubts_by_user.add(by)
            self._new_doubts.append(_Doubted(doubt, by, now.elapsed_us + _DOUBT_US))
        else:
            doubt.settle(is_certain=False)

    def __bool__(self) -> bool:
        """True if any wait; otherwise `settle` has nothing to do."""
        return bool(self._new or self._waiting or self._new_doubts or self._doubted)

    def settle(self, beats: HeartbeatNumbers, now: Now, step: Step) -> bool:
        """Send confirmed refusals. Return True if a heartbeat is to be sent now."""
        waiting = self._waiting
        if self._new or self._new_doubts:
            waiting.extend(one._replace(after=beats.sent) for one in self._new)
            self._doubted += [one._replace(after=beats.sent) for one in self._new_doubts]
            self._new.clear()
            self._new_doubts.clear()
            self._wants = True
        while waiting and (waiting[0].after < beats.confirmed or not _is_led(waiting[0])):
            refusal = waiting.popleft()
            self._size_bytes -= len(refusal.answers.commands)
            if _is_led(refusal):
                step.publish.append(refusal.answers)
        self._settle_doubts(beats, now)
        newest = max(waiting[-1].after if waiting else -1, self._doubted[-1].after if self._doubted else -1)
        self._wants = self._wants and newest >= beats.sent
        if not self._wants or now.elapsed_us < self._asked_us + _CONFIRM_US:
            return False
        self._asked_us, self._wants = now.elapsed_us, False
        return True

    def _settle_doubts(self, beats: HeartbeatNumbers, now: Now) -> None:
        doubted = self._doubted
        while doubted:
            first = doubted[0]
            is_confirmed = first.after < beats.confirmed
            if not (is_confirmed or now.elapsed_us >= first.deadline_us or first.doubt.is_over()):
                break
            doubted.popleft()
            self._doubts_by_user.remove(first.by)
            first.doubt.settle(is_certain=is_confirmed and first.doubt.is_led())

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `settle` must run."""
        deadlines = [self._doubted[0].deadline_us] if self._doubted else []
        return min([self._asked_us + _CONFIRM_US, *deadlines] if self._wants else deadlines, default=None)


def _is_led(refusal: _Refusal) -> bool:
    return refusal.partition.leadership is refusal.leadership
