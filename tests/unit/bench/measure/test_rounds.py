"""Interleaved rounds, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.base.errors import OperationalError
from penstock_bench.load.content import Content
from penstock_bench.load.generator import Load, Published
from penstock_bench.measure.rounds import Measurement, counted, interleave, publish_measure, ratio
from penstock_bench.systems.system import MeasuredLog, System
from tests.extent import needs_time

SENT = Content(10, 100, 5, 6)


def measured(system: str, number: int, value: float, void: str | None = None) -> Measurement:
    return Measurement(system=system, round_number=number, value=value, void=void)


def test_every_second_round_goes_the_other_way_round() -> None:
    turns: list[tuple[str, int]] = []

    def measure(name: str):
        def one(number: int) -> Measurement:
            turns.append((name, number))
            return measured(name, number, 1.0)

        return one

    found = list(interleave({name: measure(name) for name in "ab"}, rounds=3, before=lambda: None))
    assert turns == [("a", -1), ("b", -1), ("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert [one.round_number for one in found] == [0, 0, 1, 1, 2, 2]


def test_what_is_to_be_written_back_is_written_before_every_turn() -> None:
    turns: list[str] = []

    def measure(number: int) -> Measurement:
        turns.append("measure")
        return measured("a", number, 1.0)

    list(interleave({"a": measure}, rounds=1, before=lambda: turns.append("sync")))
    assert turns == ["sync", "measure", "sync", "measure"]


@needs_time
def test_a_measurement_that_fails_is_void_and_the_others_go_on() -> None:
    def failing(number: int) -> Measurement:
        raise OperationalError("the broker is gone")

    measures = {"a": failing, "b": lambda number: measured("b", number, 2.0)}
    found = list(interleave(measures, rounds=2, before=lambda: None))
    assert [one.void for one in found if one.system == "a"] == ["the broker is gone"] * 2
    assert counted(found, "a") == []
    assert [one.value for one in counted(found, "b")] == [2.0, 2.0]


def test_ratios_are_of_pairs_and_void_rounds_do_not_count() -> None:
    found = [
        *(measured("a", number, value) for number, value in enumerate((10.0, 30.0, 20.0))),
        measured("a", 3, 1_000.0, "untrue"),
        *(measured("b", number, value) for number, value in enumerate((10.0, 10.0, 10.0, 10.0))),
        measured("b", 4, 10.0),
    ]
    ratio_of = ratio(found, "a", "b")
    assert ratio_of is not None
    assert (ratio_of.median, ratio_of.low, ratio_of.high, ratio_of.rounds) == (2.0, 1.0, 3.0, 3)
    assert len(counted(found, "a")) == 3
    assert ratio(found, "a", "c") is None


class FakeLog(MeasuredLog):
    """A log that says what it is told to say: the products cannot be made to lie."""

    def __init__(self, published: Published, found: Content | Exception | None) -> None:
        self.published = published
        self.found = found

    def publish(self, load: Load) -> Published:
        return self.published

    def read_back(self, *, ordered: bool) -> Content | None:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class FakeSystem(System):
    def __init__(self, log: FakeLog) -> None:
        self._log = log

    @contextmanager
    def log(self) -> Iterator[MeasuredLog]:
        yield self._log


def published(acks: int = 10, errors: int = 0, first_error: str = "") -> Published:
    return Published(2.0, SENT, acks, errors, first_error, {"generator": 0.5})


@pytest.mark.parametrize(
    ("came", "found", "said"),
    [
        (published(), Content(9, 90, 5, 6), "10 messages were acked, 9 came back"),
        (published(), Content(10, 100, 4, 6), "another checksum"),
        (published(), Content(10, 100, 5, 7), "another order"),
        (published(), OperationalError("CRC"), "it cannot be read back: CRC"),
        (published(acks=9), SENT, "10 messages were sent, 9 acked"),
        (published(acks=9, errors=1, first_error="503"), SENT, "1 answers were no acks; the first: 503"),
    ],
)
def test_a_round_that_is_not_true_is_void(came: Published, found: Content | Exception, said: str) -> None:
    measure = publish_measure("a", FakeSystem(FakeLog(came, found)), Load(messages=10))
    void = measure(0).void
    assert void is not None
    assert said in void


@pytest.mark.parametrize("found", [SENT, None])
def test_a_true_round_counts(found: Content | None) -> None:
    one = publish_measure("a", FakeSystem(FakeLog(published(), found)), Load(messages=10))(4)
    assert one == Measurement(
        system="a", round_number=4, value=5.0, seconds=2.0, messages=10, cpu_seconds={"generator": 0.5}
    )
