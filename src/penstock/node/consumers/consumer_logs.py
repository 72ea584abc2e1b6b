"""The logs of consumers beside the partitions that this broker leads: read once for each leadership, then appended to.

Rules: a log is read when a leadership of it begins. It is known once it is read, and all that was found is committed;
then the caller takes the last value of each key, and nothing is kept here. Only the leadership that is current
appends; a batch counts as stored once the high watermark of this log has passed it, in this leadership. At the end of a
leadership all open appends are told that their outcome is unknown: the next leader may have them, or not.

| the log of consumers                  | `ConsumerLogs.known`                                                       |
|---------------------------------------|----------------------------------------------------------------------------|
| the stream has none                   | not_yet                                                                    |
| of a partition that is led elsewhere  | not_leader                                                                 |
| is being opened, or does not lead yet | not_yet                                                                    |
| is being read, or not all is committed| not_yet                                                                    |
| cannot be opened or read              | why: corrupt_range with file and position, storage_failed, …; the next     |
|                                       | call tries again                                                           |
| is read, and all is committed         | is answered                                                                |

Nothing else waits for these logs: messages are stored, read and replicated while they cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from penstock.base.errors import RemoteError
from penstock.base.ids import LeaderEpoch, PartitionId, PartitionKey, StreamId

Rows: TypeAlias = list[tuple[bytes, bytes | None]]
"""Keys and values to append; None deletes."""

Done: TypeAlias = Callable[[RemoteError | None], None]
"""Called once, perhaps before the call returns that it was given to."""


class KnownConsumers:
    """The log of consumers of one partition, in one leadership of this broker."""

    leader_epoch: LeaderEpoch

    @property
    def is_current(self) -> bool:
        """True while the leadership goes on; after it no append is taken."""
        raise NotImplementedError

    def take_rows(self) -> Mapping[bytes, bytes]:
        """Return the last value of each key when the leadership began, all committed. The second call gets nothing."""
        raise NotImplementedError

    def append(self, rows: Rows, done: Done) -> None:
        """Append one batch in this leadership. Batches are stored, and told, in the order of their calls.

        `done(None)`: it is committed, by the stream's durability. fenced_epoch: the leadership has ended, and it may be
        stored or not. not_leader: the leadership had ended before, and nothing was stored; so with overloaded,
        too_large, not_enough_replicas, read_only. storage_failed: it may be stored or not.
        """
        raise NotImplementedError


class ConsumerLogs:
    """The logs of consumers that this broker leads."""

    def __init__(self) -> None:
        self.version = 0
        """Grows when one has become known, cannot be read, or its leadership has ended."""

    def led(self) -> list[PartitionKey]:
        """Return the partitions with a log of consumers that this broker leads; the log need not be known yet."""
        raise NotImplementedError

    def known(self, stream_id: StreamId, partition: PartitionId) -> KnownConsumers:
        """Return the log of this leadership. Raise RemoteError; see the module's table."""
        raise NotImplementedError

    def add(self, stream_id: StreamId, done: Done) -> None:
        """Give the stream logs of consumers, unless it has them; `done` once the metadata say so.

        The logs are opened a moment later: `known` answers not_yet until then. RemoteError: stream_changed,
        unsupported_version (feature level), too_large (partitions of the cluster), not_leader, …
        """
        raise NotImplementedError
