"""`client.consumers`: the consumers of JetStream's API, from which NATS clients get a stream's messages.

Rules: a consumer belongs to one partition, whose leader keeps it and answers. NATS clients pull from it, and Penstock's
own `client.queue`; here it is made, shown and steered, with the rights of this client's user.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from penstock.base.ids import PartitionId, TimestampUs
from penstock.client.checks import fixed_place_of, whole_number
from penstock.client.consumer_config import ORDER_BY, AckPolicy, consumer_config, with_fields
from penstock.client.link.link import Link
from penstock.client.publish_format import a_kind
from penstock.client.read.batches import messages_of
from penstock.client.read.filters import Filter
from penstock.client.read.reading import Reader, find_place, partition_number, partition_numbers, plans
from penstock.client.streams.named_streams import NamedStreams
from penstock.client.values import EARLIEST, LATEST, Message, MessageList, Start, StreamName, microseconds_of
from penstock.messages import (
    AskConsumersRequest,
    AskConsumersResponse,
    ConsumerOperation,
    ExportedConsumer,
    StreamInfo,
)

UNTIL_RESUMED = datetime(9999, 1, 1, tzinfo=UTC)
"""The end of a pause without one."""
_PEEKED_ROWS_MAX = 256  # rows of a batch that is read for a look


class ConsumerInfo(NamedTuple):
    """A consumer of JetStream's API, as the leader of its partition knows it."""

    name: str
    stream: str
    partition: int
    created: datetime
    is_push: bool  # its messages go to a subject; otherwise clients pull them
    is_durable: bool  # it stays without clients
    ack_policy: str  # "none", "explicit" or "all"
    filters: tuple[str, ...]  # subjects, with wildcards; empty: all of the stream's
    next_offset: int  # behind the last message that it has delivered
    acked_end: int  # all that it takes before this offset is acked
    deliveries: int  # since it was made, or reset; a message that is delivered again counts again
    pending: int  # messages that it has not delivered yet
    ack_pending: int  # messages that were delivered, and not acked yet
    redelivered: int  # of those, messages that were delivered more than once
    waiting: int  # pull requests of clients that wait for messages
    ack_pending_max: int | None  # at so many it delivers no new message; None: no limit, or no acks
    paused_until: datetime | None  # None: it is not paused
    last_delivered: datetime | None  # None: it has delivered nothing
    order_by: str | None  # what is in one hand at a time: "key", "subject" or "token:N"; None: nothing
    dead_letters: str | None  # the stream for messages that it gives up; None: none
    dead_letters_waiting: int  # messages that are given up, and are not stored there yet
    dead_letters_error: str  # why; empty: they are on their way
    config: dict[str, Any]  # JetStream's; durations are nanoseconds

    @property
    def is_full(self) -> bool:
        """True if so many messages wait for an ack that it delivers no new one."""
        return self.ack_pending_max is not None and self.ack_pending >= self.ack_pending_max


