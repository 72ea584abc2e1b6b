"""Tests NATS permissions of a user without a trace.

| permission | test                                                            | harmless, because             |
|------------|-----------------------------------------------------------------|-------------------------------|
| subscribe  | SUB without a queue group, and UNSUB at once                    | takes no messages from others |
| publish    | HPUB with a reply subject reserved by nats-server: `_R_…`       | nats-server refuses it        |
| answer     | a message to itself on `$PENSTOCK.doctor.…`, then HPUB as above | no stream has that subject    |

nats-server checks the subject first, then the reply: its error is "Publish to" if the subject is not allowed, and
"Publish with Reply of" if it is; the message goes nowhere in either case. It also has the header `Nats-Expected-Stream`
with the name of no stream, so that neither Penstock nor JetStream would store it. If a nats-server reports neither
error, no subject in use is tested: the first test always uses one of the doctor's own.

SUBs have no queue group: messages delivered meanwhile would be lost to the other members of the group.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from penstock.base.errors import OperationalError
from penstock.broker.nats.connection import LinkTiming
from penstock.broker.nats.link import ConnectFailed, LinkEvent, LinkUp, NatsLink
from penstock.broker.security.nats_credentials import NatsAccess, NatsServer, TlsFiles
from penstock.doctor.identities import Identity
from penstock.hot.message_group import MessageGroup
from penstock.ingest.connect import ErrorKind
from penstock.ingest.nats import ServerComplaint, SubscriptionRefused
from penstock.jetstream.answers import publish_command
from penstock.node.step import NatsAnswers

_AT_ONCE = 200  # tests sent before waiting for their results
_HEADERS = b"NATS/1.0\r\nNats-Expected-Stream: penstock-doctor-stores-nothing\r\n\r\n"
_KEPT_REPLY = "_R_.penstock-doctor"
_OWN = "$PENSTOCK.doctor"  # not covered by the wildcard of any stream


class RefusedError(OperationalError):
    """nats-server refuses these credentials."""


class ForbiddenError(OperationalError):
    """nats-server does not allow it."""


class NotToldError(OperationalError):
    """This nats-server does not report permissions without executing the command."""


def own_subject() -> str:
    """Return a new subject of the doctor's own."""
    return f"{_OWN}.{secrets.token_hex(8)}"


