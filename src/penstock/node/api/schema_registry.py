"""The schema registry: schemas of streams, stored in `__schemas`, served from memory by the leader of its partition.

Rules: `InternalLog` keeps the state of the leadership. Changes (registrations, forgetting, tombstones of deleted
streams) are made one at a time, each on the committed result of those before it; others wait, up to
SCHEMA_REGISTRATIONS_WAITING_MAX, of which users have shares. A registration is judged in a thread (`registering`), as
large contracts take long to parse; afterwards the caller's rights, the stream and the leadership are checked again. A
text is written once, in the same batch as its first version, and deleted with its last one. The numbers of versions and
of bytes are bounded and shared by users. A stream that was deleted has no schemas; tombstones for it are written once
the log has been read, and before later changes.

`__schemas` is created only once all brokers are of version 0.4: an earlier one, as its leader, would answer nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.ids import PartitionKey, StreamId, TimestampUs
from penstock.base.importing import undisturbed
from penstock.messages import (
    AppendResponse,
    ForgetSchemasRequest,
    ForgetSchemasResponse,
    GetSchemaTextRequest,
    GetSchemaTextResponse,
    ListSchemasRequest,
    ListSchemasResponse,
    RegisteredSchema,
    RegisterSchemasRequest,
    RegisterSchemasResponse,
    Response,
    SchemaInfo,
    SchemasStreamRequest,
    SchemasStreamResponse,
)
from penstock.metadata.feature_levels import SCHEMA_REGISTRY
from penstock.metadata.feature_versions import missing
from penstock.metadata.image import ClusterImage, StreamState
from penstock.node.api.internal_log import InternalLog, InternalStream, Kept, Rows, Write
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.partition.internal_streams import schemas_config, users_own_stream
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.security.access import Call
from penstock.node.security.permission_errors import stream_deleted
from penstock.node.step import Lane
from penstock.schemas.kept import KeptSchemas
from penstock.schemas.rows import (
    SCHEMAS_STREAM,
    StoredText,
    StoredVersion,
    VersionKey,
    encode_text_key,
    encode_value,
    encode_version_key,
)

if TYPE_CHECKING:
    from penstock.schemas.registering import Numbered, Registration

_Found = RegisteredSchema


class _Judgement:
    """The task of a disk thread: judges one registration."""

    def __init__(self, make: Callable[[], Registration]) -> None:
        self._make = make
        self.versions: tuple[Numbered, ...] = ()

    def run(self) -> None:
        """Raise RemoteError invalid_schema, incompatible_schema or too_large."""
        from penstock.schemas.registering import judge  # which imports pyarrow

        try:
            with undisturbed():
                self.versions = judge(self._make())
        except RecursionError as error:
            text = "nothing was registered: the schema is nested too deep"
            raise RemoteError(ErrorCode.INVALID_SCHEMA, text) from error


@dataclass(eq=False)
class _Registrar:
    """One leadership of the partition, and the changes that wait for it. A change without a call is Penstock's own."""

    partition: Partition
    kept: Kept[KeptSchemas]
    waiting: deque[tuple[Call | None, Callable[[], None]]] = field(default_factory=deque)
    shares: FairShares = field(default_factory=FairShares)  # of the changes that wait or are made, by user
    is_busy: bool = False
    swept_at: int = -1  # image index of the last search for schemas of deleted streams

    @property
    def state(self) -> KeptSchemas:
        return self.kept.state


