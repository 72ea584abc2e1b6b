"""Query queue: queries wait here for a disk thread, so a slow search blocks no append, fetch or other client.

Rules: queries have a lane of their own, and few run at once: they read at most `running_max` batches at a time. Fewer
searches (which read up to SCAN_BYTES_MAX each) run than that, so quick queries are answered beside them; waiting
searches start first, so an endless flow of quick queries does not starve them. Users take turns, by the bytes read for
each (`Turns`), so no user waits for all that another one asks. At most `waiting_max` queries wait, and of one user at
most its share: further ones are refused. Queries of disconnected callers are dropped if they have not begun, and end
after their present batch if they have. Fetches with a projection have a queue of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from penstock.access.handshake import Principal, sharer_of
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.turns import Turns
from penstock.node.partition.log_queries import Query
from penstock.node.step import Lane, Outbox

Done = Callable[[Exception | None], None]


@dataclass(slots=True, eq=False)
class _Asked:
    caller: Hashable
    user: str
    query: Query
    done: Done


class QueryExecutor:
    """The queue for one kind of query on one broker."""

    def __init__(self, outbox: Outbox, *, running_max: int, waiting_max: int) -> None:
        self._outbox = outbox
        self._running_max = running_max
        self._waiting_max = waiting_max
        shares = FairShares()
        self._waiting: tuple[Turns[_Asked], Turns[_Asked]] = (Turns(shares), Turns(shares))  # quick queries, searches
        self._running: dict[Hashable, _Asked] = {}
        self._searching = 0

    def ask(self, caller: Hashable, query: Query, done: Done, who: Principal | None = None) -> None:
        """Run `query` when its turn comes, then call `done`; at once if it is quick and needs no disk.

        `who`: the caller's user. RemoteError overloaded.
        """
        try:
            is_done, error = query.run_if_cached(), None
        except RemoteError as refusal:
            is_done, error = True, refusal
        if is_done:
            done(error)
            return
        user = sharer_of(who)
        turns = self._waiting[query.is_search]
        if not turns.fits(user, self._waiting_max):
            raise RemoteError(ErrorCode.OVERLOADED, "too many queries at once; wait for some to be answered")
        turns.put(user, _Asked(caller, user, query, done))
        self._run_more()

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Drop the queries of callers that have disconnected."""
        gone = set(callers)
        for turns in self._waiting:
            turns.drop(lambda asked: asked.caller in gone)
        for caller in gone & self._running.keys():
            self._running[caller].query.give_up()

    def stop(self, error: RemoteError) -> None:
        """Answer the callers whose query has not begun, as the broker is stopping; running queries end soon."""
        for turns in self._waiting:
            while turns:
                self._outbox.step.reply(turns.take().caller, error)
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
