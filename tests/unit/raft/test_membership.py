"""Which change of the membership is taken, as a table; and its bytes."""

from __future__ import annotations

import msgspec
import pytest

from penstock.base import limits
from penstock.raft import RaftMembership
from penstock.raft.membership import decode_membership, encode_membership, flaw_in, flaw_in_change


def membership(text: str) -> RaftMembership:
    """`1 2 / 3` is two voters and a learner."""
    voters, _, learners = text.partition("/")
    return RaftMembership(tuple(map(int, voters.split())), tuple(map(int, learners.split())))


@pytest.mark.parametrize(
    ("now", "then", "flaw"),
    [
        ("1 2 3", "1 2 3", ""),
        ("1 2 3", "1 2 3 4", ""),
        ("1 2 3", "1 2 3 / 4", ""),
        ("1 2 3", "1 2 3 / 4 5 6", ""),
        ("1 2 3 / 4", "1 2 3 4", ""),
        ("1 2 3 / 4", "1 2 3", ""),
        ("1 2 3", "1 2", ""),
        ("1 2 3", "1 2 / 3", ""),
        ("1 2", "1", ""),
        ("1", "1 2", ""),
        ("1 2 3 / 4", "1 2 4 / 3", "one voter"),
        ("1 2 3", "1 2 4", "one voter"),
        ("1 2 3", "1", "one voter"),
        ("1 2 3", "1 2 3 4 5", "one voter"),
        ("1 2", "3", "one voter"),
        ("1", "", "there would be no voters"),
        ("1", "/ 1", "there would be no voters"),
        ("1 2 3", "1 2 3 / 3", "votes or learns"),
        ("1 2 3", "1 3 2", "sorted"),
        ("1 2 3", "1 2 3 3", "sorted"),
        ("1 2 3", "1 2 3 / 5 4", "sorted"),
        ("1 2 3 4 5", "1 2 3 4 5 6", "6 voters"),
    ],
)
def test_change(now: str, then: str, flaw: str) -> None:
    found = flaw_in_change(membership(now), membership(then))
    assert flaw in found
    assert bool(flaw) == bool(found)


def test_bytes() -> None:
    for text in ("1", "1 2 3", "1 2 3 / 4 5"):
        assert decode_membership(encode_membership(membership(text))) == membership(text)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0",
        b"\x90",
        b"\x91\x90",
        b"\x92\x91\x00\x90",
        b"\x92\x92\x02\x01\x90",
        b"\x92\x91\xa11\x90",
        b"\xff" * 9,
    ],
)
def test_no_membership(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_membership(data)


def test_too_many_learners() -> None:
    learners = tuple(range(2, limits.RAFT_LEARNERS_MAX + 3))
    assert "learners" in flaw_in(RaftMembership((1,), learners))
    assert not flaw_in(RaftMembership((1,), learners[1:]))


@pytest.mark.parametrize("data", [b"\x93\x91\x01\x90" + b"\x91" * 5_000, b"\xa1\xff"])
def test_whatever_is_no_membership_is_refused_in_one_way(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_membership(data)
