"""The size of all messages of this broker that are received or written, and not answered yet."""

from __future__ import annotations

from typing import NamedTuple

from penstock.node.api.append_queue import AppendQueue
from penstock.node.partition.in_flight import InFlightBudget
from penstock.node.subscriptions.ingest_backlog import IngestBacklog


class InFlightTotal(NamedTuple):
    appends: AppendQueue  # from clients
    backlog: IngestBacklog  # from NATS, not written yet
    budget: InFlightBudget  # written

    @property
    def size_bytes(self) -> int:
        return self.appends.size_bytes + self.backlog.size_bytes + self.budget.used_bytes
