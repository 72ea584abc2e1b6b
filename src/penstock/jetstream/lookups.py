"""Look-ups of messages: STREAM.MSG.GET and DIRECT.GET, answered by the leader of the stream.

Rules: an answer is what nats-server answers to the same request, its headers, statuses and their order included. All
gets of a subject's last message that came with one read are one request to the node, and their answers one write. So
are those by sequence. A
batch is read piece by piece: the next piece is read when the one before was written. A request that cannot be answered
yet is asked again until its caller has given up; a leader that is none any more stays silent. What a get was answered
out of is certain until the node has an event, or a time: the next gets are answered out of it at once (ADR 102).

| request                            | answer                                                                        |
|------------------------------------|-------------------------------------------------------------------------------|
| STREAM.MSG.GET.<s>                 | one message as JSON                                                           |
| DIRECT.GET.<s>.<subject>           | the last message of a subject                                                 |
| DIRECT.GET.<s> with `seq`, …       | one message                                                                   |
| the same with `batch`              | messages from a sequence or a time on, then the status 204                    |
| the same with `multi_last`         | the last messages of subjects, then 204                                       |
| DIRECT.GET of any other stream     | the status 503, which nats-server sends without a subscriber                 |
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, StreamId
from penstock.base.subjects import are_plain, is_wildcard, subject_mistake
from penstock.batch import codec
from penstock.batch.picking import PickedRow, RowPicker
from penstock.hot.direct_answers import direct_answers, time_text
from penstock.hot.kept_rows import SubjectGets, answer_kept, sort_gets
from penstock.hot.message_group import MessageGroup
from penstock.hot.rows import BatchRows
from penstock.jetstream.answers import json_answer, status
from penstock.jetstream.api_call import HOPS_MAX, ApiCall, ApiSubject
from penstock.jetstream.api_queue import ApiRows
from penstock.jetstream.direct_requests import (
    MessageQuery,
    RefusedRequestError,
    parse_direct,
    parse_last_of_subject,
    parse_message_get,
)
from penstock.jetstream.errors import (
    ApiError,
    api_error,
    no_message_found,
    stopping,
    stream_not_found,
    too_many_requests,
    unreadable,
)
from penstock.jetstream.ownership import PrefixOwnership
from penstock.jetstream.stream_config import KEPT
from penstock.messages import (
    FindMessagesRequest,
    FindMessagesResponse,
    ListSubjectsRequest,
    ListSubjectsResponse,
    Request,
    Response,
)
from penstock.metadata.image import StreamState
from penstock.node.api.last_rows import KeptLasts
from penstock.node.step import Payload

if TYPE_CHECKING:
    from penstock.jetstream.gateway import Gateway

BATCH_BYTES_MAX = 8 * limits.MIB
"""Of one batch read, whatever its `max_bytes`: its end status says how many messages are left."""
BATCHES_RUNNING_MAX = 2
"""So many are read at once, as what nats-server does not take yet is kept in memory."""
UNSENT_BYTES_MAX = 2 * limits.MIB
"""Answers that nats-server does not take yet: batches wait beyond it, for acks go the same way."""
LOOKUPS_MAX = 2_000
"""Requests to the node under way, some 0.3 s of work: more are refused, so that messages wait no longer than that."""
BATCHES_WAITING_MAX = 1_000
PIECES_AGAIN_MAX = limits.FOUND_SUBJECTS_MAX
"""Pieces of a `multi_last` that are read once more, while its subjects are overwritten all the time."""
GETS_ASKED_MAX = 10_000
"""Gets in requests to the node under way: more are refused, as LOOKUPS_MAX."""
GETS_MAX = 256
"""Gets of one request to the node: what was found takes the event loop some 6 µs each."""
PATIENCE_US = 4_500_000
"""Clients wait for 5 s: what can be answered later than that is not asked again."""
ASKED_AGAIN_MAX = 1_000
"""Requests to the node that wait to be asked again; each may be for all gets of a read."""
AT_ONCE_MAX = 16
"""Gets of one read that are tried to be answered without the queue; with more it costs little of each."""
_RETRY_US = 50_000
_CONFIGS_MAX = 1_000  # of which is known whether they allow direct gets
_ALL = (">",)
_NOT_FOUND = b"NATS/1.0 404 Message Not Found\r\n\r\n"
_NO_RESULTS = b"NATS/1.0 404 No Results\r\n\r\n"
_TOO_MANY = b"NATS/1.0 413 Too Many Results\r\n\r\n"
_BUSY = b"NATS/1.0 503 Too Many Batch Reads\r\n\r\n"
_TOO_BUSY = b"NATS/1.0 503 Too Many Requests\r\n\r\n"
_STOPPING = status(503, stopping().description)
_WILDCARDS = re.compile("[*>]")
_SILENT = frozenset(
    {ErrorCode.NOT_YET, ErrorCode.NOT_LEADER, ErrorCode.STOPPING, ErrorCode.STREAM_CHANGED, ErrorCode.STREAM_NOT_FOUND}
)
"""Another broker may answer, or this one in a moment: the caller asks again after its time-out."""

Handler = Callable[[ApiCall, ApiSubject, Now], None]
Found = Callable[[FindMessagesResponse, bytes], None]
"""Gets the node's answer and its batch, which is empty without a message."""
Failed = Callable[[RemoteError], None]


