"""The publisher of every throughput figure: raw sockets, frames encoded beforehand, windows of unacked messages.

Rules: It is the same for every product. A round ends when every sent message is answered; the answers are parsed after
the clock has stopped. A window counts the messages of all connections together; each connection has its share, at least
one message. After `seconds_max` the generator begins no further message. One process, one thread, one `epoll`.

Theory: Sending is one slice of the pool, and counting is one `bytes.count` over what was received, so a message costs
the generator far less than the system that answers it; the generator's ceiling is in every report. The counted bytes
(`MSG inbox 1`) hold a random token, so no payload contains them by chance. An answer that is not an ack is counted,
too, so the window moves on; the audit reports it.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator

import msgspec

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.load import frames, liftbridge_format
from penstock_bench.load.content import Content
from penstock_bench.load.nats_socket import NatsSocket, inbox
from penstock_bench.machine.processes import Stopwatch

_READ_BYTES = 256 * 1024
_SEND_BYTES = 1 << 20
_EXCERPT_BYTES = 200
GENERATOR = "generator"
_DIALECTS = {"jetstream": frames.JETSTREAM, "liftbridge": liftbridge_format.DIALECT}


class Load(msgspec.Struct, frozen=True):
    """The messages of one round."""

    size: int = 256
    messages: int = 100_000
    window: int = 4_000
    publishers: int = 1
    seconds_max: float = 10.0
    seed: int = 1
    subjects: int = 1  # with several, `subject.N` in turn

    @property
    def window_in_effect(self) -> int:
        """Window in messages, reduced to BENCH_IN_FLIGHT_BYTES_MAX, but at least one message for each publisher."""
        return max(self.publishers, min(self.window, limits.BENCH_IN_FLIGHT_BYTES_MAX // max(1, self.size)))


class PublishTask(msgspec.Struct, frozen=True):
    """A load, its destination, and the processes whose CPU time is measured beside the generator's."""

    nats: Address
    subject: str
    load: Load
    watched: dict[str, int] = {}
    dialect: str = "jetstream"


class Published(msgspec.Struct, frozen=True):
    """The outcome of a load. `sent` covers all messages, acked or not; CPU seconds are of the timed part."""

    seconds: float
    sent: Content
    acks: int
    errors: int
    first_error: str
    cpu_seconds: dict[str, float]

    @property
    def rate(self) -> float:
        """Acked messages per second."""
        return self.acks / self.seconds


def publish(task: PublishTask) -> Iterator[Published]:
    """Worker: publish one load to the end."""
    publishers = _connect(task)
    try:
        watch = Stopwatch({**task.watched, GENERATOR: os.getpid()})
        _drive(publishers, time.perf_counter() + task.load.seconds_max)
        seconds, cpu = watch.read()
    finally:
        for one in publishers:
            one.close()
    audits = [one.audit(_DIALECTS[task.dialect]) for one in publishers]
    yield Published(
        seconds=seconds,
        sent=frames.sent_content([(one.pool, one.quota) for one in publishers]),
        acks=sum(found.acks for found in audits),
        errors=sum(found.errors for found in audits),
        first_error=next((found.first_error for found in audits if found.errors), ""),
        cpu_seconds=cpu,
    )


