"""Where queries wait for a disk thread: a slow search must hold up no append, no read and no other client for ever.

Rules: queries have a lane of their own, and few run at once: what they read at once is bounded by `running_max`
batches. Of the searches (which read up to SCAN_BYTES_MAX each) fewer run than may, so that a quick question is answered
beside them; they are begun first, so that quick questions without end do not keep them waiting. Users take turns, by
what was read for each (`Turns`), so nobody waits for all that another user asks. More than `waiting_max` do not wait,
nor more of one user than its share: they are refused. Who has gone is not waited for: what has not begun is forgotten,
what runs ends after its present batch. Fetches that want not all have a desk of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from penstock.access.handshake import Principal, sharer_of
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.turns import Turns
from penstock.node.queries import Query
from penstock.node.step import Lane, Outbox

Done = Callable[[Exception | None], None]


@dataclass(slots=True, eq=False)
class _Asked:
    caller: Hashable
    user: str
    query: Query
    done: Done


class Desk:
    """All queries of one kind of one broker."""

    def __init__(self, outbox: Outbox, *, running_max: int, waiting_max: int) -> None:
        self._outbox = outbox
        self._running_max = running_max
        self._waiting_max = waiting_max
        shares = FairShares()
        self._waiting: tuple[Turns[_Asked], Turns[_Asked]] = (Turns(shares), Turns(shares))  # quick ones, searches
        self._running: dict[Hashable, _Asked] = {}
        self._searching = 0

    def ask(self, caller: Hashable, query: Query, done: Done, who: Principal | None = None) -> None:
        """Run `query` when it is its turn; `done` hears how it went. `who` asks. RemoteError overloaded."""
        user = sharer_of(who)
        turns = self._waiting[query.is_search]
        if not turns.fits(user, self._waiting_max):
            raise RemoteError(ErrorCode.OVERLOADED, "too many queries at once; wait for some to be answered")
        turns.put(user, _Asked(caller, user, query, done))
        self._run_more()

    def gone(self, callers: Iterable[Hashable]) -> None:
        """Nobody waits for what these callers have asked."""
        gone = set(callers)
        for turns in self._waiting:
            turns.drop(lambda asked: asked.caller in gone)
        for caller in gone & self._running.keys():
            self._running[caller].query.give_up()

    def stop(self, error: RemoteError) -> None:
        """The broker stops: tell those whose query has not begun; what runs ends soon."""
        for turns in self._waiting:
            while turns:
                self._outbox.step.answer(turns.take().caller, error)
        for asked in self._running.values():
            asked.query.give_up()

    def _run_more(self) -> None:
        quick, searches = self._waiting
        while len(self._running) < self._running_max:
            if searches and self._searching < limits.SEARCHES_RUNNING_MAX:
                self._run(searches.take())
            elif quick:
                self._run(quick.take())
            else:
                return

    def _run(self, asked: _Asked) -> None:
        assert asked.caller not in self._running, asked
        self._running[asked.caller] = asked
        self._searching += asked.query.is_search

        def done(error: Exception | None) -> None:
            del self._running[asked.caller]
            self._searching -= asked.query.is_search
            self._waiting[asked.query.is_search].charge(asked.user, asked.query.looked_bytes)
            asked.done(error)
            self._run_more()

        self._outbox.work(Lane.QUERY, asked.query.run, done)
