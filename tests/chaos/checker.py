"""Whether a history keeps the promises: what it finds has the names that Jepsen's workload for Kafka gives it.

Rules: pure; a class of mistakes that is empty is not named in the result. What a system may lose by its promise is lost
rightly only within a `PowerLost` that names the place, and only what was promised after the moment that it names: such
a promise counts if the last logs have it, and is left out of everything else if not. That moment itself is judged, too:
by it nothing may have waited for a sync for longer than `WAITED_S_MAX`.

| class                | a mistake is                                                                              |
|----------------------|-------------------------------------------------------------------------------------------|
| lost write           | acked, below the highest offset that anybody has seen there, and in no log at the end     |
| acked beyond the end | acked at an offset that the leader's log does not reach at the end                        |
| unseen               | acked and stored, and no consumer has ever been given it                                  |
| duplicate            | one value at two offsets, though its publisher sent it once, or with an id                |
| inconsistent offset  | two values at one offset: of acks, of polls, of the logs at the end                       |
| nonmonotonic poll    | a consumer is given an offset that is not above the last one, in one poll or in the next  |
| skipped poll         | a consumer is given an offset beyond one that is there, that it asked for and did not get |
| sent back            | a consumer is told that what it has read is gone, and no power loss may have taken it     |
| late sync            | at a power loss of all, what no replica has on its disk has waited for its sync too long  |
| diverging replicas   | two replicas have other bytes at one offset, or one lacks what another has                |
| order                | in one partition, a message of a publisher lies behind a later one of his                 |
| never sent           | a value that nobody sent                                                                  |
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from penstock.base import limits
from tests.chaos.history import Acked, Event, Kept, Place, Polled, PowerLost, Sent, SentBack, publisher_of

WAITED_S_MAX = limits.FLUSH_INTERVAL_MS / 1000 + 0.5
"""What is promised, and half a second for a machine that has other things to do."""

CLASSES = (
    "lost write",
    "acked beyond the end",
    "unseen",
    "duplicate",
    "inconsistent offset",
    "nonmonotonic poll",
    "skipped poll",
    "sent back",
    "late sync",
    "diverging replicas",
    "order",
    "never sent",
)


@dataclass(slots=True)
class Result:
    """What came of it."""

    mistakes: dict[str, list[str]] = field(default_factory=dict)  # class → each of them in words
    acked: int = 0
    polled: int = 0
    stored: int = 0
    lost_as_promised: int = 0  # promises that a power loss has taken, as it may

    def found(self, kind: str, text: str) -> None:
        """One more mistake."""
        assert kind in CLASSES
        self.mistakes.setdefault(kind, []).append(text)


@dataclass(slots=True)
class _Log:
    """What is known of one place."""

    kept: dict[str, dict[int, tuple[str, bytes]]] = field(default_factory=dict)
    acks: list[Acked] = field(default_factory=list)
    polls: list[Polled] = field(default_factory=list)
    sent_back: list[SentBack] = field(default_factory=list)
    losses: list[tuple[float, float]] = field(default_factory=list)  # what was promised between the two may be gone
    final: dict[int, str] = field(default_factory=dict)  # of all replicas

    def may_be_lost(self, at_s: float) -> bool:
        return any(since_s < at_s <= until_s for since_s, until_s in self.losses)

    def counts(self, at_s: float, offset: int, value: str) -> bool:
        return self.final.get(offset) == value or not self.may_be_lost(at_s)


def check(events: Iterable[Event]) -> Result:
    """All mistakes of a history; of one that nobody has told the end of, those that can be seen without it."""
    result = Result()
    logs: dict[Place, _Log] = defaultdict(_Log)
    sent: dict[tuple[str, str], Sent] = {}
    for event in events:
        if isinstance(event, Sent):
            sent.setdefault((event.stream, event.value), event)
        elif isinstance(event, Acked):
            logs[event.place].acks.append(event)
        elif isinstance(event, Polled):
            logs[event.place].polls.append(event)
        elif isinstance(event, Kept):
            logs[event.place].kept[event.replica] = dict(event.rows)
        elif isinstance(event, SentBack):
            logs[event.place].sent_back.append(event)
        elif isinstance(event, PowerLost):
            for place, since_s in event.since_s.items():
                logs[place].losses.append((since_s, event.at_s))
            _late_syncs(event, result)
    for place, log in sorted(logs.items()):
        _replicas(place, log, result)
        _polls(place, log, result)
        _sent_back(place, log, result)
        _leave_out_what_may_be_lost(log, result)
        _offsets(place, log, result)
        if log.kept:  # or the run has not come to its end, which is told elsewhere
            _acks(place, log, result)
        _order(place, log, sent, result)
    _duplicates(logs, sent, result)
    return result


def _late_syncs(power_lost: PowerLost, result: Result) -> None:
    """What is not on a disk is on its way there, or has only just come."""
    for place, waited_s in power_lost.waited_s.items():
        if waited_s > WAITED_S_MAX:
            text = f"no replica in sync had begun to sync what it had written {waited_s * 1000:.0f} ms before"
            result.found("late sync", f"{place}: {text}")


def _replicas(place: Place, log: _Log, result: Result) -> None:
    """All replicas have the same."""
    first: dict[int, tuple[str, str, bytes]] = {}
    for replica, rows in log.kept.items():
        for offset, (value, stored) in rows.items():
            other, _, known = first.setdefault(offset, (replica, value, stored))
            if known != stored:
                result.found("diverging replicas", f"{place} offset {offset}: {other} and {replica} differ")
    for replica, rows in log.kept.items():
        if lacking := first.keys() - rows.keys():
            text = f"{len(lacking)} offsets from {min(lacking)} on, up to {max(lacking)}"
            result.found("diverging replicas", f"{place}: {replica} lacks {text}")
    log.final = {offset: value for offset, (_, value, _) in first.items()}
    result.stored += len(first)


def _leave_out_what_may_be_lost(log: _Log, result: Result) -> None:
    acks = [ack for ack in log.acks if log.counts(ack.at_s, ack.offset, ack.value)]
    polls = []
    for poll in log.polls:
        rows = tuple(row for row in poll.rows if log.counts(poll.at_s, *row))
        result.lost_as_promised += len(poll.rows) - len(rows)
        if rows:
            polls.append(replace(poll, rows=rows))
    result.lost_as_promised += len(log.acks) - len(acks)
    result.acked += len(acks)
    result.polled += sum(len(poll.rows) for poll in polls)
    log.acks, log.polls = acks, polls


def _told(log: _Log) -> Iterator[tuple[int, str, str]]:
    """Offset, value and by whom, of all that anybody was told."""
    for ack in log.acks:
        yield ack.offset, ack.value, "an ack"
    for poll in log.polls:
        for offset, value in poll.rows:
            yield offset, value, poll.consumer
    for offset, value in log.final.items():
        yield offset, value, "the log"


def _offsets(place: Place, log: _Log, result: Result) -> None:
    """An offset has one value."""
    values: dict[int, dict[str, str]] = defaultdict(dict)
    for offset, value, who in _told(log):
        values[offset].setdefault(value, who)
    for offset, told in sorted(values.items()):
        if len(told) > 1:
            text = ", ".join(f"{value} ({who})" for value, who in told.items())
            result.found("inconsistent offset", f"{place} offset {offset}: {text}")


def _acks(place: Place, log: _Log, result: Result) -> None:
    """What was acked is there, and was seen."""
    seen = {(offset, value) for poll in log.polls for offset, value in poll.rows}
    end = max(log.final, default=-1) + 1
    highest = max([offset for offset, _ in seen], default=-1)
    for ack in log.acks:
        text = f"{place} offset {ack.offset}: {ack.value}"
        if log.final.get(ack.offset) != ack.value:
            if ack.offset >= end:
                result.found("acked beyond the end", f"{text}; the log ends at {end}")
            if ack.offset <= max(highest, end - 1):
                result.found("lost write", text)
        elif (ack.offset, ack.value) not in seen:
            result.found("unseen", text)


def _polls(place: Place, log: _Log, result: Result) -> None:
    """A consumer goes forward from where it asked to begin, and over nothing.

    What it was given and is lost since, as it may be, is no mistake of its way, and is part of it.
    """
    told = [(ack.at_s, ack.offset, ack.value) for ack in log.acks]
    told += [(poll.at_s, *row) for poll in log.polls for row in poll.rows]
    there = sorted({offset for at_s, offset, value in told if log.counts(at_s, offset, value)} | log.final.keys())
    positions: dict[tuple[str, int], int] = {}  # of each turn: from where on it has not been given anything
    for poll in log.polls:
        how = "from one poll to the next"
        for offset, _ in poll.rows:
            who = poll.consumer, poll.turn
            position = positions.get(who)
            if position is None:
                position, before = poll.asked, f"which asked from {poll.asked} on"
            else:
                before = f"after {position - 1}, {how}"
            if offset < position:
                result.found("nonmonotonic poll", f"{place} {poll.consumer}: {offset} {before}")
            elif bisect_left(there, position) < bisect_left(there, offset):
                result.found("skipped poll", f"{place} {poll.consumer}: {offset} {before}")
            positions[who] = offset + 1
            how = "in one poll"


def _sent_back(place: Place, log: _Log, result: Result) -> None:
    """A turn ends only by a loss of what it was given, which may be lost: so one loss ends a turn once."""
    given_s: dict[tuple[str, int], list[float]] = defaultdict(list)
    for poll in log.polls:
        given_s[poll.consumer, poll.turn].append(poll.at_s)
    for event in log.sent_back:
        times = given_s[event.consumer, event.turn]
        if not any(since_s < at_s <= until_s <= event.at_s for at_s in times for since_s, until_s in log.losses):
            result.found("sent back", f"{place} {event.consumer}, in its turn {event.turn}")


def _order(place: Place, log: _Log, sent: dict[tuple[str, str], Sent], result: Result) -> None:
    """Publishers' messages lie in their order, and somebody has sent them."""
    last: dict[str, int] = {}
    for offset, value in sorted(log.final.items()):
        if (place.stream, value) not in sent:
            result.found("never sent", f"{place} offset {offset}: {value!r}")
            continue
        publisher, number = publisher_of(value)
        if number < last.get(publisher, -1):
            result.found("order", f"{place} offset {offset}: {value} after {publisher}:{last[publisher]}")
        last[publisher] = max(number, last.get(publisher, -1))


def _duplicates(logs: dict[Place, _Log], sent: dict[tuple[str, str], Sent], result: Result) -> None:
    """A value is at one offset of one partition."""
    places: dict[tuple[str, str], set[tuple[Place, int]]] = defaultdict(set)
    for place, log in logs.items():
        for offset, value, _ in _told(log):
            places[place.stream, value].add((place, offset))
    for (stream, value), found in sorted(places.items()):
        known = sent.get((stream, value))
        if len(found) > 1 and not (known is not None and known.may_repeat):
            where = ", ".join(f"{place} offset {offset}" for place, offset in sorted(found))
            result.found("duplicate", f"{value}: {where}")
