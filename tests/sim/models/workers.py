"""Clients of one consumer with acks: they fetch, or are members of a queue group, and do what clients do to a message.

Rules: a pull request has an inbox of its own. A worker that dies forgets what it has in hand, and comes back later.
Once the faults are over all workers are diligent: they ack whatever they get, and wait for the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from penstock.testing.errors import ViolationError
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.nats import PublishedMessage
from tests.sim.models.api_client import API, ApiClient, status_of
from tests.sim.models.crews import Crew, Delivery

_BATCH_MAX = 8
_EXPIRES_US = 2_500_000
_BEAT_US = 500_000
_ANSWER_US = 4_000_000
_WORK_US = 250_000  # on one message, at most
_AGAIN_US = 100_000
_DEAD_US = 1_500_000
QUEUE = b"crew"


class Worker:
    """One client."""

    def __init__(
        self, around: Surroundings, client: ApiClient, crew: Crew, random: Random, missing: Callable[[], None]
    ) -> None:
        """`missing` is called when a broker says that there is no such consumer."""
        self.is_diligent = False
        self._around = around
        self._client = client
        self._crew = crew
        self._random = random
        self._missing = missing
        self._inbox = b""
        self._life = 0  # grows with each death
        self._left = 0  # messages of the request
        self._leave: Callable[[], None] | None = None  # the queue group
        self._is_over = False

    def start(self) -> None:
        if self._crew.rules.is_push:
            inbox = self._crew.rules.config["deliver_subject"].encode()
            self._leave = self._around.nats.join(inbox, QUEUE, self._pushed)
        else:
            self._pull()

    def end(self) -> None:
        """The stream or its consumer is given up."""
        self._is_over = True
        self._drop()

    def _drop(self) -> None:
        self._life += 1
        self._client.unsubscribe(self._inbox)
        self._inbox = b""
        if self._leave is not None:
            self._leave()
            self._leave = None

    def die(self) -> None:
        """Forget all, and come back."""
        self._around.count("workers that died")
        self._drop()
        self._around.scheduler.after(_DEAD_US, lambda: None if self._is_over else self.start())

    # Pull requests

    def _pull(self) -> None:
        if self._is_over:
            return
        self._client.unsubscribe(self._inbox)
        inbox = self._inbox = self._client.inbox()
        life = self._life
        self._left = 1 + int(self._random.random() * _BATCH_MAX)
        request = {"batch": self._left, "expires": _EXPIRES_US * 1_000, "idle_heartbeat": _BEAT_US * 1_000}
        self._client.subscribe(inbox, lambda message: self._pulled(inbox, message))
        where = f"CONSUMER.MSG.NEXT.{self._crew.stream.name}.{self._crew.rules.name}".encode()
        self._client.send(API + where, inbox, json.dumps(request).encode())

        def late() -> None:
            if inbox == self._inbox and life == self._life:
                self._pull()

        self._around.scheduler.after(_EXPIRES_US + 3 * _BEAT_US, late)

    def _pulled(self, inbox: bytes, message: PublishedMessage) -> None:
        if inbox != self._inbox:
            return
        status = status_of(message)
        if status.startswith("100"):
            return
        if status:
            self._around.count(f"pulls ended by {status[:3]}")
            if status.startswith("503") or "Consumer Deleted" in status:
                self._missing()
            self._client.unsubscribe(inbox)
            self._inbox = b""
            life = self._life
            self._around.scheduler.after(_AGAIN_US, lambda: self._pull() if life == self._life else None)
            return
        self._left -= 1
        if self._left < 0:
            raise ViolationError(f"{self._crew.name}: more messages than a request asked for")
        self._take(message)
        if not self._left and inbox == self._inbox:
            self._pull()

    def _pushed(self, message: PublishedMessage) -> None:
        if status_of(message):
            return
        self._take(message)

    # Messages

    def _take(self, message: PublishedMessage) -> None:
        one = self._crew.received(message, self._around.scheduler.now_us)
        self._around.count("messages of crews")
        life, random = self._life, self._random
        act = self._act_of()
        after_us = int(random.random() * _WORK_US)
        if act == "die":
            self.die()
            return
        if act == "late":
            waits_us = self._crew.rules.waits_us
            after_us = int(waits_us[min(one.number, len(waits_us)) - 1] * (1.1 + random.random()))

        def do() -> None:
            if life == self._life:
                self._do(act, one)

        self._around.scheduler.after(after_us, do)

    def _act_of(self) -> str:
        if self.is_diligent:
            return "sync"
        chance = self._random.random()
        acts = (
            (0.35, "ack"), (0.63, "sync"), (0.70, "late"), (0.76, "forge"), (0.79, "term"), (0.83, "die"),
            (0.87, "forget"), (0.91, "progress"),
        )  # fmt: skip
        for end, act in acts:
            if chance < end:
                return act
        return "ack" if self._crew.rules.is_patient else "nak"

    def _do(self, act: str, one: Delivery) -> None:
        crew, random = self._crew, self._random
        self._around.count(f"acts of workers: {act}")
        if act == "ack":
            self._send_done(one, b"+ACK" if random.random() < 0.5 else b"")
        elif act == "sync":
            self._send_done(one, b"+ACK", waits=True)
        elif act == "term":
            self._send_done(one, b"+TERM it is broken", waits=True)
        elif act == "forge":
            self._forge(one)
        elif act == "nak":
            delay = random.random()
            crew.sends_more(one)
            text = b"" if delay < 0.5 else b' {"delay": %d}' % int(delay * 2_000_000_000)
            self._client.send(one.reply, b"", b"-NAK" + text)
        elif act == "progress":
            crew.sends_more(one)
            self._client.send(one.reply, b"", b"+WPI")
            self._around.scheduler.after(crew.rules.waits_us[0] // 2, lambda: self._send_done(one, b"+ACK", waits=True))
        elif act == "late" and crew.is_late(one):
            self._around.count("late acks")
            if random.random() < 0.6:
                self._client.send(one.reply, b"", b"-NAK")  # changes nothing
            else:
                self._send_late(one)
        elif act == "late":
            self._send_done(one, b"+ACK", waits=True)

    def _send_late(self, one: Delivery) -> None:
        """A late ack counts, but with order by key: there it is refused."""
        if self._crew.rules.is_ordered:
            self._client.send(one.reply, b"", b"+ACK")
        else:
            self._send_done(one, b"+ACK", waits=True)

    def _send_done(self, one: Delivery, payload: bytes, *, waits: bool = False) -> None:
        crew = self._crew
        if not (crew.rules.letters and payload.startswith(b"+TERM")):  # else it has a letter
            crew.sends_done(one)
        if not waits:
            self._client.send(one.reply, b"", payload)
            return

        def answered(message: PublishedMessage) -> None:
            status = status_of(message)
            if status or message.value:
                self._around.count("acks that were refused")
                return
            self._around.count("acks that were answered")
            crew.confirms(one, self._around.scheduler.now_us)

        self._ask(one.reply, payload, answered)

    def _forge(self, one: Delivery) -> None:
        """Send an ack with another token: it says nothing, and has no answer."""
        parts = one.reply.split(b".")
        time_ns = int(parts[7])
        parts[7] = b"%d" % (time_ns - time_ns % 1_000 + (time_ns + 1 + int(self._random.random() * 998)) % 1_000)

        def answered(message: PublishedMessage) -> None:
            if not status_of(message).startswith("503"):
                raise ViolationError(f"{self._crew.name}: a forged ack is answered: {one}")

        self._ask(b".".join(parts), b"+ACK", answered)

    def _ask(self, subject: bytes, payload: bytes, answered: Callable[[PublishedMessage], None]) -> None:
        inbox = self._client.inbox()
        self._client.subscribe(inbox, answered)
        self._client.send(subject, inbox, payload)
        self._around.scheduler.after(_ANSWER_US, lambda: self._client.unsubscribe(inbox))
