"""Keys move to partitions that were added, and stay in order.

Rules: what a partition has of a key ends before what the next one has of it. So the leader of an older partition stops
taking the keys that leave it as soon as the image has the new partitions; once all it has is committed, it proposes a
mark: where that ends. The leader of a new one begins to take its keys when all older partitions have their marks in its
image, and, where it hears the whole subject, nothing can come any more that the older ones have stored: behind a
barrier, a while for what is between the servers of NATS, and another barrier. So does any later leader of it: what is
on its way knows nothing of leaders. A group reads a new partition once it has read the older ones up to their marks
(`penstock.node.offsets`).

A leader that follows one who stopped has the same image, or a later one, so it does not take those keys either. It
proposes the mark if that is missing, or if its log ends before the mark: an unclean election has lost what lay between.

    image: more partitions ─▶ older: stop ─▶ all committed ─▶ mark ─┐
                              older: stop ─▶ all committed ─▶ mark ─┴▶ all in the image ─▶ barrier ─▶ new: takes
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.hot.keymap import KeyMap, key_map_of
from penstock.messages import MarkKeysRequest, Response
from penstock.metadata.image import Mark, StreamState
from penstock.node.keys import Keys
from penstock.node.partition import Partition
from penstock.node.subscriptions import Subscriptions

AskMetadata = Callable[[MarkKeysRequest, Callable[[Response | RemoteError], None]], None]
_RETRY_US = limits.ISR_RETRY_MS * 1_000
_SETTLE_US = limits.KEYS_SETTLE_MS * 1_000


class _Step(NamedTuple):
    """One growth of a stream."""

    before: int
    after: int
    marks: dict[int, Mark]  # by partition

    @property
    def is_complete(self) -> bool:
        """Whether all that keys left is marked."""
        return len(self.marks) == self.before


class _Grown(NamedTuple):
    """All of them."""

    stream: StreamState
    key_map: KeyMap
    steps: list[_Step]


class Moving:
    """Those of all partitions that this broker leads. `waits` says whether messages of a partition wait to be stored;
    `ask_metadata` has the metadata leader change what the cluster agrees on.
    """

    def __init__(
        self,
        subscriptions: Subscriptions[Partition],
        clock: Callable[[], Now],
        *,
        waits: Callable[[Partition], bool],
        ask_metadata: AskMetadata,
    ) -> None:
        self._subscriptions = subscriptions
        self._clock = clock
        self._waits = waits
        self._ask_metadata = ask_metadata
        self._last: _Grown | None = None
        self._owing: dict[Partition, Keys] = {}
        self._opening: dict[Partition, int] = {}  # when its barrier is asked for, elapsed

    def look(self, partition: Partition) -> None:
        """The image says something else of a partition, or this broker has come to lead it, or leads it no more."""
        stream, leadership = partition.stream, partition.leadership
        if not stream.moves_keys:
            return
        if leadership is None:
            self.forget(partition)
            return
        keys, grown = partition.keys, self._grown(stream)
        is_new = keys is None or keys.leadership is not leadership
        if keys is None or is_new:
            keys = partition.keys = Keys(leadership, grown.key_map)
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
        """It is gone from here."""
        self._owing.pop(partition, None)
        self._opening.pop(partition, None)
        if self._last is not None and self._last.stream.stream_id == partition.key.stream_id:
            self._last = None

    def _grown(self, stream: StreamState) -> _Grown:
        """What is the same for all partitions of a stream: they are looked at one after the other."""
        if self._last is None or self._last.stream is not stream:
            steps = [_Step(before, after, stream.marked(after)) for before, after in pairwise(stream.counts)]
            self._last = _Grown(stream, key_map_of(stream.config, stream.counts), steps)
        return self._last

    def _give(self, partition: Partition, keys: Keys, step: _Step, *, is_new: bool) -> None:
        """Keys have left it."""
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

    def _approach(self, partition: Partition, keys: Keys) -> None:
        """All that its keys left is marked. By itself a partition hears what nobody else does; else what others have
        stored may still be on its way, and is not even refused before a barrier.
        """
        if partition.channel is None:
            keys.is_open = True
            return

        def reached() -> None:
            if partition.keys is keys:
                keys.refuses = True
                self._opening[partition] = self._clock().elapsed_us + _SETTLE_US
                self._subscriptions.look_again(partition)

        self._subscriptions.after_all_sent(reached)

    def settle(self, now: Now) -> None:
        """Propose the marks that are due, and begin with keys."""
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

    def _mark(self, partition: Partition, keys: Keys, now: Now) -> None:
        if keys.end is None and not self._waits(partition):  # what came before the image told is stored first
            keys.end = partition.log.log_end
        end = keys.end
        if not keys.is_open:
            return  # what it will have of keys that leave it again it has not taken yet
        if end is None or partition.committed_end < end or now.elapsed_us < keys.retry_us:
            return
        keys.is_silent = True  # before anybody can have the mark: who takes the keys then answers for them
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
            self._ask_metadata(request, lambda _: None)  # the image tells; what is refused is asked for again

    def _open(self, partition: Partition) -> None:
        keys = partition.keys

        def reached() -> None:
            if keys is not None and partition.keys is keys:
                keys.is_open = True
                self._subscriptions.look_again(partition)

        self._subscriptions.after_all_sent(reached)

    @property
    def next_deadline_us(self) -> int | None:
        """When `settle` has something to do, at the latest."""
        retries = [keys.retry_us for keys in self._owing.values() if keys.retry_us]
        return min([*self._opening.values(), *retries], default=None) if self._owing or self._opening else None
