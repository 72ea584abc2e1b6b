"""The state of a stream as JetStream tells it, from the leader of its partition.

Rules: `seq = offset + 1`. Counts and subjects are those of one moment: subjects are counted up to the end that the
counts are about. `num_subjects` is left out beyond `limits.SUBJECTS_COUNTED_MAX`, and if it is not known in time.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch, Offset
from penstock.base.subjects import subject_mistake
from penstock.jetstream.conversations import Answered, Asked, Question, ask
from penstock.jetstream.errors import several_partitions, too_many_rules, unavailable
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

SUBJECTS_AT_ONCE = 20_000
"""Subjects of one look at the index: more than a client of the socket API gets, for nothing is sent."""
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
_OFFSETS_BYTES = 64 * 1024  # of one read of offsets: decoded on the event loop


def api_time(at_us: int) -> str:
    """Return a time as RFC 3339 in UTC, without trailing zeros, as Go does."""
    whole_s, rest_us = divmod(at_us, 1_000_000)
    text = datetime.fromtimestamp(whole_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest_us:06}".rstrip("0") if rest_us else ""
    return f"{text}{fraction}Z"


def need_one_partition(state: StreamState) -> None:
    """Raise ApiError if the stream has several partitions."""
    if len(state.partitions) > 1:
        raise several_partitions(state.name, len(state.partitions))


def offsets_of(state: StreamState) -> Generator[Asked, list[Answered], ListOffsetsResponse]:
    """Return the offsets and counts of a stream, from its leader. Raise RemoteError."""
    request = ListOffsetsRequest(stream_id=state.stream_id, at="latest", counts_rows=True)
    if (leader := state.partitions[0].leader) is None:
        raise unavailable("the stream has no leader at the moment; ask again")
    return (yield from ask(request, ListOffsetsResponse, leader, lambda response: response.live is not None))


def state_fields(found: ListOffsetsResponse, consumers: int) -> dict[str, Any]:
    """Return `state` of a stream's info, without its subjects."""
    live, last_seq = found.live, int(found.committed_end)
    assert live is not None
    fields: dict[str, Any] = {"messages": live.rows, "bytes": live.size_bytes if live.rows else 0}
    if live.first_offset is None:
        first_seq = last_seq + 1 if last_seq else 0
        fields |= {"first_seq": first_seq, "first_ts": NO_TIME, "last_seq": last_seq, "last_ts": NO_TIME}
    else:
        first_seq = live.first_offset + 1
        times = {"first_ts": api_time(live.first_us or 0), "last_ts": api_time(live.last_us or 0)}
        fields |= {"first_seq": first_seq, "last_seq": last_seq, **times}
        if deleted := last_seq - first_seq + 1 - live.rows:
            fields["num_deleted"] = deleted
    fields["consumer_count"] = consumers
    return fields


def subject_counts(
    state: StreamState, patterns: tuple[str, ...], end: int
) -> Generator[Asked, list[Answered], dict[str, int]]:
    """Return the messages of each subject that matches, by subject; only where the leader is this broker."""
    found: dict[str, int] = {}
    if any(subject_mistake(one, wildcards=True) is not None for one in patterns):
        return found
    if len(patterns) > limits.FETCH_SUBJECTS_MAX:
        raise too_many_rules(len(patterns))
    after, leader = "", state.partitions[0].leader
    while True:
        request = ListSubjectsRequest(
            stream_id=state.stream_id,
            subjects=patterns,
            after=after,
            limit=SUBJECTS_AT_ONCE,
            end=end,  # type: ignore[arg-type]
        )
        page = yield from ask(request, ListSubjectsResponse, leader)
        found |= {one.subject: one.messages for one in page.subjects}
        if len(page.subjects) < SUBJECTS_AT_ONCE:
            return found
        after = page.subjects[-1].subject


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