class StreamConsumers:
    """`client.consumers`: the consumers of JetStream's API."""

    def __init__(self, link: Link, streams: NamedStreams) -> None:
        self._link = link
        self._streams = streams

    async def all(
        self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0
    ) -> list[ConsumerInfo]:
        """Return the consumers of a stream that the user may see, by partition and name. StreamNotFound.

        RemoteError jetstream_off: the brokers do not answer JetStream's API.
        """
        info = await self._streams.now(stream, timeout)
        found: list[ConsumerInfo] = []
        for number in partition_numbers(info, partition):
            skip: int | None = 0
            while skip is not None:
                request = AskConsumersRequest(
                    stream_id=info.stream_id, partition=number, operation=ConsumerOperation.LIST, skip=skip
                )
                infos, skip = await self._ask(request, timeout)
                found += [_info(info, number, one) for one in infos]
        return found

    async def info(
        self, stream: StreamName, name: str, *, partition: int | None = None, timeout: float = 10.0
    ) -> ConsumerInfo:
        """Return one consumer. ConsumerNotFound, StreamNotFound.

        `partition`: that of the consumer; required if the stream has several.
        """
        return await self._one(stream, name, partition, timeout, operation=ConsumerOperation.INFO)

    async def create(
        self,
        stream: StreamName,
        name: str,
        *,
        subject: str | Sequence[str] = (),
        start: Start = EARLIEST,
        acks: AckPolicy = "explicit",
        ack_wait: float | None = None,
        deliveries_max: int | None = None,
        ack_pending_max: int | None = None,
        backoff: Sequence[float] = (),
        order_by: str | None = None,
        dead_letters: str | None = None,
        inactive_after: float | None = None,
        description: str = "",
        config: Mapping[str, Any] | None = None,
        partition: int | None = None,
        timeout: float = 10.0,
    ) -> ConsumerInfo:
        """Create a pull consumer, or return the existing one if it has the same config. ConsumerExists: another one.

        `subject`: what it takes, with wildcards; nothing: all. `start`: EARLIEST, LATEST (what comes from now on), an
        offset, or a time. `acks`: "explicit" (each message), "all" (an ack counts for all before it), "none".
        `ack_wait`: seconds until a message without an ack is delivered again, at most `deliveries_max` times in all;
        `backoff`: other waits, for each delivery in turn. `ack_pending_max`: delivered messages without an ack.
        `order_by`: "key", "subject" or "token:N" (a token of the subject, from 1 on): messages alike in it are with
        one client at a time, in order. `dead_letters`: a stream, which stores the messages that this consumer gives
        up. `inactive_after`: it is deleted after so many seconds without a client; None: a durable consumer, which
        stays, if it has acks, and JetStream's 5 s otherwise.
        `config`: other fields of JetStream's config; they win. InvalidConfig, RemoteError bad_request: JetStream's API
        refuses it. NotAuthorized, StreamNotFound.
        """
        info = await self._streams.now(stream, timeout)
        number = _own_partition(info, partition)
        fields = consumer_config(
            name,
            subject=subject,
            start=start,
            acks=acks,
            ack_wait=ack_wait,
            deliveries_max=deliveries_max,
            ack_pending_max=ack_pending_max,
            backoff=backoff,
            order_by=order_by,
            dead_letters=dead_letters,
            inactive_after=inactive_after,
            description=description,
        )
        return await self._one(
            info,
            name,
            number,
            timeout,
            operation=ConsumerOperation.CREATE,
            config=json.dumps(with_fields(fields, config or {})),
        )

    async def pause(
        self,
        stream: StreamName,
        name: str,
        until: datetime | timedelta | None = None,
        *,
        partition: int | None = None,
        timeout: float = 10.0,
    ) -> ConsumerInfo:
        """Have a consumer deliver nothing until a time, or for a while; None: until `resume`. ConsumerNotFound.

        Acks count meanwhile. ValueError: a datetime without a time zone.
        """
        if isinstance(until, timedelta):
            until = datetime.now(UTC) + until
        if not isinstance(until, datetime | None):
            raise TypeError(f"until is {a_kind(until)}; give a datetime or a timedelta")
        until_us = TimestampUs(microseconds_of(UNTIL_RESUMED if until is None else until))
        return await self._one(stream, name, partition, timeout, operation=ConsumerOperation.PAUSE, until_us=until_us)

    async def resume(
        self, stream: StreamName, name: str, *, partition: int | None = None, timeout: float = 10.0
    ) -> ConsumerInfo:
        """Have a paused consumer go on; one that is not paused stays as it is. ConsumerNotFound."""
        return await self._one(stream, name, partition, timeout, operation=ConsumerOperation.PAUSE, until_us=None)

    async def reset(
        self,
        stream: StreamName,
        name: str,
        to: Start | None = None,
        *,
        partition: int | None = None,
        timeout: float = 10.0,
    ) -> ConsumerInfo:
        """Have a consumer go on at a place of the log, and forget what was delivered and not acked. ConsumerNotFound.

        `to`: EARLIEST, LATEST, an offset or a time; None: behind what it has delivered. RemoteError bad_request: a
        place before the one at which the consumer was to begin, or a `start` that allows no reset.
        """
        info = await self._streams.now(stream, timeout)
        number = _own_partition(info, partition)
        place = (
            None if to is None else await find_place(self._link, info.stream_id, number, fixed_place_of(to), timeout)
        )
        return await self._one(
            info,
            name,
            number,
            timeout,
            operation=ConsumerOperation.RESET,
            next_offset=None if place is None else place.offset,
        )

    async def delete(
        self, stream: StreamName, name: str, *, partition: int | None = None, timeout: float = 10.0
    ) -> None:
        """Delete a consumer, and what it knows of deliveries and acks; for good. ConsumerNotFound, StreamNotFound."""
        info = await self._streams.now(stream, timeout)
        number = _own_partition(info, partition)
        await self._ask(
            AskConsumersRequest(
                stream_id=info.stream_id, partition=number, operation=ConsumerOperation.DELETE, consumer=name
            ),
            timeout,
        )

    async def export(
        self, stream: StreamName, name: str, *, partition: int | None = None, timeout: float = 10.0
    ) -> ExportedConsumer:
        """Return a consumer with its place and its messages in hand, for `restore`. ConsumerNotFound, StreamNotFound.

        RemoteError bad_request: it has no acks and is not durable, so nothing of it is kept.
        """
        info = await self._streams.now(stream, timeout)
        request = AskConsumersRequest(
            stream_id=info.stream_id,
            partition=_own_partition(info, partition),
            operation=ConsumerOperation.EXPORT,
            consumer=name,
        )
        _, raw = await self._link.call(request, AskConsumersResponse, timeout_s=timeout)
        (found,) = msgspec.json.decode(bytes(raw), type=list[ExportedConsumer])
        return found

    async def export_all(
        self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0
    ) -> list[ExportedConsumer]:
        """Return all consumers that the user may see, by name, as `export`. StreamNotFound.

        Of consumers that are not kept, as they have no acks and are not durable, name and config only. `timeout`: of
        each of the requests, one for some hundred consumers.
        """
        info = await self._streams.now(stream, timeout)
        number = _own_partition(info, partition)
        found: list[ExportedConsumer] = []
        after: str | None = ""
        while after is not None:
            request = AskConsumersRequest(
                stream_id=info.stream_id, partition=number, operation=ConsumerOperation.EXPORT_ALL, consumer=after
            )
            answer, raw = await self._link.call(request, AskConsumersResponse, timeout_s=timeout)
            found += msgspec.json.decode(bytes(raw), type=list[ExportedConsumer])
            after = answer.after_next
        return found

    async def restore(
        self, stream: StreamName, exported: ExportedConsumer, *, partition: int | None = None, timeout: float = 10.0
    ) -> ConsumerInfo:
        """Create a consumer that goes on where an exported one was: in a stream with the same messages and offsets.

        What was in hand is delivered again when its time is over, and counts on; acks of the exported one's deliveries
        name nothing here. One that exists with this config stays as it is. ConsumerExists: another one.
        NotAuthorized: also of a push consumer, which only an administrator restores.
        """
        info = await self._streams.now(stream, timeout)
        number = _own_partition(info, partition)
        request = AskConsumersRequest(
            stream_id=info.stream_id,
            partition=number,
            operation=ConsumerOperation.RESTORE,
            consumer=exported.name,
            config=json.dumps(exported.config),
            next_offset=exported.next_offset,
            deliveries=exported.deliveries,
            since=exported.since,
        )
        _, raw = await self._link.call(request, AskConsumersResponse, timeout_s=timeout, raw=exported.state)
        (found,) = msgspec.json.decode(bytes(raw), type=list[dict[str, Any]])
        return _info(info, number, found)

    async def peek(
        self, stream: StreamName, name: str, n: int = 10, *, partition: int | None = None, timeout: float = 10.0
    ) -> list[Message]:
        """Return the next `n` messages that a consumer will deliver for the first time; it does not notice.

        What was delivered before and will be delivered again is not among them. The user needs the right to read them.
        """
        info = await self._streams.now(stream, timeout)
        number = _own_partition(info, partition)
        found = await self.info(info, name, partition=number, timeout=timeout)
        if (count := whole_number("number of messages", n)) <= 0:
            return MessageList()
        end = await find_place(self._link, info.stream_id, number, LATEST, timeout)
        begin = max(found.next_offset, end.log_start)
        if begin >= end.committed_end:
            return MessageList()
        reader = Reader(
            self._link,
            await plans(self._link, info, number, begin, end.committed_end, follow=False, timeout_s=timeout),
            batch_rows_max=_PEEKED_ROWS_MAX,
            columns=None,
            timeout_s=timeout,
            where=Filter(subject=found.filters) if found.filters else None,
            limit=count,
        )
        messages: list[Message] = []
        async with reader:
            while (batches := await reader.next_batches()) is not None:
                messages += [message for batch in batches for message in messages_of(batch)]
        return MessageList(messages[:count])

    # Inside

    async def _one(
        self, stream: StreamName, name: str, partition: int | None, timeout: float, **fields: Any
    ) -> ConsumerInfo:
        info = await self._streams.now(stream, timeout)
        number = _own_partition(info, partition)
        (found,), _ = await self._ask(
            AskConsumersRequest(stream_id=info.stream_id, partition=number, consumer=name, **fields), timeout
        )
        return _info(info, number, found)

    async def _ask(self, request: AskConsumersRequest, timeout: float) -> tuple[list[dict[str, Any]], int | None]:
        """Return infos, and `skip` of the next page; None: there is none."""
        answer, raw = await self._link.call(request, AskConsumersResponse, timeout_s=timeout)
        return msgspec.json.decode(bytes(raw), type=list[dict[str, Any]]), answer.skip_next


