"""`--every`: runs an operation at once, and again after each interval, until SIGTERM, Ctrl-C or a closed terminal.

Rules: a run that fails is reported and tried again at the next interval; a mistake of the user (exit code 2) ends the
command, because another try changes nothing. The signal sets `stop`: the operation ends soon, with what it has
completed. Then the exit code is that of the last run: 0, or 1 if it failed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Annotated

import typer

from penstock.base.errors import ConfigError, PenstockError
from penstock.base.units import format_duration_us, parse_duration_us
from penstock.cli.terminal.failure import FAILED, USED_WRONGLY, report, say_note

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

EveryOption = Annotated[
    str | None,
    typer.Option(
        "--every",
        metavar="DURATION",
        help="Go on until Ctrl-C or SIGTERM, with a run each so often, such as 15m.  Default: one run.",
    ),
]


def repeated(every: str | None, run: Callable[[threading.Event | None], None]) -> None:
    """Call `run` once, or with `--every` until a signal. It gets the event that stops it; None without `--every`.

    Raise BadParameter for an invalid duration, Exit(1) if the last run failed.
    """
    if every is None:
        run(None)
        return
    interval_s = _interval_s(every)
    stop = threading.Event()
    _set_on_signals(stop)
    is_failed = False
    while not stop.is_set():
        began_s = time.monotonic()
        is_failed = not _ran(run, stop, interval_s)
        stop.wait(max(0.0, began_s + interval_s - time.monotonic()))
    if is_failed:
        raise typer.Exit(FAILED)


def _set_on_signals(stop: threading.Event) -> None:
    """Set `stop` soon after one of `_SIGNALS`, for the rest of the process's life.

    A thread sets it. The handler runs in the main thread between any two steps, so also while this thread holds the
    event's lock in `stop.wait`: there `stop.set` would wait for ever.
    """
    heard, tell = os.pipe()
    os.set_blocking(tell, False)

    def handle(*_: object) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of signals
            os.write(tell, b"!")

    def set_once_told() -> None:
        os.read(heard, 1)
        stop.set()

    threading.Thread(target=set_once_told, name="penstock-signals", daemon=True).start()
    for number in _SIGNALS:
        signal.signal(number, handle)


def _ran(run: Callable[[threading.Event | None], None], stop: threading.Event, interval_s: float) -> bool:
    """Carry out one run; report a failure and return False. Raise if another try changes nothing."""
    from penstock.ops.errors import StoppedError

    try:
        run(stop)
    except (ConfigError, BrokenPipeError):
        raise
    except StoppedError:
        return True
    except (PenstockError, OSError) as error:
        if report(error) == USED_WRONGLY:
            raise typer.Exit(USED_WRONGLY) from error
        if not stop.is_set():
            say_note(f"the next run is tried {format_duration_us(int(interval_s * 1e6))} after this one began")
        return False
    return True


def _interval_s(text: str) -> float:
    try:
        found = parse_duration_us(text) / 1e6
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--every'") from None
    if found <= 0:
        raise typer.BadParameter("give more than 0, such as 15m", param_hint="'--every'")
    return found
