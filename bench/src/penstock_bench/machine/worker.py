"""Runs a Penstock function in a process of its own, so that it shares no interpreter with the measured code.

Rules: A worker's function takes one task and yields its answers; both are msgspec types and travel as JSON, one line
each. A function that yields once is a call (`run`); one that yields an address and then serves for ever is a server
(`working`). If the function fails, `run` raises an OperationalError with the end of the worker's log.
"""

from __future__ import annotations

import importlib
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.broker.supervision.child import environment_of_child
from penstock_bench.machine import vital
from penstock_bench.machine.processes import Child, child

Task = TypeVar("Task")
Answer = TypeVar("Answer")
Work = Callable[[Task], Iterator[Answer]]

_LONG_S = 4 * 3600.0  # time-out of `run_alone`
# -P keeps the working directory off the path: nothing from there is imported.
_PROGRAM = "from penstock_bench.machine.worker import main; main()"


def run(work: Work[Task, Answer], task: Task, *, timeout_s: float) -> Answer:
    """Return the one answer of `work` for `task`, after its process has ended."""
    with working(work, task, timeout_s=timeout_s) as (answer, _):
        return answer


def run_alone(work: Work[Task, Answer], task: Task, what: str) -> Answer:
    """Return the one answer of `work`, which may take long. Raise OperationalError that `what` failed, and why."""
    try:
        return run(work, task, timeout_s=_LONG_S)
    except vital.EndedError:
        raise
    except OperationalError as error:
        raise OperationalError(f"the {what} failed: {str(error).rpartition(chr(10))[2]}") from error


@contextmanager
def working(
    work: Work[Task, Answer], task: Task, *, timeout_s: float = limits.BENCH_START_S
) -> Iterator[tuple[Answer, Child]]:
    """Return the first answer of `work`, and its process, which runs for as long as the context."""
    with started(work, task) as (next_answer, process):
        yield next_answer(timeout_s), process


@contextmanager
def started(work: Work[Task, Answer], task: Task) -> Iterator[tuple[Callable[[float], Answer], Child]]:
    """Return a function that waits for the next answer of `work`, and the process, which ends with the context."""
    name = f"{work.__module__}:{work.__name__}"
    with child(name, [sys.executable, "-P", "-c", _PROGRAM, name], environment_of_child()) as process:
        process.write(msgspec.json.encode(task))

        def next_answer(timeout_s: float) -> Answer:
            answer: Answer = msgspec.json.decode(process.next_line(timeout_s), type=_answer_type(work))
            return answer

        yield next_answer, process


def _answer_type(work: Callable[..., Any]) -> Any:
    """Return the type T of a function that returns Iterator[T]."""
    return typing.get_args(typing.get_type_hints(work)["return"])[0]


def _task_type(work: Callable[..., Any]) -> Any:
    hints = typing.get_type_hints(work)
    (name,) = [name for name in hints if name != "return"]
    return hints[name]


def main() -> None:
    """The child's side: the function's name as argument, the task on stdin, answers on stdout."""
    module, _, name = sys.argv[1].partition(":")
    work = getattr(importlib.import_module(module), name)
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=_task_type(work))
    try:
        for answer in work(task):
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()
    except (OperationalError, OSError, ValueError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
