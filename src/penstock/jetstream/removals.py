"""Removal of messages: STREAM.PURGE and STREAM.MSG.DELETE.

Rules: a purge of everything, before a sequence or down to the last messages truncates the log; one by subject hides
rows. A purge of everything truncates each partition, at its leader; one that was not complete is repeated by the
client. A deletion without `no_erase` is secure: replicas erase the bytes. Nothing is tried again by itself: a
repetition would tell that there is nothing to delete.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Annotated

import msgspec

from penstock.access.handshake import Principal
from penstock.base.clock import Now
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.base.subjects import is_within, subject_mistake
from penstock.jetstream.answers import json_answer
from penstock.jetstream.api_call import ApiCall, ApiSubject
from penstock.jetstream.conversations import Answered, Asked, Conversation, Question, ask
from penstock.jetstream.errors import (
    ApiError,
    bad_request,
    delete_failed,
    no_removal_from_several,
    sealed,
    stream_not_found,
)
from penstock.jetstream.gateway import Gateway, Handler
from penstock.jetstream.stream_state import PARTS_AT_ONCE, parts_of
from penstock.jetstream.streams import decoded
from penstock.messages import (
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    PurgeSubjectRequest,
    PurgeSubjectResponse,
    Request,
    TruncateRequest,
    TruncateResponse,
)
from penstock.metadata.image import StreamState

_Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_NO_LEADER = RemoteError(ErrorCode.NOT_LEADER, "a partition of the stream has no leader at the moment; ask again")


class _PurgeRequest(msgspec.Struct, forbid_unknown_fields=True):
    filter: str | None = None
    seq: _Sequence | None = None
    keep: _Sequence | None = None


class _DeleteRequest(msgspec.Struct, forbid_unknown_fields=True):
    seq: _Sequence | None = None
    no_erase: bool | None = None


def removal_handlers(gateway: Gateway) -> Mapping[str, Handler]:
    """Return the handlers of requests that remove messages."""

    def named(subject: ApiSubject, command: str, *, of_all: bool = False) -> StreamState:
        """Return the stream; `command` of Penstock does the same for several partitions, unless it is `of_all`."""
        state = gateway.stream(subject.stream)
        if state is None:
            raise stream_not_found()
        if len(state.partitions) > 1 and not of_all:
            raise no_removal_from_several(state.name, len(state.partitions), command)
        if state.intake is Intake.SEALED:
            raise sealed()
        return state

    def purge(call: ApiCall, subject: ApiSubject) -> Conversation:
        options = decoded(call.payload, _PurgeRequest)
        if options.seq and options.keep:
            raise bad_request()
        state = named(subject, "purge", of_all=not (options.filter or options.seq or options.keep))
        # also if there is nothing to remove
        gateway.authorization.check(TruncateRequest(stream_id=state.stream_id, before=Offset(0)))
        if state.config.denies_purge:
            raise ApiError(500, 10110, "stream purge not permitted")
        if len(state.partitions) > 1:
            removed = yield from _purge_partitions(state, gateway.user)
            return json_answer(subject.operation, success=True, purged=removed)
        offsets = yield from ask(ListOffsetsRequest(stream_id=state.stream_id, at="latest"), ListOffsetsResponse)
        end = int(offsets.committed_end)
        before = min(options.seq - 1, end) if options.seq else end
        keep = min(options.keep or 0, end)
        wanted = options.filter
        if not wanted or all(is_within(one, wanted) for one in state.config.held_subjects):
            removed = yield from _truncate(state, before, keep, int(offsets.log_start))
        elif subject_mistake(wanted, wildcards=True) is not None:
            removed = 0
        else:
            # without a limit what is there when the leader looks goes, as a delete marker that came meanwhile
            removed = yield from _purge_subject(state, wanted, before if options.seq or keep else None, keep)
        return json_answer(subject.operation, success=True, purged=removed)

    def delete(call: ApiCall, subject: ApiSubject) -> Conversation:
        if call.is_empty:
            raise bad_request()
        options = decoded(call.payload, _DeleteRequest)
        state = named(subject, "delete-message")
        if state.config.denies_deletion:
            raise delete_failed("message delete not permitted")
        sequence = options.seq or 0
        if not sequence:
            raise delete_failed("no message found")
        request = DeleteMessagesRequest(
            stream_id=state.stream_id, offsets=(Offset(sequence - 1),), is_secure=not options.no_erase
        )
        found = yield from ask(request, DeleteMessagesResponse)
        if found.missing:
            raise delete_failed("stream store EOF" if sequence > found.committed_end else "no message found")
        if not found.deleted:
            raise ApiError(400, 10043, f"sequence {sequence} not found")
        return json_answer(subject.operation, success=True)

    def conversing(begin: Callable[[ApiCall, ApiSubject], Conversation]) -> Handler:
        def handle(call: ApiCall, subject: ApiSubject, now: Now) -> None:
            if subject.stream and not subject.rest:
                gateway.converse(call, subject, now, begin(call, subject))

        return handle

    return {"STREAM.PURGE": conversing(purge), "STREAM.MSG.DELETE": conversing(delete)}


def _purge_partitions(state: StreamState, user: Principal | None) -> Generator[Asked, list[Answered], int]:
    """Remove all messages that each partition has now, at its leader and for a user; return their number.

    Raise RemoteError, the first one, after those that could be purged.
    """
    parts = parts_of(state)
    ends = yield from _in_batches([ListOffsetsRequest(stream_id=part.stream_id, at="latest") for part in parts], parts)
    filled = [
        (part, found.response.committed_end)
        for part, found in zip(parts, ends, strict=True)
        if isinstance(found.response, ListOffsetsResponse) and found.response.log_start < found.response.committed_end
    ]
    name, index = ("", 0) if user is None else (user.name, user.made_index)
    requests = [
        TruncateRequest(stream_id=part.stream_id, before=end, user=name, user_index=index) for part, end in filled
    ]
    purged = yield from _in_batches(requests, [part for part, _ in filled])
    for one in (*ends, *purged):
        if isinstance(one.response, RemoteError):
            raise one.response
    return sum(one.response.messages for one in purged if isinstance(one.response, TruncateResponse))


def _in_batches(
    requests: Sequence[Request], parts: Sequence[StreamState]
) -> Generator[Asked, list[Answered], list[Answered]]:
    """Ask the leader of each partition, PARTS_AT_ONCE at once; one that is missing or silent stops no other one."""
    answers = [Answered(_NO_LEADER)] * len(parts)
    led = [number for number, part in enumerate(parts) if part.partitions[0].leader is not None]
    for begin in range(0, len(led), PARTS_AT_ONCE):
        some = led[begin : begin + PARTS_AT_ONCE]
        asked = (Question(requests[one], parts[one].partitions[0].leader, is_optional=True) for one in some)
        for number, answer in zip(some, (yield tuple(asked)), strict=True):
            answers[number] = answer
    return answers


def _truncate(state: StreamState, before: int, keep: int, log_start: int) -> Generator[Asked, list[Answered], int]:
    """Remove all messages before an offset, but the last `keep` of them; return their number."""
    if before <= log_start:
        return 0
    request = TruncateRequest(stream_id=state.stream_id, before=Offset(before), keep=keep)
    return (yield from ask(request, TruncateResponse)).messages


def _purge_subject(
    state: StreamState, wanted: str, before: int | None, keep: int
) -> Generator[Asked, list[Answered], int]:
    """Hide the messages on the subjects that match; return their number. `before` None: all."""
    removed, start = 0, 0
    limit = None if before is None else Offset(before)
    while True:
        request = PurgeSubjectRequest(
            stream_id=state.stream_id, subject=wanted, start=Offset(start), before=limit, keep=keep
        )
        found = yield from ask(request, PurgeSubjectResponse)
        removed += found.messages
        if found.next_offset is None:
            return removed
        start, limit, keep = found.next_offset, found.before, found.keep
