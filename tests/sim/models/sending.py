"""Publishes messages through NATS, once or several times, and checks their answers against the promises.

Rules: An ack is a promise however late it comes; the ack of a duplicate is a promise for the first message. A refusal
means that a message is not stored, if it was sent once. In a queue group one broker receives a message: its answer
counts, whichever partition it names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.testing.errors import ViolationError
from penstock.testing.promises import ACK, AckBody
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory, SentMessage
from penstock.testing.simulation.scheduler import Call
from tests.sim.checks.refusals import Refusals

TRIES_MAX = 3
_ACK_TIMEOUT_US = 5_000_000


@dataclass(slots=True)
class _Sent:
    """One message in flight. `then` is called when it is answered or given up; None: its publisher does not wait."""

    histories: tuple[PartitionHistory, ...]  # it may be stored in one of these
    message: SentMessage
    is_once: bool  # a refusal means that it is not stored
    then: Call | None
    told: Callable[[AckBody], None] | None = None  # called with each answer
    is_over: bool = False  # no more resends: the publisher's next message may have been sent already

    def end(self) -> None:
        """Let the publisher continue."""
        if self.then is not None and not self.is_over:
            self.is_over = True
            self.then()


class Sender:
    """All publishers of one run."""

    def __init__(self, around: Surroundings, checks: Checks, refusals: Refusals, inbox: bytes = b"_INBOX.") -> None:
        """`inbox`: prefix of the reply subjects, which no other sender uses."""
        self._inbox = inbox
        self._around = around
        self._checks = checks
        self._refusals = refusals
        self._replies = 0

    def send(
        self,
        histories: tuple[PartitionHistory, ...],
        message: SentMessage,
        tries: int,
        then: Call | None = None,
        told: Callable[[AckBody], None] | None = None,
    ) -> None:
        """Send at most `tries` times until answered; 0: once. `then` is called once, for a publisher that waits.

        `told` is called with each ack and each error.
        """
        self._send(_Sent(histories, message, not tries, then, told), tries)

    def _send(self, sent: _Sent, tries: int) -> None:
        around = self._around
        self._replies += 1
        reply = b"%b%d" % (self._inbox, self._replies)

        def heard(body: bytes) -> None:
            around.nats.forget(reply)
            timer.cancel()
            self._heard(sent, reply, body)

        def late() -> None:
            around.count("acks that did not come")  # a late ack is still accepted
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
            if ack is not None and sent.told is not None:
                sent.told(ack)
            sent.end()
            return
        self._refusals.acked(reply)
        around.trace.add("client", f"ack {reply.decode()} {ack.offset} {ack.epoch} {ack.fsynced}")
        around.count("duplicates" if ack.duplicate else "acks")
        first = sent.histories[0]
        may_be = sent.histories if first.split is None else self._checks.all_of(first)  # including new partitions
        history = next((one for one in may_be if one.partition == ack.partition), None)
        if history is None or ack.stream != config.name or ack.offset not in (None, ack.seq - 1):
            raise ViolationError(f"not an ack for {config.name}: {body!r}")
        self._acked(sent, history, ack)
        if sent.told is not None:
            sent.told(ack)
        sent.end()

    def _acked(self, sent: _Sent, history: PartitionHistory, ack: AckBody) -> None:
        name = sent.message.name
        if ack.duplicate and sent.is_once:
            raise ViolationError(f"{history.name()}: {name!r} was sent once, and is a duplicate: {ack}")
        if ack.offset is None:
            self._around.count("duplicates of older partitions")
            self._checks.promised_elsewhere(history, ack.seq - 1, name)
            return
        self._checks.promised(history, ack.offset, ack.epoch, name, fsynced=ack.fsynced)
