"""A non-blocking NATS connection for timed work: waits for the clock and the socket at once.

Rules: No method waits longer than requested. Pending output is sent in order, as the socket takes it, without copies of
payloads. An arrival time is taken right after the read that completed the message, before parsing. PING is answered; a
-ERR of nats-server is an OperationalError.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import sys
import time
from collections import deque
from itertools import islice

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.load.frames import Delivery, scan
from penstock_bench.load.nats_socket import NatsSocket

_PARTS_PER_SEND = 64
_PR_SET_TIMERSLACK = 29


class TimedSocket:
    """A connected, non-blocking client; `close` it, or use it in `with`. `subscriptions` get the ids 1, 2, …"""

    def __init__(self, address: Address, *subscriptions: str) -> None:
        self._nats = NatsSocket(address)
        try:
            for number, subject in enumerate(subscriptions, 1):
                self._nats.send(f"SUB {subject} {number}\r\n".encode())
            self._nats.barrier()
        except BaseException:
            self._nats.close()
            raise
        self._socket = self._nats.socket
        self._socket.setblocking(False)
        self._out: deque[memoryview] = deque()
        self._buffer = bytearray(limits.READ_BUFFER_BYTES)
        self._start = self._end = 0

    def __enter__(self) -> TimedSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._nats.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_sending(self) -> bool:
        """True if output waits for the socket."""
        return bool(self._out)

    def send(self, *parts: bytes | memoryview) -> None:
        """Queue parts for sending, and send what the socket takes now."""
        out = self._out
        out.extend(map(memoryview, parts))
        while out:
            try:
                taken = self._socket.sendmsg(list(islice(out, _PARTS_PER_SEND)))
            except BlockingIOError:
                return
            while taken:
                if taken < len(out[0]):
                    out[0] = out[0][taken:]
                    break
                taken -= len(out.popleft())

    def wait(self, timeout_s: float) -> bool:
        """Wait for input, progress of the output, or `timeout_s`. Return True if there is input."""
        readable, writable, _ = select.select([self], [self] if self._out else [], [], max(timeout_s, 0.0))
        if writable:
            self.send()
        return bool(readable)

    def receive(self) -> tuple[int, list[Delivery]]:
        """Read once; return the time in nanoseconds of the monotonic clock, and the complete messages."""
        self._make_room()
        with contextlib.suppress(BlockingIOError):
            received = self._socket.recv_into(memoryview(self._buffer)[self._end :])
            if not received:
                raise OperationalError("nats-server closed the connection of the benchmark")
            self._end += received
        now_ns = time.monotonic_ns()
        found = scan(self._buffer, self._start, self._end)
        self._start = found.end
        for line in found.lines:
            if line == b"PING":
                self.send(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise OperationalError(f"nats-server refused: {line.decode('utf-8', 'replace')}")
        return now_ns, found.deliveries

    def _make_room(self) -> None:
        """If less than a quarter of the buffer is free, move the kept bytes to the front; double a half-full buffer."""
        if self._start == self._end:
            self._start = self._end = 0
        elif 4 * (len(self._buffer) - self._end) < len(self._buffer):
            held = bytes(memoryview(self._buffer)[self._start : self._end])
            if len(held) > limits.NATS_FRAME_BYTES_MAX:
                raise OperationalError("a NATS frame is larger than any message may be")
            if 2 * len(held) > len(self._buffer):
                self._buffer = bytearray(2 * len(self._buffer))
            self._buffer[: len(held)] = held
            self._start, self._end = 0, len(held)


def sharpen_timers() -> None:
    """Set the timer slack of this thread to the minimum, 1 ns (Linux): by default its timers are up to 50 µs late."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