class SchemaRegistry:
    """Serves the partition of `__schemas`, if this broker leads it."""

    def __init__(
        self, context: Context, cluster: Cluster, find: PartitionLookup, counters: Counter[str], *, write: Write
    ) -> None:
        """`write` appends one batch to a partition led here."""
        self._counters = counters
        self._context = context
        self._outbox = context.outbox
        self._cluster = cluster
        stream = InternalStream(schemas_config(context.settings.internal_encryption), "schemas")
        self._log = InternalLog(context, cluster, find, stream, KeptSchemas, write)
        self._registrars: dict[PartitionKey, _Registrar] = {}
        self.handlers: dict[type, Callable[[Call, Any], None]] = {
            SchemasStreamRequest: self._stream,
            RegisterSchemasRequest: self._register,
            ListSchemasRequest: self._list,
            GetSchemaTextRequest: self._text,
            ForgetSchemasRequest: self._forget,
        }

    @property
    def _image(self) -> ClusterImage:
        return self._cluster.image

    @property
    def version_count(self) -> int:
        """Number of versions of all streams, if they are kept here."""
        return sum(len(registrar.state) for registrar in self._registrars.values())

    # Requests

    def _stream(self, call: Call, request: SchemasStreamRequest) -> None:
        if SCHEMAS_STREAM not in self._image.names and (error := missing(self._image, SCHEMA_REGISTRY)) is not None:
            raise error
        self._log.create(call, request.timeout_ms, lambda found: SchemasStreamResponse(stream=found))

    def _list(self, call: Call, request: ListSchemasRequest) -> None:
        self._outbox.reply(call.caller, self.list(request))

    def list(self, request: ListSchemasRequest) -> ListSchemasResponse:
        """Return a page of a stream's versions. RemoteError: not led here, not_yet, stream_changed."""
        registrar = self._of(request.stream_id, request.partition)
        self._stream_of(request.of_stream_id)
        versions = registrar.state.versions(request.of_stream_id)
        after = VersionKey(request.of_stream_id, request.after_subject, request.after_number)
        begin = bisect_right([place for place, _ in versions], after)
        end = begin + limits.SCHEMAS_PER_ANSWER_MAX
        infos = tuple(_info(place, version) for place, version in versions[begin:end])
        return ListSchemasResponse(versions=infos, has_more=end < len(versions))

    def _text(self, call: Call, request: GetSchemaTextRequest) -> None:
        text = self.text(request)
        size = len(text.text.encode()) + sum(len(one.encode()) for _, one in text.closure)
        self._outbox.reply(call.caller, text, looked_bytes=size)

    def text(self, request: GetSchemaTextRequest) -> GetSchemaTextResponse:
        """Return a text of a stream's schemas. RemoteError as of `list`, or schema_not_found."""
        registrar = self._of(request.stream_id, request.partition)
        state = self._stream_of(request.of_stream_id)
        text = registrar.state.text(request.text_hash)
        if text is None or not registrar.state.uses_text(request.of_stream_id, request.text_hash):
            what = f"no schema of stream {state.name!r} has the text {request.text_hash[:12]}…: it was forgotten"
            raise RemoteError(ErrorCode.SCHEMA_NOT_FOUND, f"{what}; list its schemas again")
        return GetSchemaTextResponse(kind=text.kind, text=text.text, closure=text.closure)

    def _register(self, call: Call, request: RegisterSchemasRequest) -> None:
        registrar = self._of(request.stream_id, request.partition)
        self._stream_of(request.of_stream_id)
        text = StoredText(request.kind, request.text, request.closure, call.auth.sharer)
        try:
            size = text.size
        except UnicodeEncodeError as error:
            raise RemoteError(ErrorCode.INVALID_SCHEMA, "nothing was registered: the text is not UTF-8") from error
        if size > limits.SCHEMA_BYTES_MAX:
            what = f"the text has {size:,} bytes with its included files, {limits.SCHEMA_BYTES_MAX:,} at most"
            raise RemoteError(ErrorCode.TOO_LARGE, f"nothing was registered: {what}")
        self._queue(registrar, call, partial(self._judge, registrar, call, request, text))

    def _forget(self, call: Call, request: ForgetSchemasRequest) -> None:
        registrar = self._of(request.stream_id, request.partition)
        self._stream_of(request.of_stream_id)
        self._queue(registrar, call, partial(self._forget_now, registrar, call, request))

    def _of(self, stream_id: int, number: int) -> _Registrar:
        """Return the leadership that a request addresses. RemoteError: not led here, not_yet."""
        partition = self._log.led(stream_id, number)
        kept = self._log.known(partition)
        registrar = self._registrars.get(partition.key)
        if registrar is None or registrar.kept is not kept:
            self._drop(partition.key)
            registrar = self._registrars[partition.key] = _Registrar(partition, kept)
        if registrar.swept_at != self._image.index:
            self._sweep(registrar)
        return registrar

    def _stream_of(self, stream_id: StreamId) -> StreamState:
        """Return the stream whose schemas a request is about. RemoteError stream_changed, not_yet, read_only."""
        state = self._image.streams.get(stream_id)
        if state is not None:
            return users_own_stream(state)
        if stream_id > self._image.index:
            raise RemoteError(
                ErrorCode.NOT_YET, f"this broker does not know stream {stream_id} yet; ask again in a moment"
            )
        raise stream_deleted(stream_id)

    # Changes, one at a time

    def _queue(self, registrar: _Registrar, call: Call, begin: Callable[[], None]) -> None:
        """Make a change once those before it are made. RemoteError overloaded."""
        sharer = call.auth.sharer
        if not registrar.shares.fits(sharer, 1, limits.SCHEMA_REGISTRATIONS_WAITING_MAX):
            text = registrar.shares.refused(sharer, limits.SCHEMA_REGISTRATIONS_WAITING_MAX)
            raise RemoteError(ErrorCode.OVERLOADED, f"of waiting changes of schemas {text}; ask again in a moment")
        registrar.shares.add(sharer)
        registrar.waiting.append((call.without_raw(), begin))
        self._go_on(registrar)

    def _go_on(self, registrar: _Registrar) -> None:
        while registrar.waiting and not registrar.is_busy:
            call, begin = registrar.waiting.popleft()
            registrar.is_busy = True
            try:
                begin()
            except RemoteError as error:
                self._end(registrar, call, error)

    def _end(self, registrar: _Registrar, call: Call | None, response: Response | RemoteError | None) -> None:
        """Answer the change that was made, or was not. The caller lets the next one begin."""
        registrar.is_busy = False
        if call is not None:
            registrar.shares.remove(call.auth.sharer)
            if response is not None:
                self._outbox.reply(call.caller, response)

    def _ended(self, registrar: _Registrar, call: Call | None, response: Response | RemoteError | None) -> None:
        self._end(registrar, call, response)
        self._go_on(registrar)

    def _judge(self, registrar: _Registrar, call: Call, request: RegisterSchemasRequest, text: StoredText) -> None:
        call.authorize()
        state = self._stream_of(request.of_stream_id)
        judgement = _Judgement(self._registration(registrar.state, state, request, text))

        def done(error: Exception | None) -> None:
            response: Response | RemoteError | None = None
            if error is not None:
                response = as_remote_error(error)
            elif not self._log.is_current(registrar.partition, registrar.kept):
                response = _moved()
            else:
                try:
                    call.authorize()
                    self._stream_of(request.of_stream_id)
                    response = self._store(registrar, call, request, text, judgement.versions)
                except RemoteError as refusal:
                    response = refusal
                if response is None:
                    return  # it is being written
            self._ended(registrar, call, response)

        self._outbox.work(Lane.QUERY, judgement.run, done, user=call.auth.sharer)

    def _registration(
        self, kept: KeptSchemas, state: StreamState, request: RegisterSchemasRequest, text: StoredText
    ) -> Callable[[], Registration]:
        """Capture what a thread needs: the state goes on changing for other streams."""
        before = {subject: dict(numbers) for subject, numbers in kept.of(request.of_stream_id).items()}
        subjects = {entry.subject for entry in request.entries}
        hashes = {one.text_hash for subject in subjects & before.keys() for one in before[subject].values()}
        texts = {one: found for one in hashes if (found := kept.text(one)) is not None}

        def make() -> Registration:
            from penstock.schemas.decoding import ValueFraming
            from penstock.schemas.registering import Registration, Wanted
            from penstock.schemas.registry import Typed
            from penstock.schemas.thrift import ThriftProtocol

            entries = tuple(
                Wanted(
                    Typed(one.subject, one.message, ValueFraming(one.framing), ThriftProtocol(one.protocol)),
                    one.type_name,
                )
                for one in request.entries
            )
            return Registration(state.name, state.config.held_subjects, text, entries, before, texts, request.force)

        return make

    def _store(
        self,
        registrar: _Registrar,
        call: Call,
        request: RegisterSchemasRequest,
        text: StoredText,
        numbered: tuple[Numbered, ...],
    ) -> Response | None:
        """Append the new versions, and answer once they are committed; return the answer if none has to be stored."""
        text_hash, kept = text.hash(), registrar.state
        found: list[_Found] = []
        rows: Rows = []
        for entry, judged in zip(request.entries, numbered, strict=True):
            place = VersionKey(request.of_stream_id, entry.subject, judged.number)
            version = kept.of(place.stream_id).get(place.subject, {}).get(place.number)
            if judged.is_new or version is None:
                version = StoredVersion(
                    kind=text.kind,
                    text_hash=text_hash,
                    hash=judged.hash,
                    registered_us=self._context.now.wall_us,
                    type_name=entry.type_name,
                    message=entry.message,
                    framing=entry.framing,
                    protocol=entry.protocol,
                    by=call.auth.signature,
                    sharer=call.auth.sharer,
                    is_forced=judged.is_forced,
                )
                rows.append((encode_version_key(place), encode_value(version)))
            registered = RegisteredSchema(
                version=_info(place, version), is_new=judged.is_new, needs_header=judged.needs_header
            )
            found.append(registered)
        response = RegisterSchemasResponse(versions=tuple(found))
        if rows:
            self._check_room(kept, text, len(rows), is_text_new=kept.text(text_hash) is None)
        if not rows or request.check_only:
            return response
        if kept.text(text_hash) is None:
            rows.insert(0, (encode_text_key(text_hash), encode_value(text)))
        self._append(registrar, call, rows, response, sum(one.is_new for one in found))
        return None

    def _check_room(self, kept: KeptSchemas, text: StoredText, versions: int, *, is_text_new: bool) -> None:
        """Raise RemoteError too_large if the registry, or the user's share of it, is full."""
        for shares, count, capacity, what in (
            (kept.shares, versions, limits.SCHEMA_VERSIONS_KEPT_MAX, "versions of schemas"),
            (kept.text_shares, text.size if is_text_new else 0, limits.SCHEMA_TEXTS_BYTES_MAX, "bytes of schemas"),
        ):
            if count and not shares.fits(text.sharer, count, capacity):
                reason = f"of {what} {shares.refused(text.sharer, capacity)}"
                advice = "forget the schemas of subjects that are not used"
                raise RemoteError(ErrorCode.TOO_LARGE, f"nothing was registered: {reason}; {advice}")

    def _append(
        self, registrar: _Registrar, call: Call | None, rows: Rows, response: Response | None, registered: int = 0
    ) -> None:
        def heard(answer: Response | RemoteError) -> None:
            if isinstance(answer, AppendResponse):
                self._counters["schema_registered"] += registered
            if call is None and isinstance(answer, RemoteError):
                registrar.swept_at = -1  # they are still there
            self._ended(registrar, call, response if isinstance(answer, AppendResponse) else answer)

        self._log.append(registrar.partition, registrar.kept, rows, heard)

    def _forget_now(self, registrar: _Registrar, call: Call, request: ForgetSchemasRequest) -> None:
        call.authorize()
        state, kept = self._stream_of(request.of_stream_id), registrar.state
        numbers = kept.of(request.of_stream_id).get(request.subject, {})
        if not numbers:
            known = ", ".join(map(repr, sorted(kept.of(request.of_stream_id))[:_SUBJECTS_NAMED]))
            text = f"stream {state.name!r} has no schemas for {request.subject!r}"
            raise RemoteError(ErrorCode.SCHEMA_NOT_FOUND, f"{text}; it has some for {known}" if known else text)
        gone = [VersionKey(request.of_stream_id, request.subject, number) for number in sorted(numbers)]
        self._append(registrar, call, kept.tombstones(gone), ForgetSchemasResponse(versions=len(gone)))

    def _sweep(self, registrar: _Registrar) -> None:
        """Write tombstones for schemas of deleted streams. Nothing is searched until the image changes again."""
        image = self._image
        registrar.swept_at = image.index

        def is_gone(stream_id: int) -> bool:
            return stream_id <= image.index and StreamId(stream_id) not in image.streams

        def sweep() -> None:
            places = registrar.state.left_over(is_gone, limits.SCHEMA_TOMBSTONES_AT_ONCE)
            if len(places) == limits.SCHEMA_TOMBSTONES_AT_ONCE:
                registrar.swept_at = -1  # there may be more
            if places:
                self._append(registrar, None, registrar.state.tombstones(places), None)
            else:
                self._end(registrar, None, None)

        if registrar.state.left_over(is_gone, 1) and not any(call is None for call, _ in registrar.waiting):
            registrar.waiting.appendleft((None, sweep))
            self._go_on(registrar)

    # Ends

    def ended(self, partition: Partition) -> None:
        """Drop the state of a partition no longer led here."""
        self._log.ended(partition)
        self._drop(partition.key)

    def _drop(self, key: PartitionKey) -> None:
        registrar = self._registrars.pop(key, None)
        if registrar is not None:
            self._refuse(registrar, _moved())

    def _refuse(self, registrar: _Registrar, error: RemoteError) -> None:
        while registrar.waiting:
            call, _ = registrar.waiting.popleft()
            if call is not None:
                registrar.shares.remove(call.auth.sharer)
                self._outbox.reply(call.caller, error)

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Forget the waiting changes of disconnected callers."""
        gone = set(callers)
        for registrar in self._registrars.values():
            kept = deque[tuple[Call | None, Callable[[], None]]]()
            for call, begin in registrar.waiting:
                if call is None or call.caller not in gone:
                    kept.append((call, begin))
                else:
                    registrar.shares.remove(call.auth.sharer)
            registrar.waiting = kept

    def stop(self, error: RemoteError) -> None:
        """Cancel reads and refuse waiting changes because the broker stops."""
        self._log.stop()
        for registrar in self._registrars.values():
            self._refuse(registrar, error)


_SUBJECTS_NAMED = 5  # in an error


def _info(place: VersionKey, version: StoredVersion) -> SchemaInfo:
    return SchemaInfo(
        subject=place.subject,
        number=place.number,
        kind=version.kind,
        type_name=version.type_name,
        message=version.message,
        framing=version.framing,
        protocol=version.protocol,
        text_hash=version.text_hash,
        hash=version.hash,
        registered_us=TimestampUs(version.registered_us),
        by=version.by,
        is_forced=version.is_forced,
    )


def _moved() -> RemoteError:
    text = f"another broker leads {SCHEMAS_STREAM!r} now, and nothing was changed; ask again in a moment"
    return RemoteError(ErrorCode.NOT_YET, text)