def allows_direct(config: StreamConfig) -> bool:
    """Return the stream's `allow_direct`: streams that were not made by the API allow it."""
    kept = None if isinstance(config.metadata, msgspec.UnsetType) else config.metadata.get(KEPT)
    try:
        return kept is None or json.loads(kept).get("allow_direct") is not False
    except (ValueError, AttributeError):
        return True


class _Get(NamedTuple):
    """A request for the last message of a subject."""

    call: ApiCall
    subject: str
    has_headers: bool


class _GetAt(NamedTuple):
    """A request for the message with a sequence."""

    call: ApiCall
    offset: Offset
    has_headers: bool
    subject: ApiSubject | None  # of STREAM.MSG.GET, which is answered as JSON


class _Certain(NamedTuple):
    """A source of answers to gets, as long as the node has no event, until a time."""

    owners: list[PrefixOwnership]
    prefixes: list[bytes]
    stream: bytes
    kept: KeptLasts
    event_count: int
    until_us: int


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch read under way."""

    call: ApiCall
    stream: StreamState
    query: MessageQuery
    ask: FindMessagesRequest  # for the next piece
    bytes_left: int
    messages_left: int
    pending: int = -1  # messages that follow the next one; -1: not counted yet
    last: int = 0  # sequence of the message before
    up_to: int | None = None  # of `multi_last`
    parts: list[tuple[FindMessagesResponse, bytes]] = field(default_factory=list)  # wait for the count
    # of `multi_last` in several pieces
    subjects: int = 0  # number of those with a message when it began
    told: set[str] = field(default_factory=set)  # subjects
    pieces_again: int = 0  # read from the beginning, for subjects whose message has moved

    @property
    def is_bounded(self) -> bool:
        """True if the caller has said up to where."""
        return bool(self.query.up_to_seq) or self.query.up_to_us is not None


class Lookups:
    """The look-ups of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._gets: dict[StreamId, list[_Get]] = {}  # of the present read
        self._gets_at: dict[StreamId, list[_GetAt]] = {}  # of the present read
        self.noted = 0  # gets that were noted to be looked up together
        self._streams: dict[str, StreamState | None] = {}  # that the present read names
        self._direct: dict[StreamId, tuple[StreamConfig, bool]] = {}  # whether a config allows direct gets
        self._later: deque[tuple[int, Callable[[], None]]] = deque()  # what is asked again, and when
        self._certain: _Certain | None = None
        self._asked = 0  # requests to the node without an answer
        self._gets_asked = 0  # gets in them
        self._running = 0  # batches
        self._waiting: deque[_Batch] = deque()
        self._is_stopping = False

    @property
    def handlers(self) -> dict[str, Handler]:
        """By operation."""
        return {"STREAM.MSG.GET": self._message_get, "DIRECT.GET": self._direct_get}

    def tick(self, now: Now) -> None:
        """Ask again what could not be answered."""
        while self._later and self._later[0][0] <= now.elapsed_us:
            self._later.popleft()[1]()

    def shut_down(self) -> None:
        """The broker stops: refuse what waits. What is asked of the node from now on is refused there."""
        self._is_stopping = True
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            self._gateway.answer(batch.call, b"", _STOPPING)
        later, self._later = self._later, deque()
        for _, again in later:
            again()

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        return self._later[0][0] if self._later else None

    def answer_at_once(self, group: MessageGroup, now: Now, hops: int = 0) -> bool:
        """Answer the requests of a read if they are few plain gets of the stream that was asked for last, and nothing
        has happened since: so a lone get costs little. False: nothing was answered.
        """
        known, gateway = self._certain, self._gateway
        if known is None or len(group) > AT_ONCE_MAX:
            return False
        kept = known.kept
        is_same = gateway.node.event_count == known.event_count and now.elapsed_us < known.until_us
        if not (is_same and (hops or all(owner.is_served for owner in known.owners))):
            return False
        found, others = sort_gets(group, 0, len(group), known.prefixes)
        gets = found.get(known.stream)
        if others or gets is None or len(found) > 1:
            return False
        pieces, left = self._answer_kept(gets, group, kept)
        if left:
            # Only of one: of several, those that are answered would be answered again.
            found_now = self._look_up_now(gets, group, kept, left) if gets.count == 1 else None
            if found_now is None:
                return False
            self._certain = known._replace(kept=found_now)
            pieces, left = self._answer_kept(gets, group, found_now)
            if left:
                return False
        for piece in pieces:
            gateway.send(piece)
        gateway.requests["DIRECT.GET"] += 0 if hops else gets.count
        gateway.took("DIRECT.GET", now.wall_us, gets.count)
        return True

    def _answer_kept(self, gets: SubjectGets, group: MessageGroup, kept: KeptLasts) -> tuple[list[bytes], list[int]]:
        """Return the answers to gets of which it is certain in memory what the message is, and the other gets."""
        lasts, payload_max = kept.lasts, self._gateway.payload_max
        return answer_kept(gets, group, kept.rows, lasts.table, lasts.identity, kept.log_start, kept.end, payload_max)

    def _look_up_now(
        self, gets: SubjectGets, group: MessageGroup, kept: KeptLasts, numbers: list[int]
    ) -> KeptLasts | None:
        """Look up what gets are about, as many as the event loop does at once, unless the disk is needed."""
        names = [gets.subject(group, number) for number in numbers[: limits.LASTS_ON_LOOP_MAX]]
        return self._gateway.node.find_lasts(kept, names) if are_plain(names) else None

    def take_gets(self, rows: ApiRows, owners: list[PrefixOwnership], until_us: int, now: Now) -> list[int]:
        """Take the plain gets: pass them on, answer those whose messages are certain in memory, and note those to be
        looked up. Return the other rows.

        `owners`: of the prefixes that are answered, until then.
        """
        group, hops = rows.group, rows.hops
        prefixes = [b"%bDIRECT.GET." % owner.prefix.encode() for owner in owners]
        found, others = sort_gets(group, rows.begin, rows.end, prefixes)
        for name, gets in found.items():
            stream = name.decode(errors="replace")
            state = self._gateway.led(stream)
            if state is None or not self._allows_direct(state):
                if hops < HOPS_MAX and self._gateway.pass_on(stream, partial(_calls, rows, gets)):
                    self._gateway.requests["DIRECT.GET"] += 0 if hops else gets.count
                else:
                    others += map(gets.row, range(gets.count))
                continue
            self._gateway.requests["DIRECT.GET"] += 0 if hops else gets.count
            left: Sequence[int] = range(gets.count)
            kept = self._gateway.node.kept_lasts(state.stream_id, now, self._gateway.user)
            if kept is not None:
                if not hops:
                    count, until_us = self._gateway.node.event_count, min(until_us, kept.until_us)
                    self._certain = _Certain(owners, prefixes, name, kept, count, until_us)
                asked = gets.count
                pieces, left = self._answer_kept(gets, group, kept)
                if left and (found_now := self._look_up_now(gets, group, kept, left)) is not None:
                    gets = gets.only(left)
                    more, left = self._answer_kept(gets, group, found_now)
                    pieces += more
                for piece in pieces:
                    self._gateway.send(piece)
                if count := asked - len(left):
                    self._gateway.took("DIRECT.GET", rows.received_us, count)
            self._note(state, rows, gets, left)
        others.sort()
        return others

    def _note(self, state: StreamState, rows: ApiRows, gets: SubjectGets, numbers: Sequence[int]) -> None:
        """Note gets for `ask_gets`."""
        noted = self._gets.setdefault(state.stream_id, [])
        for number in numbers:
            call = _call(rows, gets.row(number), rows.hops)
            subject = gets.subject(rows.group, number).decode(errors="replace")
            if _WILDCARDS.search(subject) is not None and is_wildcard(subject):
                self._look_up(call, state, MessageQuery(last_by_subj=subject), self._gateway.node.now)
            else:
                noted.append(_Get(call, subject, True))

    def _allows_direct(self, state: StreamState) -> bool:
        config, allows = self._direct.get(state.stream_id, (None, False))
        if config is not state.config:
            if len(self._direct) >= _CONFIGS_MAX:
                self._direct.clear()
            allows = allows_direct(state.config)
            self._direct[state.stream_id] = state.config, allows
        return allows

    # Handlers

    def _message_get(self, call: ApiCall, subject: ApiSubject, now: Now) -> None:
        state = self._gateway.stream(subject.stream)
        try:
            query = parse_message_get(call.payload)
            if state is None:
                raise stream_not_found()
            if len(state.partitions) > 1:
                raise self._gateway.several_partitions(state)
        except ApiError as refusal:
            self._gateway.refuse(call, subject, refusal)
            return

        def found(_: FindMessagesResponse, data: bytes) -> None:
            if data:
                self._answer_json(call, subject, RowPicker.of(data).row(0), has_headers=not query.no_hdr)
            else:
                self._gateway.refuse(call, subject, no_message_found())

        def failed(error: RemoteError) -> None:
            if self._is_told(error):
                self._gateway.refuse(call, subject, api_error(error))

        if self._is_at(state, query):
            self._note_at(state, _GetAt(call, _offset(query.seq), not query.no_hdr, subject))
        elif (request := self._one(state, query)) is None:
            self._gateway.refuse(call, subject, no_message_found())
        elif self._asked >= LOOKUPS_MAX:
            self._gateway.refuse(call, subject, too_many_requests())
        else:
            self._find(request, now, found, failed)

    def _direct_get(self, call: ApiCall, subject: ApiSubject, now: Now) -> None:
        if subject.stream not in self._streams:
            self._streams[subject.stream] = self._gateway.stream(subject.stream)
        state = self._streams[subject.stream]
        if state is None or not self._allows_direct(state):
            no_subscriber = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % call.subject.encode()
            self._gateway.answer(call, b"", no_subscriber)
        elif len(state.partitions) > 1:
            self._gateway.refuse(call, subject, self._gateway.several_partitions(state))
        else:
            try:
                if subject.rest and not call.payload:
                    query = MessageQuery(last_by_subj=subject.rest)
                elif subject.rest:
                    query = parse_last_of_subject(call.payload, subject.rest)
                else:
                    query = parse_direct(call.payload)
            except RefusedRequestError as error:
                self._gateway.answer(call, b"", status(408, error.text))
            else:
                self._look_up(call, state, query, now)

    def _look_up(self, call: ApiCall, state: StreamState, query: MessageQuery, now: Now) -> None:
        if query.multi_last or query.batch:
            self._begin(call, state, query, now)
        elif query.last_by_subj and not (_WILDCARDS.search(query.last_by_subj) and is_wildcard(query.last_by_subj)):
            self._gets.setdefault(state.stream_id, []).append(_Get(call, query.last_by_subj, not query.no_hdr))
            self.noted += 1
        elif self._is_at(state, query):
            self._note_at(state, _GetAt(call, _offset(query.seq), not query.no_hdr, None))
        elif (request := self._one(state, query)) is None:
            self._gateway.answer(call, b"", _NOT_FOUND)
        elif self._asked >= LOOKUPS_MAX:
            self._gateway.answer(call, b"", _TOO_BUSY)
        else:

            def found(_: FindMessagesResponse, data: bytes) -> None:
                rows = [0] if data else [-1]
                self._gateway.took("DIRECT.GET", call.received_us)
                self._send(state, data, [call.reply], rows, has_headers=not query.no_hdr)

            self._find(request, now, found, partial(self._refuse, [call]))

    def _one(self, state: StreamState, query: MessageQuery) -> FindMessagesRequest | None:
        """Return the request for the one message of a query; None: there can be none.

        A message that the API's user may not read is none: it is not told apart from one that is deleted.
        """
        request = _one(state, query)
        if request is None or (subjects := self._gateway.narrowed(state, request.subjects)) is request.subjects:
            return request
        return msgspec.structs.replace(request, subjects=subjects)

    # Messages with a sequence

    def _is_at(self, state: StreamState, query: MessageQuery) -> bool:
        """True if a query is for one sequence, of any subject that the stream has."""
        is_one = query.seq > 0 and not (query.next_by_subj or query.last_by_subj) and query.start_us is None
        return is_one and self._gateway.narrowed(state, _ALL) is _ALL

    def _note_at(self, state: StreamState, get: _GetAt) -> None:
        self._gets_at.setdefault(state.stream_id, []).append(get)
        self.noted += 1

    def _get_at(self, state: StreamState, gets: list[_GetAt], now: Now) -> None:
        """Ask for messages; again for those that one answer did not take."""
        if self._gets_asked + len(gets) > GETS_ASKED_MAX:
            for one in gets:
                if one.subject is None:
                    self._gateway.answer(one.call, b"", _TOO_BUSY)
                else:
                    self._gateway.refuse(one.call, one.subject, too_many_requests())
            return

        def found(response: FindMessagesResponse, data: bytes) -> None:
            self._gets_asked -= len(gets)
            rows = {offset: row for row, offset in enumerate(codec.offsets(data))} if data else {}
            done = response.next_offset
            left = [one for one in gets if done <= one.offset < response.end_offset]
            told = [one for one in gets if not done <= one.offset < response.end_offset]
            for has_headers in (True, False):
                these = [one for one in told if one.subject is None and one.has_headers is has_headers]
                if these:
                    places = [rows.get(one.offset, -1) for one in these]
                    self._gateway.took("DIRECT.GET", these[0].call.received_us, len(these))
                    self._send(state, data, [one.call.reply for one in these], places, has_headers=has_headers)
            picker = RowPicker.of(data) if data else None
            for one in told:
                if one.subject is not None and picker is not None and one.offset in rows:
                    row = picker.row(rows[one.offset])
                    self._answer_json(one.call, one.subject, row, has_headers=one.has_headers)
                elif one.subject is not None:
                    self._gateway.refuse(one.call, one.subject, no_message_found())
            if left:
                self._get_at(state, left, self._gateway.node.now)

        def failed(error: RemoteError) -> None:
            self._gets_asked -= len(gets)
            if error.code == ErrorCode.CORRUPT_RANGE and len(gets) > 1:  # the others can be read
                for one in gets:
                    self._get_at(state, [one], self._gateway.node.now)
                return
            self._refuse([one.call for one in gets if one.subject is None], error)
            for one in gets:
                if one.subject is not None and self._is_told(error):
                    self._gateway.refuse(one.call, one.subject, api_error(error))

        offsets = tuple(dict.fromkeys(one.offset for one in gets))
        request = FindMessagesRequest(
            stream_id=state.stream_id, which="at", offsets=offsets, bytes_max=limits.FOUND_BYTES_MAX
        )
        self._gets_asked += len(gets)
        self._ask(request, now, lambda response, data: found(cast(FindMessagesResponse, response), data), failed)

    def _answer_json(self, call: ApiCall, subject: ApiSubject, row: PickedRow, *, has_headers: bool) -> None:
        message = {"subject": (row.subject or b"").decode(), "seq": row.offset + 1}
        if row.headers and has_headers:
            message["hdrs"] = row.headers
        if row.value:
            message["data"] = row.value
        message["time"] = time_text(row.timestamp_us).decode()
        self._gateway.answer(call, json_answer(subject.operation, message=message))

    # Last messages of subjects

    def ask_gets(self, now: Now) -> None:
        """Ask for all the last messages, and those with a sequence, that one read asks for."""
        self._streams.clear()
        if self._gets_at:
            found_at, self._gets_at = self._gets_at, {}
            for stream_id, these in found_at.items():
                if (state := self._gateway.stream_of(stream_id)) is not None:
                    for begin in range(0, len(these), GETS_MAX):
                        self._get_at(state, these[begin : begin + GETS_MAX], now)
        if not self._gets:
            return
        found, self._gets = self._gets, {}
        for stream_id, gets in found.items():
            state = self._gateway.stream_of(stream_id)
            if state is not None:
                for begin in range(0, len(gets), GETS_MAX):
                    self._get(state, gets[begin : begin + GETS_MAX], now)

    def _get(self, state: StreamState, gets: list[_Get], now: Now) -> None:
        if self._gets_asked + len(gets) > GETS_ASKED_MAX:
            for one in gets:
                self._gateway.answer(one.call, b"", _TOO_BUSY)
            return
        if not are_plain([one.subject.encode(errors="replace") for one in gets]):
            wrong = [one for one in gets if subject_mistake(one.subject) is not None]
            for one in wrong:
                self._gateway.answer(one.call, b"", _NOT_FOUND)
            if len(wrong) == len(gets):
                return
            gets = [one for one in gets if one not in wrong]
        request = FindMessagesRequest(
            stream_id=state.stream_id,
            subjects=tuple(dict.fromkeys(one.subject for one in gets)),
            which="last_of_each",
            limit=limits.FOUND_SUBJECTS_MAX,
        )
        self._ask_gets(request, state, gets, now)

    def _ask_gets(self, request: FindMessagesRequest, state: StreamState, gets: list[_Get], now: Now) -> None:
        def found(response: FindMessagesResponse, data: bytes) -> None:
            self._gets_asked -= len(gets)
            rows = {one: row for row, one in enumerate(_subjects(data))}
            is_all = response.next_offset >= response.end_offset
            left = [] if is_all else [one for one in gets if one.subject not in rows]
            for has_headers in (True, False):
                these = [one for one in gets if one.has_headers is has_headers and (is_all or one.subject in rows)]
                if these:
                    places = [rows.get(one.subject, -1) for one in these]
                    self._gateway.took("DIRECT.GET", these[0].call.received_us, len(these))
                    self._send(state, data, [one.call.reply for one in these], places, has_headers=has_headers)
            if left:  # anew: a message that came meanwhile may have taken the place of one before that end
                self._get(state, left, self._gateway.node.now)

        def failed(error: RemoteError) -> None:
            self._gets_asked -= len(gets)
            # perhaps on some of the subjects only
            if error.code in (ErrorCode.NOT_AUTHORIZED, ErrorCode.CORRUPT_RANGE) and len(gets) > 1:
                for one in gets:
                    self._get(state, [one], self._gateway.node.now)
            else:
                self._refuse([one.call for one in gets], error)

        self._gets_asked += len(gets)
        self._find(request, now, found, failed)

    # Batches

    def _begin(self, call: ApiCall, state: StreamState, query: MessageQuery, now: Now) -> None:
        is_multi = bool(query.multi_last)
        patterns: tuple[str, ...] = _legal(query.multi_last if is_multi else (query.next_by_subj or ">",))
        if not patterns:
            self._gateway.answer(call, b"", _NO_RESULTS if is_multi else _NOT_FOUND)
            return
        if len(patterns) > limits.FOUND_SUBJECTS_MAX:
            self._gateway.answer(call, b"", _TOO_MANY)
            return
        patterns = self._gateway.narrowed(state, patterns)
        begin_us = None if is_multi else query.start_us
        ask = FindMessagesRequest(
            stream_id=state.stream_id,
            subjects=patterns,
            which="last_of_each" if is_multi else "next",
            begin=_offset(query.seq) if begin_us is None else Offset(0),
            begin_us=begin_us,
            end=Offset(min(query.up_to_seq, limits.OFFSET_MAX)) if is_multi and query.up_to_seq else None,
            end_us=query.up_to_us if is_multi else None,
        )
        bytes_max = min(query.max_bytes or BATCH_BYTES_MAX, BATCH_BYTES_MAX)
        messages = query.batch if query.batch > 0 or not is_multi else limits.FOUND_SUBJECTS_MAX
        batch = _Batch(call, state, query, ask, bytes_max, messages)
        if self._running < BATCHES_RUNNING_MAX:
            self._running += 1
            self._read_on(batch, now)
        elif len(self._waiting) < BATCHES_WAITING_MAX:
            self._waiting.append(batch)
        else:
            self._gateway.answer(call, b"", _BUSY)

    def _ended(self) -> None:
        """Begin with the next batch read."""
        self._running -= 1
        if self._waiting:
            self._running += 1
            self._read_on(self._waiting.popleft(), self._gateway.node.now)

    def _read_on(self, batch: _Batch, now: Now) -> None:
        """Ask for the next piece, once nats-server has taken the ones before."""
        state = self._gateway.stream_of(batch.stream.stream_id) or batch.stream
        if (refusal := unreadable(state)) is not None:
            self._finish(batch, status(refusal.code, refusal.description))
            return
        if self._is_stopping:
            self._finish(batch, _STOPPING)
            return
        if self._gateway.unsent_bytes() > UNSENT_BYTES_MAX:
            later = now.elapsed_us + _RETRY_US
            self._later.append((later, lambda: self._read_on(batch, self._gateway.node.now)))
            return
        # What was told already comes again with what was not, and is left out.
        messages, size_bytes = (
            (limits.FOUND_MESSAGES_MAX, limits.FOUND_BYTES_MAX)
            if batch.pieces_again
            else (batch.messages_left, batch.bytes_left)
        )
        batch.ask = msgspec.structs.replace(
            batch.ask,
            limit=max(1, min(messages, limits.FOUND_MESSAGES_MAX)),
            bytes_max=max(1, min(size_bytes, limits.FOUND_BYTES_MAX)),
        )
        self._find(batch.ask, now, partial(self._piece, batch), partial(self._fail, batch))

    def _piece(self, batch: _Batch, response: FindMessagesResponse, data: bytes) -> None:
        query = batch.query
        if batch.pending < 0:
            if query.multi_last:
                if not response.subjects:
                    self._finish(batch, _NO_RESULTS)
                    return
                batch.pending = batch.subjects = response.messages
                asked = query.up_to_seq if query.up_to_us is None and query.up_to_seq else response.end_offset
                batch.up_to = asked
            elif not data and query.batch > 0:
                self._finish(batch, _NOT_FOUND)
                return
            else:
                batch.parts.append((response, data))
                self._count(batch, response.begin, response.end_offset, 0, self._gateway.node.now)
                return
        self._write(batch, response, data)

    def _count(self, batch: _Batch, begin: int, end: int, messages: int, now: Now) -> None:
        """Count what the batch is about, piece by piece."""
        request = ListSubjectsRequest(
            stream_id=batch.ask.stream_id, subjects=batch.ask.subjects, begin=Offset(begin), end=Offset(end)
        )

        def heard(response: Response) -> None:
            assert isinstance(response, ListSubjectsResponse)
            counted = messages + response.messages
            if response.end_offset < end:
                self._count(batch, response.end_offset, end, counted, self._gateway.node.now)
                return
            batch.pending = counted
            self._write(batch, *batch.parts.pop())

        self._ask(request, now, lambda response, _: heard(response), partial(self._fail, batch))

    def _write(self, batch: _Batch, response: FindMessagesResponse, data: bytes) -> None:
        """Answer with the messages of a piece, then read the next one, or end the batch."""
        query, is_all = batch.query, response.next_offset >= response.end_offset
        has_headers = not query.no_hdr or bool(query.multi_last)
        subjects = _subjects(data) if query.multi_last and (batch.told or not is_all) else []  # of several pieces
        rows = _untold(batch, subjects) if subjects else [*range(_row_count(data))]
        del rows[max(0, batch.messages_left) :]
        following = max(0, batch.pending - 1) if has_headers else batch.pending
        if rows:
            replies = [batch.call.reply] * len(rows)
            sent, size_bytes = self._send(
                batch.stream, data, replies, rows, following, batch.last, batch.bytes_left, has_headers=has_headers
            )
            batch.last = _sequence(data, rows[sent - 1])
            batch.told.update(subjects[row] for row in rows[:sent] if subjects)
            batch.messages_left -= sent
            batch.bytes_left -= size_bytes
            if has_headers:  # nats-server does not count down without headers
                batch.pending = max(0, batch.pending - sent)
        if batch.bytes_left <= 0 or batch.messages_left <= 0 or not _has_next_piece(batch, response):
            self._finish(batch, _end_status(batch))
        else:
            self._read_on(batch, self._gateway.node.now)

    def _finish(self, batch: _Batch, status: bytes) -> None:
        self._gateway.answer(batch.call, b"", status)
        self._ended()

    def _fail(self, batch: _Batch, error: RemoteError) -> None:
        if error.code == ErrorCode.TOO_LARGE and batch.query.multi_last and batch.pending < 0:
            self._finish(batch, _TOO_MANY)
        elif error.code == ErrorCode.TOO_LARGE and batch.pieces_again:  # there are more subjects by now
            self._finish(batch, _end_status(batch))
        else:
            self._refuse([batch.call], error)
            self._ended()

    # The node

    def _find(self, request: FindMessagesRequest, now: Now, found: Found, failed: Failed) -> None:
        """Ask for messages until there are some, or all was searched."""

        def heard(response: Response, data: bytes) -> None:
            assert isinstance(response, FindMessagesResponse)
            if not data and response.next_offset < response.end_offset:
                again = msgspec.structs.replace(request, begin=response.next_offset, end=response.end_offset)
                self._find(again, self._gateway.node.now, found, failed)
            else:
                found(response, data)

        self._ask(request, now, heard, failed)

    def _ask(
        self,
        request: Request,
        now: Now,
        heard: Callable[[Response, bytes], None],
        failed: Failed,
        until_us: int | None = None,
    ) -> None:
        """Ask the node; again in a moment if it cannot answer yet."""
        deadline_us = now.elapsed_us + PATIENCE_US if until_us is None else until_us

        def answered(response: Response | RemoteError, payload: Payload) -> None:
            self._asked -= 1
            if not isinstance(response, RemoteError):
                heard(response, b"" if payload is None else bytes(payload))  # type: ignore[arg-type]
                return
            due_us = self._gateway.node.now.elapsed_us + _RETRY_US
            is_early = response.code == ErrorCode.NOT_YET and due_us < deadline_us and not self._is_stopping
            if is_early and len(self._later) < ASKED_AGAIN_MAX:
                again = partial(self._ask_again, request, heard, failed, deadline_us)
                self._later.append((due_us, again))
            else:
                failed(response)

        self._asked += 1
        self._gateway.ask(request, now, answered)

    def _ask_again(
        self, request: Request, heard: Callable[[Response, bytes], None], failed: Failed, until_us: int
    ) -> None:
        self._ask(request, self._gateway.node.now, heard, failed, until_us)

    def _send(
        self,
        state: StreamState,
        data: bytes,
        replies: list[bytes],
        rows: list[int],
        pending: int = -1,
        last: int = 0,
        bytes_max: int = BATCH_BYTES_MAX,
        *,
        has_headers: bool,
    ) -> tuple[int, int]:
        """Answer with rows of a batch; return their number and size, as `direct_answers` counts them."""
        name, payload_max = state.name.encode(), self._gateway.payload_max
        if pending < 0:
            bytes_max = limits.OFFSET_MAX
        commands, sent, size_bytes = direct_answers(
            data, codec.LAYOUT, name, replies, rows, pending, last, bytes_max, payload_max, has_headers
        )
        self._gateway.send(commands)
        return sent, size_bytes

    def _refuse(self, calls: Sequence[ApiCall], error: RemoteError) -> None:
        """Tell the callers, unless another broker may answer them."""
        if self._is_told(error):
            refusal = api_error(error)
            self._gateway.errors["DIRECT.GET", refusal.err_code] += len(calls)
            if refusal.code == 403:
                self._gateway.denied("DIRECT.GET", "", error.message)
            code = 403 if refusal.code == 403 else 503 if self._is_stopping else 500
            for call in calls:
                self._gateway.answer(call, b"", status(code, error.message))

    def _is_told(self, error: RemoteError) -> bool:
        """True if callers hear of an error; at the end they hear of each one."""
        return self._is_stopping or error.code not in _SILENT


