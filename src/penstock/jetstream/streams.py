"""Streams: create, update, delete, info, names and list.

Rules: a change goes to the metadata leader, and is answered once every live broker has it: whichever broker is asked
next knows it. Subjects that overlap another stream's are refused, only through this API, by the metadata leader: of two
that are created at once, one is made.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from penstock.base.clock import Now
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import StreamId
from penstock.base.subjects import overlap, subject_mistake
from penstock.jetstream.answers import json_answer
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.conversations import Answered, Asked, Conversation, ask
from penstock.jetstream.errors import (
    invalid_config,
    invalid_json,
    name_in_use,
    name_mismatch,
    not_empty,
    stream_not_found,
    too_many_replicas,
    unreadable,
)
from penstock.jetstream.gateway import Gateway, Handler
from penstock.jetstream.partition_streams import PARTITIONS, partition_names
from penstock.jetstream.stream_config import (
    Config,
    changes,
    completed,
    is_same,
    json_config,
    parsed_config,
    shown_config,
    to_penstock,
)
from penstock.jetstream.stream_state import (
    NOTHING,
    PARTS_AT_ONCE,
    SUBJECTS_PAGE,
    SubjectPage,
    api_time,
    cluster_fields,
    count_of,
    deleted_sequences,
    need_one_partition,
    number_of_subjects,
    offsets_of,
    parts_of,
    state_fields,
    subject_page,
    summed,
)
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    DeleteStreamResponse,
    ListOffsetsResponse,
    SetIntakeRequest,
    SetIntakeResponse,
)
from penstock.metadata.image import StreamState
from penstock.metadata.overlaps import check_no_overlap

NAMES_PAGE = 1_024
LIST_PAGE = 256
LISTED_PARTITIONS_MAX = 1_024
"""Partitions that are asked for one page of a list; one stream may have more."""
COUNTED_STREAMS_MAX = 1_000
"""Streams whose number of subjects is remembered."""
_ROOM_BESIDE = 256  # bytes of numbers that are known after the subjects
_CREATE_TIMEOUT_MS = 4_000
_T = TypeVar("_T", bound=msgspec.Struct)
_Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _InfoRequest(msgspec.Struct, forbid_unknown_fields=True):
    offset: _Number | None = None
    deleted_details: bool | None = None
    subjects_filter: str | None = None


class _PageRequest(msgspec.Struct, forbid_unknown_fields=True):
    offset: _Number | None = None
    subject: str | None = None


def decoded(payload: bytes, kind: type[_T]) -> _T:
    """Return a request's options; without a JSON object the defaults. Raise ApiError (10025)."""
    if payload.lstrip()[:1] not in (b"{", b"["):
        return kind()
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        text = str(error)
        raise invalid_json("unexpected EOF" if "truncated" in text else text) from None


def stream_handlers(gateway: Gateway) -> Mapping[str, Handler]:
    """Return the handlers of requests about streams."""
    api = _Streams(gateway)

    def conversing(begin: Callable[[ApiCall, ApiSubject], Conversation]) -> Handler:
        def handle(call: ApiCall, subject: ApiSubject, now: Now) -> None:
            if bool(subject.stream) == (subject.operation in ("STREAM.NAMES", "STREAM.LIST")) or subject.rest:
                return  # no subject of JetStream's: silence
            gateway.converse(call, subject, now, begin(call, subject))

        return handle

    return {
        "STREAM.CREATE": conversing(api.create),
        "STREAM.UPDATE": conversing(api.update),
        "STREAM.DELETE": conversing(api.delete),
        "STREAM.INFO": conversing(api.info),
        "STREAM.NAMES": conversing(api.names),
        "STREAM.LIST": conversing(api.list_),
    }


