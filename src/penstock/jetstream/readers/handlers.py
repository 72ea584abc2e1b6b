"""Requests about consumers: CREATE, INFO, NAMES, LIST, DELETE, MSG.NEXT, PAUSE, RESET, UNPIN.

Rules: they reach the leader of the stream, which holds its readers. Answers and refusals are nats-server's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any

import msgspec

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.consumers.state import CARRIED_NUMBER_MAX, POSITION_MAX, ConsumerState
from penstock.hot.deliveries import UNLIMITED
from penstock.jetstream.answers import json_answer
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.conversations import Answered, Asked, Conversation, done
from penstock.jetstream.errors import (
    consumer_refusal,
    invalid_json,
    not_empty,
    stream_not_found,
    too_many_rules,
    unavailable,
    unreadable,
)
from penstock.jetstream.gateway import Gateway, Handler, Talk
from penstock.jetstream.readers.ack_checks import BAD_GROUP, GROUP
from penstock.jetstream.readers.config import (
    ConsumerRequest,
    ReaderConfig,
    check_update,
    consumer_not_found,
    delivery_cycle,
    parsed_request,
    paused_until,
    reader_config,
    told_time,
)
from penstock.jetstream.readers.feed import Feed
from penstock.jetstream.readers.pulls import BadPullError, go_duration, parsed_pull, status
from penstock.jetstream.readers.reader import Reader, new_cursor
from penstock.jetstream.readers.shares import check_share
from penstock.jetstream.readers.starting import Start, pending_of, shown_now, start_of
from penstock.jetstream.readers.stored.led import SINCE_END, LedConsumer, ack_config, told_bytes
from penstock.jetstream.readers.stored.removals import Coming
from penstock.jetstream.readers.table import Readers
from penstock.jetstream.stream_config import consumer_limits, json_object
from penstock.jetstream.stream_state import NO_TIME, api_time, need_one_partition
from penstock.messages import ExportedConsumer, FetchRequest
from penstock.metadata.image import StreamState

NAMES_PER_ANSWER = 1_024  # as JetStream
INFOS_PER_ANSWER = 256  # as JetStream
EXPORTS_BYTES_MAX = 1 * limits.MIB
"""States in one answer: no consumer is added beyond it, each of which has CONSUMER_ROW_BYTES_MAX at most."""
OPENING_MAX = 64
"""Readers that are being created at once."""
LEAF_PATIENCE_US = 2_000_000
"""Patience of a consumer that is being created for the leaf connection; clients time out later."""
_Info = Generator[Asked, list[Answered], dict[str, Any]]


class Carried(msgspec.Struct):
    """Place of a restored consumer: `offset`, or that in `state` of an export, with what is in hand."""

    config: dict[str, Any]
    offset: int = 0
    deliveries: int = 0
    state: bytes = b""
    since: int = 0


class ConsumerApi:
    """Answers the requests."""

    def __init__(self, gateway: Gateway, readers: Readers, new_name: Callable[[], str]) -> None:
        """`new_name` returns a name for a consumer without one."""
        self._gateway = gateway
        self._readers = readers
        self._stored = readers.stored
        self._stored.next_pull = self._next_after_ack
        self._new_name = new_name
        self._opening = 0
        self._creating: set[tuple[int, str]] = set()  # streams and names of consumers

    def talks(self) -> Mapping[str, Talk]:
        """Return what answers in steps, by operation."""
        talks = {
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
        return {name: partial(self._when_known, talk) for name, talk in talks.items()}

    def own_talks(self) -> Mapping[str, Talk]:
        """Return what only the socket API asks for."""
        talks = {
            "CONSUMER.EXPORT": self._export,
            "CONSUMER.EXPORTS": self._exports,
            "CONSUMER.RESTORE": self._restore,
        }
        return {name: partial(self._when_known, talk) for name, talk in talks.items()}

    def handlers(self) -> Mapping[str, Handler]:
        def talking(talk: Talk) -> Handler:
            def handle(call: ApiCall, subject: ApiSubject, now: Now) -> None:
                self._gateway.converse(call, subject, now, talk(call, subject, now))

            return handle

        return {**{name: talking(talk) for name, talk in self.talks().items()}, "CONSUMER.MSG.NEXT": self._next}

    def _when_known(self, talk: Talk, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Begin once it is known which stored consumers the stream has."""
        state = self._gateway.stream(subject.stream)
        if state is not None and self._stored.leaderships.unknown(state) is not None:
            yield from done(partial(self._stored.leaderships.know, state))
        return (yield from talk(call, subject, now))

    # Create

    def _create(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        return (yield from self._made(parsed_request(call.payload, subject.stream), subject, now))

    def _made(
        self, request: ConsumerRequest, subject: ApiSubject, now: Now, carried: Carried | None = None
    ) -> Conversation:
        """Create or update a consumer; `carried`: where a new one goes on."""
        given = dict(request.config)
        name, _, filtered = subject.rest.partition(".")
        is_durable = subject.operation == "CONSUMER.DURABLE.CREATE"
        if set(name) & set("\\/"):
            raise consumer_refusal(10127, "Consumer name can not contain path separators")
        durable = given.get("durable_name") or ""
        if is_durable and not durable:
            raise consumer_refusal(10018, "consumer expected to be durable but a durable name was not set")
        if (is_durable or (name and durable)) and name != durable:
            raise consumer_refusal(10017, "consumer name in subject does not match durable name in request")
        if not name and durable:
            raise consumer_refusal(10020, "consumer expected to be ephemeral but a durable name was set in request")
        if name:
            given["name"] = name
        if filtered and given.get("filter_subjects"):
            raise consumer_refusal(10137, "consumer with multiple subject filters cannot use subject based API")
        if filtered and given.get("filter_subject", "") != filtered:
            raise consumer_refusal(10131, "Consumer create request did not match filtered subject from create subject")
        state = self._stream(subject)
        need_one_partition(self._gateway, state)
        place = state.stream_id, given.get("name") or ""
        if self._is_changing(place):
            yield from done(partial(self._when_settled, place))
        if not self._readers.deliveries.is_up:
            yield from done(partial(self._when_delivering, now.elapsed_us + LEAF_PATIENCE_US))
        given = {field: value for field, value in given.items() if value is not None}
        existing = self._readers.find(state, given.get("name") or "")
        if existing is not None:
            given["pause_until"] = existing.config.told.get("pause_until", "")
        config = self._readable(state, reader_config(state, given, pedantic=request.is_pedantic))
        if config.dead_letters and (existing is None or existing.config.dead_letters != config.dead_letters):
            self._stored.dead_letters.check_target(state, config.dead_letters)
        self._readers.removals.check_new(state, config, place[1], self._readers.of(state))
        if existing is not None:
            yield from self._update(state, existing, config, request, now)
            reader = existing
        elif request.action == "update":
            raise consumer_refusal(10149, "consumer does not exist")
        else:
            self._creating.add(place)
            try:
                reader = yield from self._open(state, config, place[1], carried)
            finally:
                self._creating.discard(place)
        return json_answer(subject.operation, **(yield from self._fields(reader)))

    def _is_changing(self, place: tuple[int, str]) -> bool:
        """True if a consumer with this name is being created or deleted."""
        feed = self._readers.feed_of_id(place[0])
        reader = None if feed is None else feed.readers.get(place[1])
        is_ending = reader is not None and reader.led is not None and reader.led.is_deleted
        return bool(place[1]) and (place in self._creating or is_ending)

    def _when_settled(self, place: tuple[int, str], told: Callable[[RemoteError | None], None]) -> None:
        """Go on once no consumer with this name is being created or deleted: clients may ask for it at once."""
        if self._is_changing(place):
            raise RemoteError(ErrorCode.NOT_YET, "a consumer with this name is being created or deleted")
        told(None)

    def _when_delivering(self, until_us: int, told: Callable[[RemoteError | None], None]) -> None:
        """Go on once there is a leaf connection, which a broker that has just started lacks for a moment; also
        without one when that has taken too long.
        """
        if not self._readers.deliveries.is_up and self._gateway.node.now.elapsed_us < until_us:
            raise RemoteError(ErrorCode.NOT_YET, "the leaf connection to nats-server is not there yet")
        told(None)

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
        self, state: StreamState, config: ReaderConfig, name: str, carried: Carried | None
    ) -> Generator[Asked, list[Answered], Reader]:
        readers = self._readers
        if not readers.deliveries.is_up:
            raise unavailable("messages cannot be delivered: the broker has no leaf connection to nats-server")
        if config.is_push:
            self._check_inbox(config.deliver_subject)
        check_share(self._gateway.node.image, state.stream_id, readers.feeds(), readers.total + self._opening)
        if self._opening >= OPENING_MAX:
            raise unavailable("too many consumers are being created; ask again in a moment")
        if config.is_stored:
            yield from self._obtain_log(state)
        feed = readers.feed(state)
        coming = self._expect(state, feed, config, name)
        try:
            return (yield from self._open_expected(state, feed, config, name, coming, carried))
        finally:
            readers.removals.arrived(coming)

    def _expect(self, state: StreamState, feed: Feed, config: ReaderConfig, name: str) -> Coming | None:
        """Have a stream whose messages go with acks keep them for a consumer that is being created. Raise ApiError."""
        removals = self._readers.removals
        now_state = self._gateway.stream_of(state.stream_id) or state
        removals.check_new(now_state, config, name, self._readers.of(state))
        return removals.expect(now_state, feed, config, name)

    def _open_expected(
        self,
        state: StreamState,
        feed: Feed,
        config: ReaderConfig,
        name: str,
        coming: Coming | None,
        carried: Carried | None,
    ) -> Generator[Asked, list[Answered], Reader]:
        """Create a consumer that is expected."""
        readers = self._readers
        self._opening += 1
        feed.opening += 1
        try:
            if coming is not None:
                yield from done(partial(readers.removals.when_removed, state.stream_id))
            shown = yield from shown_now(feed)
            made = self._carried_state(config, name, carried, shown.end) if carried else None
            start = Start(made.table.next_offset) if made else (yield from start_of(state, config, shown))
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
            raise consumer_refusal(10026, "maximum consumers limit reached")
        feed.check_room(config.filters)
        readers.check_room(start)  # others may have begun meanwhile
        if not name:
            name = self._new_name()
        elif name in feed.readers:
            raise consumer_refusal(10013, "consumer name already in use")
        if config.is_stored:
            since = carried.since if carried else 0
            made_now = made or self._new_state(config, name, start.offset)
            reader = yield from self._store(state, feed, config, name, made_now, since)
            reader.cursor.want(start.wanted, start.resume)
            reader.told_pending = pending.messages
            readers.begin(feed, reader, pending, self._gateway.node.now)
            if made is not None and reader.led is not None:
                self._stored.expire(reader, reader.led, self._gateway.node.now, is_new=True)
            return reader
        now = self._gateway.node.now
        cursor = new_cursor(feed.filter_of(config.filters), state.name, name, start.offset)
        cursor.want(start.wanted, start.resume)
        reader = Reader(
            state.stream_id, name, config, cursor, readers.leaf, created_us=now.wall_us, now_us=now.elapsed_us
        )
        reader.told_pending = pending.messages
        readers.add(feed, reader, pending, now)
        return reader

    def _obtain_log(self, state: StreamState) -> Generator[Asked, list[Answered], None]:
        """Have a log of consumers beside the stream. Raise RemoteError."""
        leaderships = self._stored.leaderships
        if leaderships.of(state.stream_id) is None:
            yield from done(partial(leaderships.add_log, state))
            yield from done(partial(leaderships.obtain, state))

    def _new_state(self, config: ReaderConfig, name: str, offset: int, *, since: int = 0) -> ConsumerState:
        leaderships, now = self._stored.leaderships, self._gateway.node.now
        return leaderships.new_state(name, self._new_name(), config, offset, now, since=since)

    def _carried_state(self, config: ReaderConfig, name: str, carried: Carried, log_end: int) -> ConsumerState:
        """Return the state of a consumer that goes on where another one was. Raise RemoteError."""
        if not config.is_stored:
            raise RemoteError(ErrorCode.BAD_REQUEST, f"consumer {name!r} has no acks and is not durable")
        if carried.state:
            now = self._gateway.node.now
            leaderships = self._stored.leaderships
            drawn, since = self._new_name(), carried.since
            return leaderships.carried_state(name, drawn, config, carried.state, log_end, now, since=since)
        if carried.deliveries > CARRIED_NUMBER_MAX:
            raise RemoteError(ErrorCode.BAD_REQUEST, f"deliveries: {carried.deliveries} is above {CARRIED_NUMBER_MAX}")
        made = self._new_state(config, name, min(carried.offset, log_end), since=carried.since)
        made.table.delivered = carried.deliveries
        return made

    def _store(
        self, state: StreamState, feed: Feed, config: ReaderConfig, name: str, made: ConsumerState, since: int
    ) -> Generator[Asked, list[Answered], Reader]:
        """Store a new consumer. Raise RemoteError, ApiError."""
        leaderships = self._stored.leaderships
        one = leaderships.of(state.stream_id)
        if one is None or not self._readers.has_feed(feed):
            raise RemoteError(ErrorCode.NOT_LEADER, "the stream is led by another broker")
        created_us = self._gateway.node.now.wall_us
        found: list[Reader] = []

        def store(told: Callable[[RemoteError | None], None]) -> None:
            one.writes.log.append(made.first_rows(), partial(stored, told))

        def stored(told: Callable[[RemoteError | None], None], error: RemoteError | None) -> None:
            """Its rows are committed: it is there, whether its client still waits for that or not."""
            feed.opening -= 1
            if error is None and leaderships.of(state.stream_id) is one and self._readers.has_feed(feed):
                if name in feed.readers:  # one without acks has come meanwhile
                    self._readers.remove([feed.readers[name]])
                now = self._gateway.node.now
                found.append(leaderships.add_reader(one, feed, name, config, made, created_us, now, since=since))
                self._stored.advisories.acted(feed.name, name, "create")
            told(error)

        feed.opening += 1
        yield from done(store)
        if not found:
            raise RemoteError(ErrorCode.NOT_LEADER, "the stream is led by another broker")
        return found[0]

    # Carry to another stream

    def _export(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Return a stored consumer as it is now, with what is in hand."""
        yield from ()
        reader = self._reader(subject)
        if (led := reader.led) is None or led.is_deleted:
            text = f"consumer {reader.name!r} has no acks and is not durable: nothing of it is kept"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)
        return msgspec.json.encode(self._exported(reader, led, now))

    def _exports(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Return a page of the consumers behind a name; of those of which nothing is kept, name and config."""
        yield from ()
        readers = self._readers.of(self._stream(subject))
        begin = bisect_right(readers, subject.rest, key=lambda one: one.name)
        found: list[ExportedConsumer] = []
        size, end = 0, begin
        while end < len(readers) and end < begin + INFOS_PER_ANSWER and size < EXPORTS_BYTES_MAX:
            reader, end = readers[end], end + 1
            if (led := reader.led) is None:
                found.append(ExportedConsumer(name=reader.name, config=reader.config.told, next_offset=Offset(0)))
            elif not led.is_deleted:
                found.append(exported := self._exported(reader, led, now))
                size += len(exported.state)
        after = readers[end - 1].name if end < len(readers) else None
        return msgspec.json.encode({"exports": found, "after_next": after})

    def _exported(self, reader: Reader, led: LedConsumer, now: Now) -> ExportedConsumer:
        self._stored.step_over(reader, led, now)
        table = led.state.table
        return ExportedConsumer(
            name=reader.name,
            config=reader.config.told,
            next_offset=Offset(table.next_offset),
            deliveries=table.delivered,
            ack_pending=table.ack_pending,
            since=Offset(min(led.since, table.next_offset)),
            state=led.state.export(),
        )

    def _restore(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Create a consumer that goes on where another one was, unless it exists."""
        carried = msgspec.json.decode(call.payload, type=Carried)
        config = {"inactive_threshold": 0, **carried.config}  # told if it is none: an existing one is compared with it
        body = {"stream_name": subject.stream, "config": config, "action": "create"}
        request = parsed_request(msgspec.json.encode(body), subject.stream)
        return (yield from self._made(request, subject, now, carried))

    def _check_inbox(self, subject: str) -> None:
        """Raise ApiError if nothing may be delivered there, or it would come back."""
        if (mistake := self._readers.deliveries.mistake(subject.encode())) is not None:
            raise consumer_refusal(10112, f"invalid push consumer deliver subject: {mistake}")
        if self._readers.comes_back(subject.encode()):
            raise delivery_cycle()

    def _update(
        self, state: StreamState, reader: Reader, config: ReaderConfig, request: ConsumerRequest, now: Now
    ) -> Generator[Asked, list[Answered], None]:
        has_all = bool(config.told.get("durable_name")) or "inactive_threshold" in request.config  # others: a default
        is_same = config == reader.config and has_all
        if request.action == "create" and not is_same:
            raise consumer_refusal(10148, "consumer already exists")
        check_update(reader.config, config)
        if reader.led is None and config.is_stored:
            raise consumer_refusal(10012, "priority policy can not be updated", 500)
        if config.is_push and config.deliver_subject != reader.config.deliver_subject:
            self._check_inbox(config.deliver_subject)
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
            "config": reader.config.told_as(),
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
        if not call.is_empty:
            raise not_empty()
        reader = self._reader(subject)
        led = reader.led
        while led is not None and led.is_deleted and self._readers.is_here(reader):  # until that is committed, or not
            yield from done(partial(self._when_settled, (reader.stream_id, reader.name)))
        if led is not None and self._readers.is_here(reader):
            yield from done(partial(self._stored.delete, [reader]))
        elif led is not None and not led.writes.log.is_current:
            self._check_here(reader)  # the deletion may not be stored
        if self._readers.is_here(reader):
            self._readers.remove([reader])
        if led is not None:
            yield from done(partial(self._readers.removals.when_removed, reader.stream_id))
        return json_answer(subject.operation, success=True)

    def _pause(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        until = ""
        if call.payload.strip()[:1] == b"{":
            found = json_object(call.payload, "JSApiConsumerPauseRequest").get("pause_until") or ""
            if not isinstance(found, str):
                raise invalid_json("json: cannot unmarshal pause_until into Go value of type time.Time")
            until = found
        reader = self._reader(subject)
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

    def _reset(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        reader = self._reader(subject)
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
        fields = yield from self._fields(reader)
        return json_answer(subject.operation, **fields, reset_seq=sequence)

    def _unpin(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        yield from ()
        group = (json_object(call.payload, "JSApiConsumerUnpinRequest") if call.payload.strip() else {}).get("group")
        if not isinstance(group, str) or not group:
            raise invalid_json(
                "consumer group not specified" if call.payload.strip() else "unexpected end of JSON input"
            )
        if GROUP.fullmatch(group) is None:
            raise consumer_refusal(10162, BAD_GROUP)
        reader = self._reader(subject)
        priorities = None if reader.led is None else reader.led.priorities
        if priorities is None or group not in reader.config.priority_groups:
            raise consumer_refusal(10160, "Provided priority group does not exist for this consumer")
        if priorities.unpin():
            self._stored.advisories.unpinned(subject.stream, reader.name, group, "admin")
        self._readers.serve_again(reader, now)
        return json_answer(subject.operation)

    # Pull

    def _next(self, call: ApiCall, subject: ApiSubject, now: Now) -> None:
        reader = self._asked_reader(call, subject)
        if reader is None or self._holds(reader, call, partial(self._next_held, call, subject, now.elapsed_us)):
            return
        self._pull(reader, call.reply, call.payload, now, now.elapsed_us)

    def _next_held(self, call: ApiCall, subject: ApiSubject, asked_us: int, now: Now) -> None:
        """Take a request that was held; much may have changed meanwhile."""
        if (reader := self._asked_reader(call, subject)) is not None:
            self._pull(reader, call.reply, call.payload, now, asked_us)

    def _holds(self, reader: Reader, call: ApiCall, serve: Callable[[Now], None]) -> bool:
        """Hold a request whose inbox is not known yet, and each of a stored consumer: what is sent to who has just
        gone comes again after `ack_wait` only. Clients of others begin anew at once if they miss something.
        """
        if reader.led is None and self._readers.deliveries.has_interest(call.reply) is not False:
            return False
        return self._readers.held.hold(call.payload, serve)

    def _asked_reader(self, call: ApiCall, subject: ApiSubject) -> Reader | None:
        """Return the reader that a request asks; None: it is answered, or waits."""
        state = self._gateway.stream(subject.stream)
        reader = None if state is None else self._readers.find(state, subject.rest)
        if reader is None and state is not None and self._waits_to_be_known(state, call):
            return None
        if reader is None:
            block = f"NATS/1.0 503\r\nNats-Subject: {call.subject}\r\n\r\n".encode()
            self._gateway.answer(call, b"", block)  # as nats-server answers without a subscriber
        return reader

    def _waits_to_be_known(self, state: StreamState, call: ApiCall) -> bool:
        """True if a request waits until it is known which stored consumers there are: its client would take the
        answer that there is none for the end of the consumer.
        """
        error = self._stored.leaderships.unknown(state)
        if error is None or error.code != ErrorCode.NOT_YET:
            return False
        self._stored.leaderships.wait(call)
        return True

    def _next_after_ack(self, reader: Reader, reply: bytes, payload: bytes) -> None:
        """Take the pull request that came with an ack (+NXT)."""
        now = self._gateway.node.now
        if not self._readers.held.hold(payload, partial(self._after_ack_held, reader, reply, payload, now.elapsed_us)):
            self._pull(reader, reply, payload, now, now.elapsed_us)

    def _after_ack_held(self, reader: Reader, reply: bytes, payload: bytes, asked_us: int, now: Now) -> None:
        if self._readers.is_here(reader):
            self._pull(reader, reply, payload, now, asked_us)

    def _pull(self, reader: Reader, reply: bytes, payload: bytes, now: Now, asked_us: int) -> None:
        """Take a pull request that came at `asked_us`."""
        if self._readers.deliveries.mistake(reply) is not None:
            return  # nats-server would close the leaf connection
        tell = self._readers.status
        if self._readers.comes_back(reply):
            tell(
                reply,
                status(400, "Bad Request - what is sent to this reply subject comes back to a stream or the API"),
            )
            return
        if reader.config.is_push:
            tell(reply, status(409, "Consumer is push based"))
            return
        try:
            pull, priority = parsed_pull(payload, reply, asked_us)
        except BadPullError as error:
            tell(reply, status(400, f"Bad Request - {str(error)[:256]}"))
            return
        config = reader.config
        priorities = None if reader.led is None else reader.led.priorities
        mistake = priority.mistake(config.priority)
        if 0 < config.batch_max < pull.batch:
            tell(reply, status(409, f"Exceeded MaxRequestBatch of {config.batch_max}"))
        elif pull.expires_us != UNLIMITED and 0 < config.expires_us_max < pull.expires_us - asked_us:
            tell(reply, status(409, f"Exceeded MaxRequestExpires of {go_duration(config.expires_us_max)}"))
        elif 0 < config.request_bytes_max < pull.bytes_left:
            tell(reply, status(409, f"Exceeded MaxRequestMaxBytes of {config.request_bytes_max}"))
        elif mistake:
            tell(reply, status(400, f"Bad Request - {mistake}"))
        elif priorities is not None and (block := priorities.refusal(priority, now.elapsed_us)):
            tell(reply, block)
        elif pull.no_wait and pull.expires_us == UNLIMITED and self._readers.is_at_end(reader, now):
            tell(reply, status(404, "No Messages"))
        elif pull.no_wait and self._readers.is_promised(reader):
            tell(reply, status(408, "Requests Pending"))
        elif not self._readers.has_room(reader, now):
            if not pull.heartbeat_us:
                tell(reply, status(409, "Exceeded MaxWaiting"))
        else:
            if priorities is not None:
                priorities.ask(pull, priority, reader.pulls)
            self._readers.pull(reader, pull, now)

    # Inside

    def _stream(self, subject: ApiSubject) -> StreamState:
        state = self._gateway.stream(subject.stream)
        if state is None:
            raise stream_not_found()
        return state

    def _reader(self, subject: ApiSubject) -> Reader:
        state = self._stream(subject)
        reader = self._readers.find(state, subject.rest)
        if reader is None:
            if (why := self._stored.leaderships.unknown(state)) is not None:
                raise why  # it may be there
            raise consumer_not_found()
        return reader

    def _check_here(self, reader: Reader) -> None:
        """Raise ApiError if a consumer is deleted; RemoteError if the next leader has it."""
        if self._readers.is_here(reader):
            return
        if reader.led is not None and not reader.led.writes.log.is_current:
            text = f"the leadership of the stream has ended; consumer {reader.name!r} may be changed or not"
            raise RemoteError(ErrorCode.NOT_LEADER, text)
        raise consumer_not_found()


def _read_of(state: StreamState, config: ReaderConfig) -> FetchRequest:
    """Return the request that a reader with this config needs the right to send."""
    return FetchRequest(stream_id=state.stream_id, offset=Offset(0), subjects=config.filters or None)
