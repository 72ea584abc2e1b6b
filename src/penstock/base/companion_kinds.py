"""Kinds of companion logs: what lies beside the messages of each partition of a stream (`metadata.companions`)."""

from __future__ import annotations

from enum import StrEnum


class CompanionKind(StrEnum):
    """Kind of a companion log: the meaning of its rows."""

    MARKS = "marks"
    """Which messages are hidden: readers wait until a replica knows."""

    CONSUMERS = "consumers"
    """The state of consumers with acks: only these wait for it."""
