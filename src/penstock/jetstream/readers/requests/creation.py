"""Creation of consumers: CREATE and DURABLE.CREATE.

Rules: a request for a consumer that exists is a change of it. What waits (for the log of consumers, for what the stream
shows, for the first rows of a stored consumer) comes before the consumer is added; what may have changed meanwhile is
checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import msgspec

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.consumers.state import CARRIED_NUMBER_MAX, ConsumerState
from penstock.jetstream.answers import json_answer
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.conversations import Answered, Asked, Conversation, done
from penstock.jetstream.errors import consumer_refusal, too_many_rules, unavailable, unreadable
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.config.parsing import ConsumerRequest, parsed_request
from penstock.jetstream.readers.config.reader_config import ReaderConfig, reader_config
from penstock.jetstream.readers.feed import Feed
from penstock.jetstream.readers.reader import Reader, new_cursor
from penstock.jetstream.readers.requests.changes import ConsumerChanges
from penstock.jetstream.readers.requests.infos import ConsumerInfos
from penstock.jetstream.readers.requests.targets import RequestTargets
from penstock.jetstream.readers.shares import check_share
from penstock.jetstream.readers.starting import Start, pending_of, shown_now, start_of
from penstock.jetstream.readers.stored.removals import Coming
from penstock.jetstream.readers.table import Readers
from penstock.jetstream.stream_config import consumer_limits
from penstock.jetstream.stream_state import need_one_partition
from penstock.messages import FetchRequest
from penstock.metadata.image import StreamState

OPENING_MAX = 64
"""Readers that are being created at once."""
LEAF_PATIENCE_US = 2_000_000
"""Patience of a consumer that is being created for the leaf connection; clients time out later."""


class Carried(msgspec.Struct):
    """Place of a restored consumer: `offset`, or that in `state` of an export, with what is in hand."""

    config: dict[str, Any]
    offset: int = 0
    deliveries: int = 0
    state: bytes = b""
    since: int = 0


class ConsumerCreation:
    """Creates consumers."""

    def __init__(
        self,
        gateway: Gateway,
        readers: Readers,
        targets: RequestTargets,
        changes: ConsumerChanges,
        infos: ConsumerInfos,
        new_name: Callable[[], str],
    ) -> None:
        """`new_name` returns a name for a consumer without one."""
        self._gateway = gateway
        self._readers = readers
        self._stored = readers.stored
        self._targets = targets
        self._changes = changes
        self._infos = infos
        self._unsettled = targets.unsettled
        self._new_name = new_name
        self._opening = 0

    def create(self, call: ApiCall, subject: ApiSubject, now: Now) -> Conversation:
        """Answer CONSUMER.CREATE and CONSUMER.DURABLE.CREATE."""
        return (yield from self.create_or_update(parsed_request(call.payload, subject.stream), subject, now))

    def create_or_update(
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
        state = self._targets.stream(subject)
        need_one_partition(self._gateway, state)
        place = state.stream_id, given.get("name") or ""
        if not self._readers.deliveries.is_up:
            yield from done(partial(self._when_delivering, now.elapsed_us + LEAF_PATIENCE_US))
        while self._unsettled.is_changing(place):  # of several that waited the first one has begun by now
            yield from done(partial(self._unsettled.when_settled, place))
        given = {field: value for field, value in given.items() if value is not None}
        existing = self._readers.find(state, given.get("name") or "")
        if existing is not None:
            given["pause_until"] = existing.config.told.get("pause_until", "")
        config = self._readable(state, reader_config(state, given, pedantic=request.is_pedantic))
        if config.dead_letters and (existing is None or existing.config.dead_letters != config.dead_letters):
            self._stored.dead_letters.check_target(state, config.dead_letters)
        self._readers.removals.check_new(state, config, place[1], self._readers.by_name(state))
        if existing is not None:
            yield from self._changes.update(state, existing, config, request, now)
            reader = existing
        elif request.action == "update":
            raise consumer_refusal(10149, "consumer does not exist")
        else:
            self._unsettled.creating.add(place)
            try:
                reader = yield from self._open(state, config, place[1], carried)
            finally:
                self._unsettled.creating.discard(place)
        return json_answer(subject.operation, **(yield from self._infos.fields(reader)))

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
            self._targets.check_inbox(config.deliver_subject)
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
        removals.check_new(now_state, config, name, self._readers.by_name(state))
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


def _read_of(state: StreamState, config: ReaderConfig) -> FetchRequest:
    """Return the request that a reader with this config needs the right to send."""
    return FetchRequest(stream_id=state.stream_id, offset=Offset(0), subjects=config.filters or None)
