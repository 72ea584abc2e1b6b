"""Pending proposals of this broker, by their index in the metadata log.

Rules: a proposal succeeded if the entry committed at its index has its term; an entry of another term is another
command. Each proposal is answered once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.metadata.image import CommandOutcome
from penstock.raft import Entry, NotLeaderError

Done = Callable[[CommandOutcome | RemoteError], None]
_UNKNOWN = "the change may or may not have been made: this broker lost track of it; check before a retry"


class Input(NamedTuple):
    """Input for the Raft core that waits until the core takes it; `done` gets the error if it fails."""

    act: Callable[[], tuple[int, int] | None]  # returns index and term of a proposal
    done: Done | None
    placed: Callable[[int, int], None] | None = None
    may_use_reserve: bool = True
    size_bytes: int = 0  # of the command

    def refuse(self, error: RemoteError) -> None:
        """Fail with `error`."""
        if self.done is not None:
            self.done(error)


class _Proposal(NamedTuple):
    """A pending proposal; its entry has this term."""

    term: int
    done: Done
    may_use_reserve: bool


class PendingProposals:
    """All pending proposals, by index."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Proposal] = {}

    def add(self, index: int, term: int, done: Done, *, may_use_reserve: bool) -> None:
        """Register `done` for the outcome of the entry."""
        before = self._waiting.get(index)
        self._waiting[index] = _Proposal(term, done, may_use_reserve)
        if before is not None:  # proposed in an earlier leadership; other brokers may still have that entry
            before.done(RemoteError(ErrorCode.TIMED_OUT, _UNKNOWN))

    def may_use_reserve(self, entries: Iterable[Entry]) -> bool:
        """True if all of these entries may use the disk reserve, which is kept for important commands."""
        found = (self._waiting.get(entry.index) for entry in entries)
        return all(proposal is None or proposal.may_use_reserve for proposal in found)

    def resolve(self, entry: Entry, outcome: CommandOutcome | RemoteError, leader: BrokerId | None) -> None:
        """Answer the proposal at the entry's index; with another term it fails, and the client may ask `leader`."""
        proposal = self._waiting.pop(entry.index, None)
        if proposal is not None:
            proposal.done(outcome if proposal.term == entry.term else NotLeaderError(leader))

    def replaced(self, index: int) -> None:
        """Fail proposals up to `index`: a snapshot replaced their entries, so their outcome is unknown."""
        self._drop([one for one in self._waiting if one <= index], RemoteError(ErrorCode.TIMED_OUT, _UNKNOWN))

    def drop(self, error: RemoteError) -> None:
        """Fail all proposals."""
        self._drop(list(self._waiting), error)

    def _drop(self, indexes: Iterable[int], error: RemoteError) -> None:
        for index in indexes:
            self._waiting.pop(index).done(error)
