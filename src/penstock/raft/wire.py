"""Encoding of messages, and the checks for messages that no correct broker sends.

Rules: any bytes decode to a message within its bounds, or raise `bad_frame`. A message must not contradict itself
(`contradiction`); contradictions with the receiver's log are the receiver's to detect.
"""

from __future__ import annotations

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.raft.membership import decode_membership, flaw_in
from penstock.raft.messages import FROM_LEADER, AppendEntriesRequest, Message, RaftHeartbeat, SnapshotChunk, VoteRequest
from penstock.raft.terms import names, round_of
from penstock.raft.values import EntryKind

_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    """Encode as MessagePack, at most RAFT_MESSAGE_BYTES_MAX."""
    data = _encoder.encode(message)
    assert len(data) <= limits.RAFT_MESSAGE_BYTES_MAX
    return data


def decode_message(data: bytes) -> Message:
    """Decode a message. Raise RemoteError (bad_frame) if `data` is not one."""
    if len(data) > limits.RAFT_MESSAGE_BYTES_MAX:
        raise RemoteError(ErrorCode.BAD_FRAME, f"a Raft message of {len(data)} bytes is too large")
    try:
        message: Message = _decoder.decode(data)
    except _MALFORMED as error:
        raise RemoteError(ErrorCode.BAD_FRAME, f"not a Raft message: {error}") from None
    return message


def is_believable(message: Message, to: BrokerId, term: int) -> bool:
    """True if broker `to`, in that term, may act on the message: it is addressed to it and not contradictory."""
    rounds_ahead = round_of(message.term) - round_of(term)
    return message.to == to and rounds_ahead <= limits.RAFT_ROUNDS_AHEAD_MAX and not contradiction(message)


def contradiction(message: Message) -> str:
    """Return how this message contradicts itself; "" if it does not."""
    if message.sender == message.to:
        return "it is from and to the same broker"
    if isinstance(message, (*FROM_LEADER, VoteRequest)) and not names(message.term, message.sender):
        return "its term is that of another candidate"
    if isinstance(message, AppendEntriesRequest):
        return _contradiction_in_append(message)
    if isinstance(message, SnapshotChunk):
        return _contradiction_in_chunk(message)
    if isinstance(message, RaftHeartbeat) and message.commit_term > message.term:
        return "what is committed is of a later term"
    if isinstance(message, VoteRequest) and message.last_term >= message.term:
        return "a log ends in a term that has not begun"
    return ""


def _contradiction_in_append(message: AppendEntriesRequest) -> str:
    index, term, size_bytes = message.prev_index, message.prev_term, 0
    for entry in message.entries:
        if entry.index != index + 1 or not max(1, term) <= entry.term <= message.term:
            return "its entries do not follow each other"
        if len(entry.data) > limits.RAFT_ENTRY_BYTES_MAX:
            return "one of its entries is too large"
        if entry.kind is EntryKind.MEMBERSHIP:
            try:
                decode_membership(entry.data)
            except _MALFORMED:
                return "it holds an invalid membership"
        index, term = entry.index, entry.term
        size_bytes += len(entry.data)
    if len(message.entries) > 1 and size_bytes > limits.RAFT_APPEND_BYTES_MAX:
        return "it holds too much"
    return "its entries end in a later term" if term > message.term else ""


def _contradiction_in_chunk(message: SnapshotChunk) -> str:
    if message.size_bytes > limits.RAFT_SNAPSHOT_BYTES_MAX:
        return "the snapshot is too large"
    if message.position + len(message.data) > message.size_bytes or (message.size_bytes and not message.data):
        return "the chunk lies outside its snapshot"
    if message.snapshot_term > message.term:
        return "the snapshot is of a later term"
    return flaw_in(message.membership)