class Trial:
    """One connection with one identity."""

    def __init__(self, servers: Sequence[NatsServer], identity: Identity, tls: TlsFiles, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._refused: set[str] = set()  # subjects of refused SUBs
        self._complaints: set[str] = set()  # subjects in nats-server's errors
        self._complained = asyncio.Event()
        self._connected: asyncio.Future[ConnectFailed | None] = asyncio.get_running_loop().create_future()
        self._answers: dict[int, asyncio.Future[tuple[bytes, bytes]]] = {}  # by the subscription of the reply
        self._last_sid = 0
        self._failures = 0
        self._server_count = len(servers)
        self._told = False  # the server is known to report permissions
        self._link = NatsLink(
            self,
            NatsAccess(tuple(servers), identity.credentials, tls, name="penstock-doctor"),
            clock_us=lambda: time.time_ns() // 1_000,
            random=random.random,
            timing=LinkTiming(connect_timeout_ms=timeout_ms),
        )

    def groups_received(self, groups: dict[int, MessageGroup]) -> None:
        """Take a reply; other messages arrived between SUB and UNSUB, and are ignored."""
        for sid, group in groups.items():
            if (answer := self._answers.get(sid)) is not None and not answer.done():
                answer.set_result((bytes(group.headers(0) or b""), bytes(group.value(0) or b"")))

    def link_event(self, event: LinkEvent) -> None:
        """Take what tells of the connection and of permissions."""
        if isinstance(event, SubscriptionRefused):
            self._refused.add(event.subject)
        elif isinstance(event, ServerComplaint) and event.subject is not None:
            self._complaints.add(event.subject)
            self._complained.set()
        elif isinstance(event, LinkUp) and not self._connected.done():
            self._connected.set_result(None)
        elif isinstance(event, ConnectFailed):
            self._failures += 1
            is_last = event.kind is ErrorKind.AUTHORIZATION or self._failures >= self._server_count
            if is_last and not self._connected.done():
                self._connected.set_result(event)

    async def connect(self) -> None:
        """Wait for the connection. Raise RefusedError for bad credentials, OperationalError for other failures."""
        async with asyncio.timeout(self._timeout_ms / 1_000):
            failed = await self._connected
        if failed is not None:
            kind = RefusedError if failed.kind is ErrorKind.AUTHORIZATION else OperationalError
            raise kind(f"{failed.server}: {failed.reason}")

    async def run(self) -> None:
        """Run the connection's task."""
        await self._link.run()

    async def close(self) -> None:
        await self._link.stop(self._timeout_ms)

    async def may_subscribe(self, subjects: Iterable[str]) -> dict[str, bool]:
        """Return which of these subjects are allowed, with or without wildcards."""
        allowed: dict[str, bool] = {}
        for some in _in_turn(subjects):
            self._refused.clear()
            for subject in some:
                self._last_sid += 1
                self._link.subscribe(self._last_sid, subject)
                self._link.unsubscribe(self._last_sid)
            await self._link.wait_barrier(self._timeout_ms)
            allowed |= {subject: subject not in self._refused for subject in some}
        return allowed

    async def may_publish(self, subjects: Iterable[str]) -> dict[str, bool]:
        """Return which of these subjects, all without wildcards, are allowed. Raise NotToldError."""
        if not self._told:
            await self._ask([own_subject()])
            self._told = True
        allowed: dict[str, bool] = {}
        for some in _in_turn(subjects):
            allowed |= await self._ask(some)
        return allowed

    async def _ask(self, subjects: Sequence[str]) -> dict[str, bool]:
        self._complaints.clear()
        size = len(_HEADERS)
        commands = b"".join(
            b"HPUB %b %b.%d %d %d\r\n%b\r\n" % (subject.encode(), _KEPT_REPLY.encode(), number, size, size, _HEADERS)
            for number, subject in enumerate(subjects)
        )
        self._link.answer([NatsAnswers(0, commands)])
        await self._link.wait_barrier(self._timeout_ms)
        allowed: dict[str, bool] = {}
        for number, subject in enumerate(subjects):
            is_allowed = f"{_KEPT_REPLY}.{number}" in self._complaints
            if is_allowed == (subject in self._complaints):
                raise NotToldError("this nats-server does not say what it would allow without doing it")
            allowed[subject] = is_allowed
        return allowed

    async def may_answer(self, inbox: str) -> bool | None:
        """Return True if it may answer a received message; None if it cannot receive the test message."""
        if (await self.may_publish([inbox]))[inbox]:
            return True
        subject = own_subject()
        if not all((await self.may_subscribe([subject])).values()) or not (await self.may_publish([subject]))[subject]:
            return None
        self._last_sid += 1
        sid = self._last_sid
        self._link.subscribe(sid, subject)
        self._link.answer([NatsAnswers(0, b"PUB %b %b 0\r\n\r\n" % (subject.encode(), inbox.encode()))])
        await self._link.wait_barrier(self._timeout_ms)
        self._link.unsubscribe(sid)
        return (await self.may_publish([inbox]))[inbox]

    async def request(self, subject: str, body: bytes, headers: bytes = b"") -> tuple[bytes, bytes]:
        """Return the header block and the value of the reply to a request; the value is empty without responders.

        Raise ForbiddenError or TimeoutError.
        """
        inbox = f"_INBOX.penstock-doctor.{secrets.token_hex(8)}"
        if not (await self.may_subscribe([inbox]))[inbox]:
            raise ForbiddenError(f"it may not subscribe to {inbox}")
        self._last_sid += 1
        sid, answer = self._last_sid, asyncio.get_running_loop().create_future()
        self._answers[sid] = answer
        self._complaints.clear()
        self._complained.clear()
        refusal = asyncio.ensure_future(self._complained.wait())
        self._link.subscribe(sid, inbox)
        self._link.answer([NatsAnswers(0, publish_command(f"{subject} {inbox}".encode(), body, headers or None))])
        try:
            async with asyncio.timeout(self._timeout_ms / 1_000):
                await asyncio.wait((answer, refusal), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ForbiddenError(f"it may not publish on {subject}")
            headers, value = answer.result()
            return headers, value
        finally:
            refusal.cancel()
            del self._answers[sid]
            self._link.unsubscribe(sid)


def _in_turn(subjects: Iterable[str]) -> list[list[str]]:
    every = list(dict.fromkeys(subjects))
    return [every[begin : begin + _AT_ONCE] for begin in range(0, len(every), _AT_ONCE)]


@asynccontextmanager
async def trying(
    servers: Sequence[NatsServer], identity: Identity, tls: TlsFiles, timeout_ms: int
) -> AsyncIterator[Trial]:
    """Yield a connection with that identity. Raise RefusedError, OperationalError or TimeoutError."""
    trial = Trial(servers, identity, tls, timeout_ms)
    task = asyncio.create_task(trial.run())
    try:
        await trial.connect()
        yield trial
    finally:
        await trial.close()
        await task
