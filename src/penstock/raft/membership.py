"""Cluster membership: which changes are safe, and its bytes.

Rules: one entry adds or removes at most one voter; learners come and go freely. A membership holds from the moment
its entry is in a log, committed or not.

Theory (Ongaro, "Consensus: bridging theory and practice", chapter 4, and the correction of 2015): any majority of a
membership and any majority of one that differs by a single voter share a broker, so no two leaders can be elected
at the same time. That holds only between consecutive memberships, so a change waits until the one before it is
committed, and until an entry of the leader's own term is: else a change by a deposed leader could still be in flight.

| from      | to        |                                                        |
|-----------|-----------|--------------------------------------------------------|
| 1 2 3     | 1 2 3 4   | a voter comes                                          |
| 1 2 3 / 4 | 1 2 3 4   | a learner becomes a voter; better, for it has the log  |
| 1 2 3     | 1 2       | a voter goes; also the leader, who leads until then    |
| 1 2 3     | 1 2 / 3   | a voter becomes a learner                              |
| 1 2 3     | 1 2 4     | refused: two voters at once                            |
| 1         | (empty)   | refused                                                |
"""

from __future__ import annotations

import msgspec

from penstock.base import limits
from penstock.raft.values import RaftMembership

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RaftMembership)


def encode_membership(membership: RaftMembership) -> bytes:
    """Encode as MessagePack."""
    return _encoder.encode(membership)


def decode_membership(data: bytes) -> RaftMembership:
    """Decode a membership. Raise msgspec.DecodeError if `data` is not a valid one."""
    try:
        membership: RaftMembership = _decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
    if text := flaw_in(membership):
        raise msgspec.DecodeError(text)
    return membership


def flaw_in(membership: RaftMembership) -> str:
    """Return why this membership is invalid; "" if it is valid."""
    voters, learners = membership.voters, membership.learners
    if not voters:
        return "there would be no voters"
    if len(voters) > limits.RAFT_VOTERS_MAX:
        return f"{len(voters)} voters; {limits.RAFT_VOTERS_MAX} are the most"
    if len(learners) > limits.RAFT_LEARNERS_MAX:
        return f"{len(learners)} learners; {limits.RAFT_LEARNERS_MAX} are the most"
    if set(voters) & set(learners):
        return "a broker votes or learns, not both"
    if list(voters) != sorted(set(voters)) or list(learners) != sorted(set(learners)):
        return "ids must be sorted, each once"
    return ""


def flaw_in_change(now: RaftMembership, then: RaftMembership) -> str:
    """Return why `then` may not follow `now`; "" if it may."""
    if text := flaw_in(then):
        return text
    if len(set(now.voters) ^ set(then.voters)) > 1:
        return "one voter may come or go at a time"
    return ""
