"""The state of a stream as JetStream tells it, from the leader of its partition.

Rules: `seq = offset + 1`. Counts and subjects are those of one moment: subjects are counted up to the end that the
counts are about. `num_subjects` is left out beyond `limits.SUBJECTS_COUNTED_MAX`, and if it is not known in time.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch, Offset
from penstock.base.subjects import subject_mistake
from penstock.jetstream.conversations import Answered, Asked, Question, ask
from penstock.jetstream.errors import too_many_rules, unavailable
from penstock.jetstream.partition_streams import partition_stream
from penstock.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListSubjectsRequest,
    ListSubjectsResponse,
    LiveRowsInfo,
)
from penstock.metadata.image import StreamState

if TYPE_CHECKING:
    from penstock.jetstream.gateway import Gateway

PARTS_AT_ONCE = 32
"""Partitions whose counts are asked for at once: 2 ms of work of the event loop, then others have their turn."""
SUBJECTS_PAGE = 100_000
"""Subjects of one answer, as nats-server."""
SUBJECTS_AT_ONCE = 8_000
"""Subjects of one look at the index: 2 ms of work of the event loop."""
DELETED_TOLD_MAX = 100_000
"""Sequences in `deleted` of one answer: 1 MB."""
NOTHING = ListOffsetsResponse(
    offset=Offset(0),
    log_start=Offset(0),
    committed_end=Offset(0),
    leader_epoch=LeaderEpoch(0),
    live=LiveRowsInfo(rows=0, size_bytes=0),
)
"""Of a stream that is empty, or not to be read."""
NO_TIME = "0001-01-01T00:00:00Z"
_encode = msgspec.json.Encoder().encode
_OFFSETS_BYTES = 64 * 1024  # of one read of offsets: decoded on the event loop


def api_time(at_us: int) -> str:
    """Return a time as RFC 3339 in UTC, without trailing zeros, as Go does."""
    whole_s, rest_us = divmod(at_us, 1_000_000)
    text = datetime.fromtimestamp(whole_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest_us:06}".rstrip("0") if rest_us else ""
    return f"{text}{fraction}Z"


def need_one_partition(gateway: Gateway, state: StreamState) -> None:
    """Raise ApiError if the stream has several partitions."""
    if len(state.partitions) > 1:
        raise gateway.several_partitions(state)


def offsets_of(state: StreamState) -> Generator[Asked, list[Answered], ListOffsetsResponse]:
    """Return the offsets and counts of a stream, from its leader. Raise RemoteError."""
    parts = parts_of(state)
    if any(part.partitions[0].leader is None for part in parts):
        raise unavailable("the stream has no leader at the moment; ask again")
    found: list[ListOffsetsResponse] = []
    for begin in range(0, len(parts), PARTS_AT_ONCE):
        for response, _ in (yield tuple(map(count_of, parts[begin : begin + PARTS_AT_ONCE]))):
            if isinstance(response, RemoteError):
                raise response
            assert isinstance(response, ListOffsetsResponse)
            found.append(response)
    return summed(found)


def parts_of(state: StreamState) -> list[StreamState]:
    """Return the streams of a stream's partitions; of one partition: the stream itself."""
    if len(state.partitions) == 1:
        return [state]
    parts = (partition_stream(state, number) for number in range(len(state.partitions)))
    return [part for part in parts if part is not None]


def count_of(state: StreamState) -> Question:
    """Return the question for the offsets and counts of a stream of one partition."""

    def is_enough(response: Any) -> bool:
        return isinstance(response, RemoteError) or response.live is not None

    request = ListOffsetsRequest(stream_id=state.stream_id, at="latest", counts_rows=True)
    return Question(request, state.partitions[0].leader, until=is_enough)


def summed(found: Sequence[ListOffsetsResponse]) -> ListOffsetsResponse:
    """Return the counts of several partitions together; there is no sequence then, so its numbers are 0."""
    if len(found) == 1:
        return found[0]
    lives = [one.live for one in found if one.live is not None]
    live = LiveRowsInfo(
        rows=sum(one.rows for one in lives),
        size_bytes=sum(one.size_bytes for one in lives),
        live_bytes=sum(one.live_bytes for one in lives),
        first_us=min((one.first_us for one in lives if one.first_us is not None), default=None),
        last_us=max((one.last_us for one in lives if one.last_us is not None), default=None),
    )
    return msgspec.structs.replace(NOTHING, live=live)


def state_fields(found: ListOffsetsResponse, consumers: int) -> dict[str, Any]:
    """Return `state` of a stream's info, without its subjects."""
    live, last_seq = found.live, int(found.committed_end)
    assert live is not None
    fields: dict[str, Any] = {"messages": live.rows, "bytes": live.live_bytes}
    if live.first_offset is None:
        first_seq = last_seq + 1 if last_seq else 0
        first_ts = api_time(live.first_us) if live.first_us else NO_TIME  # of several partitions
        last_ts = api_time(live.last_us) if live.last_us else NO_TIME
        fields |= {"first_seq": first_seq, "first_ts": first_ts, "last_seq": last_seq, "last_ts": last_ts}
    else:
        first_seq = live.first_offset + 1
        times = {"first_ts": api_time(live.first_us or 0), "last_ts": api_time(live.last_us or 0)}
        fields |= {"first_seq": first_seq, "last_seq": last_seq, **times}
        if deleted := last_seq - first_seq + 1 - live.rows:
            fields["num_deleted"] = deleted
    fields["consumer_count"] = consumers
    return fields


