"""Wait for the outcome of a published message: its first ack, or the acks of several streams.

Rules: a waiter is notified of every reply, of missing subscribers and of the time-out, until the publisher forgets it,
which it does once the waiter has ended. A message is sent again if it was refused because its key is moving to an added
partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.client.errors import NotAuthorized, TimedOut, Unauthenticated, Unavailable, specific
from penstock.client.publish_format import parse_ack, sent_message_id
from penstock.client.values import PubAck
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    from penstock.client.publish.publishing import Publisher

RETRIES_MAX = 2  # for a publish without subscribers (a leader may be changing), as in nats.go
RETRY_S = 0.25
_REROUTES_MAX = 3  # more redirects mean that brokers disagree


class Asked(msgspec.Struct, frozen=True, gc=False):
    """The part of a publish that decides its partition."""

    subject: str
    deciding: bytes | str | None  # the key, or the message id, which is used like one
    timeout_s: float


Reroute = Callable[[Asked], Awaitable[str]]
"""Looks up the partitions again; returns the subject of the one that has the message's key."""


class Outcome(Protocol):
    """The future of a message's ack, of asyncio or of threads."""

    token: int  # the last token of the reply subject, which says whose ack it is

    @property
    def is_unseen(self) -> bool:
        """True if it has failed and no caller has asked for its outcome."""

    def done(self) -> bool:
        """True once it has an outcome or is cancelled."""

    def set_result(self, result: PubAck | None, /) -> None:
        """End with the ack; None if the message gets none."""

    def set_exception(self, exception: BaseException, /) -> None:
        """End with an error."""

    def exception(self) -> BaseException | None:
        """Return the error, None if there is an ack."""


class ReplyWaiter(Protocol):
    """Waits for the replies to one published message."""

    token: int  # the last token of the reply subject
    due_s: float  # when it is to be looked at, in the event loop's time

    @property
    def subject(self) -> str:
        """Subject on which the message was sent."""

    def fail(self, error: Exception) -> None:
        """End with an error, unless it has ended."""

    def acked(self, ack: PubAck) -> None:
        """An ack has arrived."""

    def reply(self, data: bytes) -> None:
        """A reply has arrived: an ack or an error."""

    def nobody(self) -> None:
        """The subject has no subscriber."""

    def look(self, now_s: float) -> None:
        """It is due: the time-out has passed, or the message is to be sent again."""


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message to be sent, and sent again on retries."""

    subject: str
    payload: bytes
    header_block: bytes | None

    def frame(self, reply: str) -> bytes:
        """Return the NATS command that publishes the message."""
        block, size = self.header_block, len(self.payload)
        if block is None:
            return b"".join((f"PUB {self.subject} {reply} {size}\r\n".encode(), self.payload, b"\r\n"))
        line = f"HPUB {self.subject} {reply} {len(block)} {len(block) + size}\r\n".encode()
        return b"".join((line, block, self.payload, b"\r\n"))


class AckFuture(asyncio.Future[PubAck | None]):
    """The future of an ack. Who cancels it no longer waits for the ack, so its slot is free."""

    __slots__ = ("publisher", "token")
    publisher: Publisher
    token: int

    @property
    def is_unseen(self) -> bool:
        """True if it has failed and no caller has asked for its outcome."""
        return self._log_traceback  # asyncio's own note of that

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel it as any future."""
        if not super().cancel(msg):
            return False
        self.publisher.forget(self.token)
        return True