def _call(rows: ApiRows, row: int, hops: int) -> ApiCall:
    group = rows.group
    subject = group.subject(row).decode(errors="replace")
    return ApiCall(subject, group.reply(row) or b"", None, group.value(row) or b"", hops, rows.received_us)


def _calls(rows: ApiRows, gets: SubjectGets) -> Iterator[ApiCall]:
    """Return the gets as calls that are passed on."""
    return (_call(rows, gets.row(number), rows.hops + 1) for number in range(gets.count))


def _one(state: StreamState, query: MessageQuery) -> FindMessagesRequest | None:
    """Return the request for the one message of a query; None: there can be none."""
    if query.last_by_subj:
        patterns = _legal((query.last_by_subj,))
        which = FindMessagesRequest(stream_id=state.stream_id, subjects=patterns or _ALL, which="last")
        return which if patterns else None
    patterns = _legal((query.next_by_subj or ">",))
    begin = _offset(query.seq)
    end = None if query.next_by_subj or query.start_us is not None else Offset(begin + 1)
    request = FindMessagesRequest(
        stream_id=state.stream_id, subjects=patterns or _ALL, begin=begin, end=end, begin_us=query.start_us
    )
    return request if patterns else None


def _offset(sequence: int) -> Offset:
    return Offset(max(0, min(sequence, limits.OFFSET_MAX) - 1))