class SubjectPage(NamedTuple):
    """One page of the subjects that match."""

    total: int  # subjects that match, of all pages
    shown: int  # of this page
    subjects: bytes  # a JSON object: the messages of each subject


def subject_page(
    state: StreamState, patterns: tuple[str, ...], end: int, offset: int, bytes_max: int
) -> Generator[Asked, list[Answered], SubjectPage]:
    """Return the subjects that match a pattern, from the one with number `offset` on, as many as fit.

    Only where the leader is. Each turn of the event loop encodes SUBJECTS_AT_ONCE of them.
    """
    if any(subject_mistake(one, wildcards=True) is not None for one in patterns):
        return SubjectPage(0, 0, b"{}")
    if len(patterns) > limits.FETCH_SUBJECTS_MAX:
        raise too_many_rules(len(patterns))
    parts: list[bytes] = []
    total = shown = 0
    left, is_full = bytes_max, False
    after, leader = "", state.partitions[0].leader
    while True:
        request = ListSubjectsRequest(
            stream_id=state.stream_id,
            subjects=patterns,
            after=after,
            limit=SUBJECTS_AT_ONCE,
            end=end,  # type: ignore[arg-type]
        )
        found = (yield from ask(request, ListSubjectsResponse, leader)).subjects
        wanted = [] if is_full else list(found[max(0, offset - total) :][: SUBJECTS_PAGE - shown])
        total += len(found)
        while wanted:
            part = _encode({one.subject: one.messages for one in wanted})[1:-1]
            if len(part) < left:
                parts.append(part)
                shown += len(wanted)
                left -= len(part) + 1
                break
            is_full = True  # a client asks for the rest
            del wanted[min(len(wanted) - 1, max(0, left) * len(wanted) // len(part)) :]
        if len(found) < SUBJECTS_AT_ONCE:
            return SubjectPage(total, shown, b"{%b}" % b",".join(parts))
        after = found[-1].subject


def number_of_subjects(state: StreamState, found: ListOffsetsResponse) -> Generator[Asked, list[Answered], int | None]:
    """Return the number of subjects with messages; None: not known, or too many to count."""
    if not found.committed_end:
        return 0
    request = ListSubjectsRequest(
        stream_id=state.stream_id, subjects=(">",), end=found.committed_end, counts_subjects=True
    )
    try:
        return (
            yield from ask(request, ListSubjectsResponse, state.partitions[0].leader, is_optional=True)
        ).subject_count
    except RemoteError as refusal:
        if refusal.code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.TOO_LARGE, ErrorCode.NOT_AUTHORIZED):
            return None
        raise


def deleted_sequences(state: StreamState, found: ListOffsetsResponse) -> Generator[Asked, list[Answered], list[int]]:
    """Return the sequences between the first and the last one that have no message, at most DELETED_TOLD_MAX."""
    import pyarrow as pa

    live = found.live
    if live is None or live.first_offset is None:
        return []
    deleted: list[int] = []
    position, end = int(live.first_offset), int(found.committed_end)
    expected = position
    while position < end and len(deleted) < DELETED_TOLD_MAX:
        (answered,) = yield (_offsets_from(state, position, end),)
        response, payload = answered
        if isinstance(response, RemoteError):
            raise response
        assert isinstance(response, FetchResponse)
        if isinstance(payload, bytes | bytearray) and payload:
            for offset in pa.ipc.open_stream(payload).read_all().column(0).to_pylist():
                if offset > expected:
                    deleted.extend(range(expected + 1, min(offset, expected + DELETED_TOLD_MAX) + 1))
                expected = offset + 1
        if response.end_offset <= position:
            break
        position = int(response.end_offset)
    deleted.extend(range(expected + 1, min(end, expected + DELETED_TOLD_MAX) + 1))
    return deleted[:DELETED_TOLD_MAX]


def _offsets_from(state: StreamState, position: int, end: int) -> Question:
    request = FetchRequest(
        stream_id=state.stream_id,
        offset=position,  # type: ignore[arg-type]
        end=end,  # type: ignore[arg-type]
        columns=("offset",),
        bytes_max=_OFFSETS_BYTES,
    )
    return Question(request)


def cluster_fields(state: StreamState, cluster_id: str) -> Mapping[str, Any]:
    """Return `cluster` of a stream's info: its leader and its other replicas."""
    partition = state.partitions[0]
    fields: dict[str, Any] = {"name": cluster_id} if cluster_id else {}
    if partition.leader is not None:
        fields["leader"] = f"broker-{partition.leader}"
    replicas = [
        {"name": f"broker-{one}", "current": one in partition.isr, "active": 0}
        for one in partition.replicas
        if one != partition.leader
    ]
    return fields | ({"replicas": replicas} if replicas else {})
