"""Replace clocks, randomness and environment by those of the simulation, which the seed determines.

Rules: inside `simulated`, this process's clocks, random numbers and environment are simulated, and calls that would
block or leave the simulation are refused: threads, processes, sockets, `time.sleep`. Afterwards everything is restored.
Other threads (the test runner's, or of a client left open) keep the real functions and take nothing from the seed; only
a function imported by name (`from random import choice`) is shared.
`datetime` cannot be replaced: use `loop.time()` or `time.time()` if the time matters. The garbage collector is off
meanwhile, because its runs would depend on the earlier history of the process.
"""

from __future__ import annotations

import gc
import multiprocessing.process
import os
import random
import socket
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

from penstock.testing.errors import NotSimulatedError
from penstock.testing.simulation.scheduler import START_US, Scheduler


@contextmanager
def simulated(scheduler: Scheduler, seed: str, environment: dict[str, str]) -> Iterator[None]:
    """Replace clocks, randomness and environment of this thread while the context is open."""
    source = random.Random(seed)  # noqa: S311 (nothing secret)
    kept = random.getstate()
    with ExitStack() as stack:
        here = threading.get_ident()
        for where, name, instead in [*_instead(scheduler, source), *_shared(random.Random(seed))]:  # noqa: S311
            stack.enter_context(patch.object(where, name, _only(here, instead, getattr(where, name))))
        stack.enter_context(patch.dict(os.environ, environment))
        stack.enter_context(warnings.catch_warnings())
        # nats-py leaves a connection open if it gives up while connecting.
        warnings.filterwarnings("ignore", "unclosed <StreamWriter", ResourceWarning)
        random.seed(seed)
        stack.callback(random.setstate, kept)
        if gc.isenabled():
            gc.disable()
            stack.callback(gc.enable)
        yield


def _instead(scheduler: Scheduler, source: random.Random) -> Iterator[tuple[Any, str, Any]]:
    def elapsed_ns() -> int:
        return scheduler.now_us * 1_000

    def calendar_ns() -> int:
        return (START_US + scheduler.now_us) * 1_000

    yield time, "time", lambda: calendar_ns() / 1e9
    yield time, "time_ns", calendar_ns
    for name in ("monotonic", "perf_counter"):
        yield time, name, lambda: elapsed_ns() / 1e9
        yield time, f"{name}_ns", elapsed_ns
    yield os, "urandom", source.randbytes
    yield random.SystemRandom, "random", lambda _: source.random()
    yield random.SystemRandom, "getrandbits", lambda _, k: source.getrandbits(k)
    yield random.SystemRandom, "randbytes", lambda _, n: source.randbytes(n)
    yield random.Random, "seed", _seed(source)
    yield time, "sleep", _refused("time.sleep()", "use `await asyncio.sleep()`")
    threads = "for the client use `penstock.aio`, for other work asyncio"
    yield threading.Thread, "start", _refused("a thread", threads)
    sockets = "use asyncio.open_connection, or a client that does, such as `penstock.aio` and nats-py"
    for name in ("connect", "connect_ex", "bind"):
        yield socket.socket, name, _refused("a socket of this machine", sockets)
    yield socket, "socketpair", _refused("a socket of this machine", sockets)
    for where, name in _processes():
        yield where, name, _refused("another process", "start your own programs with `cluster.start`")


def _processes() -> Iterator[tuple[Any, str]]:
    yield subprocess.Popen, "__init__"
    yield multiprocessing.process.BaseProcess, "start"
    for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "execv", "execve"):
        if hasattr(os, name):
            yield os, name


def _shared(generator: random.Random) -> Iterator[tuple[Any, str, Any]]:
    """Yield replacements for the functions of `random` that share one generator."""
    for name in random.__all__:
        if isinstance(getattr(getattr(random, name), "__self__", None), random.Random):
            yield random, name, getattr(generator, name)


def _only(thread: int, instead: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `instead` in that thread and `otherwise` in all others."""
    ident = threading.get_ident

    def either(*args: Any, **options: Any) -> Any:
        return (instead if ident() == thread else otherwise)(*args, **options)

    return either


def _seed(source: random.Random) -> Callable[..., None]:
    """Return a replacement for `Random.seed` that seeds unseeded generators from the simulation."""
    seed = random.Random.seed

    def instead(self: random.Random, a: Any = None, version: int = 2) -> None:
        if isinstance(self, random.SystemRandom):
            return
        seed(self, source.getrandbits(64) if a is None else a, version)

    return instead


def _refused(what: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(*_args: Any, **_options: Any) -> NoReturn:
        raise NotSimulatedError(f"{what} does not exist in the simulation; {instead}")

    return refuse
