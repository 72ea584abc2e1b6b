"""Connections that are late, blocked, reset, and never out of order."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from penstock.testing.simulation.network import CONNECT_TIMEOUT_US, Network, SimConnection
from penstock.testing.simulation.scheduler import Scheduler


class Line:
    """One connection from `a` to `b`, and all that either side has seen of it."""

    def __init__(self, seed: int = 0) -> None:
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, Random(seed))
        self.seen: list[str] = []
        self.connections: list[SimConnection | None] = []
        self.network.listen("b", self._accept)
        self.connect()

    def _accept(self, connection: SimConnection) -> None:
        connection.target_lost = lambda: self.seen.append("b lost")

    def connect(self) -> None:
        self.network.connect("a", "b", self.connections.append, lambda: self.seen.append("a lost"))
        self.wait(CONNECT_TIMEOUT_US)

    @property
    def connection(self) -> SimConnection:
        connection = self.connections[0]
        assert connection is not None
        return connection

    def send(self, *names: str) -> None:
        for name in names:
            self.connection.send(partial(self.seen.append, name))

    def wait(self, us: int = 60_000_000) -> None:
        self.scheduler.run_until(self.scheduler.now_us + us)


@pytest.mark.parametrize("seed", range(20))
def test_all_arrives_once_and_in_order(seed: int) -> None:
    line = Line(seed)
    names = [str(number) for number in range(50)]
    line.send(*names)
    line.wait()
    assert line.seen == names


def test_nobody_listens() -> None:
    line = Line()
    line.network.listen("b", None)
    line.connect()
    assert line.connections[1] is None


def test_a_blocked_direction_holds_back_and_lets_go() -> None:
    line = Line()
    free = line.network.block("a", "b")
    line.send("1", "2")
    line.connection.send_back(lambda: line.seen.append("answer"))
    line.wait(1_000_000)
    assert line.seen == ["answer"]
    free()
    line.send("3")
    line.wait()
    assert line.seen == ["answer", "1", "2", "3"]


def test_who_waits_for_a_blocked_direction_gives_up() -> None:
    line = Line()
    line.network.block("b", "a")
    line.send("request")
    line.wait(1_000_000)
    line.connection.send_back(lambda: line.seen.append("answer"))
    line.wait()
    assert sorted(line.seen) == ["a lost", "b lost", "request"]
    line.connect()
    assert line.connections[1] is None


def test_two_who_block_the_same_direction_both_free_it() -> None:
    line = Line()
    first, second = line.network.block("a", "b"), line.network.block("a", "b")
    first()
    assert line.network.is_blocked("a", "b")
    first()
    assert line.network.is_blocked("a", "b")
    second()
    assert not line.network.is_blocked("a", "b")


def test_what_was_healed_frees_nothing_that_is_blocked_since() -> None:
    line = Line()
    free = line.network.block("a", "b")
    line.network.heal()
    line.network.block("a", "b")
    free()
    assert line.network.is_blocked("a", "b")


def test_a_reset_loses_the_end_of_what_is_on_its_way_and_both_hear_of_it() -> None:
    lengths = set()
    for seed in range(40):
        line = Line(seed)
        names = [str(number) for number in range(4)]
        line.send(*names)
        line.connection.cut()
        line.wait()
        got = [name for name in line.seen if name in names]
        assert got == names[: len(got)]
        assert [name for name in line.seen if name == "b lost"] == line.seen[-1:]
        assert "a lost" in line.seen
        lengths.add(len(got))
    assert {0, 4} <= lengths


def test_nothing_reaches_a_machine_that_died() -> None:
    line = Line()
    line.send("1")
    line.connection.send_back(lambda: line.seen.append("last words"))
    line.network.die("b")
    line.wait()
    assert line.seen == ["last words", "a lost"]


def test_one_that_breaks_before_it_is_there_never_was() -> None:
    line = Line()
    line.network.connect("a", "b", line.connections.append, lambda: line.seen.append("a lost"))
    while not line.network.between("a", "b")[1:]:
        line.wait(10)
    line.network.between("a", "b")[1].cut()
    line.wait()
    assert line.connections[1] is None
    assert line.seen == ["b lost"]


def test_one_that_is_stalled_gives_all_later_and_nobody_hears_of_it() -> None:
    line = Line()
    line.send("1")
    line.connection.stall()
    line.send("2")
    line.connection.send_back(lambda: line.seen.append("answer"))
    line.wait()
    assert line.seen == ["answer"]
    line.connection.go_on()
    line.send("3")
    line.wait()
    assert line.seen == ["answer", "1", "2", "3"]


def test_one_that_is_half_open_gives_all_after_the_next_one_was_made() -> None:
    line = Line()
    line.send("1", "2")
    line.connection.leave_half_open(line.scheduler.now_us + 5_000_000)
    line.wait(1_000_000)
    assert line.seen == ["a lost"]
    line.connect()
    line.wait()
    assert line.connections[1] is not None
    assert line.seen == ["a lost", "1", "2", "b lost"]
