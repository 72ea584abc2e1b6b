"""ISR changes that this broker's leaderships want, many in one request to the metadata leader.

Rules: one request is in flight. An answer that does not match the request counts as lost, and so does none within
ISR_CHANGE_TIMEOUT_MS. A lost change may be in force, or may still come into force; see `leader`.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.base import limits
from penstock.messages import IsrChange, IsrResult
from penstock.replication.leader import Leadership
from penstock.replication.leadership_timers import LeadershipTimers


class ChangeBatch(NamedTuple):
    """One request for ISR changes; `number` tells late answers apart."""

    number: int
    changes: tuple[IsrChange, ...]


class IsrProposer:
    """Sends all ISR proposals of one broker. Times are elapsed microseconds."""

    def __init__(self, agenda: LeadershipTimers[Leadership]) -> None:
        self._agenda = agenda
        self._number = 0
        self._under_way: list[tuple[Leadership, IsrChange]] = []
        self._deadline_us = 0

    @property
    def next_deadline_us(self) -> int | None:
        """The deadline of the request in flight; None without one."""
        return self._deadline_us if self._under_way else None

    def request(self, now_us: int) -> ChangeBatch | None:
        """Return the next request to the metadata leader, or None."""
        if self._under_way:
            return None
        for leadership in self._agenda.take_wishes(limits.ISR_CHANGES_PER_COMMAND_MAX):
            if (change := leadership.proposal(now_us)) is not None:
                self._under_way.append((leadership, change))
        if not self._under_way:
            return None
        self._number += 1
        self._deadline_us = now_us + limits.ISR_CHANGE_TIMEOUT_MS * 1_000
        return ChangeBatch(self._number, tuple(change for _, change in self._under_way))

    def answered(self, number: int, results: tuple[IsrResult, ...], now_us: int) -> list[Leadership]:
        """Take the metadata leader's answer. Return the leaderships whose `committed_end` moved."""
        if number != self._number:
            return []
        if len(results) != len(self._under_way):
            self.lost(number, now_us)
            return []
        asked, self._under_way = self._under_way, []
        advanced = []
        for (leadership, change), result in zip(asked, results, strict=True):
            if not result.error:
                leadership.accepted(change, result.version)
            elif leadership.refused(change, now_us):
                advanced.append(leadership)
        return advanced

    def lost(self, number: int, now_us: int, retry_ms: int = limits.ISR_RETRY_MS) -> None:
        """The request was not answered: the metadata leader is unreachable or has changed."""
        if number == self._number:
            asked, self._under_way = self._under_way, []
            for leadership, change in asked:
                leadership.lost(change, now_us, retry_ms)

    def tick(self, now_us: int) -> None:
        """Give up a request whose deadline has passed."""
        if self._under_way and now_us >= self._deadline_us:
            self.lost(self._number, now_us)
