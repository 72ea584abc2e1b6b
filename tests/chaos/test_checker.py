"""The checker finds each class of mistakes where it was planted, and nothing where nothing was."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.checker import CLASSES, check
from tests.chaos.faults import power_lost
from tests.chaos.history import Acked, Event, Kept, Place, Polled, PowerLost, Sent, SentBack
from tests.chaos.unsynced import Waiting

ORDERS = Place("orders", 0)
REPLICAS = ("broker 1", "broker 2", "broker 3")


def sound(count: int = 6) -> list[Event]:
    """Two publishers, a consumer that polls by twos, three replicas that are alike."""
    values = [f"p{offset % 2}:{offset}" for offset in range(count)]
    events: list[Event] = []
    for offset, value in enumerate(values):
        events += [Sent("orders", value), Acked(offset + 0.5, ORDERS, offset, value)]
    rows = tuple(enumerate(values))
    events += [Polled(100.0 + at, "c", 0, ORDERS, at, rows[at : at + 2]) for at in range(0, count, 2)]
    kept = {offset: (value, value.encode()) for offset, value in rows}
    return events + [Kept(replica, ORDERS, kept) for replica in REPLICAS]


def without(events: list[Event], value: str) -> list[Event]:
    """As if no log had it, and no consumer had seen it."""
    changed: list[Event] = []
    for event in events:
        match event:
            case Kept():
                event = Kept(event.replica, event.place, {o: row for o, row in event.rows.items() if row[0] != value})
            case Polled():
                rows = tuple(row for row in event.rows if row[1] != value)
                event = replace(event, rows=rows)
            case _:
                pass
        changed.append(event)
    return changed


def stored(events: list[Event], offset: int, value: str, replicas: tuple[str, ...] = REPLICAS) -> list[Event]:
    """As if these replicas had that value at that offset."""
    return [
        Kept(event.replica, event.place, {**event.rows, offset: (value, value.encode())})
        if isinstance(event, Kept) and event.replica in replicas
        else event
        for event in events
    ]


def poll(*offsets: int, turn: int = 7, asked: int | None = None) -> Polled:
    """One of another consumer, of what is there; without `asked` it has asked for its first offset."""
    rows = tuple((offset, f"p{offset % 2}:{offset}") for offset in offsets)
    return Polled(200.0, "other", turn, ORDERS, offsets[0] if asked is None else asked, rows)


def cut(at_s: float, since_s: float, waited_s: float = 0.0, place: Place = ORDERS) -> PowerLost:
    """A power loss of all, which may have taken what was promised of a place since a moment."""
    return PowerLost(at_s, {place: since_s}, {place: waited_s})


PLANTED: dict[str, Callable[[], list[Event]]] = {
    "lost write": lambda: without(sound(), "p0:2"),
    "acked beyond the end": lambda: [*sound(), Sent("orders", "p0:9"), Acked(9.0, ORDERS, 9, "p0:9")],
    "unseen": lambda: [event for event in sound() if not (isinstance(event, Polled) and event.at_s == 104.0)],
    "duplicate": lambda: stored(sound(), 6, "p1:5"),
    "inconsistent offset": lambda: [*sound(), Sent("orders", "p0:9"), Acked(9.0, ORDERS, 3, "p0:9")],
    "nonmonotonic poll": lambda: [*sound(), poll(2, 3), poll(3, 4)],
    "skipped poll": lambda: [*sound(), poll(0, 1), poll(3)],
    "sent back": lambda: [*sound(), SentBack(110.0, "c", 0, ORDERS)],
    "late sync": lambda: [*sound(), cut(110.0, 100.0, waited_s=0.7)],
    "diverging replicas": lambda: stored(sound(), 5, "p1:7", ("broker 2",)),
    "order": lambda: stored([*sound(), Sent("orders", "p1:2")], 6, "p1:2"),
    "never sent": lambda: stored(sound(), 6, "p8:8"),
}


def test_nothing_is_found_where_nothing_was_planted() -> None:
    result = check(sound())
    assert result.mistakes == {}
    assert (result.acked, result.polled, result.stored) == (6, 6, 6)


def test_every_class_is_planted() -> None:
    assert PLANTED.keys() == set(CLASSES)


@pytest.mark.parametrize("kind", CLASSES)
def test_what_was_planted_is_found(kind: str) -> None:
    assert kind in check(PLANTED[kind]()).mistakes


def test_polls_go_wrong_within_one_and_from_one_to_the_next() -> None:
    for polls in ([poll(3, 2)], [poll(3), poll(2)], [poll(3), poll(3)]):
        assert check([*sound(), *polls]).mistakes.keys() == {"nonmonotonic poll"}
    for polls in ([poll(1, 3)], [poll(1), poll(3)]):
        assert check([*sound(), *polls]).mistakes.keys() == {"skipped poll"}
    # Who begins anew may begin anywhere.
    assert check([*sound(), poll(3, turn=1), poll(1, turn=2), poll(5, turn=3)]).mistakes == {}


def test_the_first_poll_of_a_turn_begins_where_it_asked_to() -> None:
    found = check([*sound(), poll(3, 4, turn=9, asked=0)])
    assert found.mistakes == {"skipped poll": ["orders/0 other: 3 which asked from 0 on"]}
    assert check([*sound(), poll(2, turn=9, asked=3)]).mistakes.keys() == {"nonmonotonic poll"}
    assert check([*sound(), poll(0, turn=9, asked=0), poll(2, turn=10, asked=1)]).mistakes.keys() == {"skipped poll"}
    # There need not be an offset where it asked to begin.
    gone = [event for event in without(sound(), "p0:0") if not (isinstance(event, Acked) and event.offset == 0)]
    assert check([*gone, poll(1, 2, turn=9, asked=0)]).mistakes == {}


def test_what_was_lost_as_promised_is_part_of_a_consumers_way() -> None:
    """It was given 4 and 5, of which 5 is lost; what comes to be at 5 lies below its position."""
    events = stored([*without(sound(), "p1:5"), Sent("orders", "p1:7"), Sent("orders", "p0:8")], 5, "p1:7")
    events = [*stored(events, 6, "p0:8"), cut(101.0, 5.0)]
    first = Polled(5.5, "other", 0, ORDERS, 4, ((4, "p0:4"), (5, "p1:5")))
    assert check([*events, first, Polled(200.0, "other", 0, ORDERS, 6, ((6, "p0:8"),))]).mistakes == {}
    back = Polled(200.0, "other", 0, ORDERS, 6, ((5, "p1:7"), (6, "p0:8")))
    assert check([*events, first, back]).mistakes.keys() == {"nonmonotonic poll"}


def test_one_loss_sends_a_reader_back_once_and_only_where_it_is() -> None:
    """Consumer c is given rows at 100, 102 and 104 s; what was promised after 103 s may be gone."""
    back = SentBack(120.0, "c", 0, ORDERS)
    assert check([*sound(), cut(110.0, 103.0), back]).mistakes == {}
    for loss in (
        cut(110.0, 103.0, place=Place("ledger", 0)),  # elsewhere
        cut(130.0, 103.0),  # later
        cut(110.0, 105.0),  # nothing that it was given
    ):
        assert check([*sound(), loss, back]).mistakes.keys() == {"sent back"}
    # Its next turn began after that loss.
    again = Polled(121.0, "c", 1, ORDERS, 0, ((0, "p0:0"),))
    events = [*sound(), cut(110.0, 103.0), back, again, SentBack(130.0, "c", 1, ORDERS)]
    assert check(events).mistakes == {"sent back": ["orders/0 c, in its turn 1"]}
    assert check([*events, cut(125.0, 120.5)]).mistakes == {}


def test_what_waited_too_long_for_a_sync_is_found_though_it_may_be_lost() -> None:
    """Four acked messages are gone: of a second, and of less than promised."""
    events = sound()
    for value in ("p1:5", "p0:4", "p1:3", "p0:2"):
        events = without(events, value)
    for cut_s, kinds in ((2.2, set()), (100.0, {"late sync"})):
        loss = power_lost(110.0, cut_s, {ORDERS: [Waiting(0.6, None), Waiting(2.0, None)]})
        assert loss.since_s == {ORDERS: 2.0}, "the last one who had all on its disk"
        found = check([*events, loss])
        assert found.mistakes.keys() == kinds
        assert found.lost_as_promised > 3
    # A sync is under way: of the best replica it had begun in time.
    under_way = {ORDERS: [Waiting(2.0, 50.0), Waiting(1.9, 2.0), Waiting(1.0, None)]}
    assert check([*events, power_lost(110.0, 100.0, under_way)]).mistakes == {}


def test_a_replica_that_is_behind_is_found() -> None:
    events = [
        Kept(event.replica, event.place, {o: row for o, row in event.rows.items() if o < 4})
        if isinstance(event, Kept) and event.replica == "broker 3"
        else event
        for event in sound()
    ]
    assert check(events).mistakes == {"diverging replicas": ["orders/0: broker 3 lacks 2 offsets from 4 on, up to 5"]}


def test_a_replica_that_has_nothing_is_found() -> None:
    found = check([*sound(), Kept("disk of broker 3", ORDERS, {})])
    assert found.mistakes == {"diverging replicas": ["orders/0: disk of broker 3 lacks 6 offsets from 0 on, up to 5"]}


def test_where_nobody_told_what_is_kept_nothing_is_missed() -> None:
    events = [event for event in sound() if not isinstance(event, Kept)]
    assert check(events).mistakes == {}
    assert check([*events, poll(3), poll(2)]).mistakes.keys() == {"nonmonotonic poll"}


def test_who_sends_again_without_an_id_may_have_it_twice() -> None:
    events = stored([*sound(), Sent("orders", "r:1", may_repeat=True)], 6, "r:1")
    assert check(stored(events, 7, "r:1")).mistakes == {}
    assert check(stored(stored([*sound(), Sent("orders", "r:1")], 6, "r:1"), 7, "r:1")).mistakes.keys() == {"duplicate"}


def test_a_power_loss_takes_what_it_may_and_no_more() -> None:
    after_the_cut = without(sound(), "p1:5")
    took = cut(101.0, 5.0)  # p1:5 was acked at 5.5
    assert "lost write" not in check([*after_the_cut, took]).mistakes
    assert "acked beyond the end" not in check([*after_the_cut, took]).mistakes
    assert check([*after_the_cut, took]).lost_as_promised == 1
    assert "acked beyond the end" in check([*after_the_cut, cut(101.0, 5.6)]).mistakes
    assert "acked beyond the end" in check([*after_the_cut, cut(101.0, 5.0, place=Place("others", 0))]).mistakes
    # What takes its place is no second value of the offset, but for who saw the first one earlier than that.
    again = stored([*after_the_cut, Sent("orders", "p1:9"), Acked(300.0, ORDERS, 5, "p1:9")], 5, "p1:9")
    assert check([*again, took, Polled(301.0, "d", 0, ORDERS, 5, ((5, "p1:9"),))]).mistakes == {}
    early = Polled(4.9, "d", 1, ORDERS, 5, ((5, "p1:5"),))
    assert "inconsistent offset" in check([*again, took, early]).mistakes


@given(
    st.integers(2, 40), st.sampled_from(["lost", "twice", "swapped", "diverging"]), st.randoms(use_true_random=False)
)
def test_a_mistake_anywhere_is_found(count: int, mistake: str, chance: random.Random) -> None:
    events = sound(count)
    assert check(events).mistakes == {}
    at = chance.randrange(count - 1)
    value, following = (f"p{offset % 2}:{offset}" for offset in (at, at + 1))
    if mistake == "lost":
        assert "lost write" in check(without(events, value)).mistakes
    elif mistake == "twice":
        assert "duplicate" in check(stored(events, count, value)).mistakes
    elif mistake == "swapped":
        assert "inconsistent offset" in check(stored(stored(events, at, following), at + 1, value)).mistakes
    else:
        replica = (chance.choice(REPLICAS),)
        assert "diverging replicas" in check(stored(events, at, "p9:9", replica)).mistakes
