"""Runs a broker as a child process: start, wait until ready, stop by process id."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.base.errors import OperationalError
from penstock.broker.process.parent_death_signal import uninterrupted

PLAIN = "PENSTOCK_PLAIN"
_READY_TIMEOUT_S = 60.0  # includes recovery of a large data directory
_STOP_TIMEOUT_S = 20.0
_LOG_LINES_MAX = 200
_LOG_LINES_SHOWN = 20

# -P: do not import from the working directory.
# Linux signals the broker when this process dies without having stopped it (kill -9), so that it does not stay
# behind.
_PROGRAM = """
import ctypes, os, signal, sys
parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
if os.getppid() != parent:
    sys.exit("the process that started this broker is gone")
from penstock.cli import main
main()
"""


OnEnd = Callable[[str, int, str], None]
"""Called with the name of the process, its return code (-N: signal N), the end of its log."""


class ReadyLine(NamedTuple):
    """The line that `penstock serve` prints when it is ready."""

    client: str
    nats: str
    data_dir: str
    process_id: int = 0  # not in the line: set by the process that started the broker


def parse_ready(line: str) -> ReadyLine | None:
    """Parse `ready client=… nats=… data=…`; return None for another line. The directory may contain spaces."""
    words = line.rstrip("\n").split(" ", 3)
    if len(words) != 4 or words[0] != "ready":
        return None
    pairs = [word.partition("=") for word in words[1:]]
    if [name for name, _, _ in pairs] != ["client", "nats", "data"]:
        return None
    client, nats, data_dir = (value for _, _, value in pairs)
    return ReadyLine(client, nats, data_dir)


def environment_of_child() -> dict[str, str]:
    """Return our environment without settings for brokers or clients; PENSTOCK_PLAIN (compiled or not) stays."""
    return {key: text for key, text in os.environ.items() if key == PLAIN or not key.startswith("PENSTOCK_")}


class Launched(NamedTuple):
    """A broker process that may not be ready yet."""

    process: subprocess.Popen[bytes]
    drain: threading.Thread
    log: deque[bytes]

    def wait_until_ready(self) -> ReadyLine:
        """Return its ready line; raise OperationalError if it does not start."""
        return _wait_until_ready(*self)._replace(process_id=self.process.pid)


def free_ports(count: int) -> list[int]:
    """Return loopback ports that are free now, for brokers that must know each other's ports before they start."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def serving(data_dir: Path, *options: str, on_end: OnEnd | None = None) -> Iterator[ReadyLine]:
    """Run a broker on `data_dir` for the duration of the context; raise OperationalError if it does not start.

    `on_end` is called, in a thread, if the broker ends earlier.
    """
    with launched(data_dir, *options) as broker:
        ready = broker.wait_until_ready()
        if on_end is None:
            yield ready
            return
        with watched(broker, on_end):
            yield ready


@contextmanager
def watched(broker: Launched, on_end: OnEnd) -> Iterator[None]:
    """Call `on_end`, in a thread, if the broker ends inside the context."""
    stopping = threading.Event()
    wait = (*broker, stopping, on_end)
    threading.Thread(target=_tell_end, args=wait, name="broker's end", daemon=True).start()
    try:
        yield
    finally:
        stopping.set()


@contextmanager
def launched(data_dir: Path, *options: str) -> Iterator[Launched]:
    """Start a broker without waiting until it is ready, such as one of several that need each other.

    It inherits none of our PENSTOCK_* variables except PENSTOCK_PLAIN.
    """
    environment = environment_of_child()
    program = [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid())]
    command = [*program, "serve", "--data-dir", str(data_dir), *options]
    log: deque[bytes] = deque(maxlen=_LOG_LINES_MAX)
    started: tuple[subprocess.Popen[bytes], threading.Thread] | None = None
    try:
        with uninterrupted():
            started = _start(command, environment, log)
        yield Launched(*started, log)
    finally:
        if started is not None:
            _stop(*started)


def _start(
    command: list[str], environment: dict[str, str], log: deque[bytes]
) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    """Start the process and a thread that reads its log."""
    # A session of its own: Ctrl-C reaches this process only, which then stops the broker.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stderr is not None
    drain = threading.Thread(target=log.extend, args=(process.stderr,), name="broker's log", daemon=True)
    drain.start()
    return process, drain


def _tell_end(
    process: subprocess.Popen[bytes],
    drain: threading.Thread,
    log: deque[bytes],
    stopping: threading.Event,
    on_end: OnEnd,
) -> None:
    drain.join()  # the log ends with the process
    code = process.wait()
    if not stopping.is_set():
        on_end("the broker", code, _tail(log))


def _wait_until_ready(process: subprocess.Popen[bytes], drain: threading.Thread, log: deque[bytes]) -> ReadyLine:
    assert process.stdout is not None
    number = process.stdout.fileno()
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    received = b""
    while (left_s := deadline_s - time.monotonic()) > 0:
        if not select.select([number], [], [], left_s)[0]:
            continue
        chunk = os.read(number, 4096)
        if not chunk:
            process.wait(_STOP_TIMEOUT_S)
            drain.join(_STOP_TIMEOUT_S)
            raise OperationalError(f"the broker did not start (exit code {process.returncode}):\n{_tail(log)}")
        received += chunk
        for line in received.split(b"\n")[:-1]:
            if (ready := parse_ready(line.decode(errors="replace"))) is not None:
                return ready
    raise OperationalError(f"the broker was not ready within {_READY_TIMEOUT_S:g} s:\n{_tail(log)}")


def _tail(log: deque[bytes]) -> str:
    return b"".join(list(log)[-_LOG_LINES_SHOWN:]).decode(errors="replace").rstrip()


def _stop(process: subprocess.Popen[bytes], drain: threading.Thread) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    drain.join(_STOP_TIMEOUT_S)
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
