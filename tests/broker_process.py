"""Real brokers and nats-servers as child processes, for tests that kill, stop and starve them.

Rules: the test that starts a child ends it, also if the test fails. Nothing here sleeps for a fixed time: it waits for
a log line, an exit or an answer, and fails after a deadline with the child's output.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

import penstock
from penstock import aio
from penstock.broker.nats.server import find_nats_server
from tests import warm
from tests.ports import free_ports

DEADLINE_S = 60.0
LEFT_BEHIND_S = 2.0
_SOURCES = str(Path(penstock.__file__).parent.parent)
_SERVE = ("-c", "from penstock.cli import main; main()", "serve")
_READY = re.compile(r"ready client=(\S+) nats=(\S+) data=")
_LOOK_S = 0.01  # interval of polling
OF_OTHERS = {
    "PENSTOCK_NATS": "nats://127.0.0.1:1",
    "PENSTOCK_TLS_CA": "/nowhere/ca.pem",
    "PENSTOCK_TLS_CERT": "/nowhere/client.pem",
    "PENSTOCK_CREDENTIALS": "/nowhere/credentials",
    "PENSTOCK_USER": "without a password",
}
"""Settings of other brokers in the environment: they must not affect brokers that a command starts itself."""

T = TypeVar("T")


class Lines:
    """Collects the lines that a child writes to a pipe."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._lines: list[str] = []
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._pipe:
            with self._changed:
                self._lines.append(line.decode("utf-8", "replace"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def text(self) -> str:
        """All lines so far."""
        with self._changed:
            return "".join(self._lines)

    def wait_for(
        self, pattern: str | re.Pattern[str], timeout_s: float = DEADLINE_S, *, after: int = 0
    ) -> re.Match[str]:
        """Wait for the first match from line `after` on. Raise AssertionError at the pipe's end or the deadline."""
        wanted = re.compile(pattern)
        deadline_s = time.monotonic() + timeout_s
        seen = after
        with self._changed:
            while True:
                for line in self._lines[seen:]:
                    if (found := wanted.search(line)) is not None:
                        return found
                seen = len(self._lines)
                left_s = deadline_s - time.monotonic()
                if self._ended or left_s <= 0:
                    said = "".join(self._lines)
                    raise AssertionError(f"no line {wanted.pattern!r}; the child said:\n{said}")
                self._changed.wait(left_s)

    def __len__(self) -> int:
        with self._changed:
            return len(self._lines)

    def read_all(self) -> None:
        """Wait for the end of the pipe, at most LEFT_BEHIND_S: a process that the child left may hold it open."""
        self._thread.join(LEFT_BEHIND_S)

    def close(self) -> None:
        """Wait for the end of the pipe and close it; the writer must have ended."""
        self._thread.join(DEADLINE_S)
        self._pipe.close()


class Child:
    """A child process that can be started again."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.stdout: Lines | None = None
        self.stderr: Lines | None = None

    def _launch(
        self, arguments: list[str], environment: Mapping[str, str], before_exec: Callable[[], None] | None = None
    ) -> None:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            preexec_fn=before_exec,
        )
        self._launched(process)

    def _launched(self, process: subprocess.Popen[bytes]) -> None:
        assert not self.is_running
        self._close()
        self.process = process
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdout, self.stderr = Lines(self.process.stdout), Lines(self.process.stderr)

    @property
    def is_running(self) -> bool:
        """True if the process was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def said(self) -> str:
        """Output on stderr so far."""
        return "" if self.stderr is None else self.stderr.text

    def signal(self, number: signal.Signals) -> None:
        assert self.is_running, self.said
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, timeout_s: float = DEADLINE_S) -> int:
        """Wait until the process ends by itself and its output is read; return its exit code."""
        assert self.process is not None
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s; it said:\n{self.said}") from None
        for lines in (self.stdout, self.stderr):
            if lines is not None:
                lines.read_all()
        return code

    def kill(self) -> None:
        """Send SIGKILL and wait for the end. Idempotent."""
        if self.is_running:
            assert self.process is not None
            self.process.kill()
        if self.process is not None:
            self.process.wait()

    def _close(self) -> None:
        for lines in (self.stdout, self.stderr):
            if lines is not None:
                lines.close()
        self.stdout = self.stderr = None

    def end(self) -> None:
        """Kill the process and close its pipes."""
        self.kill()
        self._close()


class BrokerProcess(Child):
    """`penstock serve` on a data directory; the next `start` uses the same one."""

    def __init__(
        self,
        data_dir: Path,
        *arguments: str,
        nats: str | None = None,
        environment: Mapping[str, str] | None = None,
        before_exec: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self.data_dir = data_dir
        self.client_address = ""
        self.nats_url = ""
        self.credentials: penstock.Credentials | None = None  # used by `client`
        self.listen = f"127.0.0.1:{free_ports(1)[0]}"  # the same at each start
        self.program: tuple[str, ...] = _SERVE
        self.arguments = [*(("--nats", nats) if nats is not None else ("--nats-port", "0")), *arguments]
        self.environment = broker_environment(environment or {})
        self._before_exec = before_exec

    def launch(self) -> None:
        """Start the process; do not wait until it is ready."""
        places = ["--data-dir", str(self.data_dir), *(("--listen", self.listen) if self.listen else ())]
        arguments = [*places, *self.arguments]
        if self.program == _SERVE and self._before_exec is None:
            self._launched(warm.penstock(["serve", *arguments], self.environment))
            return
        self._launch([sys.executable, "-W", "error", *self.program, *arguments], self.environment, self._before_exec)

    @property
    def is_ready(self) -> bool:
        """True once the process, since its last start, has said that it is ready."""
        return self.stdout is not None and _READY.search(self.stdout.text) is not None

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        self.launch()
        assert self.stdout is not None
        try:
            found = self.stdout.wait_for(_READY)
        except AssertionError as error:
            raise AssertionError(f"{error}\nand on stderr:\n{self.said}") from None
        self.client_address, self.nats_url = found.group(1), found.group(2)

    def stop(self, timeout_s: float = DEADLINE_S) -> int:
        """Send SIGTERM, wait, and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def restart(self) -> None:
        """Kill the broker and start it on the same port, so that clients reconnect."""
        self.kill()
        self.listen = self.client_address
        self.start()

    def logged(self, pattern: str, timeout_s: float = DEADLINE_S, *, after: int = 0) -> re.Match[str]:
        """Wait for a line on stderr that matches."""
        assert self.stderr is not None
        return self.stderr.wait_for(pattern, timeout_s, after=after)

    def memory_bytes(self) -> int:
        """Return the resident memory in bytes (Linux)."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    def io_counts(self) -> dict[str, int]:
        """Return the kernel's I/O counters of the process, /proc/PID/io (Linux)."""
        lines = Path(f"/proc/{self.pid}/io").read_text().splitlines()
        return {name: int(count) for name, count in (line.split(": ") for line in lines)}

    def open_files(self) -> int:
        """Return the number of open file descriptors (Linux)."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    async def client(self, name: str = "test") -> aio.Client:
        """Connect a client."""
        return await aio.connect(self.client_address, name=name, credentials=self.credentials)


def broker_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without Penstock's settings, with a PYTHONPATH to the sources that the test imports."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "NOTIFY_"))}
    path = more.get("PYTHONPATH", "")
    return {**kept, **more, "PYTHONPATH": os.pathsep.join(filter(None, (path, _SOURCES)))}


class NatsProcess(Child):
    """A nats-server for one test; every start is on the same port."""

    def __init__(self, folder: Path, config: str = "", host: str = "127.0.0.1") -> None:
        super().__init__()
        (self.port,) = free_ports(1)
        self._host = host
        self._config_file = folder / "nats-server.conf"
        self._config_file.write_text(config)

    @property
    def url(self) -> str:
        return f"nats://[{self._host}]:{self.port}" if ":" in self._host else f"nats://{self._host}:{self.port}"

    def start(self) -> None:
        """Start nats-server and wait until it is ready."""
        place = ["-a", self._host, "-p", str(self.port)]
        self._launch([str(find_nats_server()), "-c", str(self._config_file), *place], os.environ)
        assert self.stderr is not None
        self.stderr.wait_for("Server is ready")


@contextmanager
def running_broker(
    data_dir: Path,
    *arguments: str,
    nats: str | None = None,
    environment: Mapping[str, str] | None = None,
    before_exec: Callable[[], None] | None = None,
) -> Iterator[BrokerProcess]:
    """Run a broker within the block."""
    broker = BrokerProcess(data_dir, *arguments, nats=nats, environment=environment, before_exec=before_exec)
    try:
        broker.start()
        yield broker
    finally:
        broker.end()


@contextmanager
def running_nats(folder: Path, config: str = "", host: str = "127.0.0.1") -> Iterator[NatsProcess]:
    """Run a nats-server within the block."""
    folder.mkdir(parents=True, exist_ok=True)
    server = NatsProcess(folder, config, host)
    try:
        server.start()
        yield server
    finally:
        server.end()


async def eventually(look: Callable[[], Awaitable[T]], what: str, timeout_s: float = DEADLINE_S) -> T:
    """Poll `look` until its result is true, and return that. Raise AssertionError at the deadline."""
    last: T | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while not (last := await look()):  # noqa: ASYNC110 (another process cannot set an event here)
                await asyncio.sleep(_LOOK_S)
            return last
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s: {what}; last seen: {last!r}") from None
