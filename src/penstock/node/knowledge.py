"""Whether this broker may speak of the end of a partition: not while another one may know of more."""

from __future__ import annotations

from penstock.base.errors import ErrorCode, RemoteError
from penstock.node.partition import Partition


def check_knowledge(partition: Partition) -> None:
    """RemoteError not_yet unless all that was ever told to be committed is known to be so here."""
    leadership = partition.leadership
    if not partition.is_replicated and (leadership is not None or not partition.is_copied):
        return
    if leadership is None or partition.is_mute:
        text = f"this replica of {partition.label} has heard of commits up to offset {partition.committed_end} only"
        raise RemoteError(ErrorCode.NOT_YET, f"{text}; ask its leader, or again in a moment")
    if not leadership.knows_latest:
        text = f"the new leader of {partition.label} does not know yet what is committed; ask again in a moment"
        raise RemoteError(ErrorCode.NOT_YET, text)
