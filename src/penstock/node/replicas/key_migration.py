"""Moves keys to added partitions while each key's messages stay in order.

Rules: the rows of a key in one partition end before those in the next one. So the leader of an older partition stops
taking the keys that leave it as soon as the image has the new partitions; once all its rows are committed, it proposes
a mark: where they end. The leader of a new partition takes its keys when its image has the marks of all older
partitions and, if it receives the whole subject, no message that the older ones have stored can arrive any more: after
a barrier, a delay for messages between the NATS servers, and another barrier. Every later leader of it waits likewise,
because messages under way do not depend on leaders. A consumer group reads a new partition once it has read the older
ones up to their marks (`penstock.node.api.offsets`).

The successor of an older partition's leader has the same image, or a later one, so it does not take those keys either.
It proposes the mark if it is missing, or if its log ends before the mark: an unclean election has lost the rows
between.

    image: more partitions ─▶ older: stop ─▶ all committed ─▶ mark ─┐
                              older: stop ─▶ all committed ─▶ mark ─┴▶ all in the image ─▶ barrier ─▶ new: takes
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.ids import Offset, PartitionId
from penstock.hot.keymap import KeyMap, key_map_of
from penstock.messages import MarkKeysRequest
from penstock.metadata.image import KeyBoundary, StreamState
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.partition.key_migration_state import KeyMigrationState
from penstock.node.partition.partition import Partition
from penstock.node.subscriptions.ingest_backlog import IngestBacklog
from penstock.node.subscriptions.subscriptions import Subscriptions

_RETRY_US = limits.ISR_RETRY_MS * 1_000
_SETTLE_US = limits.KEYS_SETTLE_MS * 1_000


class _Step(NamedTuple):
    """One growth of a stream."""

    before: int
    after: int
    marks: dict[int, KeyBoundary]  # by partition

    @property
    def is_complete(self) -> bool:
        """True if all older partitions have their marks."""
        return len(self.marks) == self.before


class _Grown(NamedTuple):
    """All growths of a stream."""

    stream: StreamState
    key_map: KeyMap
    steps: list[_Step]


class KeyMigrator:
    """The key moves of all partitions led here."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        subscriptions: Subscriptions[Partition],
        backlog: IngestBacklog,
    ) -> None:
        self._subscriptions = subscriptions
        self._context = context
        self._backlog = backlog
        self._cluster = cluster
        self._last: _Grown | None = None
        self._owing: dict[Partition, KeyMigrationState] = {}
        self._opening: dict[Partition, int] = {}  # elapsed time of its next barrier

    def reconcile(self, partition: Partition) -> None:
        """Apply a changed image, or the beginning or end of a leadership."""
        stream, leadership = partition.stream, partition.leadership
        if not stream.moves_keys:
            return
        if leadership is None:
            self.forget(partition)
            return
        keys, grown = partition.keys, self._grown(stream)
        is_new = keys is None or keys.leadership is not leadership
        if keys is None or is_new:
            keys = partition.keys = KeyMigrationState(leadership, grown.key_map)
            self._opening.pop(partition, None)
            keys.is_open = partition.key.partition < stream.counts[0]
        keys.key_map = grown.key_map
        for step in grown.steps:
            if partition.key.partition < step.before:
                self._give(partition, keys, step, is_new=is_new)
            elif partition.key.partition < step.after and step.is_complete and not keys.is_opening:
                keys.is_opening = True
                self._approach(partition, keys)
        if keys.owes:
            self._owing[partition] = keys
        else:
            self._owing.pop(partition, None)
        self._subscriptions.look_again(partition)

    def forget(self, partition: Partition) -> None:
        """Forget a partition that is removed from this broker."""
        self._owing.pop(partition, None)
        self._opening.pop(partition, None)
        if self._last is not None and self._last.stream.stream_id == partition.key.stream_id:
            self._last = None

    def _grown(self, stream: StreamState) -> _Grown:
        """Return the growths of a stream, cached because its partitions are handled one after the other."""
        if self._last is None or self._last.stream is not stream:
            steps = [_Step(before, after, stream.marked(after)) for before, after in pairwise(stream.counts)]
            self._last = _Grown(stream, key_map_of(stream.config, stream.counts), steps)
        return self._last

    def _give(self, partition: Partition, keys: KeyMigrationState, step: _Step, *, is_new: bool) -> None:
        """Owe the mark for the keys that leave the partition, if it is missing or lies beyond this log."""
        mark = step.marks.get(partition.key.partition)
        if mark is None:
            if step.after not in keys.owes:
                keys.owes.add(step.after)
                keys.end, keys.retry_us = None, 0
                keys.is_silent = False
        elif mark.leader_epoch >= keys.leadership.leader_epoch:
            keys.owes.discard(step.after)
        elif is_new and partition.log.log_end < mark.end_offset:
            keys.owes.add(step.after)

    def _approach(self, partition: Partition, keys: KeyMigrationState) -> None:
        """Begin to take the partition's keys, now that all marks exist.

        A partition with a subject of its own takes them at once. In a channel, messages stored by others may still
        arrive, so it does not even refuse them before a barrier.
        """
        if partition.channel is None:
            keys.is_open = True
            return

        def reached() -> None:
            if partition.keys is keys:
                keys.refuses = True
                self._opening[partition] = self._context.now.elapsed_us + _SETTLE_US
                self._subscriptions.look_again(partition)

        self._subscriptions.after_all_sent(reached)

    def settle(self, now: Now) -> None:
        """Propose the marks that are due, and open partitions whose delay is over."""
        if not self._owing and not self._opening:
            return
        for partition, keys in list(self._owing.items()):
            if partition.leadership is keys.leadership:
                self._mark(partition, keys, now)
            else:
                del self._owing[partition]
        for partition, due_us in list(self._opening.items()):
            if due_us <= now.elapsed_us:
                del self._opening[partition]
                self._open(partition)

    def _mark(self, partition: Partition, keys: KeyMigrationState, now: Now) -> None:
        if keys.end is None and not self._backlog.waits(partition.sid):  # store earlier messages first
            keys.end = partition.log.log_end
        end = keys.end
        if not keys.is_open:
            return  # it has not yet taken the keys that are to leave it
        if end is None or partition.committed_end < end or now.elapsed_us < keys.retry_us:
            return
        keys.is_silent = True  # Before the mark can be known: from then on the keys' new partition answers for them.
        self._subscriptions.look_again(partition)
        keys.retry_us = now.elapsed_us + _RETRY_US
        for after in sorted(keys.owes):
            request = MarkKeysRequest(
                stream_id=partition.key.stream_id,
                partition=PartitionId(partition.key.partition),
                partitions=after,
                leader_epoch=keys.leadership.leader_epoch,
                end_offset=Offset(end),
                marked_us=max(now.wall_us, partition.log.last_timestamp_us),
            )
            self._cluster.link.ask(request, lambda _: None)  # the image shows success; a refused one is retried

    def _open(self, partition: Partition) -> None:
        keys = partition.keys

        def reached() -> None:
            if keys is not None and partition.keys is keys:
                keys.is_open = True
                self._subscriptions.look_again(partition)

        self._subscriptions.after_all_sent(reached)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `settle` must run."""
        retries = [keys.retry_us for keys in self._owing.values() if keys.retry_us]
        return min([*self._opening.values(), *retries], default=None) if self._owing or self._opening else None
