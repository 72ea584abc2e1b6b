"""Refusals that only the leader of a partition may give: given once it is certain that it leads.

Rules: a leader that was deposed may not know it yet. Its successor hears the same messages, and stores what the first
one refuses. So a refusal that holds only while this broker leads waits, where several brokers may lead the partition,
until the leadership is confirmed: a heartbeat that was sent after the message came is answered, all that the metadata
leader had decided by then is applied here, and the leadership is still the same one. Nobody else was subscribed when
NATS delivered the message. The heartbeat is sent at once, though not more often than every REFUSALS_CONFIRM_MS.

A refusal whose leadership ends before that is never given: the publisher hears from the successor, or nothing. Nor is
one that finds REFUSALS_WAITING_BYTES_MAX of them waiting, as where the metadata leader is away.

Offset commits that are refused because they lie beyond the end of a log wait likewise (`Doubt`): a leader that was
deposed does not know what its successor has stored. They are told COMMIT_JUDGED_MS after that was found, at the latest.

    refused ──alone──────────────────────────────────────────────▶ given
    refused ──several may lead──▶ waits ──leadership confirmed───▶ given
                                  waits ──leadership has ended───▶ dropped
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.fair_shares import FairShares
from penstock.node.standing import Beats
from penstock.node.step import Answers, Step
from penstock.replication.leader import Leadership

if TYPE_CHECKING:
    from penstock.node.partition import Partition

_CONFIRM_US = limits.REFUSALS_CONFIRM_MS * 1_000
_DOUBT_US = limits.COMMIT_JUDGED_MS * 1_000


class _Refusal(NamedTuple):
    partition: Partition
    leadership: Leadership  # in which it was decided
    answers: Answers
    after: int = 0  # the last heartbeat that was sent before the message came


class Doubt(Protocol):
    """A refusal that is certain only if a partition is led then as it was when this was decided."""

    def is_led(self) -> bool:
        """Whether it is, by what this broker knows now."""

    def is_over(self) -> bool:
        """Whether it never will be again, by what this broker knows now."""

    def settle(self, *, is_certain: bool) -> None:
        """Give the refusal, or go on without it."""


class _Doubted(NamedTuple):
    doubt: Doubt
    by: str  # for whom it counts
    deadline_us: int
    after: int = 0


class Refusals:
    """Those of all partitions of one broker. `settle` with each step."""

    def __init__(self) -> None:
        self._new: list[_Refusal] = []  # since the last step
        self._waiting: deque[_Refusal] = deque()
        self._new_doubts: list[_Doubted] = []
        self._doubted: deque[_Doubted] = deque()  # oldest first: so are their heartbeats and deadlines
        self._doubts_by_user = FairShares()
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

    def doubt(self, doubt: Doubt, by: str, now: Now) -> None:
        """Settle this once it is known whether the leadership is confirmed; without the refusal, if that takes long.

        `by`: for whom it counts (`Access.sharer`). Without the refusal, too, where that user has too many.
        """
        if self._doubts_by_user.fits(by, 1, limits.COMMITS_DOUBTED_MAX):
            self._doubts_by_user.add(by)
            self._new_doubts.append(_Doubted(doubt, by, now.elapsed_us + _DOUBT_US))
        else:
            doubt.settle(is_certain=False)

    def __bool__(self) -> bool:
        """Whether any wait: else `settle` has nothing to do."""
        return bool(self._new or self._waiting or self._new_doubts or self._doubted)

    def settle(self, beats: Beats, now: Now, step: Step) -> bool:
        """Give what is certain; whether a heartbeat is to be sent now."""
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

    def _settle_doubts(self, beats: Beats, now: Now) -> None:
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
        """When `settle` has something to do, at the latest."""
        deadlines = [self._doubted[0].deadline_us] if self._doubted else []
        return min([self._asked_us + _CONFIRM_US, *deadlines] if self._wants else deadlines, default=None)


def _is_led(refusal: _Refusal) -> bool:
    return refusal.partition.leadership is refusal.leadership
