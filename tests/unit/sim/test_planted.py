"""What is told about a process with a mutant."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import pytest

from tests.sim.mutants import planted
from tests.sim.mutants.planted import PlantedProcessError, ending_of, first_error, results_of
from tests.sim.mutants.planting import Mutant, check_text

CALLS = (("",), ("it is found",), ("later",))


def told(error: str) -> str:
    return error


def dies(number: int) -> str:
    os.kill(os.getpid(), number)
    return ""


def raises(text: str) -> str:
    raise ValueError(text)


def gathers() -> str:
    return str(len(bytearray(planted.DATA_BYTES_MAX)))


class Unread:
    """A function whose import fails in the process, as that of a patched module whose text has changed."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("its text is not there once",)

    def __call__(self) -> str:
        return ""


def test_the_first_error_is_told_and_what_follows_is_not_called() -> None:
    assert first_error("", told, CALLS) == "it is found"
    assert first_error("", told, CALLS[:1]) == ""


def test_one_process_makes_all_calls() -> None:
    with closing(results_of("", os.getpid, ((), ()))) as results:
        first, second = results
    assert first == second != os.getpid()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_dies_is_told_with_its_signal(number: signal.Signals) -> None:
    with pytest.raises(PlantedProcessError, match=f"its process was killed by {number.name}"):
        first_error("", dies, ((int(number),),))


def test_one_that_ends_is_told_with_its_code() -> None:
    assert ending_of(3) == "ended with exit code 3"


def test_what_it_raises_is_told() -> None:
    with pytest.raises(PlantedProcessError, match="ValueError: of the run"):
        first_error("", raises, (("of the run",),))


def test_an_import_that_fails_is_told() -> None:
    with pytest.raises(PlantedProcessError, match="its text is not there once"):
        first_error("", Unread(), ((),))


def test_one_that_gathers_too_much_ends_with_an_error_and_not_with_its_machine() -> None:
    with pytest.raises(PlantedProcessError, match="MemoryError"):
        first_error("", gathers, ((),))


def test_a_text_that_has_changed_is_told_before_any_process_begins() -> None:
    mutant = Mutant("a mistake", "penstock.base.config", "is not there", "")
    with pytest.raises(AssertionError, match="a mistake: its text is not there once: 'is not there'"):
        check_text(mutant)
