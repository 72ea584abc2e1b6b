"""Interest: which messages of a stream with retention `workqueue` or `interest` no consumer needs any more.

Rules: a message is given out once no consumer needs it; the caller hides it (`Node.consume`), and gives back what could
not be hidden. What a consumer needs is asked of its state when it matters (`Claim`), and not kept here: a settled
message that was never told is found by the next `look`, and one that is told twice changes nothing.

| retention | a message goes                                                                                      |
|-----------|-----------------------------------------------------------------------------------------------------|
| workqueue | once its consumer has settled it. Consumers do not overlap; what none matches stays                 |
| interest  | once every consumer has passed it, and none holds it; with the last consumer all go                 |

Theory: all rows below the least `next_offset` are passed by every consumer, so no subject is needed to judge them: the
rows between two of these ends go as one run, less what is held. Of a held one the last ack decides. Consumers that have
acked what a slow one has not passed yet need no note: the row goes when that one passes it. If the slow one has filters
and rests, its subjects decide (`asks`), as else one dead consumer would keep messages that it never wanted.

    offsets    0 ········ judged ········ least next ········ another next ········ end
               given out, or held         next run            goes if no slow filter matches
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from penstock.base.config import RetentionPolicy
from penstock.base.subjects import overlap
from penstock.live.row_set import NONE, RowSet

ALL = ">"
ASKS_MAX = 8
"""Questions at once: each reads subjects of the log."""


class Claim(Protocol):
    """Claim of one consumer on the rows of a stream, as its state says at the moment."""

    @property
    def next_offset(self) -> int:
        """All rows before it are passed: held, settled, or on subjects that it does not want."""

    def holds(self, offset: int) -> bool:
        """True if a passed row is not settled: in hand, parked, ready again, or delivered max_deliver times."""

    def held(self, begin: int, end: int) -> Sequence[int]:
        """Return these rows from `begin` to `end`, in order."""


class Ask(NamedTuple):
    """A question about subjects: rows that no consumer needs if their subject matches one of the filters.

    With `if_matching` False it is the other way round: rows on all other subjects are not needed.
    """

    rows: RowSet
    filters: tuple[str, ...]
    if_matching: bool


class Refusal(NamedTuple):
    """Why a consumer cannot be: JetStream's error."""

    err_code: int
    description: str


class _Entry(NamedTuple):
    name: str
    filters: tuple[str, ...]  # empty: all
    claim: Claim
    since: int


