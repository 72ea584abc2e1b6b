"""`--every`: what ends a command that repeats, and with which exit code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest
import typer

from penstock.base.errors import ConfigError, OperationalError
from penstock.cli.terminal.every import repeated
from penstock.ops.errors import StoppedError
from penstock.testing.errors import StuckError
from penstock.testing.watchdog import watched

Run = Callable[[threading.Event | None], None]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def runs(*outcomes: Exception | None) -> tuple[Run, list[int]]:
    """A run with these outcomes in turn; a signal comes during the last one. The list has the numbers of runs begun."""
    begun: list[int] = []

    def run(stop: threading.Event | None) -> None:
        assert stop is not None
        outcome = outcomes[len(begun)]
        begun.append(len(begun))
        if len(begun) == len(outcomes):
            signal.raise_signal(signal.SIGTERM)
            assert stop.wait(60)
        if outcome is not None:
            raise outcome

    return run, begun


def test_it_runs_until_a_signal_comes() -> None:
    run, begun = runs(None, None, None)
    repeated("1ms", run)
    assert begun == [0, 1, 2]


def test_a_signal_may_come_while_the_main_thread_holds_the_lock_of_the_event() -> None:
    def run(stop: threading.Event | None) -> None:
        assert stop is not None
        with stop._cond:  # type: ignore[attr-defined]  # as `stop.wait` holds it
            signal.raise_signal(signal.SIGTERM)
        assert stop.wait(60)

    with watched(30, lambda: 0, lambda _: StuckError("the handler waits for the lock")):
        repeated("1ms", run)


def test_a_run_that_fails_is_reported_and_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    run, begun = runs(OperationalError("the disk is away"), None)
    repeated("1ms", run)
    assert begun == [0, 1]
    assert capsys.readouterr().err.splitlines() == [
        "Error: the disk is away",
        "the next run is tried 1ms after this one began",
    ]


def test_the_exit_code_is_that_of_the_last_run() -> None:
    run, _ = runs(None, OperationalError("the disk is away"))
    with pytest.raises(typer.Exit) as ended:
        repeated("1ms", run)
    assert ended.value.exit_code == 1
    run, _ = runs(OperationalError("the disk is away"), StoppedError("it was stopped"))
    repeated("1ms", run)


def test_a_mistake_of_the_user_ends_it() -> None:
    run, begun = runs(ConfigError(["format: no"]), None)
    with pytest.raises(ConfigError):
        repeated("1ms", run)
    assert begun == [0]


@pytest.mark.parametrize(("text", "said"), [("0", "more than 0"), ("15", "no unit"), ("1M", "M"), ("x", "not a dur")])
def test_a_wrong_interval_is_said(text: str, said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        repeated(text, lambda _: None)


def test_without_an_interval_it_runs_once() -> None:
    given: list[threading.Event | None] = []
    repeated(None, given.append)
    assert given == [None]
