"""Who hears of messages that are traced, on their way through a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.hot.group import Group

if TYPE_CHECKING:
    from penstock.node.partition import Partition


class Tracer(Protocol):
    """Told of every group, so it must find out quickly that nothing of it is traced."""

    def coming(self, partition: Partition, rows: Group, arrived_us: int) -> None:
        """The rows came at `arrived_us` (elapsed), and are about to be written where the log ends now."""
