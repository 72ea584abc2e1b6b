"""How a message finds its partition: the modes of `partition_by`, parsed.

| `partition_by` | which partition stores a message                                                | who chooses |
|----------------|----------------------------------------------------------------------------------|-------------|
| `publisher`    | 0 what is on the subject itself, n what is on `<subject>.<n>`                    | publishers  |
| `mapped`       | n, 0 as well, what is on `<subject>.<n>`                                         | nats-server |
| `group`        | any of them: their leaders are one queue group of NATS                           | chance      |
| `key`          | that of the hash of its key; without one, of its subject                         | the leaders |
| `token:N`      | that of the hash of the Nth token of its subject, counted from 1                 | the leaders |
| `range`        | that of the range in which its key lies; without one, its subject                | the leaders |
| `range:N`      | that of the range in which the Nth token of its subject lies                     | the leaders |

Where leaders choose, each broker that leads a partition takes the whole subject, and keeps what is its own.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from penstock.base import limits

_TOKEN = re.compile(r"(token|range):([1-9][0-9]{0,3})")


class PartitionBy(StrEnum):
    """How a message finds its partition; see the module's table. Some have a token's number behind them."""

    PUBLISHER = "publisher"
    MAPPED = "mapped"
    GROUP = "group"
    KEY = "key"
    TOKEN = "token"
    RANGE = "range"


class Split(NamedTuple):
    """A `partition_by`, parsed. `token`: the one of the subject that decides, from 1; 0: the key does."""

    how: PartitionBy
    token: int = 0

    @property
    def is_by_leaders(self) -> bool:
        """Whether each leader takes the whole subject and keeps its own."""
        return self.how in (PartitionBy.KEY, PartitionBy.TOKEN, PartitionBy.RANGE)

    @property
    def has_subjects(self) -> bool:
        """Whether each partition has a subject of its own."""
        return self.how in (PartitionBy.PUBLISHER, PartitionBy.MAPPED)


PUBLISHER = Split(PartitionBy.PUBLISHER)


def parse_split(text: str) -> Split:
    """ValueError, with what it can be, for what is none."""
    if text in (PartitionBy.PUBLISHER, PartitionBy.MAPPED, PartitionBy.GROUP, PartitionBy.KEY, PartitionBy.RANGE):
        return Split(PartitionBy(text))
    if (found := _TOKEN.fullmatch(text)) is not None and int(found[2]) <= limits.SUBJECT_BYTES_MAX:
        return Split(PartitionBy(found[1]), int(found[2]))
    raise ValueError(f"{text!r} is none of publisher, mapped, group, key, token:N, range, range:N (N counts from 1)")


def token_mistake(token: int, subject: str) -> str | None:
    """Why the token of that number, from 1, of what a stream on `subject` stores says nothing; None: it may."""
    tokens = subject.split(".")
    if token < len(tokens) or (token == len(tokens) and tokens[-1] != ">"):
        one = tokens[token - 1]
        return None if one == "*" else f"token {token} of {subject!r} is always {one!r}"
    return None if tokens[-1] == ">" else f"what is on {subject!r} has no token {token}"


def bounds_mistakes(bounds: tuple[str, ...]) -> list[str]:
    """What is wrong with where ranges begin: any order is fine, since partitions can be added."""
    mistakes = []
    if len(set(bounds)) < len(bounds):
        mistakes.append("two ranges begin with the same key")
    if any(not bound for bound in bounds):
        mistakes.append("partition 0 begins with the empty key, and no other can")
    if any(len(bound.encode("utf-8", "surrogatepass")) > limits.KEY_BYTES_MAX for bound in bounds):
        mistakes.append(f"a key has at most {limits.KEY_BYTES_MAX} bytes")
    return mistakes
