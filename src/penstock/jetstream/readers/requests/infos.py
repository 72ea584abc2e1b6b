"""Names and infos of consumers: INFO, NAMES and LIST, and the info with which other requests are answered."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from penstock.base.clock import Now
from penstock.jetstream.answers import json_answer
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.conversations import Answered, Asked, Conversation
from penstock.jetstream.errors import invalid_json, not_empty
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.reader import Reader
from penstock.jetstream.readers.requests.targets import RequestTargets
from penstock.jetstream.readers.table import Readers
from penstock.jetstream.stream_config import json_object
from penstock.jetstream.stream_state import NO_TIME, api_time, need_one_partition

NAMES_PER_ANSWER = 1_024  # as JetStream
INFOS_PER_ANSWER = 256  # as JetStream


class ConsumerInfos:
    """Tells names and infos of consumers."""

    def __init__(self, gateway: Gateway, readers: Readers, targets: RequestTargets) -> None:
        self._gateway = gateway
        self._readers = readers
        self._stored = readers.stored
        self._targets = targets

    def info(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Answer CONSUMER.INFO."""
        if not call.is_empty:
            raise not_empty()
        reader = self._targets.reader(subject)
        return json_answer(subject.operation, **(yield from self.fields(reader)))

    def fields(self, reader: Reader) -> Generator[Asked, list[Answered], dict[str, Any]]:
        """Return a consumer's info."""
        told = reader.told_pending
        reader.told_pending = None
        if told is None:
            yield from self._readers.caught_up(reader)
            # it may be deleted meanwhile
            told = self._readers.told_pending(reader) if self._readers.is_here(reader) else 0
        if told is None:
            told = (yield from self._readers.counting(reader)).messages
            if reader.led is not None:
                told += reader.led.state.table.parked  # they are behind its position
        return self._told(reader, told)

    def _told(self, reader: Reader, pending: int) -> dict[str, Any]:
        now = self._gateway.node.now
        reader.take_back((now.wall_us, now.elapsed_us))
        if reader.led is not None and self._readers.is_here(reader):
            self._stored.step_over(reader, reader.led, now)
        cursor = reader.cursor
        active = {"last_active": api_time(reader.delivered_wall_us)} if reader.delivered_wall_us else {}
        sequences: dict[str, Any] = {"consumer_seq": cursor.delivered, "stream_seq": cursor.last_offset + 1}
        floor, in_hand, redelivered = sequences, 0, 0
        if reader.led is not None:
            table = reader.led.state.table
            last = min(table.floor_offset(), cursor.last_offset + 1) if table.count else cursor.last_offset + 1
            floor = {"consumer_seq": table.floor_sequence(), "stream_seq": last}
            in_hand, redelivered = table.ack_pending, table.redelivered
            if table.takes_settled and not reader.config.dead_letters:
                in_hand -= table.ended  # kept for a late ack, and not delivered any more
        fields: dict[str, Any] = {
            "stream_name": self._readers.stream_name(reader),
            "name": reader.name,
            "created": api_time(reader.created_us),
            "config": reader.config.told_as(reader.name),
            "delivered": {**sequences, **active},
            "ack_floor": floor,
            "num_ack_pending": in_hand,
            "num_redelivered": 0 if reader.config.max_deliver == 1 else redelivered,
            "num_waiting": len(reader.pulls),
            "num_pending": pending,
        }
        if reader.config.is_push and reader.inactive_us is None:
            fields["push_bound"] = True
        if reader.is_paused(now.wall_us):
            fields["paused"] = True
            fields["pause_remaining"] = (reader.config.pause_us - now.wall_us) * 1_000
        if reader.led is not None and reader.config.dead_letters:
            letters = self._stored.dead_letters.told(reader.led)
            fields["dead_letters"] = {"stream": reader.config.dead_letters, "waiting": letters.waiting}
            if letters.failure:
                fields["dead_letters"]["error"] = letters.failure
        fields["ts"] = api_time(now.wall_us)
        if reader.led is not None and (priorities := reader.led.priorities) is not None:
            pinned = api_time(priorities.pinned_wall_us) if priorities.pin else NO_TIME
            group: dict[str, Any] = {"group": reader.config.priority_groups[0], "pinned_ts": pinned}
            if priorities.pin:
                group["pinned_client_id"] = priorities.pin
            fields["priority_groups"] = [group]
        return fields

    def names(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Answer CONSUMER.NAMES."""
        yield from ()
        readers, offset = self._page(call, subject)
        names = [reader.name for reader in readers]
        page = names[offset : offset + NAMES_PER_ANSWER]
        fields = {"total": len(names), "offset": offset, "limit": NAMES_PER_ANSWER, "consumers": page}
        return json_answer(subject.operation, **fields)

    def infos(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Answer CONSUMER.LIST."""
        readers, offset = self._page(call, subject)
        infos: list[dict[str, Any]] = []
        for reader in readers[offset : offset + INFOS_PER_ANSWER]:
            if self._readers.is_here(reader):
                fields = yield from self.fields(reader)
                infos += (fields,)
        told = {"total": len(readers), "offset": offset, "limit": INFOS_PER_ANSWER, "consumers": infos}
        return json_answer(subject.operation, **told)

    def _page(self, call: ApiCall, subject: ApiSubject) -> tuple[list[Reader], int]:
        offset = 0
        if call.payload.strip()[:1] == b"{":
            found = json_object(call.payload, "JSApiConsumersRequest").get("offset") or 0
            if not isinstance(found, int) or isinstance(found, bool):
                raise invalid_json("json: cannot unmarshal offset into Go value of type int")
            offset = max(0, found)
        state = self._targets.stream(subject)
        need_one_partition(self._gateway, state)
        readers = self._readers.of(state)
        return readers, min(offset, len(readers))
