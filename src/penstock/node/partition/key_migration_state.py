"""Key migration state of a leader, for a stream that got more partitions while it had messages."""

from __future__ import annotations

from penstock.hot.keymap import KeyMap
from penstock.replication.leader import Leadership


class KeyMigrationState:
    """The state of one leadership; `penstock.node.replicas.key_migration` sets it,
    `penstock.node.subscriptions.key_routing` reads it.
    """

    __slots__ = ("end", "is_open", "is_opening", "is_silent", "key_map", "leadership", "owes", "refuses", "retry_us")

    def __init__(self, leadership: Leadership, key_map: KeyMap) -> None:
        self.leadership = leadership
        self.key_map = key_map  # current key map
        self.is_open = True  # takes the keys that moved to this partition, if any
        self.is_opening = False  # will take them in a moment
        self.refuses = False  # refuses them meanwhile: no other broker has stored what comes now
        self.is_silent = True  # no longer answers for keys that are on their way from here to another partition
        self.owes: set[int] = set()  # partition counts for which the mark is missing
        self.end: int | None = None  # end offset of the keys that left this partition
        self.retry_us = 0  # when a mark can be proposed, elapsed
