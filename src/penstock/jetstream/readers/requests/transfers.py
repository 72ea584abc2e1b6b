"""Consumers that go on at another stream: EXPORT, EXPORTS and RESTORE, which only the socket API asks for."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.conversations import Conversation
from penstock.jetstream.readers.config.parsing import parsed_request
from penstock.jetstream.readers.reader import Reader
from penstock.jetstream.readers.requests.creation import Carried, ConsumerCreation
from penstock.jetstream.readers.requests.infos import INFOS_PER_ANSWER
from penstock.jetstream.readers.requests.targets import RequestTargets
from penstock.jetstream.readers.stored.led import LedConsumer
from penstock.jetstream.readers.table import Readers
from penstock.messages import ExportedConsumer

EXPORTS_BYTES_MAX = 1 * limits.MIB
"""States in one answer: no consumer is added beyond it, each of which has CONSUMER_ROW_BYTES_MAX at most."""


class ConsumerTransfers:
    """Tells the state of stored consumers, and creates consumers that go on with such a state."""

    def __init__(self, readers: Readers, targets: RequestTargets, creation: ConsumerCreation) -> None:
        self._readers = readers
        self._stored = readers.stored
        self._targets = targets
        self._creation = creation

    def export(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Return a stored consumer as it is now, with what is in hand."""
        yield from ()
        reader = self._targets.reader(subject)
        if (led := reader.led) is None or led.is_deleted:
            text = f"consumer {reader.name!r} has no acks and is not durable: nothing of it is kept"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)
        return msgspec.json.encode(self._exported(reader, led, now))

    def exports(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Return a page of the consumers behind a name; of those of which nothing is kept, name and config."""
        yield from ()
        readers = self._readers.of(self._targets.stream(subject))
        begin = bisect_right(readers, subject.rest, key=lambda one: one.name)
        found: list[ExportedConsumer] = []
        size, end = 0, begin
        while end < len(readers) and end < begin + INFOS_PER_ANSWER and size < EXPORTS_BYTES_MAX:
            reader, end = readers[end], end + 1
            if (led := reader.led) is None:
                found.append(
                    ExportedConsumer(name=reader.name, config=reader.config.told_of(reader.name), next_offset=Offset(0))
                )
            elif not led.is_deleted:
                found.append(exported := self._exported(reader, led, now))
                size += len(exported.state)
        after = readers[end - 1].name if end < len(readers) else None
        return msgspec.json.encode({"exports": found, "after_next": after})

    def _exported(self, reader: Reader, led: LedConsumer, now: Now) -> ExportedConsumer:
        if not led.is_certain:  # acks that the next leader has confirmed are not known here
            text = f"another broker may lead the stream of consumer {reader.name!r} by now; ask again in a moment"
            raise RemoteError(ErrorCode.NOT_YET, text)
        self._stored.step_over(reader, led, now)
        table = led.state.table
        return ExportedConsumer(
            name=reader.name,
            config=reader.config.told_of(reader.name),
            next_offset=Offset(table.next_offset),
            deliveries=table.delivered,
            ack_pending=table.ack_pending,
            since=Offset(min(led.since, table.next_offset)),
            state=led.state.export(),
        )

    def restore(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Create a consumer that goes on where another one was, unless it exists."""
        carried = msgspec.json.decode(call.payload, type=Carried)
        config = {"inactive_threshold": 0, **carried.config}  # told if it is none: an existing one is compared with it
        body = {"stream_name": subject.stream, "config": config, "action": "create"}
        request = parsed_request(msgspec.json.encode(body), subject.stream)
        return (yield from self._creation.create_or_update(request, subject, now, carried))
