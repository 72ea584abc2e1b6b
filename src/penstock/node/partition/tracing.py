"""The listener of traced messages on their way through a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.hot.message_group import MessageGroup

if TYPE_CHECKING:
    from penstock.node.partition.partition import Partition


class Tracer(Protocol):
    """Is called for every group, so it must quickly detect that nothing in it is traced."""

    def coming(self, partition: Partition, rows: MessageGroup, arrived_us: int) -> None:
        """Called before rows, which arrived at `arrived_us` (elapsed), are written at the present log end."""