class Interest:
    """The consumers of one partition in one leadership, and what they need no more."""

    def __init__(self, retention: RetentionPolicy, start: int) -> None:
        """`start`: the log start; the rows before it are gone."""
        assert retention is not RetentionPolicy.LIMITS
        self._is_queue = retention is RetentionPolicy.WORKQUEUE
        self._start = start
        self._judged = start  # rows before it were given out, but for those that were held
        self._entries: dict[str, _Entry] = {}
        self._order: list[_Entry] = []
        self._holder = 0  # in `_order`, the consumer that was last found to need a row
        self._out = NONE
        self._is_emptied = False  # the last consumer has left: whenever there is none, nothing is needed
        self._stays = NONE  # rows that a filter was found to match; forgotten with any change of consumers
        self._owes_look = True  # a queue: what was settled under an earlier leadership may still be shown

    # Consumers

    @property
    def filters(self) -> tuple[str, ...]:
        """Filters of all consumers together, for `Node.tell_interest`."""
        found = {one for entry in self._order for one in entry.filters or (ALL,)}
        return (ALL,) if ALL in found else tuple(sorted(found))

    def join(self, name: str, filters: Iterable[str], claim: Claim, since: int = 0) -> None:
        """Add a consumer, or change the filters of one. Its claim counts from now on.

        `since`: it has passed the rows before it by other filters, so of a queue it may have settled none of them.
        """
        self._entries[name] = _Entry(name, tuple(filters), claim, since)
        self._changed()

    def leave(self, name: str) -> None:
        """Remove a consumer. In a queue its messages stay for the next one; else those that only it needed go."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self._changed()
        if self._is_queue:
            return
        self._is_emptied |= not self._entries
        self._release(entry.claim.held(self._start, self._judged))

    def abandon(self, name: str) -> None:
        """Forget a consumer that never came, or that goes on by another name: it takes nothing with it."""
        if self._entries.pop(name, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self._order = list(self._entries.values())
        self._holder, self._stays = 0, NONE

    def start_raised(self, start: int) -> None:
        """Take a raised log start: what is below it is gone."""
        if start > self._start:
            self._start = start
            self._judged = max(self._judged, start)
            self._out = self._out.between(start, self._out.end) if self._out else NONE
            self._stays = NONE

    # Rows

    def settled(self, name: str, offsets: Sequence[int]) -> None:
        """A consumer needs these rows no more: acked, terminated, given up to a stream of dead letters."""
        if self._is_queue:
            if name in self._entries:
                self._out |= RowSet.of(one for one in offsets if one >= self._start)
        else:
            self._release(one for one in offsets if self._start <= one < self._judged)

    def settled_before(self, name: str, offset: int) -> bool:
        """A consumer passed a row that it does not hold, and says that it is settled; False: the next question decides.

        An ack proves little: its token is short, and of a queue the row may be another consumer's, or no one's. Only a
        consumer that gets all rows has settled whatever it passed and does not hold.
        """
        if not self._is_queue:
            self.settled(name, (offset,))
            return True
        entry = self._entries.get(name)
        if entry is None or entry.filters:
            return False
        if entry.since <= offset < entry.claim.next_offset and not entry.claim.holds(offset):
            self.settled(name, (offset,))
        return True

    def _release(self, offsets: Iterable[int]) -> None:
        """Give out rows below `_judged` that no consumer needs."""
        if found := [one for one in offsets if not self._is_needed(one)]:
            self._out |= RowSet.of(found)

    def _is_needed(self, offset: int) -> bool:
        """True if a consumer holds the row, or is yet to pass it."""
        order, count = self._order, len(self._order)
        for step in range(count):
            at = (self._holder + step) % count
            claim = order[at].claim
            if offset >= claim.next_offset or claim.holds(offset):
                self._holder = at  # it likely needs the next one, too: so a row costs a look at each consumer in all
                return True
        return False

    def take(self, end: int) -> RowSet:
        """Return the rows to hide now, below `end`, up to which readers are shown rows; each once."""
        if self._is_queue:
            self._look_once(end)
        else:
            self._judge(end)
        found = self._out.between(0, end)
        self._out = self._out.between(end, self._out.end) if self._out.end > end else NONE
        return found

    def give_back(self, rows: RowSet) -> None:
        """Take back rows that could not be hidden: the next `take` returns them again."""
        self._out |= rows

    def look(self) -> None:
        """Judge all rows anew at the next `take`: from time to time, and when a leadership has begun."""
        self._judged, self._owes_look = self._start, True

    def _judge(self, end: int) -> None:
        if not self._order:
            passed = end if self._is_emptied else self._judged
        else:
            passed = min(end, *(one.claim.next_offset for one in self._order))
        if passed > self._judged:
            self._out |= self._unheld(self._judged, passed)
        # It falls if a consumer has come, or begins anew: then its rows are judged once it has passed them.
        self._judged = max(self._start, passed)

    def _look_once(self, end: int) -> None:
        """Find what consumers without filters settled; see `asks` for the others."""
        if not self._owes_look:
            return
        for entry in self._order:
            if not entry.filters:
                self._out |= self._unheld(max(self._start, entry.since), min(end, entry.claim.next_offset))
        self._owes_look = False

    def _unheld(self, begin: int, end: int, but: RowSet = NONE) -> RowSet:
        """Return the rows from `begin` to `end` that no consumer holds, without those in `but`."""
        held = but | RowSet.of(one for entry in self._order for one in entry.claim.held(begin, end))
        return RowSet.of_runs(gaps(held, begin, end))

    # Rows whose subjects decide

    def asks(self, end: int) -> list[Ask]:
        """Return questions about rows below `end`, which the caller answers by the log's subjects, in a disk thread.

        Of a queue: what consumers with filters settled before, once after `look`. Of interest: what all have passed but
        slow ones with filters. Each is worth it at a leadership's begin, and then every some seconds.
        """
        found = self._asks_of_queue(end) if self._is_queue else self._asks_of_slow(end)
        return [one for one in found if one.rows][:ASKS_MAX]

    def answered(self, ask: Ask, gone: RowSet) -> None:
        """Take the rows of a question that go. A row that a consumer holds by now stays."""
        if self._is_queue:
            self._out |= self._without_held(gone)
            return
        # A consumer that has come meanwhile wants all from its `next_offset` on: its filters were not asked about.
        if not all(set(one.filters) <= {*ask.filters} for one in self._slower_than(ask.rows.end)):
            return
        self._stays |= ask.rows
        self._out |= self._without_held(gone)

    def _without_held(self, rows: RowSet) -> RowSet:
        if not rows:
            return NONE
        (begin, _), end = next(rows.runs()), rows.end
        held = RowSet.of(one for entry in self._order for one in entry.claim.held(begin, end))
        return RowSet.of_runs(run for first, last in rows.runs() for run in gaps(held, first, last))

    def _asks_of_queue(self, end: int) -> Iterator[Ask]:
        for entry in self._order:
            if entry.filters:
                begin = max(self._start, entry.since)
                rows = self._unheld(begin, min(end, entry.claim.next_offset), self._stays)
                yield Ask(rows, entry.filters, if_matching=True)

    def _asks_of_slow(self, end: int) -> Iterator[Ask]:
        ends = sorted({min(end, one.claim.next_offset) for one in self._order})
        for begin, stop in pairwise(ends):
            slow = self._slower_than(stop)
            if not all(one.filters for one in slow):
                return  # it wants all, also of what is behind
            filters = tuple(sorted({filter_ for one in slow for filter_ in one.filters}))
            yield Ask(self._unheld(begin, stop, self._stays), filters, if_matching=False)

    def _slower_than(self, end: int) -> list[_Entry]:
        """Return the consumers that have not passed all rows before `end`."""
        return [one for one in self._order if one.claim.next_offset < end]


def gaps(rows: RowSet, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges from `begin` to `end` without these rows."""
    for first, last in rows.runs(begin, end):
        if begin < first:
            yield begin, first
        begin = last
    if begin < end:
        yield begin, end