def _own_partition(info: StreamInfo, partition: int | None) -> PartitionId:
    """Return the partition of a consumer. ValueError: the stream has several, and none is given."""
    if partition is None and len(info.partitions) > 1:
        text = f"stream {info.name} has {len(info.partitions)} partitions, and a consumer belongs to one of them"
        raise ValueError(f"{text}: say which with partition=")
    return partition_number(info, partition)


def _info(stream: StreamInfo, partition: PartitionId, found: dict[str, Any]) -> ConsumerInfo:
    """Return the info of JetStream's JSON."""
    config: dict[str, Any] = found["config"]
    delivered, floor = found["delivered"], found["ack_floor"]
    single, several_filters = config.get("filter_subject"), config.get("filter_subjects")
    acks, pending_max = config.get("ack_policy", "none"), config.get("max_ack_pending") or 0
    paused_until = config.get("pause_until") if found.get("paused") else None
    letters = found.get("dead_letters") or {}
    return ConsumerInfo(
        name=found["name"],
        stream=stream.name,
        partition=int(partition),
        created=_moment(found["created"]),
        is_push=bool(config.get("deliver_subject")),
        is_durable=bool(config.get("durable_name")),
        ack_policy=acks,
        filters=(single,) if single else tuple(several_filters or ()),
        next_offset=delivered["stream_seq"],
        acked_end=floor["stream_seq"],
        deliveries=delivered["consumer_seq"],
        pending=found["num_pending"],
        ack_pending=found["num_ack_pending"],
        redelivered=found["num_redelivered"],
        waiting=found["num_waiting"],
        ack_pending_max=pending_max if acks != "none" and pending_max > 0 else None,
        paused_until=None if paused_until is None else _moment(paused_until),
        last_delivered=_moment(delivered["last_active"]) if delivered.get("last_active") else None,
        order_by=(config.get("metadata") or {}).get(ORDER_BY),
        dead_letters=letters.get("stream"),
        dead_letters_waiting=letters.get("waiting", 0),
        dead_letters_error=letters.get("error", ""),
        config=config,
    )


def _moment(text: str) -> datetime:
    """Return a time of JetStream's JSON, which may have nanoseconds."""
    return datetime.fromisoformat(text)
