"""Refuse end-of-log queries until this replica knows the latest high watermark (`committed_end`)."""

from __future__ import annotations

from penstock.base.errors import ErrorCode, RemoteError
from penstock.node.partition.partition import Partition


def require_high_watermark(partition: Partition) -> None:
    """Raise RemoteError not_yet unless this replica knows the latest high watermark that was ever reported."""
    leadership = partition.leadership
    if not partition.is_replicated and (leadership is not None or not partition.is_copied):
        return
    if leadership is None or partition.is_mute:
        text = f"this replica of {partition.label} knows commits up to offset {partition.committed_end} only"
        raise RemoteError(ErrorCode.NOT_YET, f"{text}; ask its leader, or again in a moment")
    if not leadership.knows_latest:
        text = f"the new leader of {partition.label} does not know yet what is committed; ask again in a moment"
        raise RemoteError(ErrorCode.NOT_YET, text)