def workqueue_refusal(
    others: Mapping[str, Sequence[str]],
    name: str,
    filters: Sequence[str],
    *,
    ack_policy: str,
    deliver_policy: str,
    is_pull: bool,
    exists: bool = False,
) -> Refusal | None:
    """Return why a stream with retention `workqueue` cannot have this consumer; None: it can. As nats-server 2.14.

    `others`: the filters of its consumers, by name; `name` among them does not count. `exists`: it is to be changed.
    """
    rest = [found for key, found in others.items() if key != name]
    clashes = any(not found or any(overlap(one, other) for one in filters for other in found) for found in rest)
    if is_pull and ack_policy == "none":
        return Refusal(10084, "consumer in pull mode requires explicit ack policy on workqueue stream")
    if ack_policy != "explicit":
        return Refusal(10098, "workqueue stream requires explicit ack")
    if deliver_policy != "all" and not exists:
        return Refusal(10101, "consumer must be deliver all on workqueue stream")
    if rest and not filters:  # nats-server takes such a change, and then both consumers get a message
        code, text = (10100, _NOT_UNIQUE) if exists else (10099, "multiple non-filtered consumers not allowed on")
        return Refusal(code, text if exists else f"{text} workqueue stream")
    return Refusal(10100, _NOT_UNIQUE) if clashes else None


_NOT_UNIQUE = "filtered consumer not unique on workqueue stream"
