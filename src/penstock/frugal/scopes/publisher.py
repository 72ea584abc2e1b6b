"""Publishers of scopes: typed messages to NATS, or through a stream that acks them.

Rules: an operation is durable if its contract names a stream, or if the publisher or the call does. Then `publish`
returns once the message is stored, at least once: it is sent again until the ack comes, with one message id, so the
stream stores it once while it knows the id. A message that no stream keeps is gone with NATS's next breath: at most
once, no ack. Middleware is around the publish and its ack; with `nowait`, around the sending.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgspec

from penstock.client.errors import StreamChanged, StreamNotFound, TimedOut, Unavailable
from penstock.client.publish_format import MESSAGE_ID_HEADER
from penstock.client.values import PubAck
from penstock.frugal.context import Context
from penstock.frugal.contracts import OperationType, ScopeType
from penstock.frugal.errors import CodecError, Disconnected, RequestTooLarge, TransportClosed
from penstock.frugal.middleware import Call, Middleware, Side, chain
from penstock.frugal.scopes.framing import EncodedMessage, encode_message
from penstock.frugal.scopes.keys import key_of
from penstock.frugal.scopes.provider import ScopeProvider
from penstock.frugal.scopes.streams import KeptStream
from penstock.frugal.scopes.subjects import ScopeSubjects

PUBLISH_TIMEOUT_S: Final = 30.0
"""Duration for which a durable publish waits for its ack, all tries together."""
PUBLISH_RETRIES: Final = 5
"""Number of times that a message is sent again within that time without an ack; more often while no leader listens."""

TRACE: Final = "traceparent"
_TRACE = re.compile(r"[0-9a-f-]{1,128}")  # W3C: a version may have more fields

Published = PubAck | None
"""Result of a publish: the ack of a durable one; None if no stream keeps it."""
PublishedLater = asyncio.Future[PubAck | None]
"""Result of a publish with `nowait`: the future of that. The one of a message that no stream keeps is done."""


class _Sending(msgspec.Struct, frozen=True):
    """Parts of a publish that its end needs, besides context, subject and message."""

    operation: OperationType
    variables: tuple[str, ...]
    stream: str
    key: bytes | str | None
    message_id: str
    headers: Mapping[str, str] | None
    timeout_s: float
    nowait: bool


@dataclass(frozen=True, slots=True)
class _Publication(Call):
    """A call of a publisher with what its end needs; `dataclasses.replace` keeps that."""

    sending: _Sending | None = None


class ScopePublisher:
    """Base of the publishers of generated code, which say in `_scope` what they publish.

    `stream`: a stream that keeps all operations, in place of those that the contract names; "": none does. `create`:
    fields of a `StreamConfig`, with which a missing stream is created; its subject is the scope's.
    ValueError: the scope makes no subject.
    """

    _scope: ClassVar[ScopeType]

    def __init__(
        self,
        provider: ScopeProvider,
        *,
        middleware: Sequence[Middleware] = (),
        stream: str | None = None,
        create: Mapping[str, Any] | None = None,
    ) -> None:
        self._provider = provider
        self._subjects = ScopeSubjects(self._scope)
        self._stream = stream
        self._create = create
        around = (*provider.middleware, *middleware)
        self._send = chain(around, self._send_call) if around else None
        self._operation_ids = itertools.count(1)

    async def flush(self, *, timeout: float = 60.0) -> None:
        """Wait until all that was published with `nowait` is acked; raise the first failure."""
        await self._provider.client.flush(timeout=timeout)

    async def _publish(
        self,
        operation: OperationType,
        ctx: Context,
        variables: tuple[str, ...],
        message: Any,
        *,
        stream: str | None = None,
        key: bytes | str | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = PUBLISH_TIMEOUT_S,
        nowait: bool = False,
    ) -> Published | PublishedLater:
        """Publish a message of an operation.

        `stream`: keep it there; "": in none. `key`: in place of the one that the contract names. `message_id`: that of
        an earlier try whose outcome is unknown; default: a new one. `headers`: NATS headers, such as `Nats-TTL`.
        `nowait`: return the future of the ack once the message is sent; it waits only while 4,096 have no ack.
        ValueError: a variable that makes no subject, MissingKeyError, UnsuitableStreamError. CodecError, FrameError: it
        does not fit its type, or has too many headers. RequestTooLarge, TransportClosed, Disconnected. Of a durable
        one: what `Client.publish` raises; `details` of a TimedOut or Unavailable has the `message_id`.
        """
        subject = self._subjects.published(operation.name, variables)
        kept_by = next((each for each in (stream, self._stream, operation.stream) if each is not None), "")
        sending = _Sending(
            operation,
            variables,
            kept_by,
            key,
            (message_id or self._provider.new_id()) if kept_by else "",
            headers,
            timeout,
            nowait,
        )
        published: Published | PublishedLater
        if self._send is None:
            published = await self._send_out(ctx, subject, message, sending)
        else:
            call = _Publication(
                Side.PUBLISHER,
                self._scope.name,
                operation.name,
                (message,),
                subject=subject,
                is_oneway=not kept_by,
                is_idempotent=bool(kept_by),  # its message id makes it so
                annotations=operation.annotations,
                sending=sending,
            )
            published = await self._send(ctx, call)
        if nowait and published is None:
            published = asyncio.get_running_loop().create_future()
            published.set_result(None)
        return published

    async def _send_call(self, ctx: Context, call: Call) -> Published | PublishedLater:
        if not isinstance(call, _Publication) or call.sending is None:
            raise TypeError("a middleware must pass on the call that it got, or dataclasses.replace of it")
        return await self._send_out(ctx, call.subject, call.arguments[0], call.sending)

    async def _send_out(
        self, ctx: Context, subject: str, message: Any, sending: _Sending
    ) -> Published | PublishedLater:
        # Here, not before: other publishes may have used the same context while middleware waited.
        ctx.topic = dict(zip(self._scope.variables, sending.variables, strict=True))
        try:
            encoded = encode_message(
                self._provider.framing,
                self._provider.codec,
                ctx,
                sending.operation,
                message,
                operation_id=next(self._operation_ids),
                now=asyncio.get_running_loop().time(),
            )
        except CodecError as error:
            raise CodecError(f"{self._name_of(sending)}: {error}") from error
        if sending.stream:
            return await self._send_durable(ctx, subject, message, sending, encoded)
        await self._send_plain(subject, sending, encoded)
        return None

    def _name_of(self, sending: _Sending) -> str:
        return f"{self._scope.name}.{sending.operation.name}"

    async def _send_plain(self, subject: str, sending: _Sending, encoded: EncodedMessage) -> None:
        from nats import errors

        nats, call = self._provider.nats, self._name_of(sending)
        headers = {**encoded.headers, **(sending.headers or {})}
        size = len(encoded.payload) + _block_bytes(headers)
        if size > nats.max_payload:
            raise RequestTooLarge(f"{call}: the message has {size:,} bytes; the NATS server takes {nats.max_payload:,}")
        try:
            await nats.publish(subject, encoded.payload, headers=headers or None)
        except (errors.ConnectionClosedError, errors.ConnectionDrainingError) as error:
            raise TransportClosed(f"{call}: the connection to NATS is closed: {error}") from error
        except (errors.Error, OSError) as error:
            raise Disconnected(f"{call}: NATS does not take the message: {error}") from error

    async def _send_durable(
        self, ctx: Context, subject: str, message: Any, sending: _Sending, encoded: EncodedMessage
    ) -> Published | PublishedLater:
        kept = self._provider.streams.known(sending.stream) or await self._find(sending)
        kept.check_subject(subject)
        key = sending.key
        if key is None and sending.operation.key:
            key = key_of(self._scope.name, sending.operation, message)
        if key is not None and kept.competes:
            raise kept.no_keys(self._name_of(sending))
        headers = {**_trace(ctx), **encoded.headers, **(sending.headers or {})}
        if not kept.competes:  # such a stream refuses ids: a repeated message may go to another log
            headers[MESSAGE_ID_HEADER] = sending.message_id
        client = self._provider.client
        publish = client.publish_nowait if sending.nowait else client.publish
        try:
            return await publish(
                subject,
                encoded.payload,
                key=key,
                headers=headers,
                stream=None if kept.is_grouped else sending.stream,  # another stream of its group would not answer
                retries=PUBLISH_RETRIES,
                timeout=sending.timeout_s,
            )
        except (StreamNotFound, StreamChanged):
            self._provider.streams.forget(sending.stream)
            raise
        except (TimedOut, Unavailable) as error:
            error.details["message_id"] = sending.message_id  # also of one that was not sent: the caller has no other
            raise

    async def _find(self, sending: _Sending) -> KeptStream:
        streams = self._provider.streams
        return await streams.find(sending.stream, self._scope, self._subjects, self._create, sending.timeout_s)


def _trace(ctx: Context) -> dict[str, str]:
    """Return the trace of a context as a NATS header, where brokers look for it; in frugal-v0 it is in the frame."""
    trace = ctx.headers.get(TRACE)
    return {TRACE: trace} if trace and _TRACE.fullmatch(trace) else {}


def _block_bytes(headers: Mapping[str, str]) -> int:
    """Return the size of a NATS header block."""
    if not headers:
        return 0
    return len("NATS/1.0\r\n\r\n") + sum(len(name.encode()) + len(text.encode()) + 4 for name, text in headers.items())
