"""Child processes of the benchmark, and the CPU time of any process.

Rules: A child has its own session, so that Ctrl-C reaches only the benchmark; it dies with the benchmark
(`dying_with_parent`), and is ended by its process id when its context ends. Its output is always read, so that it never
blocks. CPU time comes from the process's own clock in the kernel: in nanoseconds, including ended threads, whereas
/proc/PID/stat counts ticks of 10 ms. An ended process has no clock: that is an error, not zero cost, because its
successor (a broker restarts its nats-server) was not measured.
"""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock.broker.process.parent_death_signal import dying_with_parent, uninterrupted
from penstock.broker.supervision.child import OnEnd
from penstock_bench.machine import vital

_CLOCK_OF_PROCESS = 2  # CPUCLOCK_SCHED, as clock_getcpuclockid(3) composes it
_TAIL_LINES = 20
_LISTEN = "0A"  # state of a listening socket in /proc/net/tcp


def cpu_seconds(name: str, process_id: int) -> float:
    """Return the CPU seconds that the process has used so far. Raise OperationalError if it has ended."""
    try:
        return time.clock_gettime((~process_id << 3) | _CLOCK_OF_PROCESS)
    except OSError:
        raise OperationalError(f"{name} ended while it was measured") from None


def cpu_seconds_of(processes: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU seconds of several processes, by name."""
    return {name: cpu_seconds(name, process_id) for name, process_id in processes.items()}


class Stopwatch:
    """Wall and CPU time of some processes, by name, from its construction on."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = dict(processes)
        self._before = cpu_seconds_of(processes)
        self._started_s = time.perf_counter()

    def read(self) -> tuple[float, dict[str, float]]:
        """Return the elapsed seconds, and the CPU seconds of each process. Raise OperationalError if one has ended."""
        seconds = max(1e-9, time.perf_counter() - self._started_s)
        after = cpu_seconds_of(self._processes)
        return seconds, {name: after[name] - self._before[name] for name in after}


def children_of(process_id: int) -> list[int]:
    """Return the process ids of a process's children (Linux; none elsewhere)."""
    found = []
    for path in Path(f"/proc/{process_id}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text().split()]
        except OSError:
            continue  # the thread has just ended
    return found


def listening_on(address: Address) -> int | None:
    """Return the id of the process that listens on a loopback address (Linux); None if unknown or another user's."""
    sockets = _listening_sockets(address) if address.is_loopback else set()
    if not sockets:
        return None
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = path.readlink().name
        except OSError:
            continue  # another user's process, or one that has just ended
        if target in sockets:
            return int(path.parts[2])
    return None


def _listening_sockets(address: Address) -> set[str]:
    """Return `socket:[NUMBER]` of every socket that listens on this address, or on its port of all addresses."""
    found, hosts = set(), {"0" * 8, "0" * 32}
    for family, *_, (host, *_) in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        hosts.add(_in_table(socket.inet_pton(family, str(host))))
        if family == socket.AF_INET:  # of a socket for both families
            hosts.add(_in_table(bytes(10) + b"\xff\xff" + socket.inet_pton(family, str(host))))
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            host, _, port = words[1].rpartition(":")
            if words[3] == _LISTEN and host in hosts and int(port, 16) == address.port:
                found.add(f"socket:[{words[9]}]")
    return found


def _in_table(host: bytes) -> str:
    """Return an address as the kernel's tables write it: words of 32 bits, of which each has this machine's order."""
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(host) // 4}I", host))


class Child:
    """A running child process: its stdout and its log (stderr) by lines."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], on_end: OnEnd | None = None) -> None:
        """Watch a child. `on_end` is called from a thread if the child ends before `stop`."""
        self.name = name
        self._on_end = on_end
        self._stopping = False
        self._process = process
        self._changed = threading.Condition()
        self._lines: deque[tuple[bool, bytes]] = deque(maxlen=limits.BENCH_CHILD_LINES_MAX)
        self._tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self._readers = 2
        assert process.stdout is not None
        assert process.stderr is not None
        pipes = ((process.stdout, False), (process.stderr, True))
        self._threads = [threading.Thread(target=self._read, args=pipe, daemon=True) for pipe in pipes]
        for thread in self._threads:
            thread.start()

    @property
    def process_id(self) -> int:
        return self._process.pid

    def _read(self, pipe: IO[bytes], is_log: bool) -> None:
        for line in pipe:
            with self._changed:
                self._lines.append((is_log, line))
                if is_log:
                    self._tail.append(line)
                self._changed.notify_all()
        with self._changed:
            self._readers -= 1
            self._changed.notify_all()
            is_over = self._readers == 0
        if is_over and self._on_end is not None:
            code = self._process.wait()
            if not self._stopping:
                self._on_end(self.name, code, self.said)

    def write(self, data: bytes) -> None:
        """Write `data` to the child's stdin and close it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.close()
        except BrokenPipeError:
            raise OperationalError(f"{self.name} ended before it was told what to do:\n{self.said}") from None

    def next_line(self, timeout_s: float, *, of_log: bool = False) -> bytes:
        """Return the next line of stdout, or of the log; drop earlier lines of the other one.

        Raise OperationalError if the child ends or after the time-out, EndedError if a vital process has ended.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while True:
                while self._lines:
                    is_log, line = self._lines.popleft()
                    if is_log == of_log:
                        return line
                left_s = deadline_s - time.monotonic()
                if self._readers == 0:
                    raise OperationalError(f"{self.name} ended too early:\n{self.said}")
                if left_s <= 0:
                    raise OperationalError(f"{self.name} said nothing for {timeout_s:g} s:\n{self.said}")
                vital.check()
                self._changed.wait(min(left_s, limits.BENCH_POLL_S))

    def wait_for(self, pattern: re.Pattern[bytes], timeout_s: float = limits.BENCH_START_S) -> re.Match[bytes]:
        """Return the first match in the log. Raises as `next_line`."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            line = self.next_line(max(0.0, deadline_s - time.monotonic()), of_log=True)
            if (found := pattern.search(line)) is not None:
                return found

    @property
    def said(self) -> str:
        """The last lines of the log."""
        return b"".join(self._tail).decode("utf-8", "replace").rstrip()

    def stop(self) -> None:
        """Stop the child with SIGTERM, and after a time-out with SIGKILL."""
        self._stopping = True
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(limits.BENCH_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for thread in self._threads:
            thread.join(limits.BENCH_STOP_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()


@contextmanager
def child(
    name: str, command: Sequence[str], environment: Mapping[str, str] | None = None, *, on_end: OnEnd | None = None
) -> Iterator[Child]:
    """Run `command` as a child for as long as the context; `on_end` is called from a thread if it ends earlier."""
    started: Child | None = None
    try:
        with uninterrupted():
            process = subprocess.Popen(
                dying_with_parent(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if environment is None else dict(environment),
                start_new_session=True,
            )
            started = Child(name, process, on_end)
        yield started
    finally:
        if started is not None:
            started.stop()
