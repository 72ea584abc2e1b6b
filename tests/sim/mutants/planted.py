"""Runs a function in a process that has a mutant.

Rules: The process installs the mutant before it imports what it runs. What is raised there, by an import of a patched
module, too, is told with its traceback. A process that dies is told with its exit code, and writes its stack to stderr.
This module imports nothing of Penstock.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import resource
import signal
import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

from tests.sim.mutants import mutants

DATA_BYTES_MAX = 3 << 30  # a run needs 200 MB: more is a mutant that gathers without a limit
CPU_S_MAX = 1_200  # of all runs: more is a mutant that loops
R = TypeVar("R")


class PlantedProcessError(Exception):
    """The process with the mutant raised an exception, or died: so nothing is said about the mutant."""


class _Raised(NamedTuple):
    text: str  # the traceback


def results_of(mutant: str, run: Callable[..., R], calls: Iterable[tuple[object, ...]]) -> Generator[R, None, None]:
    """Call `run` with each of the arguments in one process with the mutant, one after the other.

    PlantedProcessError: there is no result.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(mutant, theirs))
    with ours:
        with theirs:
            process.start()
        try:
            for arguments in calls:
                ours.send((run, arguments))
                result = ours.recv()
                if isinstance(result, _Raised):
                    raise PlantedProcessError(f"{mutant}: {result.text}")
                yield result
        except (EOFError, ConnectionError):
            process.join()
            raise PlantedProcessError(f"{mutant}: its process {ending_of(process.exitcode)}") from None
        finally:
            ours.close()
            process.join()


def first_error(mutant: str, run: Callable[..., str], calls: Iterable[tuple[object, ...]]) -> str:
    """Return the first error that is not empty; empty if no call has one."""
    with closing(results_of(mutant, run, calls)) as results:
        return next(filter(None, results), "")


def ending_of(exit_code: int | None) -> str:
    """Say how a process ended."""
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}"
    return f"was killed by {signal.Signals(-exit_code).name}"


def begin(mutant: str) -> None:
    """Install the mutant in a new process, whose stack is shown if it dies."""
    faulthandler.enable()
    mutants.install(mutant)


def _serve(mutant: str, calls: Connection) -> None:
    begin(mutant)
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    with calls:
        while True:
            try:
                run, arguments = calls.recv()  # imports what it names
                result: Any = run(*arguments)
            except EOFError:
                return
            except Exception:  # noqa: BLE001 (its traceback is told)
                result = _Raised(traceback.format_exc())
            calls.send(result)