def _connect(task: PublishTask) -> list[_Publisher]:
    load = task.load
    dialect = _DIALECTS[task.dialect]
    count = min(load.publishers, load.messages)
    quotas = [load.messages // count + (number < load.messages % count) for number in range(count)]
    window = load.window_in_effect // count
    pool_bytes_max = limits.BENCH_POOL_BYTES_MAX // count
    connected: list[_Publisher] = []
    try:
        for number, quota in enumerate(quotas):
            reply = inbox()
            seed = load.seed * limits.BENCH_PUBLISHERS_MAX + number
            about = task.subject, reply, load.size, quota, seed
            pool = frames.Pool(*about, bytes_max=pool_bytes_max, dialect=dialect, subjects=load.subjects)
            connected.append(_Publisher(NatsSocket(task.nats), pool, reply, quota, window))
    except BaseException:
        for one in connected:
            one.close()
        raise
    return connected


class _Publisher:
    """One connection: counts sent bytes and answers, and keeps everything received."""

    def __init__(self, nats: NatsSocket, pool: frames.Pool, reply: str, quota: int, window: int) -> None:
        self.pool = pool
        self.quota = quota  # messages to send; reduced when the time is up
        self.answered = 0
        self.blocked = False  # the socket takes no more at present
        self._nats = nats
        self._window = window
        self._view = memoryview(pool.frames)
        self._sent_bytes = 0  # in total; the pool is sent repeatedly
        self._mark = b"MSG %b 1 " % reply.encode()
        self._received = bytearray(quota * limits.BENCH_ACK_BYTES + 2 * _READ_BYTES)
        self._received_end = 0
        nats.send(b"SUB %b 1\r\n" % reply.encode())
        nats.barrier()
        nats.socket.setblocking(False)

    def fileno(self) -> int:
        """Return the socket's descriptor, for epoll."""
        return self._nats.socket.fileno()

    @property
    def is_done(self) -> bool:
        """True if every message is sent and answered."""
        return self.answered >= self.quota

    def push(self) -> None:
        """Send what the window allows, as far as the socket takes it."""
        allowed = min(self.answered + self._window, self.quota) * self.pool.stride
        pool_bytes = len(self._view)
        self.blocked = False
        while self._sent_bytes < allowed:
            start = self._sent_bytes % pool_bytes
            end = min(start + min(allowed - self._sent_bytes, _SEND_BYTES), pool_bytes)
            try:
                self._sent_bytes += self._nats.socket.send(self._view[start:end])
            except BlockingIOError:
                self.blocked = True
                return

    def pull(self) -> None:
        """Receive once, and count the answers."""
        start = self._received_end
        if len(self._received) - start < _READ_BYTES:
            self._received += bytes(len(self._received))
        with memoryview(self._received) as view:
            try:
                count = self._nats.socket.recv_into(view[start : start + _READ_BYTES])
            except BlockingIOError:
                return
        if count == 0:
            raise OperationalError(f"nats-server closed the connection of a publisher: {self.last_words}")
        self._received_end = start + count
        # Start before the last read, so that a mark split between two reads is counted, and none twice.
        self.answered += self._received.count(self._mark, max(0, start - len(self._mark) + 1), self._received_end)

    def stop_sending(self) -> bool:
        """Begin no further message, but finish a half-sent one; return True if nothing is left to do."""
        self.quota = min(self.quota, -(-self._sent_bytes // self.pool.stride))
        return self.is_done

    def finish(self) -> None:
        """Receive the rest of the last answer, which may be incomplete."""
        self._nats.socket.settimeout(limits.BENCH_STALL_S)
        while self._received_end and self._received[self._received_end - 2 : self._received_end] != b"\r\n":
            self.pull()

    @property
    def last_words(self) -> str:
        """The end of the received bytes, for error texts."""
        end = self._received_end
        return bytes(self._received[max(0, end - _EXCERPT_BYTES) : end]).decode("utf-8", "replace")

    def audit(self, dialect: frames.Dialect) -> frames.Audit:
        """Parse the answers."""
        return frames.audit(self._received, self._received_end, dialect)

    def close(self) -> None:
        self._nats.close()


def _drive(publishers: list[_Publisher], stop_s: float) -> None:
    """Send and receive until every publisher is done. Raise OperationalError after a stall."""
    by_number = {one.fileno(): one for one in publishers}
    running = len(publishers)
    stopped = False
    with select.epoll() as poll:
        for number, one in by_number.items():
            poll.register(number, select.EPOLLIN)
            one.push()
            if one.blocked:
                poll.modify(number, select.EPOLLIN | select.EPOLLOUT)
        while running:
            events = poll.poll(limits.BENCH_STALL_S)
            if not events:
                waiting = next(one for one in publishers if not one.is_done)
                raise OperationalError(
                    f"no ack for {limits.BENCH_STALL_S:g} s, {waiting.answered:,} of {waiting.quota:,} are there; "
                    f"the last bytes: {waiting.last_words}"
                )
            for number, event in events:
                one = by_number[number]
                was_blocked = one.blocked
                if event & ~select.EPOLLOUT:
                    one.pull()
                one.push()
                if one.blocked != was_blocked:
                    poll.modify(number, select.EPOLLIN | (select.EPOLLOUT if one.blocked else 0))
                if one.is_done:
                    poll.unregister(number)
                    running -= 1
            if not stopped and time.perf_counter() >= stop_s:
                stopped = True
                running = _stop_sending(publishers, poll)
    for one in publishers:
        one.finish()


def _stop_sending(publishers: list[_Publisher], poll: select.epoll) -> int:
    """Let no further message begin; return the number of publishers that still wait for answers."""
    for one in publishers:
        if not one.is_done and one.stop_sending():
            poll.unregister(one.fileno())
    return sum(not one.is_done for one in publishers)
