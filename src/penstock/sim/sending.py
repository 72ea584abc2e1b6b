"""Messages through NATS: sent once or several times, and what is said of them, held against what is promised.

Rules: an ack is a promise however late it comes, and that of a duplicate one for the first. A refusal says that a
message is not stored, if it was sent once. Where chance decides who gets it, only one broker does: what that one says
counts, whichever partition it speaks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.sim.broker import Surroundings
from penstock.sim.checks import Checks, History
from penstock.sim.client_state import ACK, PubAck
from penstock.sim.refusals import Refusals
from penstock.sim.scheduler import Call
from penstock.sim.sent import Message
from penstock.sim.violation import ViolationError

TRIES_MAX = 3
_ACK_TIMEOUT_US = 5_000_000


@dataclass(slots=True)
class _Sent:
    """One message on its way. `then` is called when it is answered, or given up; None: its publisher does not wait."""

    histories: tuple[History, ...]  # where it may be stored
    message: Message
    is_once: bool  # so a refusal says that it is not stored
    then: Call | None
    is_over: bool = False  # nothing of it is sent any more: what comes behind it may be sent already

    def end(self) -> None:
        """The publisher goes on."""
        if self.then is not None and not self.is_over:
            self.is_over = True
            self.then()


class Sender:
    """All publishers of one run."""

    def __init__(self, around: Surroundings, checks: Checks, refusals: Refusals) -> None:
        self._around = around
        self._checks = checks
        self._refusals = refusals
        self._replies = 0

    def send(self, histories: tuple[History, ...], message: Message, tries: int, then: Call | None = None) -> None:
        """At most `tries` times, until somebody answers; 0: once. `then` is for who waits, and is called once."""
        self._send(_Sent(histories, message, not tries, then), tries)

    def _send(self, sent: _Sent, tries: int) -> None:
        around = self._around
        self._replies += 1
        reply = b"_INBOX.%d" % self._replies

        def heard(body: bytes) -> None:
            around.nats.forget(reply)
            timer.cancel()
            self._heard(sent, reply, body)

        def late() -> None:
            around.count("acks that did not come")  # in time: it is still listened for
            if tries > 1 and not sent.is_over:
                self._send(sent, tries - 1)
            else:
                sent.end()

        timer = around.scheduler.after(_ACK_TIMEOUT_US, late)
        self._note(sent, reply)
        around.scheduler.after(around.network.delay_us(), self._hand_over(sent, reply, heard))

    def _note(self, sent: _Sent, reply: bytes) -> None:
        if not sent.is_once:
            self._checks.message_ids[reply] = sent.message.name.rstrip(b".")

    def _hand_over(self, sent: _Sent, reply: bytes, heard: Callable[[bytes], None]) -> Call:
        message = sent.message

        def send() -> None:
            if sent.is_over:
                return
            brokers = self._around.nats.publish(message.subject, message.value or b"", reply, heard, message.headers)
            if sent.is_once:
                self._refusals.published(reply, sent.histories, message.name, brokers)

        return send

    def _heard(self, sent: _Sent, reply: bytes, body: bytes) -> None:
        around, config = self._around, sent.histories[0].config
        ack = ACK.decode(body) if body else None
        if ack is None or ack.error is not None:
            around.count("no responders" if ack is None else "refused messages")
            self._refusals.refused(reply, body)
            sent.end()
            return
        self._refusals.acked(reply)
        around.trace.add("client", f"ack {reply.decode()} {ack.offset} {ack.epoch} {ack.fsynced}")
        around.count("duplicates" if ack.duplicate else "acks")
        first = sent.histories[0]
        may_be = sent.histories if first.split is None else self._checks.all_of(first)  # it may have grown meanwhile
        history = next((one for one in may_be if one.partition == ack.partition), None)
        if history is None or ack.stream != config.name or ack.offset not in (None, ack.seq - 1):
            raise ViolationError(f"not an ack for {config.name}: {body!r}")
        self._acked(sent, history, ack)
        sent.end()

    def _acked(self, sent: _Sent, history: History, ack: PubAck) -> None:
        name = sent.message.name
        if ack.duplicate and sent.is_once:
            raise ViolationError(f"{history.name()}: {name!r} was sent once, and is a duplicate: {ack}")
        if ack.offset is None:
            self._around.count("duplicates of older partitions")
            self._checks.promised_elsewhere(history, ack.seq - 1, name)
            return
        self._checks.promised(history, ack.offset, ack.epoch, name, fsynced=ack.fsynced)
