"""What partitions have written and not yet answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

import msgspec

from penstock.base.ids import LeaderEpoch, Offset, TimestampUs
from penstock.ingest.waiters import Again, Waiters
from penstock.messages import AppendOnceResponse, AppendResponse


@dataclass(slots=True)
class Pending:
    """Rows that are written and not yet committed, and who waits for them; or who sent some of them again."""

    base_offset: int
    end_offset: int
    size_bytes: int
    timestamp_us: int
    waiters: Waiters | Again | None  # in NATS
    caller: Hashable | None  # of an append over the socket
    is_duplicate: bool | None = None  # of one that is appended once: whether it was there already

    def response(self, leader_epoch: LeaderEpoch, *, fsynced: bool) -> AppendResponse:
        """What `caller` hears once it is committed."""
        answer = AppendResponse(
            base_offset=Offset(self.base_offset),
            end_offset=Offset(self.end_offset),
            timestamp_us=TimestampUs(self.timestamp_us),
            leader_epoch=leader_epoch,
            fsynced=fsynced,
        )
        if self.is_duplicate is None:
            return answer
        return AppendOnceResponse(**msgspec.structs.asdict(answer), duplicate=self.is_duplicate)

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
