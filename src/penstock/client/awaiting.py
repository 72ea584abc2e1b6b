"""Who waits for what becomes of a message that was published: its first ack, one of several streams, an echo.

Rules: whoever waits hears of every reply, that nobody was there, and that the time-out has passed; what comes
afterwards changes nothing. What was refused because its key moves to a partition that was added is sent again.
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
    from penstock.client.publishing import Publisher

RETRIES_MAX = 2  # of a publish that nobody was there to receive (a leader may be changing), as nats.go does
RETRY_S = 0.25
_REROUTES_MAX = 3  # who is sent on more often asks brokers that do not agree

Reroute = Callable[[], Awaitable[str]]
"""Where a message belongs, if not where it was sent."""


class Waiter(Protocol):
    """Somebody who waits for replies."""

    @property
    def subject(self) -> str:
        """On which the message was sent."""

    def refused(self, error: Unavailable) -> None:
        """NATS does not let it be published."""

    def reply(self, data: bytes) -> None:
        """One came."""

    def nobody(self) -> None:
        """Nobody is subscribed to the subject."""

    def late(self) -> None:
        """The time-out has passed."""


class Outgoing(msgspec.Struct, frozen=True):
    """A message on its way."""

    subject: str
    payload: bytes
    headers: dict[str, str] | None

    @property
    def size_bytes(self) -> int:
        """Bytes of payload and header block, which NATS counts towards `max_payload`."""
        return len(self.payload) + header_block_bytes(self.headers)


class OneAck:
    """Waits for the first ack."""

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
        self._refusal: RemoteError | None = None  # nothing was stored, and it is sent once more
        self._publisher = publisher
        self._token = token
        self._outgoing = outgoing
        self._future = future
        self._until_late = until_late  # it is sent again for as long as there is time
        self._retries = 0
        self._unheard = 1  # how often it was sent and nobody answered, not even that nobody is there

    @property
    def subject(self) -> str:
        """On which the message was sent last."""
        return self._outgoing.subject

    def refused(self, error: Unavailable) -> None:
        """NATS does not let it be published."""
        if not self._future.done():
            self._future.set_exception(error)

    def reply(self, data: bytes) -> None:
        """One came."""
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
        """To the partition that has the key by now."""
        with contextlib.suppress(OperationalError, RemoteError):  # then its time-out tells
            self._outgoing = msgspec.structs.replace(self._outgoing, subject=await reroute())
            self._publisher.send_later(0.0, self._outgoing, self._token, self._sent)

    def nobody(self) -> None:
        """Nobody is subscribed to the subject."""
        if self._future.done():
            return
        self._unheard -= 1
        if self._until_late or self._retries < RETRIES_MAX:
            self._retries += 1
            self._publisher.send_later(RETRY_S, self._outgoing, self._token, self._sent)
            return
        self._publisher.nobody_stores(self._outgoing.subject, self._future)

    def again(self) -> None:
        """No ack has come for a while: send it once more."""
        if not self._future.done() and self._unheard > 0:  # else it is on its way again already
            self._publisher.send_later(0.0, self._outgoing, self._token, self._sent)

    def _sent(self) -> None:
        self._unheard += 1

    def late(self) -> None:
        """The time-out has passed."""
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
        """NATS does not let it be published."""
        if not self._future.done():
            self._future.set_exception(error)

    def reply(self, data: bytes) -> None:
        """One came."""
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
        """Nobody is subscribed to the subject."""
        if not self._future.done():
            self._publisher.nobody_stores(self.subject, self._future)

    def late(self) -> None:
        """The time-out has passed."""
        if not self._future.done():
            missing = ", ".join(sorted(self._expected - self._acks.keys()))
            text = f"no ack from {missing} in time: whether the message is stored there is unknown"
            self._future.set_exception(TimedOut(text, acks=dict(self._acks)))


def nobody_listens(subject: str) -> RemoteError:
    """Nobody is subscribed to a subject, and no broker says which streams store it."""
    text = f"nobody listens on {subject!r} now, so it was not stored; which streams store it no broker says"
    return specific(RemoteError(ErrorCode.STREAM_NOT_FOUND, text, subject=subject))


def nobody_stores(subject: str, known: Sequence[StreamInfo]) -> RemoteError:
    """What is wrong where nobody is subscribed to a subject that these streams store."""
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
    text = f"{names} {store} the subject {subject!r}, but nobody listens for it now, so it was not stored: {why}"
    return RemoteError(ErrorCode.NOT_LEADER, text, subject=subject)


class Echo:
    """Waits for a message to ourselves: what was published before it has reached the server."""

    def __init__(self, subject: str, future: asyncio.Future[None]) -> None:
        self.subject = subject
        self._future = future

    def refused(self, error: Unavailable) -> None:
        """The server has seen it, and with it what was published before."""
        self.reply(b"")

    def reply(self, _: bytes) -> None:
        """It came back."""
        if not self._future.done():
            self._future.set_result(None)

    def nobody(self) -> None:
        """We are subscribed ourselves."""

    def late(self) -> None:
        """Its waiter has a time-out of its own."""
