"""Why a companion log of a partition cannot be used here: it is missing, closed or damaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.base.companion_kinds import CompanionKind
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionKey
from penstock.commitlog import LogState
from penstock.metadata.companions import companion_key
from penstock.node.partition.partition import Partition


class _Words(NamedTuple):
    consequence: str  # with the partition's label
    log: str


_WORDS = {
    CompanionKind.MARKS: _Words("{} cannot be read", "the log of what is hidden in it"),
    CompanionKind.CONSUMERS: _Words("consumers with acks of {} cannot be served", "its log of consumers"),
}


class CompanionTroubles:
    """Looks at `partitions`; `failures` holds the errors of logs that cannot be opened."""

    def __init__(
        self, partitions: Mapping[PartitionKey, Partition], failures: Mapping[PartitionKey, RemoteError]
    ) -> None:
        self._partitions = partitions
        self._failures = failures

    def find(self, target: Partition, kind: CompanionKind) -> RemoteError | None:
        """Return why the companion of a partition that has one of this kind cannot be used; None if it can.

        not_yet: it is being opened; corrupt_range with file and position, storage_failed, no_encryption_key.
        """
        words, key = _WORDS[kind], companion_key(target.key, kind)
        refused = words.consequence.format(target.label)
        companion = self._partitions.get(key)
        if companion is None:
            opening = RemoteError(ErrorCode.NOT_YET, f"{words.log} is being opened; ask again in a moment")
            found = self._failures.get(key, opening)
            return RemoteError(found.code, f"{refused}: {found.message}", **found.details)
        if companion.closed:
            return RemoteError(ErrorCode.STORAGE_FAILED, f"{refused}: {companion.closed}")
        if companion.log.state is LogState.READ_ONLY and companion.log.damage:
            return _damaged(companion, f"{refused}: {words.log}")
        return None


def _damaged(companion: Partition, text: str) -> RemoteError:
    one = companion.log.damage[0]
    mend = companion.mending or "it is mended from another replica that has it whole"
    if not companion.is_replicated:
        mend = "there is no other replica"
    error = RemoteError(
        ErrorCode.CORRUPT_RANGE,
        f"{text} is damaged in {one.file} at byte {one.position}; {mend}",
        file=one.file,
        position=one.position,
        expected=one.expected,
        found=one.found,
    )
    if companion.is_being_repaired:
        error.details["repairing"] = True
    return error
