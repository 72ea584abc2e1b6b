"""Messages as bytes: what comes back, what is refused, how large they get."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.raft import Entry, EntryKind, RaftMembership, decode_message, encode_message
from penstock.raft.membership import encode_membership
from penstock.raft.messages import (
    FROM_LEADER,
    AppendEntriesRequest,
    AppendEntriesResponse,
    LeadNow,
    Message,
    RaftHeartbeat,
    RaftHeartbeatResponse,
    ReadRequest,
    ReadResponse,
    SnapshotChunk,
    SnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from penstock.raft.wire import contradiction
from tests.unit.raft.stories import term_of

MEMBERSHIP = RaftMembership((1, 2, 3), (4,))
THIRD, FOURTH = term_of("3.1"), term_of("4.1")
ANOTHERS = "its term is that of another candidate"


def entry(index: int, term: int, data: bytes = b"x", kind: EntryKind = EntryKind.COMMAND) -> Entry:
    return Entry(term, index, kind, data)


MESSAGES = [
    VoteRequest(1, 2, THIRD, 10, 2, True),
    VoteRequest(1, 2, THIRD, 10, 2, False, True),
    VoteResponse(1, 2, 3, False, True),
    AppendEntriesRequest(1, 2, THIRD, 7, 2, 6, (entry(8, 2), entry(9, 3, b"", EntryKind.LEADERSHIP))),
    AppendEntriesRequest(1, 2, THIRD, 7, 2, 6, (entry(8, 3, encode_membership(MEMBERSHIP), EntryKind.MEMBERSHIP),)),
    AppendEntriesResponse(1, 2, 3, 9),
    AppendEntriesResponse(1, 2, 3, 9, True, 4, True),
    RaftHeartbeat(1, 2, THIRD, 5, 6),
    RaftHeartbeatResponse(1, 2, 3, 6),
    SnapshotChunk(1, 2, THIRD, 100, 2, MEMBERSHIP, 1_000, 0xFFFFFFFF, 10, b"data"),
    SnapshotResponse(1, 2, 3, 100, 14),
    ReadRequest(1, 2, 3, b"context"),
    ReadResponse(1, 2, 3, 9, b"context"),
    LeadNow(1, 2, THIRD),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_there_and_back(message) -> None:
    assert decode_message(encode_message(message)) == message
    assert not contradiction(message)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_field_that_a_newer_broker_adds_is_skipped(message) -> None:
    fields = msgspec.msgpack.decode(encode_message(message))
    assert decode_message(msgspec.msgpack.encode([*fields, "new"])) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_no_cut_is_a_message(message) -> None:
    data = encode_message(message)
    for length in range(len(data)):
        with pytest.raises(RemoteError) as caught:
            decode_message(data[:length])
        assert caught.value.code == ErrorCode.BAD_FRAME


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    with contextlib.suppress(RemoteError):
        contradiction(decode_message(data))


@pytest.mark.parametrize(
    "fields",
    [
        [99, 1, 2, 3],  # no such message
        [11, 0, 2, 3],  # nobody is broker 0
        [11, 2**31, 2, 3],
        [11, 1, 2, -1],
        [11, 1, 2, 2**63],
        [11, 1, 2, 3.5],
        [11, 1, "2", 3],
        [9, 1, 2, 3, b"x" * 65],  # a context that is too long
        [3, 1, 2, 3, 7, 2, 6, [[3, 8, 9, b""]]],  # no such kind of entry
        [7, 1, 2, 3, 100, 2, [[1], []], 10, 2**32, 0, b"x"],  # no CRC
    ],
)
def test_out_of_bounds(fields: list) -> None:
    with pytest.raises(RemoteError, match="not a Raft message"):
        decode_message(msgspec.msgpack.encode(fields))


def test_too_large() -> None:
    with pytest.raises(RemoteError, match="too large"):
        decode_message(bytes(limits.RAFT_MESSAGE_BYTES_MAX + 1))


def test_the_largest_messages_fit() -> None:
    small = [Entry(2**62, 2**62, EntryKind.COMMAND, b"x" * 256)] * limits.RAFT_APPEND_ENTRIES_MAX
    one = Entry(2**62, 2**62, EntryKind.COMMAND, bytes(limits.RAFT_ENTRY_BYTES_MAX))
    for entries in (small, [one]):
        encode_message(AppendEntriesRequest(2**31 - 1, 2**31 - 2, 2**62, 2**62, 2**62, 2**62, tuple(entries)))
    ids = tuple(range(2**31 - limits.RAFT_LEARNERS_MAX, 2**31))
    chunk = bytes(limits.RAFT_SNAPSHOT_CHUNK_BYTES)
    encode_message(SnapshotChunk(1, 2, 2**62, 2**62, 2**62, RaftMembership((1,), ids), 2**62, 1, 2**62, chunk))


@pytest.mark.parametrize(
    "message",
    [
        LeadNow(1, 1, THIRD),
        VoteRequest(1, 2, THIRD, 10, THIRD, False),
        AppendEntriesRequest(1, 2, THIRD, 7, FOURTH, 6),
        AppendEntriesRequest(1, 2, THIRD, 7, 2, 6, (entry(9, 3),)),
        AppendEntriesRequest(1, 2, THIRD, 7, 2, 6, (entry(8, 3), entry(8, 3))),
        AppendEntriesRequest(1, 2, THIRD, 7, 2, 6, (entry(8, 3), entry(9, 2))),
        AppendEntriesRequest(1, 2, THIRD, 7, 2, 6, (entry(8, 1),)),
        AppendEntriesRequest(1, 2, THIRD, 7, 2, 6, (entry(8, FOURTH),)),
        AppendEntriesRequest(1, 2, THIRD, 0, 0, 0, (entry(1, 0),)),
        AppendEntriesRequest(1, 2, THIRD, 7, 2, 6, (entry(8, 3, b"\x92\x90\x90", EntryKind.MEMBERSHIP),)),
        AppendEntriesRequest(1, 2, THIRD, 7, 2, 6, (entry(8, 3, b"\xff", EntryKind.MEMBERSHIP),)),
        AppendEntriesRequest(1, 2, THIRD, 7, 2, 6, (entry(8, 3, bytes(limits.RAFT_ENTRY_BYTES_MAX + 1)),)),
        AppendEntriesRequest(1, 2, THIRD, 7, 2, 6, (entry(8, 3), entry(9, 3, bytes(limits.RAFT_ENTRY_BYTES_MAX)))),
        SnapshotChunk(1, 2, THIRD, 100, FOURTH, MEMBERSHIP, 10, 0, 0, b"x"),
        SnapshotChunk(1, 2, THIRD, 100, 2, MEMBERSHIP, 10, 0, 0, b""),
        SnapshotChunk(1, 2, THIRD, 100, 2, MEMBERSHIP, 10, 0, 8, b"xyz"),
        SnapshotChunk(1, 2, THIRD, 100, 2, MEMBERSHIP, limits.RAFT_SNAPSHOT_BYTES_MAX + 1, 0, 0, b"x"),
        SnapshotChunk(1, 2, THIRD, 100, 2, RaftMembership((), (1,)), 10, 0, 0, b"x"),
        SnapshotChunk(1, 2, THIRD, 100, 2, RaftMembership((1,), (1,)), 10, 0, 0, b"x"),
    ],
)
def test_what_contradicts_itself(message) -> None:
    assert contradiction(message) not in ("", ANOTHERS)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("term", [term_of("3.2"), term_of("9.300"), FOURTH & 0xFFFFFFFF, 9, 0])
def test_who_leads_or_stands_names_itself(message: Message, term: int) -> None:
    changed = msgspec.structs.replace(message, term=term)
    is_own_term = isinstance(message, (*FROM_LEADER, VoteRequest))
    assert (contradiction(changed) == ANOTHERS) == is_own_term
