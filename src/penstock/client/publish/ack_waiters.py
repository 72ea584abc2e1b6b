"""Wait for the outcome of a published message: its first ack, the acks of several streams, or an echo.

Rules: a waiter is notified of every reply, of missing subscribers and of the time-out; events after it has finished
change nothing. A message refused because its key is moving to an added partition is sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.client.errors import TimedOut, Unavailable, specific
from penstock.client.publish_format import header_block_bytes, parse_ack
from penstock.client.values import PubAck
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    from penstock.client.publish.publishing import Publisher

RETRIES_MAX = 2  # for a publish without subscribers (a leader may be changing), as in nats.go
RETRY_S = 0.25
_REROUTES_MAX = 3  # more redirects mean that brokers disagree

Reroute = Callable[[], Awaitable[str]]
"""Returns the subject of the partition that has the message's key."""


class ReplyWaiter(Protocol):
    """Waits for the replies to one published message."""

    @property
    def subject(self) -> str:
        """Subject on which the message was sent."""

    def refused(self, error: Unavailable) -> None:
        """NATS does not permit the publish."""

    def reply(self, data: bytes) -> None:
        """A reply has arrived."""

    def nobody(self) -> None:
        """The subject has no subscriber."""

    def late(self) -> None:
        """The time-out has passed."""


class Outgoing(msgspec.Struct, frozen=True):
    """A message to be sent, and sent again on retries."""

    subject: str
    payload: bytes
    headers: dict[str, str] | None

    @property
    def size_bytes(self) -> int:
        """Bytes of payload and header block, which NATS counts towards `max_payload`."""
        return len(self.payload) + header_block_bytes(self.headers)


class OneAck:
    """Waits for the first ack of a message, and sends it again while it is not stored."""

    __slots__ = (
        "_future", "_outgoing", "_publisher", "_refusal", "_reroute", "_reroutes", "_retries", "_token", "_unheard",
        "_until_late",
    )  # fmt: skip

    def __init__(
        self,
        publisher: Publisher,
        token: str,
        outgoing: Outgoing,
        future: asyncio.Future[PubAck],
        *,
        until_late: bool = False,
        reroute: Reroute | None = None,
    ) -> None:
        self._reroute = reroute
        self._reroutes = 0
        self._refusal: RemoteError | None = None  # the last refusal: nothing was stored, and the message was sent again
        self._publisher = publisher
        self._token = token
        self._outgoing = outgoing
        self._future = future
        self._until_late = until_late  # True: retry until the time-out while there is no subscriber
        self._retries = 0
        self._unheard = 1  # sends without any reply, not even "no subscriber"

    @property
    def subject(self) -> str:
        """Subject on which the message was sent last."""
        return self._outgoing.subject

    def refused(self, error: Unavailable) -> None:
        """Fail: NATS does not permit the publish."""
        if not self._future.done():
            self._future.set_exception(error)

    def reply(self, data: bytes) -> None:
        """Take an ack or an error; resend the message if its key moves or has moved."""
        if self._future.done():
            return
        try:
            self._future.set_result(parse_ack(data))
        except RemoteError as error:
            if error.code == ErrorCode.KEY_MOVING:
                self._unheard -= 1
                self._refusal = error
                self._publisher.send_later(RETRY_S, self._outgoing, self._token, self._sent)
            elif error.code == ErrorCode.KEY_ELSEWHERE and self._reroute is not None and self._reroutes < _REROUTES_MAX:
                self._reroutes += 1
                self._unheard -= 1
                self._refusal = error
                self._publisher.run(self._send_there(self._reroute))
            else:
                self._future.set_exception(error)

    async def _send_there(self, reroute: Reroute) -> None:
        """Resend the message to the partition that has the key now."""
        with contextlib.suppress(OperationalError, RemoteError):  # otherwise the time-out reports it
            self._outgoing = msgspec.structs.replace(self._outgoing, subject=await reroute())
            self._publisher.send_later(0.0, self._outgoing, self._token, self._sent)

    def nobody(self) -> None:
        """Retry after a moment, or fail: the subject has no subscriber."""
        if self._future.done():
            return
        self._unheard -= 1
        if self._until_late or self._retries < RETRIES_MAX:
            self._retries += 1
            self._publisher.send_later(RETRY_S, self._outgoing, self._token, self._sent)
            return
        self._publisher.nobody_stores(self._outgoing.subject, self._future)

    def again(self) -> None:
        """Resend the message, as no ack has arrived for a while."""
        if not self._future.done() and self._unheard > 0:  # otherwise a resend is already scheduled
            self._publisher.send_later(0.0, self._outgoing, self._token, self._sent)

    def _sent(self) -> None:
        self._unheard += 1

    def late(self) -> None:
        """Fail at the time-out with the error that says most."""
        if not self._future.done() and self._refusal is not None and self._unheard <= 0:
            self._future.set_exception(self._refusal)
        elif not self._future.done() and self._unheard <= 0:
            self._publisher.nobody_stores(self._outgoing.subject, self._future)
        elif not self._future.done():
            text = f"no ack for the message on {self._outgoing.subject!r} in time: whether it is stored is unknown"
            self._future.set_exception(TimedOut(text))


