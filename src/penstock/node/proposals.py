"""Who waits for which entry of the metadata log.

Rules: an entry is somebody's if it is committed at the index and in the term in which it was proposed; in another term
somebody else's command stands there. Everybody is answered once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.metadata.image import Outcome
from penstock.raft import Entry, NotLeaderError

Done = Callable[[Outcome | RemoteError], None]
_UNKNOWN = "the change may or may not have been made: this broker lost its place in the metadata meanwhile; look"


class Input(NamedTuple):
    """Something of ours that waits until the core may be told; `done` hears it if it comes to nothing."""

    act: Callable[[], tuple[int, int] | None]  # gives index and term of what was proposed
    done: Done | None
    placed: Callable[[int, int], None] | None = None
    may_use_reserve: bool = True
    size_bytes: int = 0  # of the command

    def refuse(self, error: RemoteError) -> None:
        """It comes to nothing."""
        if self.done is not None:
            self.done(error)


class _Proposal(NamedTuple):
    """Somebody waits for the entry at an index: it is his only in this term."""

    term: int
    done: Done
    may_use_reserve: bool


class Proposals:
    """Those of one broker, by index."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Proposal] = {}

    def add(self, index: int, term: int, done: Done, *, may_use_reserve: bool) -> None:
        """`done` hears what becomes of the entry."""
        before = self._waiting.get(index)
        self._waiting[index] = _Proposal(term, done, may_use_reserve)
        if before is not None:  # of an earlier lead; another broker may still have that entry
            before.done(RemoteError(ErrorCode.TIMED_OUT, _UNKNOWN))

    def may_use_reserve(self, entries: Iterable[Entry]) -> bool:
        """Whether all of these may take up the room that is kept for what must go through."""
        found = (self._waiting.get(entry.index) for entry in entries)
        return all(proposal is None or proposal.may_use_reserve for proposal in found)

    def resolve(self, entry: Entry, outcome: Outcome | RemoteError, leader: BrokerId | None) -> None:
        """`entry` came to this; whoever waited for another one at its index may ask `leader`."""
        proposal = self._waiting.pop(entry.index, None)
        if proposal is not None:
            proposal.done(outcome if proposal.term == entry.term else NotLeaderError(leader))

    def replaced(self, index: int) -> None:
        """A snapshot came in the place of all up to `index`: what they came to is in it, and nobody can say it."""
        self._drop([one for one in self._waiting if one <= index], RemoteError(ErrorCode.TIMED_OUT, _UNKNOWN))

    def drop(self, error: RemoteError) -> None:
        """Tell all who wait."""
        self._drop(list(self._waiting), error)

    def _drop(self, indexes: Iterable[int], error: RemoteError) -> None:
        for index in indexes:
            self._waiting.pop(index).done(error)
