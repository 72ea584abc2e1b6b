"""What a leader does about keys, of a stream that got more partitions while it had messages."""

from __future__ import annotations

from penstock.replication.leader import Leadership


class Keys:
    """Of one leadership; `penstock.node.moving` sets it, `penstock.node.shares` goes by it."""

    __slots__ = ("end", "is_open", "is_opening", "is_silent", "leadership", "owes", "retry_us")

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self.is_open = True  # it takes the keys that moved to it, if any
        self.is_opening = False  # and will, in a moment
        self.is_silent = True  # it tells nobody any more that keys which left it are on their way
        self.owes: set[int] = set()  # marks of when there were so many partitions
        self.end: int | None = None  # where what it has of the keys that left it ends
        self.retry_us = 0  # when a mark can be proposed, elapsed
