"""What a leader does about keys, of a stream that got more partitions while it had messages."""

from __future__ import annotations

from penstock.hot.keymap import KeyMap
from penstock.replication.leader import Leadership


class Keys:
    """Of one leadership; `penstock.node.moving` sets it, `penstock.node.shares` goes by it."""

    __slots__ = ("end", "is_open", "is_opening", "is_silent", "key_map", "leadership", "owes", "refuses", "retry_us")

    def __init__(self, leadership: Leadership, key_map: KeyMap) -> None:
        self.leadership = leadership
        self.key_map = key_map  # as it is now
        self.is_open = True  # it takes the keys that moved to it, if any
        self.is_opening = False  # and will, in a moment
        self.refuses = False  # meanwhile it says so: what comes now nobody else has stored
        self.is_silent = True  # it tells nobody any more that keys which left it are on their way
        self.owes: set[int] = set()  # marks of when there were so many partitions
        self.end: int | None = None  # where what it has of the keys that left it ends
        self.retry_us = 0  # when a mark can be proposed, elapsed
