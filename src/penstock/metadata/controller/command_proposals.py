"""Proposed commands that are not applied yet, at most one per key.

Rules: the result of a command is known when it was applied at the index and in the Raft term of its proposal; if
another entry took its place, or the metadata leader stepped down, the callers are told to retry.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.base.errors import ErrorCode, RemoteError
from penstock.metadata.commands import Command
from penstock.metadata.image import CommandOutcome

Done = Callable[[CommandOutcome | RemoteError], None]


class Proposal(NamedTuple):
    """A command to propose; report the result with `number` to `proposed` or `not_proposed`."""

    number: int
    command: Command


@dataclass(slots=True)
class _UnderWay:
    number: int
    done: Done
    index: int = 0  # 0: not in the log yet
    raft_term: int = 0


class CommandProposals:
    """The commands in flight."""

    def __init__(self) -> None:
        self.new: list[Proposal] = []  # for the driver to take
        self._by_key: dict[Hashable, _UnderWay] = {}
        self._last_number = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._by_key

    def begin(self, key: Hashable, command: Command, done: Done) -> None:
        """Have `command` proposed; nothing may be in flight under `key`."""
        assert key not in self._by_key, key
        self._last_number += 1
        self._by_key[key] = _UnderWay(self._last_number, done)
        self.new.append(Proposal(self._last_number, command))

    def proposed(self, number: int, index: int, raft_term: int) -> None:
        """The proposal is in the log at `index`."""
        for under_way in self._by_key.values():
            if under_way.number == number:
                under_way.index, under_way.raft_term = index, raft_term

    def not_proposed(self, number: int, error: RemoteError) -> None:
        """The proposal was refused."""
        for key, under_way in list(self._by_key.items()):
            if under_way.number == number:
                self._end(key, error)

    def applied(self, index: int, raft_term: int, outcome: CommandOutcome | RemoteError) -> None:
        """The entry at `index` was applied; `outcome` counts if it is the command that was proposed in that term."""
        for key, under_way in list(self._by_key.items()):
            if not 0 < under_way.index <= index:
                continue
            if (under_way.index, under_way.raft_term) == (index, raft_term):
                self._end(key, outcome)
            else:
                text = "another metadata leader's entry replaced this command; retry"
                self._end(key, RemoteError(ErrorCode.NOT_METADATA_LEADER, text))

    def abandon(self, error: RemoteError) -> None:
        """This broker stepped down as metadata leader: fail all commands in flight."""
        self.new = []
        for key in list(self._by_key):
            self._end(key, error)

    def _end(self, key: Hashable, outcome: CommandOutcome | RemoteError) -> None:
        self._by_key.pop(key).done(outcome)
