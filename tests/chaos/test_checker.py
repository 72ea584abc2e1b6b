"""The checker finds each class of mistakes where it was planted, and nothing where nothing was."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.checker import CLASSES, check
from tests.chaos.history import Acked, Event, Kept, Place, Polled, PowerLost, Sent

ORDERS = Place("orders", 0)
REPLICAS = ("broker 1", "broker 2", "broker 3")


def sound(count: int = 6) -> list[Event]:
    """Two publishers, a consumer that polls by twos, three replicas that are alike."""
    values = [f"p{offset % 2}:{offset}" for offset in range(count)]
    events: list[Event] = []
    for offset, value in enumerate(values):
        events += [Sent("orders", value), Acked(offset + 0.5, ORDERS, offset, value)]
    rows = tuple(enumerate(values))
    events += [Polled(100.0 + at, "c", 0, ORDERS, rows[at : at + 2]) for at in range(0, count, 2)]
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
                event = Polled(event.at_s, event.consumer, event.turn, event.place, rows)
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


def poll(*offsets: int, turn: int = 7) -> Polled:
    """One of another consumer, of what is there."""
    return Polled(200.0, "other", turn, ORDERS, tuple((offset, f"p{offset % 2}:{offset}") for offset in offsets))


PLANTED: dict[str, Callable[[], list[Event]]] = {
    "lost write": lambda: without(sound(), "p0:2"),
    "acked beyond the end": lambda: [*sound(), Sent("orders", "p0:9"), Acked(9.0, ORDERS, 9, "p0:9")],
    "unseen": lambda: [event for event in sound() if not (isinstance(event, Polled) and event.at_s == 104.0)],
    "duplicate": lambda: stored(sound(), 6, "p1:5"),
    "inconsistent offset": lambda: [*sound(), Sent("orders", "p0:9"), Acked(9.0, ORDERS, 3, "p0:9")],
    "nonmonotonic poll": lambda: [*sound(), poll(2, 3), poll(3, 4)],
    "skipped poll": lambda: [*sound(), poll(0, 1), poll(3)],
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


def test_a_replica_that_is_behind_is_found() -> None:
    events = [
        Kept(event.replica, event.place, {o: row for o, row in event.rows.items() if o < 4})
        if isinstance(event, Kept) and event.replica == "broker 3"
        else event
        for event in sound()
    ]
    assert check(events).mistakes == {"diverging replicas": ["orders/0: broker 3 lacks 2 offsets from 4 on, up to 5"]}


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
    took = PowerLost(101.0, {ORDERS: 5.0})  # p1:5 was acked at 5.5
    assert "lost write" not in check([*after_the_cut, took]).mistakes
    assert "acked beyond the end" not in check([*after_the_cut, took]).mistakes
    assert check([*after_the_cut, took]).lost_as_promised == 1
    assert "acked beyond the end" in check([*after_the_cut, PowerLost(101.0, {ORDERS: 5.6})]).mistakes
    assert "acked beyond the end" in check([*after_the_cut, PowerLost(101.0, {Place("others", 0): 5.0})]).mistakes
    # What takes its place is no second value of the offset, but for who saw the first one earlier than that.
    again = stored([*after_the_cut, Sent("orders", "p1:9"), Acked(300.0, ORDERS, 5, "p1:9")], 5, "p1:9")
    assert check([*again, took, Polled(301.0, "d", 0, ORDERS, ((5, "p1:9"),))]).mistakes == {}
    early = Polled(4.9, "d", 1, ORDERS, ((5, "p1:5"),))
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
