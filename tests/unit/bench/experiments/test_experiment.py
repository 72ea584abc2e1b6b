"""The runner of experiments: turns, rows, and what does not count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from penstock.base.errors import OperationalError
from penstock_bench.experiments.experiment import Experiment, Row, Turn, last
from penstock_bench.load.content import Content
from penstock_bench.load.generator import Load, Published
from penstock_bench.machine.byte_counters import Traffic
from penstock_bench.runs import replicated
from penstock_bench.systems import clusters
from penstock_bench.systems.system import System
from tests.extent import needs_time

ROWS = (
    Row("a-s", "a of {mb:.1f} MB", "s", "seconds", "a", reach=3.0),
    Row("b-s", "b", "s", "seconds", "b"),
    Row("ratio", "a by b", "×", "seconds", "a", "b", at_least=True),
    Row("size", "a", "MB", "mb", "a", once=last),
)


def experiment(turns: list[tuple[str, int]], failing: Mapping[tuple[str, int], str], **more: bool) -> Experiment:
    """Return an experiment whose system a needs 1, 2, 3, … seconds, and b twice as many."""

    @contextmanager
    def begin(folder: Path) -> Iterator[Turn]:
        def turn(name: str, round_number: int) -> dict[str, float]:
            turns.append((name, round_number))
            if (name, round_number) in failing:
                raise OperationalError(failing[name, round_number])
            seconds = round_number + 1.0
            return {"seconds": seconds if name == "a" else 2 * seconds, "mb": 10.0 * round_number}

        yield turn

    return Experiment(systems=("a", "b"), begin=begin, rows=ROWS, rounds=3, turn_seconds=2.0, bytes_needed=1, **more)


def test_systems_take_turns_and_rows_become_figures(tmp_path: Path) -> None:
    turns: list[tuple[str, int]] = []
    steps: list[str] = []
    plan = experiment(turns, {})
    found = plan.run(tmp_path, steps.append)
    assert turns == [("a", -1), ("b", -1), ("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert len(steps) == plan.steps == 9
    assert plan.seconds == 28.0
    assert found.notes == ()
    a, b, ratio, size = found.figures
    assert (a.what, a.got, a.low, a.high, a.reach) == ("a of 20.0 MB", 2.0, 1.0, 3.0, 3.0)
    assert (b.got, b.reach, b.at_least) == (4.0, None, False)
    assert (ratio.got, ratio.low, ratio.high, ratio.at_least) == (0.5, 0.5, 0.5, True)
    assert (size.got, size.low, size.high) == (20.0, None, None)


@needs_time
def test_a_turn_that_fails_does_not_count_and_a_note_says_why(tmp_path: Path) -> None:
    found = experiment([], {("b", 1): "it was lost"}).run(tmp_path, lambda name: None)
    assert found.notes == ("b: 1 of 3 rounds does not count: it was lost",)
    assert [one.got for one in found.figures] == [2.0, 4.0, 0.5, 20.0]


@needs_time
def test_rows_without_a_valid_turn_are_left_out(tmp_path: Path) -> None:
    found = experiment([], {("b", number): "no" for number in range(3)}).run(tmp_path, lambda name: None)
    assert [one.name for one in found.figures] == ["a-s", "size"]
    assert found.notes == ("b: 3 of 3 rounds do not count: no",)


@pytest.mark.parametrize("round_number", [-1, 1])
def test_a_turn_that_must_count_ends_the_run(tmp_path: Path, round_number: int) -> None:
    turns: list[tuple[str, int]] = []
    plan = experiment(turns, {("b", round_number): "rows are missing"}, all_count=True)
    with pytest.raises(OperationalError, match="rows are missing"):
        plan.run(tmp_path, lambda name: None)
    assert turns[-1] == ("b", round_number)


class Losing(clusters.PenstockCluster):
    """A cluster that loses a message of its one log."""

    def __init__(self) -> None:
        """Have no brokers."""

    @contextmanager
    def log(self) -> Iterator[Losing]:  # type: ignore[override]
        yield self

    def publish(self, load: Load) -> Published:
        return Published(1.0, Content(10, 100, 5, 6), 10, 0, "", {})

    def read_back(self, *, ordered: bool) -> Content:
        return Content(9, 90, 5, 6)

    def traffic(self) -> Traffic:
        return Traffic({}, {}, {})


@needs_time
def test_a_void_count_of_bytes_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def start(folder: Path) -> Iterator[System]:
        yield Losing()

    for name, variant in clusters.VARIANTS.items():
        monkeypatch.setitem(clusters.VARIANTS, name, variant._replace(start=start))
    plan = msgspec.structs.replace(replicated.counted(Load()), systems=("penstock-r3",))
    found = plan.run(tmp_path, lambda name: None)
    assert found.figures == []
    assert found.notes == ("penstock-r3: 1 of 1 round does not count: 10 messages were acked, 9 came back",)
