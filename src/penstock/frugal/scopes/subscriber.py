"""Subscribers of scopes: handlers of typed messages, live from NATS or durable from a stream.

Rules: without `group` a subscription is live: it hears what is published while it lives. With `group` it reads the
stream that keeps the operation, as a member of a consumer group. Members share partitions, so all members of a group
must want the same messages. Therefore the consumer group has the name `<group>.<subject>`, as in
`billing.orders._.Orders.OrderPlaced`: what is subscribed twice under one group name, with other variables or another
operation, never takes messages from each other.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from penstock.base import limits
from penstock.base.subjects import matches, overlap
from penstock.base.typed_headers import DEAD_PREFIX
from penstock.client.consume.consumers import consumer_settings
from penstock.client.consume.positions import check_group
from penstock.client.values import EARLIEST, Message, Start
from penstock.frugal.contracts import OperationType, ScopeType
from penstock.frugal.middleware import Middleware
from penstock.frugal.scopes.dead_letters import SUFFIX, DeadLetters, original_subject
from penstock.frugal.scopes.durable_subscription import DurableSubscription
from penstock.frugal.scopes.group_source import GroupSettings, GroupSource
from penstock.frugal.scopes.nats_subscription import HANDLERS_MAX, PENDING_MESSAGES_MAX, NatsSubscription
from penstock.frugal.scopes.provider import ScopeProvider
from penstock.frugal.scopes.redelivery import RetryPolicy
from penstock.frugal.scopes.subjects import ANY, PREFIX, ScopeSubjects
from penstock.frugal.scopes.subscriptions import Handler, Receiver, Subscription
from penstock.messages import StreamInfo

DURABLE_HANDLERS: Final = 8
"""Handlers at once of a durable subscription, each of another partition."""
_LOG = logging.getLogger(__name__)
_PLAIN_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_HASH_DIGITS: Final = 16


class ScopeSubscriber:
    """Base of the subscribers of generated code, which say in `_scope` what they subscribe to.

    `stream`: the stream that durable subscriptions read, in place of those that the contract names. `create`: fields
    of a `StreamConfig`, with which a missing stream is created. ValueError: the scope makes no subject.
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
        self._middleware = (*provider.middleware, *middleware)
        self._stream = stream
        self._create = create

    async def _subscribe(
        self,
        operation: OperationType,
        variables: tuple[str, ...],
        handler: Handler,
        *,
        queue: str = "",
        pending: int = PENDING_MESSAGES_MAX,
        group: str = "",
        stream: str | None = None,
        handlers: int | None = None,
        start: Start = EARLIEST,
        retry: RetryPolicy | None = None,
        dead_letters: str = "",
        session: float = 10.0,
        timeout: float = 10.0,
    ) -> Subscription:
        """Subscribe to an operation. In `variables`, `*` is any one token.

        Live: `queue`, a queue group of NATS, one of whose members gets each message. `handlers`: at once, default 1,
        which keeps the order. `pending`: messages that may wait for them; later ones are dropped and counted.
        Durable: `group`, which shares the messages of `stream` (default: the contract's) and continues where it was; a
        new one begins at `start`. `handlers`: at once, each of another partition; default 8. `retry`: back-off and
        attempts. `dead_letters`: the stream for what cannot be handled; default `<stream>-dead`, created if missing.
        `session`: after so many seconds without a sign of life a member's partitions go to others.
        ValueError: a variable that makes no pattern, options that do not fit together. What `Client.consumer` raises.
        """
        subject = self._subjects.subscribed(operation.name, variables)
        receiver = Receiver(self._scope, operation, self._provider.codec, self._middleware, handler)
        if not group:
            if stream or retry is not None or dead_letters:
                raise ValueError(
                    "stream, retry and dead_letters are options of a durable subscription: give group, too"
                )
            count = _handlers(1 if handlers is None else handlers)
            live = NatsSubscription(
                self._provider.nats, subject, receiver, queue=queue, handlers=count, pending=pending
            )
            await live.open()
            return live
        if queue:
            raise ValueError(
                "queue is an option of a live subscription; with group, the members of that share messages"
            )
        name = next((each for each in (stream, self._stream, operation.stream) if each), "")
        if not name:
            raise ValueError(f"{receiver}: no stream keeps it; name one with stream=")
        check_group(group)
        checked = consumer_settings(name, group_name(group, subject), start, timeout, {"session": session})
        wanted = GroupSettings(
            name,
            checked.group,
            checked.start,
            handlers_max=_handlers(DURABLE_HANDLERS if handlers is None else handlers),
            session_s=checked.session_s,
            timeout_s=checked.timeout_s,
            retry=retry or RetryPolicy(),
        )
        return await self._durable(wanted, subject, receiver, dead_letters or name + SUFFIX)

    async def _durable(
        self, wanted: GroupSettings, subject: str, receiver: Receiver, dead_letters: str
    ) -> DurableSubscription:
        provider = self._provider
        kept = await provider.streams.find(wanted.stream, self._scope, self._subjects, self._create, wanted.timeout_s)
        stored = kept.info.config.held_subjects
        if not any(overlap(one, subject) or one.startswith(DEAD_PREFIX) for one in stored):
            # No error: rows that were imported or copied keep their subjects.
            _LOG.warning(
                "%s: stream %s is on %s, which stores no message on %r",
                receiver,
                wanted.stream,
                ", ".join(map(repr, stored)),
                subject,
            )

        def is_wanted(info: StreamInfo, message: Message) -> bool:
            return matches(subject, published_subject(info, message))

        letters = DeadLetters(provider.client, dead_letters, wanted.group, timeout_s=wanted.timeout_s)
        source = GroupSource(provider.client, wanted, letters, is_wanted=is_wanted, random=provider.random)
        made = DurableSubscription(source, subject, receiver, group=wanted.group, handlers=wanted.handlers_max)
        await made.open()
        return made


def published_subject(info: StreamInfo, message: Message) -> str:
    """Return the subject on which a message was published: not that of its partition, nor that of a dead letter."""
    subject = original_subject(message)
    config = info.config
    if config.partitions > 1 and config.split.has_subjects:
        return subject.removesuffix(f".{message.partition}")
    return subject


def group_name(group: str, subject: str) -> str:
    """Return the name of the consumer group for a subscription: another one for each subject.

    It is `<group>.<subject>` without Frugal's prefix, with `_` for `*`; or a hash, if the subject makes no name.
    """
    tokens = subject.removeprefix(f"{PREFIX}.").split(".")
    if all(token == ANY or (_PLAIN_TOKEN.fullmatch(token) and token != "_") for token in tokens):
        made = ".".join((group, *("_" if token == ANY else token for token in tokens)))
        if len(made) <= limits.GROUP_NAME_CHARS_MAX:
            return made
    return f"{group}.{hashlib.sha256(subject.encode()).hexdigest()[:_HASH_DIGITS]}"


def _handlers(count: int) -> int:
    if type(count) is not int or not 1 <= count <= HANDLERS_MAX:
        raise ValueError(f"handlers is {count!r}; it can be 1 to {HANDLERS_MAX}")
    return count