def _legal(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the legal ones: on others is no message."""
    return tuple(one for one in dict.fromkeys(patterns) if subject_mistake(one, wildcards=True) is None)


def _untold(batch: _Batch, subjects: list[str]) -> list[int]:
    """Return the rows of a piece whose subjects were not told, and no more than are left of those at the beginning."""
    rows = [row for row, one in enumerate(subjects) if one not in batch.told]
    return rows[: batch.subjects - len(batch.told)]


def _has_next_piece(batch: _Batch, response: FindMessagesResponse) -> bool:
    """Set what a batch asks next; False: all is answered.

    A subject whose message was overwritten or deleted while others were read has another last message by now: those
    that were not told are looked for once more from the beginning on, up to the caller's end or without one.
    """
    begin, end = response.next_offset, response.end_offset
    is_missing = bool(batch.told) and len(batch.told) < batch.subjects
    if batch.pieces_again:
        if begin >= end or not is_missing or batch.pieces_again >= PIECES_AGAIN_MAX:
            return False
        batch.pieces_again += 1
    elif begin >= end:
        if not is_missing:
            return False
        batch.pieces_again, begin = 1, _offset(batch.query.seq)
    is_open = batch.pieces_again and not batch.is_bounded
    batch.ask = msgspec.structs.replace(
        batch.ask, begin=begin, end=None if is_open else end, begin_us=None, end_us=None
    )
    return True


def _end_status(batch: _Batch) -> bytes:
    up_to = b"" if batch.up_to is None else b"Nats-UpTo-Sequence: %d\r\n" % batch.up_to
    numbers = b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n" % (batch.pending, batch.last)
    return b"NATS/1.0 204 EOB\r\n%b%b\r\n" % (numbers, up_to)


def _subjects(data: bytes) -> list[str]:
    """Return the subjects of a batch's rows."""
    if not data:
        return []
    ends, text = BatchRows(data, codec.LAYOUT).subjects()
    places, names = memoryview(ends).cast("B").cast("i"), bytes(text)
    return [names[places[row] : places[row + 1]].decode() for row in range(len(places) - 1)]


def _row_count(data: bytes) -> int:
    return codec.read_header(data).count if data else 0


def _sequence(data: bytes, row: int) -> int:
    return codec.offsets(data)[row] + 1
