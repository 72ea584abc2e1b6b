"""Removals by acks, in the streams with retention `workqueue` or `interest` that this broker leads.

Rules: `Interest` says which rows no consumer needs, the node hides them (`consume`). The rows of an ack and the mark
that hides its message are written at the same time; a confirmed ack is answered once both are committed (ADR 112). A
leader begins once it knows the consumers: then it looks for what was acked under an earlier one and is still shown. A
consumer that is being created counts from before its first place is looked for, and one that is being deleted until
its deletion is committed.

    acked ─▶ Interest ─▶ rows to hide ─▶ node.consume ─▶ hidden: the answers to acks go out
                ▲                              └─ refused: given back, tried again
       asks: subjects of the log, in a disk thread
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.config import RetentionPolicy
from penstock.base.errors import ErrorCode, PenstockError, RemoteError
from penstock.base.ids import Offset, PartitionKey, StreamId
from penstock.batch import projecting
from penstock.consumers.interest import Ask, Interest, gaps, workqueue_refusal
from penstock.jetstream.errors import consumer_refusal
from penstock.jetstream.partition_streams import real_ids
from penstock.jetstream.readers.chunks import read_payload
from penstock.jetstream.readers.reader import Place, Reader
from penstock.jetstream.readers.stored.named_positions import NamedClaim, NamedPositions
from penstock.live.row_set import RowSet
from penstock.messages import FetchRequest, FetchResponse, Response
from penstock.node.quorum.metadata_forwarding import THE_BROKER
from penstock.node.step import Lane, Payload

if TYPE_CHECKING:
    from penstock.jetstream.gateway import Gateway
    from penstock.jetstream.readers.config.reader_config import ReaderConfig
    from penstock.jetstream.readers.feed import Feed
    from penstock.metadata.image import StreamState

LOOK_US = 250_000
"""Time between two looks for messages that consumers have passed; an ack is looked after at once."""
NAMED_US = 1_000_000
"""Time between two looks at the positions of groups and archives that count as consumers."""
ASK_US = 10_000_000
"""Time between two questions about the subjects of what consumers with filters have not passed yet."""
RETRY_US = 500_000
UNANSWERED_MAX = 10_000
"""Acks of one stream whose answers wait until messages can be removed again."""
_ASK_BYTES = 256 * limits.KIB

_Done = Callable[[RemoteError | None], None]


class _ReaderClaim:
    """Claim of one consumer, as its state says."""

    __slots__ = ("_feed", "_reader")

    def __init__(self, feed: Feed, reader: Reader) -> None:
        self._feed, self._reader = feed, reader

    @property
    def next_offset(self) -> int:
        reader = self._reader
        if reader.led is None and reader.place is Place.FOLLOWING:
            return self._feed.tail_end  # it has all
        return reader.cursor.next_offset

    def holds(self, offset: int) -> bool:
        led = self._reader.led
        return led is not None and led.state.table.holds(offset)

    def held(self, begin: int, end: int) -> Sequence[int]:
        led = self._reader.led
        return () if led is None else led.state.table.offsets_between(begin, end)


class _ComingClaim:
    """A consumer that is being created needs all, as its first place is not known yet."""

    next_offset = 0

    def holds(self, offset: int) -> bool:
        return False

    def held(self, begin: int, end: int) -> Sequence[int]:
        return ()


class Coming:
    """A consumer that is being created."""

    __slots__ = ("filters", "key", "name", "stream_id", "told")

    def __init__(self, stream_id: int, name: str, config: ReaderConfig, key: str) -> None:
        self.stream_id, self.name, self.key = stream_id, name, key
        self.filters, self.told = config.filters, config.told_filters


class _Stream:
    """One stream in one leadership."""

    def __init__(self, gateway: Gateway, state: StreamState, log_start: int) -> None:
        partition_id = real_ids(state.stream_id)
        self.stream_id = state.stream_id
        self.key = PartitionKey(*partition_id)
        self.epoch = state.partitions[0].leader_epoch
        self.policy = state.config.retention_policy
        self.interest = Interest(self.policy, log_start)
        self.keys: dict[Reader, str] = {}
        self.named = NamedPositions(gateway, self.key)
        self.named_us = 0
        self.told: tuple[str, ...] | None = None
        self.look_us = 0
        self.ask_us = 0
        self.is_asking = False
        self.retry_us: int | None = None
        self.failed: RemoteError | None = None  # why the last removal was refused
        self.unanswered: list[Callable[[], None]] = []


class Removals:
    """All such streams that this broker leads."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._streams: dict[int, _Stream] = {}
        self._coming: dict[str, Coming] = {}
        self._numbers = count(1)
        self._image: object = None
        self._owed: set[StreamId] = set()  # led here by the image, with named consumers only, and not begun yet

    # Streams

    def begin(self, state: StreamState, feed: Feed | None) -> None:
        """The consumers of a stream are known here, under the present leadership: those of `feed`; None: there are
        none. May be called again.
        """
        now_state = self._gateway.stream_of(StreamId(state.stream_id)) or state
        shown = self._gateway.shown(StreamId(state.stream_id))
        one = self._streams.get(state.stream_id)
        if not now_state.config.is_consumed or shown is None:
            self.end(state.stream_id)
            return
        is_same = one is not None and one.epoch == now_state.partitions[0].leader_epoch
        if one is not None and is_same and one.policy is now_state.config.retention_policy:
            return
        self.end(state.stream_id)
        one = self._streams[state.stream_id] = _Stream(self._gateway, now_state, shown.log_start)
        self._name(one, now_state)
        for reader in [] if feed is None else feed.readers.values():
            self._join(one, feed, reader)
        self._tell(one)

    def end(self, stream_id: int) -> None:
        """A stream is led here no more, or has another retention: the next leader goes on."""
        one = self._streams.pop(stream_id, None)
        for reader in () if one is None else one.keys:
            if reader.led is not None:
                reader.led.state.table.takes_settled = False

    def forget(self, feed: Feed) -> None:
        """A stream has no readers here any more; one with a log of consumers ends with its leadership."""
        state = self._gateway.stream_of(StreamId(feed.stream_id))
        if state is None or not (state.has_consumers or state.config.named_consumers):
            self.end(feed.stream_id)

    def follow_image(self, known: Callable[[], Sequence[tuple[int, Feed | None]]]) -> None:
        """Begin and end what another image of the metadata says; `known`: streams whose consumers are, see `begin`."""
        if self._image is not self._gateway.node.image:
            self._follow(known())
        for stream_id in [one for one in self._owed if self._gateway.shown(one) is not None]:
            self._owed.discard(stream_id)
            if (state := self._gateway.stream_of(stream_id)) is not None:
                self.begin(state, None)

    def _follow(self, known: Sequence[tuple[int, Feed | None]]) -> None:
        self._image = image = self._gateway.node.image
        for one in list(self._streams.values()):
            state = self._gateway.stream_of(StreamId(one.stream_id))
            if state is None or not state.config.is_consumed or state.partitions[0].leader_epoch != one.epoch:
                self.end(one.stream_id)
            else:
                self._name(one, state)
        for stream_id, feed in known:
            state = self._gateway.stream_of(StreamId(stream_id))
            if state is not None and state.config.is_consumed:
                self.begin(state, feed)
        named = [image.streams[stream_id] for stream_id in image.naming]
        mine = [one for one in named if one.partitions[0].leader == self._gateway.node.broker_id]
        self._owed = {one.stream_id for one in mine if not one.has_consumers}

    # Groups and archives

    def _name(self, one: _Stream, state: StreamState) -> None:
        """Have the groups and archives count that the stream names. One that it names no more takes nothing with it."""
        names, claims = state.config.named_consumers, one.named.claims
        for name in [name for name in claims if name not in names]:
            del claims[name]
            one.interest.abandon(name)
        for name in names:
            if name not in claims:
                claims[name] = NamedClaim()
                one.interest.join(name, (), claims[name])
                one.named_us = 0
        self._tell(one)

    # Consumers

    def check_new(self, state: StreamState, config: ReaderConfig, name: str, readers: Mapping[str, Reader]) -> None:
        """Raise ApiError if the stream cannot have such a consumer beside `readers`, and those being created."""
        if state.config.retention_policy is not RetentionPolicy.WORKQUEUE:
            return
        others = {other: one.config.told_filters for other, one in readers.items()}
        others |= {one.key: one.told for one in self._coming.values() if one.stream_id == state.stream_id}
        refusal = workqueue_refusal(
            others,
            name,
            config.told_filters,
            ack_policy=config.acks,
            deliver_policy=config.policy,
            is_pull=not config.is_push,
            exists=name in readers,
        )
        if refusal is not None:
            raise consumer_refusal(refusal.err_code, refusal.description)

    def expect(self, state: StreamState, feed: Feed, config: ReaderConfig, name: str) -> Coming | None:
        """Have a consumer count that is being created, until `arrived`; None: acks remove nothing from the stream."""
        if not state.config.is_consumed:
            return None
        self.begin(state, feed)
        if (one := self._streams.get(state.stream_id)) is None:
            return None
        coming = Coming(state.stream_id, name, config, f"new {next(self._numbers)}")
        self._coming[coming.key] = coming
        one.interest.join(coming.key, coming.filters, _ComingClaim())
        self._tell(one)
        return coming

    def arrived(self, coming: Coming | None) -> None:
        """A consumer has been created, and counts by its state; or it will not be."""
        if coming is None:
            return
        self._coming.pop(coming.key, None)
        if (one := self._streams.get(coming.stream_id)) is not None:
            one.interest.abandon(coming.key)
            self._tell(one)
            self._remove(one, is_awaited=False)

    def added(self, feed: Feed, reader: Reader) -> None:
        """A consumer counts from now on."""
        if (one := self._streams.get(feed.stream_id)) is not None:
            self._join(one, feed, reader)
            self._tell(one)

    def filters_changed(self, feed: Feed, reader: Reader) -> None:
        """A consumer wants other messages now, from its position on."""
        one = self._streams.get(feed.stream_id)
        if one is not None and reader in one.keys:
            self._join(one, feed, reader)
            self._tell(one)

    def gone(self, reader: Reader) -> None:
        """A consumer is deleted for good."""
        one = self._streams.get(reader.stream_id)
        key = None if one is None else one.keys.pop(reader, None)
        if one is None or key is None:
            return
        if reader.led is not None:
            reader.led.state.table.takes_settled = False
        one.interest.leave(key)
        self._tell(one)
        self._remove(one, is_awaited=True)

    def _join(self, one: _Stream, feed: Feed | None, reader: Reader) -> None:
        assert feed is not None
        key = one.keys.setdefault(reader, f"{reader.name} {next(self._numbers)}")
        since = 0
        if reader.led is not None:
            reader.led.state.table.takes_settled = True
            since = reader.led.since
        one.interest.join(key, reader.config.filters, _ReaderClaim(feed, reader), since)

    def _tell(self, one: _Stream) -> None:
        """Tell the node what consumers want, if that has changed."""
        if one.policy is not RetentionPolicy.INTEREST or one.told == (filters := one.interest.filters):
            return
        one.told = filters
        try:
            self._gateway.node.tell_interest(one.key, filters)
        except RemoteError:
            one.told = None  # it is led elsewhere by now

    # Acks

    def settled(self, reader: Reader, *, is_awaited: bool) -> None:
        """Acks of a consumer were applied."""
        one = self._streams.get(reader.stream_id)
        if reader.led is None or one is None or (key := one.keys.get(reader)) is None:
            return
        runs = reader.led.state.table.take_settled()
        if runs:
            one.interest.settled(key, [offset for begin, end in runs for offset in range(begin, end)])
            self._remove(one, is_awaited=is_awaited)

    def settled_before(self, reader: Reader, offset: int) -> None:
        """An ack of a delivery came whose message is not in hand any more: an earlier leader may have had the ack."""
        one = self._streams.get(reader.stream_id)
        if one is not None and (key := one.keys.get(reader)) is not None:
            if not one.interest.settled_before(key, offset):
                one.ask_us = 0  # its subject decides
            self._remove(one, is_awaited=True)

    def then(self, stream_id: int, do: Callable[[], None]) -> None:
        """Do something once all that was settled is hidden; never, if this leadership ends before."""
        one = self._streams.get(stream_id)
        if one is None:
            do()
        elif one.failed is not None and not _removes_nothing(one.failed):
            if len(one.unanswered) < UNANSWERED_MAX:
                one.unanswered.append(do)
        else:
            self._when_hidden(one, partial(self._hidden_or_not, one, do))

    def when_removed(self, stream_id: int, told: _Done) -> None:
        """Call `told` once all that was settled is hidden, or could not be."""
        if (one := self._streams.get(stream_id)) is None:
            told(None)
        else:
            self._when_hidden(one, told)

    def _when_hidden(self, one: _Stream, told: _Done) -> None:
        try:
            self._gateway.node.when_consumed(one.key, told)
        except RemoteError as error:
            told(error)

    def _hidden_or_not(self, one: _Stream, do: Callable[[], None], error: RemoteError | None) -> None:
        if error is None or _removes_nothing(error):
            do()
        elif self._streams.get(one.stream_id) is one and len(one.unanswered) < UNANSWERED_MAX:
            one.unanswered.append(do)

    # Rows

    def _remove(self, one: _Stream, *, is_awaited: bool) -> None:
        """Hide what no consumer needs any more."""
        shown = self._gateway.shown(StreamId(one.stream_id))
        if shown is None:
            return
        one.interest.start_raised(shown.log_start)
        rows = one.interest.take(shown.end)
        if not rows:
            return
        done = partial(self._removed, one, rows)
        try:
            self._gateway.node.consume(one.key, rows, done, is_awaited=is_awaited)
        except RemoteError as error:
            done(error)

    def _removed(self, one: _Stream, rows: RowSet, error: RemoteError | None) -> None:
        if self._streams.get(one.stream_id) is not one:
            return  # the next leader finds them
        one.failed = error
        if error is not None:
            one.interest.give_back(rows)
            one.retry_us = self._gateway.node.now.elapsed_us + RETRY_US
            if not _removes_nothing(error):
                return
        else:
            one.retry_us = None
        waiting, one.unanswered = one.unanswered, []
        for do in waiting:
            self.then(one.stream_id, do)

    # Time

    def tick(self, now: Now) -> None:
        """Look for what consumers have passed, and try again what was refused."""
        for one in list(self._streams.values()):
            if now.elapsed_us < self._due_us(one):
                continue
            one.look_us, one.retry_us = now.elapsed_us + LOOK_US, None
            if one.named.claims and now.elapsed_us >= one.named_us:
                one.named_us = now.elapsed_us + NAMED_US
                self._ask_named(one)
            if one.told is None:
                self._tell(one)
            self._remove(one, is_awaited=bool(one.unanswered))
            if now.elapsed_us >= one.ask_us and not one.is_asking:
                self._ask(one, now)

    def _ask_named(self, one: _Stream) -> None:
        if (state := self._gateway.stream_of(StreamId(one.stream_id))) is not None:
            one.named.ask(state)

    def _due_us(self, one: _Stream) -> int:
        return one.look_us if one.retry_us is None else max(one.look_us, one.retry_us)

    @property
    def next_us(self) -> int | None:
        """When `tick` has something to do."""
        found = (self._due_us(one) for one in self._streams.values() if one.keys or one.named.claims)
        return min(found, default=None)

    # Questions about subjects

    def _ask(self, one: _Stream, now: Now) -> None:
        one.ask_us = now.elapsed_us + ASK_US
        shown = self._gateway.shown(StreamId(one.stream_id))
        asks = [] if shown is None else one.interest.asks(shown.end)
        asks = [ask for ask in asks if len(ask.filters) <= limits.FETCH_SUBJECTS_MAX]
        if shown is not None and asks:
            one.is_asking = True
            hidden = shown.hidden
            ask = asks[0]
            begin = next(ask.rows.runs())[0]
            begin = begin if hidden is None else max(begin, hidden.first_absent(begin))
            if len(asks) > 1:
                one.ask_us = now.elapsed_us  # the others are asked at the next look
            self._read(one, ask, max(begin, shown.log_start), [])

    def _read(self, one: _Stream, ask: Ask, begin: int, found: list[int]) -> None:
        """Read the offsets that match, from `begin` on."""
        end = ask.rows.end
        if begin >= end:
            self._answer(one, ask, found)
            return
        request = FetchRequest(
            stream_id=StreamId(one.stream_id),
            offset=Offset(begin),
            end=Offset(end),
            subjects=ask.filters,
            columns=("offset",),
            bytes_max=_ASK_BYTES,
        )

        def heard(response: Response | RemoteError, payload: Payload) -> None:
            if not isinstance(response, FetchResponse) or response.end_offset <= begin:
                one.is_asking = False  # it is asked again
                return
            self._gateway.node.outbox.work(
                Lane.READ, lambda: found.extend(_offsets(response, payload)), partial(decoded, int(response.end_offset))
            )

        def decoded(end_offset: int, error: Exception | None) -> None:
            if error is None and self._streams.get(one.stream_id) is one:
                self._read(one, ask, end_offset, found)
                return
            one.is_asking = False
            if error is not None and not isinstance(error, PenstockError | OSError):
                raise error

        self._gateway.ask(request, self._gateway.node.now, heard, who=THE_BROKER)

    def _answer(self, one: _Stream, ask: Ask, found: list[int]) -> None:
        one.is_asking = False
        matched = RowSet.of(found)
        if ask.if_matching:
            gone = RowSet.of(offset for offset in found if offset in ask.rows)
        else:
            gone = RowSet.of_runs(run for first, last in ask.rows.runs() for run in gaps(matched, first, last))
        one.interest.answered(ask, gone)
        self._remove(one, is_awaited=False)


def _removes_nothing(error: RemoteError) -> bool:
    """True if acks are to remove nothing: deletion is suspended, or the stream is sealed. They are answered then."""
    return error.code == ErrorCode.READ_ONLY


def _offsets(response: FetchResponse, payload: Payload) -> list[int]:
    """Return the offsets in an answer. CorruptionError, OSError."""
    raw = read_payload(payload)
    if not raw:
        return []
    schema = projecting.schema_of(("offset",))
    batches = projecting.from_stream(memoryview(raw), response.raw_crc, schema, source="the log")
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]