class AllAcks:
    """Waits for one ack of each expected stream."""

    def __init__(
        self,
        publisher: Publisher,
        subject: str,
        expected: frozenset[str],
        future: asyncio.Future[dict[str, PubAck]],
    ) -> None:
        self._publisher = publisher
        self.subject = subject
        self._expected = expected
        self._acks: dict[str, PubAck] = {}
        self._future = future

    def refused(self, error: Unavailable) -> None:
        """Fail: NATS does not permit the publish."""
        if not self._future.done():
            self._future.set_exception(error)

    def reply(self, data: bytes) -> None:
        """Take one stream's ack; an error fails the whole wait."""
        if self._future.done():
            return
        try:
            ack = parse_ack(data)
        except RemoteError as error:
            error.details["acks"] = dict(self._acks)
            self._future.set_exception(error)
            return
        self._acks[ack.stream] = ack
        if self._expected <= self._acks.keys():
            self._future.set_result(self._acks)

    def nobody(self) -> None:
        """Fail: the subject has no subscriber."""
        if not self._future.done():
            self._publisher.nobody_stores(self.subject, self._future)

    def late(self) -> None:
        """Fail at the time-out, naming the streams without an ack."""
        if not self._future.done():
            missing = ", ".join(sorted(self._expected - self._acks.keys()))
            text = f"no ack from {missing} in time: whether the message is stored there is unknown"
            self._future.set_exception(TimedOut(text, acks=dict(self._acks)))


def nobody_listens(subject: str) -> RemoteError:
    """Return the error for a subject without subscribers if no broker says which streams store it."""
    text = f"{subject!r} has no subscriber now, so it was not stored; no broker could say which streams store it"
    return specific(RemoteError(ErrorCode.STREAM_NOT_FOUND, text, subject=subject))


def nobody_stores(subject: str, known: Sequence[StreamInfo]) -> RemoteError:
    """Return the error for a subject without subscribers, given the streams that store it."""
    if not known:
        text = f"no stream stores the subject {subject!r}; create one"
        return specific(RemoteError(ErrorCode.STREAM_NOT_FOUND, text, subject=subject))
    names = " and ".join(info.name for info in known)
    if all(info.intake == Intake.PAUSED for info in known):
        one, is_paused, it = ("store", "are", "one") if len(known) > 1 else ("stores", "is", "it")
        text = f"{names} {one} the subject {subject!r}, and {is_paused} paused, so it was not stored; resume {it} first"
        return specific(RemoteError(ErrorCode.READ_ONLY, text, subject=subject, stream=known[0].name))
    reasons = dict.fromkeys(part.state_reason for info in known for part in info.partitions if part.state_reason)
    why = next(iter(reasons), "its leader is changing, or has no connection to NATS; try again in a moment")
    store = "store" if len(known) > 1 else "stores"
    text = (
        f"{names} {store} the subject {subject!r}, but no broker is subscribed for it now, so it was not stored: {why}"
    )
    return RemoteError(ErrorCode.NOT_LEADER, text, subject=subject)


class Echo:
    """Waits for a message to ourselves, which shows that all earlier publishes have reached the NATS server."""

    def __init__(self, subject: str, future: asyncio.Future[None]) -> None:
        self.subject = subject
        self._future = future

    def refused(self, error: Unavailable) -> None:
        """Finish: the server has processed this message, and so all published before it."""
        self.reply(b"")

    def reply(self, _: bytes) -> None:
        """Finish: the message came back."""
        if not self._future.done():
            self._future.set_result(None)

    def nobody(self) -> None:
        """Do nothing: this client itself subscribes to the subject."""

    def late(self) -> None:
        """Do nothing: the caller has a time-out of its own."""
