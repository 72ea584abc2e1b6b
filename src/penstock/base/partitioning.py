"""Assignment of messages to partitions: the modes of `partition_by`.

| `partition_by` | partition that stores a message                                                  | decided by  |
|----------------|----------------------------------------------------------------------------------|-------------|
| `publisher`    | 0 for the stream's subject, n for `<subject>.<n>`                                | publishers  |
| `mapped`       | n for `<subject>.<n>`, from 0 on                                                 | nats-server |
| `group`        | any of them: their leaders form one NATS queue group                             | chance      |
| `key`          | by the hash of its key; without one, of its subject                              | the leaders |
| `token:N`      | by the hash of the Nth token of its subject, counted from 1                      | the leaders |
| `range`        | by the range in which its key lies; without one, its subject                     | the leaders |
| `range:N`      | by the range in which the Nth token of its subject lies                          | the leaders |

Where the leaders decide, each leader of a partition subscribes to the whole subject and keeps its own messages.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from penstock.base import limits

_TOKEN = re.compile(r"(token|range):([1-9][0-9]{0,3})")


class PartitionBy(StrEnum):
    """Partitioning mode; see the module's table. Some modes are followed by a token number."""

    PUBLISHER = "publisher"
    MAPPED = "mapped"
    GROUP = "group"
    KEY = "key"
    TOKEN = "token"
    RANGE = "range"


class PartitionSplit(NamedTuple):
    """A parsed `partition_by`. `token`: number of the subject token that decides, from 1; 0: the key decides."""

    how: PartitionBy
    token: int = 0

    @property
    def is_by_leaders(self) -> bool:
        """True if each leader subscribes to the whole subject and keeps its own messages."""
        return self.how in (PartitionBy.KEY, PartitionBy.TOKEN, PartitionBy.RANGE)

    @property
    def has_subjects(self) -> bool:
        """True if each partition has its own subject."""
        return self.how in (PartitionBy.PUBLISHER, PartitionBy.MAPPED)


PUBLISHER = PartitionSplit(PartitionBy.PUBLISHER)


def parse_split(text: str) -> PartitionSplit:
    """Parse `partition_by`; ValueError lists the valid values."""
    if text in (PartitionBy.PUBLISHER, PartitionBy.MAPPED, PartitionBy.GROUP, PartitionBy.KEY, PartitionBy.RANGE):
        return PartitionSplit(PartitionBy(text))
    if (found := _TOKEN.fullmatch(text)) is not None and int(found[2]) <= limits.SUBJECT_BYTES_MAX:
        return PartitionSplit(PartitionBy(found[1]), int(found[2]))
    raise ValueError(f"{text!r} is not one of publisher, mapped, group, key, token:N, range, range:N (N counts from 1)")


def token_mistake(token: int, subject: str) -> str | None:
    """Return why the subject token of this number, from 1, cannot decide for a stream on `subject`; None if it can."""
    tokens = subject.split(".")
    if token < len(tokens) or (token == len(tokens) and tokens[-1] != ">"):
        one = tokens[token - 1]
        return None if one == "*" else f"token {token} of {subject!r} is always {one!r}"
    return None if tokens[-1] == ">" else f"what is on {subject!r} has no token {token}"


def bounds_mistakes(bounds: tuple[str, ...]) -> list[str]:
    """Return errors in range bounds. Any order is valid, since partitions can be added."""
    mistakes = []
    if len(set(bounds)) < len(bounds):
        mistakes.append("two ranges begin with the same key")
    if any(not bound for bound in bounds):
        mistakes.append("partition 0 begins with the empty key, and no other can")
    if any(len(bound.encode("utf-8", "surrogatepass")) > limits.KEY_BYTES_MAX for bound in bounds):
        mistakes.append(f"a key has at most {limits.KEY_BYTES_MAX} bytes")
    return mistakes
