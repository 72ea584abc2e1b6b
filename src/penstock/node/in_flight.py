"""What partitions have written and not yet answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from penstock.ingest.waiters import Again, Waiters


@dataclass(slots=True)
class Pending:
    """Rows that are written and not yet committed, and who waits for them; or who sent some of them again."""

    base_offset: int
    end_offset: int
    size_bytes: int
    timestamp_us: int
    waiters: Waiters | Again | None  # in NATS
    caller: Hashable | None  # of an append over the socket

    @property
    def held_bytes(self) -> int:
        """What counts for the budget."""
        return self.size_bytes + (0 if self.waiters is None else self.waiters.size_bytes)


@dataclass(slots=True)
class Budget:
    """What all partitions of a broker have in flight together, what one may have, and what they have counted so far."""

    partition_bytes_max: int
    used_bytes: int = 0
    counters: Counter[str] = field(default_factory=Counter)  # of deleted streams, too
