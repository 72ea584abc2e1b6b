"""Schemas by which this broker checks values before it stores them: fetched from the leader of `__schemas`, and kept.

Rules: every leader of a stream whose config has a `schema_check` checks its messages. It fetches the stream's schemas
when it has none, and looks for new versions every SCHEMA_CHECK_REFRESH_MS, and for one that a message names and that is
not known here SCHEMA_LOOKUP_INTERVAL_MS after the last look. Texts are fetched up to SCHEMA_CHECK_BYTES_MAX, the newest
first; a message that names a version beyond that does not fit, and a stream whose newest ones are beyond it takes no
messages. While the leader of `__schemas` does not answer, the last known schemas count. So a version counts here a
moment after it is registered: until then messages that name it wait, and others are checked by the versions before it,
with which it is compatible. A round ends once all is here; a text is fetched once, in however many rounds. Schemas are
parsed, and their decoders planned, in a thread; if that fails, it is tried again, at growing intervals up to
SCHEMA_CHECK_RETRY_MS_MAX.

| known here                         | `schema_check: refuse`                           | `count`           |
|------------------------------------|--------------------------------------------------|-------------------|
| nothing yet                        | messages wait, SCHEMA_CHECK_WAIT_MS at most      | stored            |
| nothing after that, or no way to   | messages are refused as unavailable              | stored            |
| check by them                      |                                                  |                   |
| that the stream has no schemas     | messages are stored                              | stored            |
| its schemas                        | values that do not fit are refused               | stored, counted   |

The requests are the clients' own, ListSchemas and GetSchemaText, one at a time for a stream.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, PenstockError, RemoteError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.base.importing import undisturbed
from penstock.ingest.value_check import SCHEMAS_UNKNOWN, KnownSchemas, ValueCheck
from penstock.messages import (
    GetSchemaTextRequest,
    GetSchemaTextResponse,
    ListSchemasRequest,
    ListSchemasResponse,
    Response,
    SchemaInfo,
)
from penstock.node.api.schema_registry import SchemaRegistry
from penstock.node.context import Context
from penstock.node.partition.partition import Partition
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.step import Lane
from penstock.node.subscriptions.ingest_backlog import IngestBacklog
from penstock.schemas.rows import SCHEMAS_STREAM, StoredText

_REFRESH_US = limits.SCHEMA_CHECK_REFRESH_MS * 1_000
_WAIT_US = limits.SCHEMA_CHECK_WAIT_MS * 1_000
_LOOKUP_US = limits.SCHEMA_LOOKUP_INTERVAL_MS * 1_000
_RETRY_MAX_US = limits.SCHEMA_CHECK_RETRY_MS_MAX * 1_000
_DOUBLINGS_MAX = 16
_SUBJECTS_NAMED = 5  # in a notice

Answered = Callable[[Response | RemoteError], None]


@dataclass(eq=False)
class _Stream:
    """A stream led here that checks values. `known`: what its partitions here have."""

    stream_id: StreamId
    known: KnownSchemas | None = None
    versions: tuple[SchemaInfo, ...] | None = None  # of `known`; None while nothing is known
    texts: dict[str, StoredText] = field(default_factory=dict)  # of `known` and of this round, by hash
    wanted_us: int = 0  # elapsed time since when they are
    asked_us: int = -_REFRESH_US  # elapsed time of the last round
    heard_us: int = 0  # elapsed time of its last answer
    round: int = 0  # answers of earlier rounds are ignored
    is_asking: bool = False
    is_making: bool = False  # a thread makes the check, which may take longer than any answer
    failures: int = 0  # of making the check of `versions`
    retry_us: int = 0  # elapsed time when it is made again
    # Of this round:
    is_listed: bool = False  # the list is complete
    listed: list[SchemaInfo] = field(default_factory=list)
    wanted: deque[str] = field(default_factory=deque)  # hashes of texts, the most important first
    here: dict[str, StoredText] = field(default_factory=dict)  # those before them
    here_bytes: int = 0

    def begin(self, now_us: int) -> None:
        """Begin a round. The texts of earlier ones are kept."""
        self.round += 1
        self.is_asking, self.asked_us, self.heard_us = True, now_us, now_us
        self.is_listed, self.listed, self.wanted = False, [], deque()

    def missing(self, key: PartitionKey) -> ListSchemasRequest | GetSchemaTextRequest | None:
        """Return the next request of this round; None: all is here. `key`: the partition of `__schemas`."""
        if not self.is_listed:
            last = self.listed[-1] if self.listed else None
            return ListSchemasRequest(
                stream_id=key.stream_id,
                partition=key.partition,
                of_stream_id=self.stream_id,
                after_subject="" if last is None else last.subject,
                after_number=0 if last is None else last.number,
            )
        while self.wanted and self.here_bytes <= limits.SCHEMA_CHECK_BYTES_MAX:
            text = self.texts.get(self.wanted[0])
            if text is None:
                break
            self._have(text)
        else:
            self.texts = self.here
            return None
        return GetSchemaTextRequest(
            stream_id=key.stream_id,
            partition=key.partition,
            of_stream_id=self.stream_id,
            text_hash=self.wanted[0],
        )

    def take(self, answer: Response) -> bool:
        """Take an answer; False if it is not one to the last request."""
        if isinstance(answer, ListSchemasResponse) and not self.is_listed:
            self.listed += answer.versions
            self.is_listed = not (answer.has_more and answer.versions)
            if self.is_listed:
                # Newest versions first: those decode messages that name none.
                newest = {one.subject: one.text_hash for one in self.listed}
                wanted = [*newest.values(), *(one.text_hash for one in reversed(self.listed))]
                self.wanted, self.here, self.here_bytes = deque(dict.fromkeys(wanted)), {}, 0
            return len(self.listed) <= limits.SCHEMA_VERSIONS_PER_STREAM_MAX
        if isinstance(answer, GetSchemaTextResponse) and self.wanted:
            text = StoredText(answer.kind, answer.text, answer.closure)
            self.texts[self.wanted[0]] = text
            self._have(text)
            return True
        return False

    def _have(self, text: StoredText) -> None:
        self.here[self.wanted.popleft()] = text
        self.here_bytes += text.size


class SchemaChecks:
    """The schemas of all streams that check values and have a partition led here."""

    def __init__(
        self,
        context: Context,
        registry: SchemaRegistry,
        peers: PeerClient,
        backlog: IngestBacklog,
        counters: Counter[str],
    ) -> None:
        self._counters = counters
        self._context = context
        self._outbox = context.outbox
        self._registry = registry
        self._peers = peers
        self._backlog = backlog
        self._broker_id = context.settings.broker_id
        self._streams: dict[StreamId, _Stream] = {}

    def tick(self, partitions: Iterable[Partition], now: Now) -> None:
        """Look for new versions where that is due, and forget streams that are not led here or check nothing."""
        wanted: dict[StreamId, list[Partition]] = {}
        for partition in partitions:
            if partition.stream.config.checks_schemas and partition.leadership is not None:
                wanted.setdefault(partition.key.stream_id, []).append(partition)
            elif partition.values is not None:
                partition.values = None
        for stream_id in self._streams.keys() - wanted.keys():
            del self._streams[stream_id]
        for stream_id, those in wanted.items():
            stream = self._of(stream_id)
            if stream.known is None and now.elapsed_us >= stream.wanted_us + _WAIT_US:
                stream.known = KnownSchemas(None, failure=SCHEMAS_UNKNOWN)
                self._backlog.may_go_on = True
            for partition in those:
                partition.values = stream.known
            if stream.is_asking and not stream.is_making and now.elapsed_us >= stream.heard_us + _WAIT_US:
                self._failed(stream)
            if not stream.is_asking and now.elapsed_us >= stream.asked_us + _REFRESH_US:
                self._ask(stream)
            self._look_up(stream)

    def knows(self, partition: Partition) -> bool:
        """Give a partition whose messages wait its stream's schemas; if they are not known, or too old, ask for them.

        True if the partition lacked them, and has them now.
        """
        if not (partition.lacks_schemas or partition.wants_schemas):
            return False
        stream, before = self._of(partition.key.stream_id), partition.values
        if before is stream.known:
            if before is None and not stream.is_asking:
                self._ask(stream)
            self._look_up(stream)
        partition.values = stream.known
        return stream.known is not None and not (stream.known is before and stream.known.is_wanted)

    def _look_up(self, stream: _Stream) -> None:
        """Ask for versions that messages name, if that is due."""
        is_due = self._context.now.elapsed_us >= stream.asked_us + _LOOKUP_US
        if stream.known is not None and stream.known.is_wanted and is_due and not stream.is_asking:
            self._ask(stream)

    def _of(self, stream_id: StreamId) -> _Stream:
        if stream_id not in self._streams:
            self._streams[stream_id] = _Stream(stream_id, wanted_us=self._context.now.elapsed_us)
        return self._streams[stream_id]

    # One round: all pages of the list, then the texts that are missing, then the check is made

    def _ask(self, stream: _Stream) -> None:
        stream.begin(self._context.now.elapsed_us)
        self._counters["schema_refreshes"] += 1
        image = self._context.image
        if SCHEMAS_STREAM not in image.names or not image.by_name(SCHEMAS_STREAM).config.is_internal:
            self._made(stream, stream.round, (), KnownSchemas(None))
            return
        self._go_on(stream, stream.round)

    @property
    def _kept_in(self) -> PartitionKey:
        return PartitionKey(self._context.image.by_name(SCHEMAS_STREAM).stream_id, PartitionId(0))

    def _send(self, request: ListSchemasRequest | GetSchemaTextRequest, answered: Answered) -> Response | None:
        """Ask the leader of the schemas. Return its answer if that is this broker; None: `answered` gets it.

        RemoteError: there is no leader, or it cannot answer now.
        """
        leader = self._context.image.partition(request.stream_id, request.partition).leader
        if leader is None:
            raise RemoteError(ErrorCode.NOT_YET, f"stream {SCHEMAS_STREAM!r} has no leader now")
        if leader != self._broker_id:
            self._peers.send(leader, request, done=lambda found, _: answered(found))
            return None
        if isinstance(request, ListSchemasRequest):
            return self._registry.list(request)
        return self._registry.text(request)

    def _is_current(self, stream: _Stream, number: int) -> bool:
        return stream.round == number and self._streams.get(stream.stream_id) is stream

    def _go_on(self, stream: _Stream, number: int, answer: Response | RemoteError | None = None) -> None:
        """Take an answer, and ask for what is missing until another broker has to answer. A failure ends the round."""
        if not self._is_current(stream, number):
            return
        while True:
            stream.heard_us = self._context.now.elapsed_us
            if isinstance(answer, RemoteError) or (answer is not None and not stream.take(answer)):
                self._failed(stream)
                return
            if stream.is_listed and self._is_known(stream):
                return
            key = self._kept_in
            request = stream.missing(key)
            if request is None:
                self._make(stream)
                return
            try:
                answer = self._send(request, partial(self._go_on, stream, number))
            except RemoteError as error:
                answer = error
            if answer is None:
                return

    def _is_known(self, stream: _Stream) -> bool:
        """End the round if its list is that of the schemas which are known, and these can be used."""
        known, now_us = stream.known, self._context.now.elapsed_us
        if known is None or tuple(stream.listed) != stream.versions or (stream.failures and now_us >= stream.retry_us):
            return False
        stream.is_asking = False
        known.asked_us, known.is_cut_off = stream.asked_us, False
        self._answer_wish(known)
        return True

    def _failed(self, stream: _Stream) -> None:
        """End a round that the leader of the schemas did not answer. What has come of it is kept for the next one."""
        stream.is_asking = False
        stream.round += 1
        self._counters["schema_refresh_failures"] += 1
        if stream.known is not None:
            stream.known.is_cut_off = True
            self._answer_wish(stream.known)

    def _answer_wish(self, known: KnownSchemas) -> None:
        if known.is_wanted:
            known.is_wanted = False
            self._backlog.may_go_on = True

    def _make(self, stream: _Stream) -> None:
        """Parse the schemas in a disk thread."""
        versions, number = tuple(stream.listed), stream.round
        if versions != stream.versions:
            stream.failures = 0
        if not versions:
            self._made(stream, number, (), KnownSchemas(None))
            return
        texts = stream.texts
        newest = {one.subject: one.text_hash for one in versions}
        if any(one not in texts for one in newest.values()):
            most = limits.SCHEMA_CHECK_BYTES_MAX
            text = f"the stream's schemas have more than {most:,} bytes, the most by which values are checked"
            self._made(stream, number, versions, KnownSchemas(None, failure=text))
            return
        here = [(one, texts[one.text_hash]) for one in versions if one.text_hash in texts]
        making = MakeCheck(stream.stream_id, here, None if stream.known is None else stream.known.check)

        def done(error: Exception | None) -> None:
            stream.is_making = False
            failure = "" if error is None else f"the stream's schemas cannot be used to check values: {error}"
            if failure:
                delay_us = min(_REFRESH_US << min(stream.failures, _DOUBLINGS_MAX), _RETRY_MAX_US)
                stream.failures, stream.retry_us = stream.failures + 1, self._context.now.elapsed_us + delay_us
                self._counters["schema_refresh_failures"] += 1
            else:
                stream.failures = 0
            if making.unchecked and not failure:
                text = "are not checked: this version of Penstock does not know the kinds of their schemas; upgrade it"
                first = ", ".join(sorted(making.unchecked)[:_SUBJECTS_NAMED])
                more = f" and {left} others" if (left := len(making.unchecked) - _SUBJECTS_NAMED) > 0 else ""
                self._outbox.notice(f"values of stream {stream.stream_id} on {first}{more} {text}")
            self._made(stream, number, versions, KnownSchemas(making.check, failure=failure))

        stream.is_making = True
        self._outbox.work(Lane.QUERY, making.run, done)

    def _made(self, stream: _Stream, number: int, versions: tuple[SchemaInfo, ...], known: KnownSchemas) -> None:
        if not self._is_current(stream, number):
            return
        told = "" if stream.known is None else stream.known.failure
        known.asked_us = stream.asked_us
        stream.is_asking, stream.versions, stream.known = False, versions, known
        if known.failure and known.failure != told:
            self._outbox.notice(f"values of stream {stream.stream_id}: {known.failure}")
        self._backlog.may_go_on = True  # partitions with waiting messages take them from here; others at the next tick


class MakeCheck:
    """The task of a disk thread: makes a check of a stream's versions."""

    def __init__(
        self, stream_id: StreamId, versions: list[tuple[SchemaInfo, StoredText]], before: ValueCheck | None
    ) -> None:
        """`before`: the check of earlier versions, whose plans are used again."""
        self._stream_id = stream_id
        self._versions = versions
        self._before = before
        self.unchecked: set[str] = set()  # subjects of which all versions are of kinds that this version does not know
        self.check: ValueCheck | None = None

    def run(self) -> None:
        """Raise PenstockError: no check can be made of them."""
        from penstock.schemas.registry import StreamSchemas, version_of  # which imports pyarrow

        known = [found for one, text in self._versions if (found := version_of(one, text)) is not None]
        self.unchecked = {one.subject for one, _ in self._versions} - {one.typed.subject for one in known}
        if not known:
            raise PenstockError("this version of Penstock does not know their kinds")
        try:
            with undisturbed():
                self.check = ValueCheck(StreamSchemas("", self._stream_id, tuple(known)), self._before)
        except RecursionError as error:
            raise PenstockError("a schema is nested too deep") from error