class OneAck:
    """Waits for the first ack of a message, and sends it again while it is not stored."""

    __slots__ = (
        "_asked",
        "_deadline_s",
        "_every_s",
        "_notes_failure",
        "_outgoing",
        "_publisher",
        "_refusal",
        "_repeats",
        "_reroutes",
        "_retries",
        "_unheard",
        "_until_late",
        "due_s",
        "future",
        "token",
    )

    def __init__(
        self,
        publisher: Publisher,
        outgoing: Outgoing,
        future: Outcome,
        now_s: float,
        deadline_s: float,
        every_s: float,
        repeats: int,
        asked: Asked | None,
        notes_failure: bool,
    ) -> None:
        """`repeats`: number of times that the message is sent again without an ack, `every_s` after the time before;
        with some it is retried until the time-out while there is no subscriber. `notes_failure`: `flush` raises it.
        """
        self.token = 0
        self.future = future
        self._publisher = publisher
        self._outgoing = outgoing
        self.due_s = now_s + every_s if repeats and now_s + every_s < deadline_s else deadline_s
        self._deadline_s = deadline_s
        self._every_s = every_s
        self._repeats = repeats  # that are left
        self._until_late = repeats > 0
        self._asked = asked
        self._notes_failure = notes_failure
        self._reroutes = self._retries = 0
        self._refusal: RemoteError | None = None  # the last one: nothing was stored, and the message was sent again
        self._unheard = 1  # sends without any reply, not even "no subscriber"

    @property
    def subject(self) -> str:
        """Subject on which the message was sent last."""
        return self._outgoing.subject

    def fail(self, error: Exception) -> None:
        """End with an error, unless it has ended. One of unknown outcome has the id with which to publish again."""
        self._publisher.forget(self.token)
        if not self.future.done():
            if isinstance(error, TimedOut | Unavailable) and (sent_id := sent_message_id(self._outgoing.header_block)):
                error.details["message_id"] = sent_id
            self.future.set_exception(error)
            if self._notes_failure:
                self._publisher.note(error, self.future)
            else:
                self.future.exception()  # asyncio need not log it: `publish` raises it

    def acked(self, ack: PubAck) -> None:
        """End with the ack."""
        self._publisher.forget(self.token)
        if not self.future.done():
            self.future.set_result(ack)

    def reply(self, data: bytes) -> None:
        """Take an ack or an error; resend the message if its key moves or has moved."""
        try:
            self.acked(parse_ack(data))
        except RemoteError as error:
            if error.code == ErrorCode.KEY_MOVING:
                self._unheard -= 1
                self._refusal = error
                self._publisher.send_later(RETRY_S, self._outgoing, self.token, self._sent)
            elif error.code == ErrorCode.KEY_ELSEWHERE and self._asked is not None and self._reroutes < _REROUTES_MAX:
                self._reroutes += 1
                self._unheard -= 1
                self._refusal = error
                self._publisher.run(self._send_there(self._asked))
            else:
                self.fail(error)

    async def _send_there(self, asked: Asked) -> None:
        """Resend the message to the partition that has the key now."""
        with contextlib.suppress(OperationalError, RemoteError):  # otherwise the time-out reports it
            self._outgoing = msgspec.structs.replace(self._outgoing, subject=await self._publisher.reroute(asked))
            self._publisher.send_later(0.0, self._outgoing, self.token, self._sent)

    def nobody(self) -> None:
        """Retry after a moment, or fail: the subject has no subscriber."""
        self._unheard -= 1
        if self._until_late or self._retries < RETRIES_MAX:
            self._retries += 1
            self._publisher.send_later(RETRY_S, self._outgoing, self.token, self._sent)
            return
        self._publisher.nobody_stores(self)

    def look(self, now_s: float) -> None:
        """Resend the message, as no ack has arrived for a while, or fail at the time-out."""
        if now_s >= self._deadline_s:
            self.due_s = math.inf  # told once
            self._fail_late()
            return
        self._repeats -= 1
        self.due_s = min(now_s + self._every_s, self._deadline_s) if self._repeats else self._deadline_s
        if self._unheard > 0:  # otherwise a resend is already scheduled
            self._publisher.send_later(0.0, self._outgoing, self.token, self._sent)

    def _sent(self) -> None:
        self._unheard += 1

    def _fail_late(self) -> None:
        """Fail with the error that says most."""
        if self._refusal is not None and self._unheard <= 0:
            self.fail(self._refusal)
        elif self._unheard <= 0:
            self._publisher.nobody_stores(self)
        else:
            text = f"no ack for the message on {self._outgoing.subject!r} in time: whether it is stored is unknown"
            self.fail(TimedOut(text))


class AllAcks:
    """Waits for one ack of each expected stream."""

    token = 0

    def __init__(
        self,
        publisher: Publisher,
        subject: str,
        expected: frozenset[str],
        future: asyncio.Future[dict[str, PubAck]],
        deadline_s: float,
    ) -> None:
        self._publisher = publisher
        self.subject = subject
        self.due_s = deadline_s
        self._expected = expected
        self._acks: dict[str, PubAck] = {}
        self.future = future

    def fail(self, error: Exception) -> None:
        """End with an error, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(error)

    def reply(self, data: bytes) -> None:
        """Take one stream's ack; an error fails the whole wait."""
        try:
            self.acked(parse_ack(data))
        except RemoteError as error:
            error.details["acks"] = dict(self._acks)
            self.fail(error)

    def acked(self, ack: PubAck) -> None:
        """Take one stream's ack."""
        self._acks[ack.stream] = ack
        if self._expected <= self._acks.keys() and not self.future.done():
            self.future.set_result(self._acks)

    def nobody(self) -> None:
        """Fail: the subject has no subscriber."""
        self._publisher.nobody_stores(self)

    def look(self, now_s: float) -> None:
        """Fail at the time-out, naming the streams without an ack."""
        self.due_s = math.inf  # told once
        missing = ", ".join(sorted(self._expected - self._acks.keys()))
        text = f"no ack from {missing} in time: whether the message is stored there is unknown"
        self.fail(TimedOut(text, acks=dict(self._acks)))


def nobody_listens(subject: str, why: Exception) -> RemoteError | Unavailable:
    """Return the error for a subject without subscribers if no broker says which streams store it.

    Unavailable: it may be stored in a moment. StreamNotFound: this user may not ask, now or later.
    """
    text = f"{subject!r} has no subscriber now, so it was not stored; no broker could say which streams store it"
    if isinstance(why, NotAuthorized | Unauthenticated):
        return specific(RemoteError(ErrorCode.STREAM_NOT_FOUND, f"{text}: {why}", subject=subject))
    return Unavailable(f"{text}; try again in a moment")


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
