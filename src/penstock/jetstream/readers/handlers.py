"""Requests about consumers: CREATE, INFO, NAMES, LIST, DELETE, MSG.NEXT, PAUSE, RESET, UNPIN.

Rules: they reach the leader of the stream, which holds its readers. Answers and refusals are nats-server's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from typing import Any

import msgspec

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.hot.deliveries import UNLIMITED
from penstock.jetstream.answers import json_answer
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.conversations import Answered, Asked, Conversation
from penstock.jetstream.errors import invalid_json, not_empty, stream_not_found, too_many_rules, unavailable, unreadable
from penstock.jetstream.gateway import Gateway, Handler, Talk
from penstock.jetstream.readers.config import (
    ConsumerRequest,
    ReaderConfig,
    check_update,
    consumer_not_found,
    delivery_cycle,
    parsed_request,
    parsed_time_us,
    paused_until,
    reader_config,
    refusal,
)
from penstock.jetstream.readers.pulls import BadPullError, go_duration, parsed_pull, status
from penstock.jetstream.readers.reader import Reader, new_cursor
from penstock.jetstream.readers.starting import Start, pending_of, shown_now, start_of
from penstock.jetstream.readers.table import READERS_MAX, Readers
from penstock.jetstream.stream_config import consumer_limits, json_object
from penstock.jetstream.stream_state import NO_TIME, api_time, need_one_partition
from penstock.messages import FetchRequest
from penstock.metadata.image import StreamState

NAMES_PER_ANSWER = 1_024  # as JetStream
INFOS_PER_ANSWER = 256  # as JetStream
OPENING_MAX = 64
"""Readers that are being created at once."""
_GROUP = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
_Info = Generator[Asked, list[Answered], dict[str, Any]]


class ConsumerApi:
    """Answers the requests."""

    def __init__(self, gateway: Gateway, readers: Readers, new_name: Callable[[], str]) -> None:
        """`new_name` returns a name for a consumer without one."""
        self._gateway = gateway
        self._readers = readers
        self._new_name = new_name
        self._opening = 0

    def talks(self) -> Mapping[str, Talk]:
        """Return what answers in steps, by operation."""
        return {
            "CONSUMER.CREATE": self._create,
            "CONSUMER.DURABLE.CREATE": self._create,
            "CONSUMER.INFO": self._info,
            "CONSUMER.NAMES": self._names,
            "CONSUMER.LIST": self._list,
            "CONSUMER.DELETE": self._delete,
            "CONSUMER.PAUSE": self._pause,
            "CONSUMER.RESET": self._reset,
            "CONSUMER.UNPIN": self._unpin,
        }

    def handlers(self) -> Mapping[str, Handler]:
        def talking(talk: Talk) -> Handler:
            def handle(call: ApiCall, subject: ApiSubject, now: Now) -> None:
                self._gateway.converse(call, subject, now, talk(call, subject, now))

            return handle

        return {**{name: talking(talk) for name, talk in self.talks().items()}, "CONSUMER.MSG.NEXT": self._next}

    # Create

    def _create(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        request = parsed_request(call.payload, subject.stream)
        given = dict(request.config)
        name, _, filtered = subject.rest.partition(".")
        is_durable = subject.operation == "CONSUMER.DURABLE.CREATE"
        if set(name) & set("\\/"):
            raise refusal(10127, "Consumer name can not contain path separators")
        durable = given.get("durable_name") or ""
        if is_durable and not durable:
            raise refusal(10018, "consumer expected to be durable but a durable name was not set")
        if (is_durable or (name and durable)) and name != durable:
            raise refusal(10017, "consumer name in subject does not match durable name in request")
        if not name and durable:
            raise refusal(10020, "consumer expected to be ephemeral but a durable name was set in request")
        if name:
            given["name"] = name
        if filtered and given.get("filter_subjects"):
            raise refusal(10137, "consumer with multiple subject filters cannot use subject based API")
        if filtered and given.get("filter_subject", "") != filtered:
            raise refusal(10131, "Consumer create request did not match filtered subject from create subject")
        state = self._stream(subject)
        need_one_partition(self._gateway, state)
        given = {field: value for field, value in given.items() if value is not None}
        existing = self._readers.find(state, given.get("name") or "")
        if existing is not None:
            given["pause_until"] = existing.config.told.get("pause_until", "")
        config = self._readable(state, reader_config(state, given, pedantic=request.is_pedantic))
        if existing is not None:
            yield from self._update(state, existing, config, request, now)
            reader = existing
        elif request.action == "update":
            raise refusal(10149, "consumer does not exist")
        else:
            reader = yield from self._open(state, config, given.get("name") or "", now)
        return json_answer(subject.operation, **(yield from self._fields(reader)))

    def _readable(self, state: StreamState, config: ReaderConfig) -> ReaderConfig:
        """Return the config with a filter for what the API's user may read, if that is not all. Raise ApiError,
        RemoteError.
        """
        wanted = config.filters or (">",)
        filters = self._gateway.narrowed(state, wanted)
        if len(filters) > limits.FETCH_SUBJECTS_MAX:
            raise too_many_rules(len(filters))
        if filters is not wanted:
            config = msgspec.structs.replace(config, filters=filters)
        self._gateway.check(_read_of(state, config))
        return config

    def _open(
        self, state: StreamState, config: ReaderConfig, name: str, now: Now
    ) -> Generator[Asked, list[Answered], Reader]:
        readers = self._readers
        if not readers.deliveries.is_up:
            raise unavailable("messages cannot be delivered: the broker has no leaf connection to nats-server")
        if config.is_push:
            self._check_inbox(config.deliver_subject)
        if readers.total + self._opening >= READERS_MAX:
            raise refusal(10026, "maximum consumers limit reached")
        if self._opening >= OPENING_MAX:
            raise unavailable("too many consumers are being created; ask again in a moment")
        feed = readers.feed(state)
        self._opening += 1
        feed.opening += 1
        try:
            shown = yield from shown_now(feed)
            start = yield from start_of(state, config, shown)
            readers.check_room(start)
            pending = yield from pending_of(feed, config.filters, start, shown)
        finally:
            self._opening -= 1
            feed.opening -= 1
        if feed.is_closed:
            raise RemoteError(ErrorCode.NOT_LEADER, "the stream is led by another broker")
        now_state = self._gateway.stream_of(state.stream_id) or state
        if (refused := unreadable(now_state)) is not None:
            raise refused
        self._gateway.check(_read_of(state, config))  # rights may have changed meanwhile
        if 0 < consumer_limits(state).consumers <= len(feed.readers):
            raise refusal(10026, "maximum consumers limit reached")
        feed.check_room(config.filters)
        readers.check_room(start)  # others may have begun meanwhile
        if not name:
            name = self._new_name()
        elif name in feed.readers:
            raise refusal(10013, "consumer name already in use")
        now = self._gateway.node.now
        cursor = new_cursor(feed.filter_of(config.filters), state.name, name, start.offset)
        cursor.want(start.wanted, start.resume)
        reader = Reader(
            state.stream_id, name, config, cursor, readers.leaf, created_us=now.wall_us, now_us=now.elapsed_us
        )
        reader.told_pending = pending.messages
        readers.add(feed, reader, pending, now)
        return reader

    def _check_inbox(self, subject: str) -> None:
        """Raise ApiError if nothing may be delivered there, or it would come back."""
        if (mistake := self._readers.deliveries.mistake(subject.encode())) is not None:
            raise refusal(10112, f"invalid push consumer deliver subject: {mistake}")
        if self._readers.comes_back(subject.encode()):
            raise delivery_cycle()

    def _update(
        self, state: StreamState, reader: Reader, config: ReaderConfig, request: ConsumerRequest, now: Now
    ) -> Generator[Asked, list[Answered], None]:
        is_same = config == reader.config and "inactive_threshold" in request.config  # it is told with its default
        if request.action == "create" and not is_same:
            raise refusal(10148, "consumer already exists")
        check_update(reader.config, config)
        if config.is_push and config.deliver_subject != reader.config.deliver_subject:
            self._check_inbox(config.deliver_subject)
            if self._readers.deliveries.has_interest(reader.inbox) is True:
                raise refusal(10013, "consumer name already in use")
        if config == reader.config:
            return
        has_other_filter = config.filters != reader.config.filters
        if has_other_filter:
            feed = self._readers.feed(state)
            shown = yield from shown_now(feed)
            start = Start(reader.cursor.next_offset)
            pending = yield from pending_of(feed, config.filters, start, shown)
            if not self._readers.is_here(reader):
                raise consumer_not_found()
            feed.check_room(config.filters)
            reader.cursor.filter = feed.filter_of(config.filters)
            reader.told_pending = pending.messages
            self._readers.reconfigure(reader, config, now)
            self._readers.move(reader, Start(reader.cursor.next_offset), pending, now)
            feed.readers_left(1)
        else:
            self._readers.reconfigure(reader, config, now)

    # About one or all

    def _info(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        if not call.is_empty:
            raise not_empty()
        reader = self._reader(subject)
        return json_answer(subject.operation, **(yield from self._fields(reader)))

    def _fields(self, reader: Reader) -> _Info:
        """Return a consumer's info."""
        told = reader.told_pending
        reader.told_pending = None
        if told is None:
            yield from self._readers.caught_up(reader)
            # it may be deleted meanwhile
            told = self._readers.told_pending(reader) if self._readers.is_here(reader) else 0
        if told is None:
            told = (yield from self._readers.counting(reader)).messages
        return self._told(reader, told)

    def _told(self, reader: Reader, pending: int) -> dict[str, Any]:
        now = self._gateway.node.now
        reader.take_back((now.wall_us, now.elapsed_us))
        cursor = reader.cursor
        sequences: dict[str, Any] = {"consumer_seq": cursor.delivered, "stream_seq": cursor.last_offset + 1}
        active = {"last_active": api_time(reader.delivered_wall_us)} if reader.delivered_wall_us else {}
        fields: dict[str, Any] = {
            "stream_name": self._readers.stream_name(reader),
            "name": reader.name,
            "created": api_time(reader.created_us),
            "config": reader.config.told_as(),
            "delivered": {**sequences, **active},
            "ack_floor": sequences,
            "num_ack_pending": 0,
            "num_redelivered": 0,
            "num_waiting": len(reader.pulls),
            "num_pending": pending,
        }
        if reader.config.is_push and reader.inactive_us is None:
            fields["push_bound"] = True
        if reader.is_paused(now.wall_us):
            fields["paused"] = True
            fields["pause_remaining"] = (reader.config.pause_us - now.wall_us) * 1_000
        fields["ts"] = api_time(now.wall_us)
        return fields

    def _names(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        yield from ()
        readers, offset = self._page(call, subject)
        names = [reader.name for reader in readers]
        page = names[offset : offset + NAMES_PER_ANSWER]
        fields = {"total": len(names), "offset": offset, "limit": NAMES_PER_ANSWER, "consumers": page}
        return json_answer(subject.operation, **fields)

    def _list(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        readers, offset = self._page(call, subject)
        infos: list[dict[str, Any]] = []
        for reader in readers[offset : offset + INFOS_PER_ANSWER]:
            if self._readers.is_here(reader):
                fields = yield from self._fields(reader)
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
        state = self._stream(subject)
        need_one_partition(self._gateway, state)
        readers = self._readers.of(state)
        return readers, min(offset, len(readers))

    def _delete(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        yield from ()
        if not call.is_empty:
            raise not_empty()
        self._readers.remove([self._reader(subject)])
        return json_answer(subject.operation, success=True)

    def _pause(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        yield from ()
        until = ""
        if call.payload.strip()[:1] == b"{":
            found = json_object(call.payload, "JSApiConsumerPauseRequest").get("pause_until") or ""
            if not isinstance(found, str):
                raise invalid_json("json: cannot unmarshal pause_until into Go value of type time.Time")
            until = found
        reader = self._reader(subject)
        config = paused_until(reader.config, "" if until == NO_TIME else until)
        self._readers.reconfigure(reader, config, now)
        is_paused = reader.is_paused(now.wall_us)
        fields: dict[str, Any] = {"paused": is_paused, "pause_until": until or NO_TIME}
        if until:
            fields["pause_until"] = api_time(parsed_time_us(until))
        if is_paused:
            fields["pause_remaining"] = (config.pause_us - now.wall_us) * 1_000
        return json_answer(subject.operation, **fields)

    def _reset(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        reader = self._readers.find(self._stream(subject), subject.rest)
        if reader is None:
            raise consumer_not_found()
        sequence = 0
        if call.payload.strip():
            found = json_object(call.payload, "JSApiConsumerResetRequest").get("seq") or 0
            if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 2**63:
                raise invalid_json("json: cannot unmarshal seq into Go value of type uint64")
            sequence = found
        state = self._stream(subject)
        feed = self._readers.feed(state)
        shown = yield from shown_now(feed)
        config = reader.config
        if not sequence:
            sequence = reader.cursor.last_offset + 2
        elif config.policy == "by_start_sequence":
            if sequence < config.start_seq:
                raise refusal(10204, "invalid reset: below start seq")
        elif config.policy == "by_start_time":
            if sequence - 1 < (yield from start_of(state, config, shown)).offset:
                raise refusal(10204, "invalid reset: below start time")
        elif config.policy != "all":
            raise refusal(10204, "invalid reset: not allowed")
        start = Start(sequence - 1)
        pending = yield from pending_of(feed, config.filters, start, shown)
        if not self._readers.is_here(reader):
            raise consumer_not_found()
        reader.restart(start.offset)
        reader.told_pending = pending.messages
        self._readers.move(reader, start, pending, now)
        fields = yield from self._fields(reader)
        return json_answer(subject.operation, **fields, reset_seq=sequence)

    def _unpin(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        yield from ()
        group = (json_object(call.payload, "JSApiConsumerUnpinRequest") if call.payload.strip() else {}).get("group")
        if not isinstance(group, str) or not group:
            raise invalid_json(
                "consumer group not specified" if call.payload.strip() else "unexpected end of JSON input"
            )
        if _GROUP.fullmatch(group) is None:
            text = "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters"
            raise refusal(10162, text)
        self._reader(subject)
        raise refusal(10160, "Provided priority group does not exist for this consumer")

    # Pull

    def _next(self, call: ApiCall, subject: ApiSubject, now: Now) -> None:
        state = self._gateway.stream(subject.stream)
        reader = None if state is None else self._readers.find(state, subject.rest)
        if reader is None:
            block = f"NATS/1.0 503\r\nNats-Subject: {call.subject}\r\n\r\n".encode()
            self._gateway.answer(call, b"", block)  # as nats-server answers without a subscriber
            return
        if self._readers.deliveries.mistake(call.reply) is not None:
            return  # nats-server would close the leaf connection
        tell = self._readers.status
        if self._readers.comes_back(call.reply):
            tell(
                call.reply,
                status(400, "Bad Request - what is sent to this reply subject comes back to a stream or the API"),
            )
            return
        if reader.config.is_push:
            tell(call.reply, status(409, "Consumer is push based"))
            return
        try:
            pull, mistake = parsed_pull(call.payload, call.reply, now.elapsed_us)
        except BadPullError as error:
            tell(call.reply, status(400, f"Bad Request - {str(error)[:256]}"))
            return
        config = reader.config
        if 0 < config.batch_max < pull.batch:
            tell(call.reply, status(409, f"Exceeded MaxRequestBatch of {config.batch_max}"))
        elif pull.expires_us != UNLIMITED and 0 < config.expires_us_max < pull.expires_us - now.elapsed_us:
            tell(call.reply, status(409, f"Exceeded MaxRequestExpires of {go_duration(config.expires_us_max)}"))
        elif 0 < config.request_bytes_max < pull.bytes_left:
            tell(call.reply, status(409, f"Exceeded MaxRequestMaxBytes of {config.request_bytes_max}"))
        elif mistake:
            tell(call.reply, status(400, f"Bad Request - {mistake}"))
        elif pull.no_wait and pull.expires_us == UNLIMITED and self._readers.is_at_end(reader, now):
            tell(call.reply, status(404, "No Messages"))
        elif pull.no_wait and self._readers.is_promised(reader):
            tell(call.reply, status(408, "Requests Pending"))
        elif not self._readers.has_room(reader, now):
            if not pull.heartbeat_us:
                tell(call.reply, status(409, "Exceeded MaxWaiting"))
        else:
            self._readers.pull(reader, pull, now)

    # Inside

    def _stream(self, subject: ApiSubject) -> StreamState:
        state = self._gateway.stream(subject.stream)
        if state is None:
            raise stream_not_found()
        return state

    def _reader(self, subject: ApiSubject) -> Reader:
        reader = self._readers.find(self._stream(subject), subject.rest)
        if reader is None:
            raise consumer_not_found()
        return reader


def _read_of(state: StreamState, config: ReaderConfig) -> FetchRequest:
    """Return the request that a reader with this config needs the right to send."""
    return FetchRequest(stream_id=state.stream_id, offset=Offset(0), subjects=config.filters or None)
