"""The sender of `penstock bench latency`: a process that publishes on schedule and records when acks arrive.

Rules: Every message of the schedule is sent, unless the connection blocks to the end. A message that the connection
does not take waits in the sender, and its latency counts from its due time. Every message has its own reply subject
(all of one length), so that an ack identifies its message. An error is not an ack. No garbage collection, no busy
waiting.

The sender sleeps in `select`, with the kernel's most exact timers. The remaining delay of its wake-ups is reported
(`late_ns`): every measured latency contains this error of the sender.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Iterator

import msgspec

from penstock.base.addresses import Address
from penstock_bench.load import frames
from penstock_bench.load.content import Content, Tally
from penstock_bench.load.nats_socket import inbox
from penstock_bench.load.schedule import Contents, SchedulePlan
from penstock_bench.load.timed_socket import TimedSocket, sharpen_timers

_LEAD_NS = 50_000_000  # between the start and the first message
_ERROR_BYTES_MAX = 300


class SendTask(msgspec.Struct, frozen=True):
    """A plan and its destination."""

    nats: Address
    subject: str
    plan: SchedulePlan
    wait_s: float  # for missing acks, after the last message's due time


class Sent(msgspec.Struct, frozen=True):
    """The outcome. Times are nanoseconds of the monotonic clock, listed by message; 0: never."""

    due_ns: list[int]
    acked_ns: list[int]  # -1: the answer was an error
    late_ns: list[int]  # from the due time, or a free connection if later, to the hand-over to the socket
    held: int  # messages that were due while the connection had not taken the one before
    errors: int
    first_error: str
    content: Content  # of the messages given to the socket: all, unless the connection was blocked to the end
    cpu_s: float
    gave_up_ns: int  # time at which waiting ended


class _Run:
    def __init__(self, task: SendTask) -> None:
        self._task, self._plan = task, task.plan
        self._contents = Contents(task.plan)
        self._inbox = inbox()
        self._due, self._acked, self._late = (array("q", bytes(8 * task.plan.count)) for _ in range(3))
        self._next = self._answered = self._held = self._errors = 0
        self._first_error = ""
        self._socket = TimedSocket(task.nats, f"{self._inbox}.*")

    def run(self) -> Sent:
        """Publish, and wait for the acks."""
        gc.collect()
        gc.freeze()
        gc.disable()
        with self._socket:
            self._publish()
        stopped_ns = time.monotonic_ns()
        cpu_s = time.process_time()
        tally = Tally()
        tally.add(self._contents.value(index) for index in range(self._next))
        times = (self._due.tolist(), self._acked.tolist(), self._late.tolist())
        return Sent(*times, self._held, self._errors, self._first_error, tally.content(), cpu_s, stopped_ns)

    def _publish(self) -> None:
        plan, link, now_ns = self._plan, self._socket, time.monotonic_ns
        start_ns = now_ns() + _LEAD_NS
        for index in range(plan.count):
            self._due[index] = start_ns + plan.due_ns(index)
        give_up_ns = start_ns + plan.due_ns(plan.count) + round(self._task.wait_s * 1e9)
        free_ns = start_ns  # time since which the connection has had nothing to send
        while self._answered < plan.count and (now := now_ns()) < give_up_ns:
            wake_ns = give_up_ns
            if not link.is_sending and self._next < plan.count:
                wake_ns = self._due[self._next]
                if now >= wake_ns:
                    self._send(now, free_ns)
                    free_ns = now_ns()
                    continue
            was_sending = link.is_sending
            came = link.wait((wake_ns - now) / 1e9)
            if was_sending and not link.is_sending:
                free_ns = now_ns()
            if came:
                self._take_answers()

    def _send(self, now_ns: int, free_ns: int) -> None:
        index = self._next
        self._next += 1
        due_ns = self._due[index]
        self._held += free_ns > due_ns
        self._late[index] = now_ns - max(due_ns, free_ns)
        head = f"PUB {self._task.subject} {self._inbox}.{index:07} {self._plan.size}\r\n".encode()
        self._socket.send(head, *self._contents.parts(index), b"\r\n")

    def _take_answers(self) -> None:
        now_ns, deliveries = self._socket.receive()
        for delivery in deliveries:
            index = int(delivery.subject[len(self._inbox) + 1 :])
            if not 0 <= index < self._plan.count or self._acked[index]:
                self._refuse(delivery, "an unexpected ack: ")
                continue
            self._answered += 1
            if frames.is_ack(delivery):
                self._acked[index] = now_ns
            else:
                self._acked[index] = -1
                self._refuse(delivery, "")

    def _refuse(self, delivery: frames.Delivery, why: str) -> None:
        self._errors += 1
        if not self._first_error:
            said = (delivery.headers + delivery.payload)[:_ERROR_BYTES_MAX]
            self._first_error = why + said.decode("utf-8", "replace").strip()


def send(task: SendTask) -> Iterator[Sent]:
    """Worker: send one plan to the end."""
    sharpen_timers()
    yield _Run(task).run()
