"""Subjects that the consumers of streams with interest retention want, in the partitions led here.

Rules: the caller runs the consumers, and tells the filters of all of them, for one leadership; the next one has to be
told anew. Until then nothing is known, and nothing is decided on (`RowDecisions`); but in a stream that has no log of
consumers there are none with acks, and nothing is wanted. A stream that names groups or archives as its consumers
(`interest_of`) wants everything.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.base.errors import ErrorCode, RemoteError
from penstock.node.partition.partition import Partition
from penstock.node.partition.wanted_subjects import WantedSubjects
from penstock.replication.leader import Leadership

_NOTHING = WantedSubjects(())
_ALL = WantedSubjects((">",))


class StreamInterest:
    """The filters of the consumers of each partition."""

    def __init__(self) -> None:
        self._told: dict[Partition, tuple[Leadership, WantedSubjects]] = {}

    def tell(self, partition: Partition, filters: Collection[str]) -> None:
        """Take the filters of all consumers of a partition that is led here; a consumer without one wants `>`."""
        assert partition.leadership is not None
        self._told[partition] = partition.leadership, WantedSubjects(filters)

    def wanted(self, partition: Partition) -> WantedSubjects:
        """Return what is wanted in this leadership. Raise RemoteError not_yet: it is not known."""
        if partition.stream.config.named_consumers:
            return _ALL  # groups and archives have no filters
        leadership, wanted = self._told.get(partition, (None, None))
        if wanted is None or leadership is not partition.leadership:
            if not partition.stream.has_consumers:
                return _NOTHING
            text = f"the consumers of {partition.label} are not known here yet, so nothing new is shown"
            raise RemoteError(ErrorCode.NOT_YET, f"{text}; ask again in a moment")
        return wanted

    def forget(self, partition: Partition) -> None:
        """Forget a partition that is led here no more, or is gone."""
        self._told.pop(partition, None)