class _Streams:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._node = gateway.node
        self._counted: dict[StreamId, tuple[object, int | None]] = {}  # what the number is about, and the number

    # Changes

    def create(self, call: ApiCall, subject: ApiSubject) -> Conversation:
        wanted = parsed_config(call.payload)
        if wanted.config.get("name", "") != subject.stream:
            raise name_mismatch()
        config = completed(wanted)
        if config["sealed"]:
            raise invalid_config("stream configuration for create can not be sealed")
        if config["mirror_direct"] and config["mirror"] is None:  # an update may say so
            raise invalid_config("stream has no mirror but does have mirror direct")
        self._check_replicas(config)
        if (existing := self._gateway.real_stream(subject.stream)) is not None:
            self._gateway.authorization.check(CreateStreamRequest(config=existing.config))  # it may exist already
            if not is_same(shown_config(existing), config):
                raise name_in_use()
            return (yield from self._changed(subject, existing, did_create=True))
        here = to_penstock(config)
        check_no_overlap(self._node.image, here)  # before other mistakes, as nats-server; the metadata leader decides
        request = CreateStreamRequest(config=here, timeout_ms=_CREATE_TIMEOUT_MS, refuse_overlap=True)
        yield from ask(request, CreateStreamResponse)
        return (yield from self._changed(subject, self._named(subject.stream), did_create=True))

    def update(self, call: ApiCall, subject: ApiSubject) -> Conversation:
        wanted = parsed_config(call.payload)
        name = wanted.config.get("name", "")
        if not name:
            raise invalid_config("stream name is required and can not contain '.', '*', '>', '\\', '/'")
        if name != subject.stream:
            raise name_mismatch()
        state = self._named(subject.stream)
        old, new = shown_config(state), completed(wanted)
        self._check_replicas(new)
        if not wanted.config.get("duplicate_window") and not old["duplicate_window"]:
            new["duplicate_window"] = 0  # a stream of Penstock may have none
        altered = changes(old, new)
        add = tuple(one for one in new["subjects"] if one not in old["subjects"])
        remove = tuple(one for one in old["subjects"] if one not in new["subjects"])
        request = AlterStreamRequest(
            name=state.name,
            stream_id=state.stream_id,
            changes=altered,
            add_subjects=add,
            remove_subjects=remove,
            everywhere=True,
            refuse_overlap=bool(add),
        )
        self._gateway.authorization.check(request)  # also if nothing changes
        if altered or add or remove:
            yield from ask(request, AlterStreamResponse)
        if new["sealed"] and not old["sealed"]:
            seal = SetIntakeRequest(name=state.name, stream_id=state.stream_id, intake=Intake.SEALED)
            yield from ask(seal, SetIntakeResponse)
        return (yield from self._changed(subject, self._named(subject.stream)))

    def delete(self, call: ApiCall, subject: ApiSubject) -> Conversation:
        if not call.is_empty:
            raise not_empty()
        state = self._named(subject.stream)
        yield from ask(
            DeleteStreamRequest(name=state.name, stream_id=state.stream_id, everywhere=True), DeleteStreamResponse
        )
        return json_answer(subject.operation, success=True)

    def _changed(self, subject: ApiSubject, state: StreamState, **more: Any) -> Generator[Asked, list[Answered], bytes]:
        """Return the answer to a change: the stream's info."""
        try:
            found = yield from offsets_of(state)
            subjects = yield from self._number_of_subjects(state, found)
        except RemoteError as refusal:
            if refusal.code != ErrorCode.NOT_AUTHORIZED:
                raise
            found, subjects = NOTHING, 0  # who may change a stream need not be allowed to read it
        fields = self._info(state, found)
        if subjects:
            fields["state"]["num_subjects"] = subjects
        if self._is_cluster:
            fields["cluster"] = cluster_fields(state, self._node.image.cluster_id)
        return json_answer(subject.operation, **fields, **more)

    # Info

    def info(self, call: ApiCall, subject: ApiSubject) -> Conversation:
        options = decoded(call.payload, _InfoRequest)
        state = self._named(subject.stream)
        if options.subjects_filter or options.deleted_details:
            need_one_partition(self._gateway, state)
        found = yield from offsets_of(state)
        page: dict[str, Any] = {"total": 0, "offset": 0, "limit": 0}
        fields = self._info(state, found)
        fields["cluster"] = cluster_fields(state, self._node.image.cluster_id)
        if options.deleted_details and fields["state"].get("num_deleted"):
            fields["state"]["deleted"] = yield from deleted_sequences(state, found)
        subjects: SubjectPage | None = None
        if options.subjects_filter:
            if (refusal := unreadable(state)) is not None:  # its subjects are in encrypted files, too
                raise refusal
            patterns = self._gateway.narrowed(state, (options.subjects_filter,))
            room = self._gateway.payload_max - len(json_answer(subject.operation, **page, **fields)) - _ROOM_BESIDE
            offset = max(0, options.offset or 0)
            subjects = yield from subject_page(state, patterns, found.committed_end, offset, room)
        if subjects is not None and options.subjects_filter == ">":
            count: int | None = subjects.total
        else:
            count = yield from self._number_of_subjects(state, found)
        if count:
            fields["state"]["num_subjects"] = count
        if subjects is not None and subjects.total:
            is_cut = subjects.shown < min(subjects.total - offset, SUBJECTS_PAGE)
            page = {"total": subjects.total, "offset": offset, "limit": subjects.shown if is_cut else SUBJECTS_PAGE}
            if subjects.shown:
                fields["state"]["subjects"] = msgspec.Raw(subjects.subjects)
        return json_answer(subject.operation, **page, **fields)

    def names(self, call: ApiCall, subject: ApiSubject) -> Conversation:
        options = decoded(call.payload, _PageRequest)
        names = [state.name for state in self._matching(options)]
        yield from ()
        offset = min(max(0, options.offset or 0), len(names))
        page = names[offset : offset + NAMES_PAGE] or None
        return json_answer(subject.operation, total=len(names), offset=offset, limit=NAMES_PAGE, streams=page)

    def list_(self, call: ApiCall, subject: ApiSubject) -> Conversation:
        options = decoded(call.payload, _PageRequest)
        states = self._matching(options)
        offset = min(max(0, options.offset or 0), len(states))
        missing: list[str] = []
        asked: list[tuple[StreamState, StreamState]] = []  # each partition beside its stream
        is_cut = False
        for state in states[offset : offset + LIST_PAGE]:
            if is_cut := bool(asked) and len(asked) + len(state.partitions) > LISTED_PARTITIONS_MAX:
                break
            if all(partition.leader is not None for partition in state.partitions):
                asked += [(state, part) for part in parts_of(state)]
            else:
                missing.append(state.name)
        streams: list[dict[str, Any]] = []
        found: list[ListOffsetsResponse] = []  # of the partitions of one stream
        for begin in range(0, len(asked), PARTS_AT_ONCE):
            some = asked[begin : begin + PARTS_AT_ONCE]
            answers = yield tuple(count_of(part) for _, part in some)
            for number, ((state, _), (response, _)) in enumerate(zip(some, answers, strict=True), begin):
                if isinstance(response, ListOffsetsResponse) and response.live is not None:
                    found.append(response)
                if number + 1 < len(asked) and asked[number + 1][0] is state:
                    continue
                if len(found) == len(state.partitions):
                    streams.append(self._info(state, summed(found)))
                elif state.stream_id in self._node.image.streams:
                    missing.append(state.name)
                found = []
        beside = {"missing": missing} if missing else {}

        def answer_with(count: int) -> bytes:
            limit = count if is_cut or count < len(streams) else LIST_PAGE
            page = {"total": len(states), "offset": offset, "limit": limit, "streams": streams[:count]}
            return json_answer(subject.operation, **page, **beside)

        return self._fitting(len(streams), answer_with)

    # Inside

    def _fitting(self, count: int, answer_with: Callable[[int], bytes]) -> bytes:
        """Return the answer with as many of `count` elements as nats-server takes; clients ask for the rest."""
        answer = answer_with(count)
        while count > 1 and len(answer) > self._gateway.payload_max:
            count = max(1, min(count - 1, count * self._gateway.payload_max * 9 // (len(answer) * 10)))
            answer = answer_with(count)
        return answer

    @property
    def _is_cluster(self) -> bool:
        return len(self._node.image.brokers) > 1

    def _number_of_subjects(
        self, state: StreamState, found: ListOffsetsResponse
    ) -> Generator[Asked, list[Answered], int | None]:
        """Return `number_of_subjects`, which takes long with many: it stays while the stream does not change."""
        assert found.live is not None
        if len(state.partitions) > 1:
            return None  # a subject may be in several
        may_count = self._gateway.may_read(state, None)
        key = (found.leader_epoch, found.log_start, found.committed_end, found.live.rows, may_count)
        known = self._counted.pop(state.stream_id, None)
        if known is None or known[0] != key:
            try:
                known = key, (yield from number_of_subjects(state, found))
            except RemoteError as refusal:
                if refusal.code != ErrorCode.TIMED_OUT:
                    raise
                return None  # all else is known
        self._counted[state.stream_id] = known
        if len(self._counted) > COUNTED_STREAMS_MAX:
            del self._counted[next(iter(self._counted))]
        return known[1]

    def _check_replicas(self, config: Config) -> None:
        brokers = len(self._node.image.brokers)
        if config["num_replicas"] > brokers:
            raise too_many_replicas(brokers)

    def _named(self, name: str) -> StreamState:
        if (state := self._gateway.stream(name)) is None:
            raise stream_not_found()
        return state

    def _matching(self, options: _PageRequest) -> list[StreamState]:
        """Return the streams with a subject that overlaps the wanted one."""
        states = self._gateway.streams()
        if not options.subject:
            return states
        if subject_mistake(options.subject, wildcards=True) is not None:
            return []
        wanted = options.subject
        return [state for state in states if any(overlap(one, wanted) for one in _subjects(state))]

    def _info(self, state: StreamState, found: ListOffsetsResponse) -> dict[str, Any]:
        """Return the fields of a stream's info that all answers have."""
        config: Config = json_config(shown_config(state))
        if len(state.partitions) > 1:
            config["metadata"][PARTITIONS] = partition_names(state, self._gateway.taken_names(state))
        return {
            "config": config,
            "created": api_time(state.created_us),
            "state": state_fields(found, self._gateway.count_consumers(state)),
            "ts": api_time(self._node.now.wall_us),
            **({"domain": self._gateway.domain} if self._gateway.domain else {}),
        }


def _subjects(state: StreamState) -> tuple[str, ...]:
    """Return the subjects of a stream, with those of its partitions if it has several."""
    return state.config.listening_patterns if len(state.partitions) > 1 else state.config.subjects
