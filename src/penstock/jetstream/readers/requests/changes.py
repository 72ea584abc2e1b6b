"""Changes of a consumer that exists: another config, DELETE, PAUSE, RESET and UNPIN."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.consumers.state import POSITION_MAX
from penstock.jetstream.answers import json_answer
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.conversations import Answered, Asked, Conversation, done
from penstock.jetstream.errors import consumer_not_found, consumer_refusal, invalid_json, not_empty
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.config.ack_checks import BAD_GROUP, GROUP
from penstock.jetstream.readers.config.parsing import ConsumerRequest, told_time
from penstock.jetstream.readers.config.reader_config import ReaderConfig, paused_until
from penstock.jetstream.readers.config.updates import check_update
from penstock.jetstream.readers.reader import Reader
from penstock.jetstream.readers.requests.infos import ConsumerInfos
from penstock.jetstream.readers.requests.targets import RequestTargets
from penstock.jetstream.readers.starting import Start, pending_of, shown_now, start_of
from penstock.jetstream.readers.stored.led import SINCE_END, LedConsumer, ack_config, told_bytes
from penstock.jetstream.readers.table import Readers
from penstock.jetstream.stream_config import json_object
from penstock.jetstream.stream_state import NO_TIME
from penstock.metadata.image import StreamState


class ConsumerChanges:
    """Changes consumers: the rows of a stored one are committed before its request is answered."""

    def __init__(self, gateway: Gateway, readers: Readers, targets: RequestTargets, infos: ConsumerInfos) -> None:
        self._gateway = gateway
        self._readers = readers
        self._stored = readers.stored
        self._targets = targets
        self._infos = infos
        self._unsettled = targets.unsettled

    def update(
        self, state: StreamState, reader: Reader, config: ReaderConfig, request: ConsumerRequest, now: Now
    ) -> Generator[Asked, list[Answered], None]:
        """Give a consumer the config of a CREATE request. Raise ApiError, RemoteError."""
        has_all = config.is_durable or "inactive_threshold" in request.config  # others: a default
        is_same = config == reader.config and has_all
        if request.action == "create" and not is_same:
            raise consumer_refusal(10148, "consumer already exists")
        check_update(reader.config, config)
        if reader.led is None and config.is_stored:
            raise consumer_refusal(10012, "priority policy can not be updated", 500)
        if config.is_push and config.deliver_subject != reader.config.deliver_subject:
            self._targets.check_inbox(config.deliver_subject)
            if self._readers.deliveries.has_interest(reader.inbox) is True:
                raise consumer_refusal(10013, "consumer name already in use")
        if config == reader.config:
            return
        has_other_filter = config.filters != reader.config.filters
        if (led := reader.led) is not None:
            # Until the filters change here, messages are passed by the old ones: it is not known yet up to where.
            since = SINCE_END if has_other_filter and led.state.table.takes_settled else led.since
            yield from self._store_config(reader, led, config, since)
            self._check_here(reader)
        if has_other_filter:
            feed = self._readers.feed(state)
            shown = yield from shown_now(feed)
            start = Start(reader.cursor.next_offset)
            pending = yield from pending_of(feed, config.filters, start, shown)
            self._check_here(reader)
            feed.check_room(config.filters)
            reader.cursor.filter = feed.filter_of(config.filters)
            reader.told_pending = pending.messages
            self._readers.reconfigure(reader, config, now)
            self._readers.move(reader, Start(reader.cursor.next_offset), pending, now)
            feed.readers_left(1)
            if led is not None and led.state.table.takes_settled:
                led.since = max(led.since, reader.cursor.next_offset, shown.end)
                self._readers.removals.filters_changed(feed, reader)
                yield from self._store_config(reader, led, config, led.since)
            else:
                self._readers.removals.filters_changed(feed, reader)
        else:
            self._readers.reconfigure(reader, config, now)

    def _store_config(
        self, reader: Reader, led: LedConsumer, config: ReaderConfig, since: int
    ) -> Generator[Asked, list[Answered], None]:
        """Store another config of a consumer. Raise RemoteError."""
        told = told_bytes(reader.name, reader.created_us, config, since)
        yield from done(partial(led.writes.store, led, led.state.update(ack_config(config), told)))

    def delete(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Answer CONSUMER.DELETE."""
        if not call.is_empty:
            raise not_empty()
        reader = self._targets.reader(subject)
        led = reader.led
        while led is not None and led.is_deleted and self._readers.is_here(reader):  # until that is committed, or not
            yield from done(partial(self._unsettled.when_settled, (reader.stream_id, reader.name)))
        if led is not None and self._readers.is_here(reader):
            yield from done(partial(self._stored.delete, [reader]))
        elif led is not None and not led.writes.log.is_current:
            self._check_here(reader)  # the deletion may not be stored
        if self._readers.is_here(reader):
            self._readers.remove([reader])
        if led is not None:
            yield from done(partial(self._readers.removals.when_removed, reader.stream_id))
        return json_answer(subject.operation, success=True)

    def pause(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Answer CONSUMER.PAUSE."""
        until = ""
        if call.payload.strip()[:1] == b"{":
            found = json_object(call.payload, "JSApiConsumerPauseRequest").get("pause_until") or ""
            if not isinstance(found, str):
                raise invalid_json("json: cannot unmarshal pause_until into Go value of type time.Time")
            until = found
        reader = self._targets.reader(subject)
        config = paused_until(reader.config, "" if until == NO_TIME else until)
        if reader.led is not None and config != reader.config:
            yield from self._store_config(reader, reader.led, config, reader.led.since)
            self._check_here(reader)
            now = self._gateway.node.now
        self._stored.advisories.paused(subject.stream, reader.name, config.pause_us)
        self._readers.reconfigure(reader, config, now)
        is_paused = reader.is_paused(now.wall_us)
        fields: dict[str, Any] = {"paused": is_paused, "pause_until": until or NO_TIME}
        if until:
            fields["pause_until"] = told_time(until)
        if is_paused:
            fields["pause_remaining"] = (config.pause_us - now.wall_us) * 1_000
        return json_answer(subject.operation, **fields)

    def reset(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Answer CONSUMER.RESET."""
        reader = self._targets.reader(subject)
        sequence = 0
        if call.payload.strip():
            found = json_object(call.payload, "JSApiConsumerResetRequest").get("seq") or 0
            if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 2**63:
                raise invalid_json("json: cannot unmarshal seq into Go value of type uint64")
            sequence = found
        state = self._targets.stream(subject)
        feed = self._readers.feed(state)
        shown = yield from shown_now(feed)
        config = reader.config
        if not sequence and reader.led is not None:
            sequence = reader.led.state.table.floor_offset() + 1
        elif not sequence:
            sequence = reader.cursor.last_offset + 2
        elif config.policy == "by_start_sequence":
            if sequence < config.start_seq:
                raise consumer_refusal(10204, "invalid reset: below start seq")
        elif config.policy == "by_start_time":
            if sequence - 1 < (yield from start_of(state, config, shown)).offset:
                raise consumer_refusal(10204, "invalid reset: below start time")
        elif config.policy != "all":
            raise consumer_refusal(10204, "invalid reset: not allowed")
        start = Start(min(sequence - 1, POSITION_MAX))
        pending = yield from pending_of(feed, config.filters, start, shown)
        self._check_here(reader)
        if (led := reader.led) is not None:
            led.state.reset(start.offset)
            self._stored.attach(reader, led)
            led.take_held()
            led.again = None
        reader.restart(start.offset)
        self._readers.move(reader, start, pending, now)
        if led is not None:
            if led.state.table.takes_settled:
                led.since = start.offset
                self._readers.removals.filters_changed(feed, reader)
            told = told_bytes(reader.name, reader.created_us, config, led.since)
            rows = led.state.update(ack_config(config), told)
            yield from done(partial(led.writes.store, led, rows))
            self._check_here(reader)
        reader.told_pending = pending.messages
        fields = yield from self._infos.fields(reader)
        return json_answer(subject.operation, **fields, reset_seq=sequence)

    def unpin(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Answer CONSUMER.UNPIN."""
        yield from ()
        group = (json_object(call.payload, "JSApiConsumerUnpinRequest") if call.payload.strip() else {}).get("group")
        if not isinstance(group, str) or not group:
            raise invalid_json(
                "consumer group not specified" if call.payload.strip() else "unexpected end of JSON input"
            )
        if GROUP.fullmatch(group) is None:
            raise consumer_refusal(10162, BAD_GROUP)
        reader = self._targets.reader(subject)
        priorities = None if reader.led is None else reader.led.priorities
        if priorities is None or group not in reader.config.priority_groups:
            raise consumer_refusal(10160, "Provided priority group does not exist for this consumer")
        if priorities.unpin():
            self._stored.advisories.unpinned(subject.stream, reader.name, group, "admin")
        self._readers.serve_again(reader, now)
        return json_answer(subject.operation)

    def _check_here(self, reader: Reader) -> None:
        """Raise ApiError if a consumer is deleted; RemoteError if the next leader has it."""
        if self._readers.is_here(reader):
            return
        if reader.led is not None and not reader.led.writes.log.is_current:
            text = f"the leadership of the stream has ended; consumer {reader.name!r} may be changed or not"
            raise RemoteError(ErrorCode.NOT_LEADER, text)
        raise consumer_not_found()
