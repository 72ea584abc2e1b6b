"""When nobody listened: the times in which no leader of a partition was subscribed, kept across restarts.

Rules: a gap begins when the last leader is last known to have listened, and ends when NATS has confirmed the
subscription of the next one, or of the same one: it is never longer than told, but for the moments by which the next
leader hears of it later than the one before. What was published in between may not be stored; what was acked is.
Whoever ends a gap keeps it.

The broker has gaps, too: from when its connection was last known to work (or it stops) until its subscriptions are
confirmed. One counts for a partition if this broker was the last to lead it before, and the next one behind. It is kept
if it counts for any partition: by the broker for those of one replica, which nobody else ever leads, and beside that by
each partition of several. The last GAPS_MAX of the broker and PARTITION_GAPS_MAX of each partition are kept. A line
that cannot be read stays in the file as it is; a file that cannot be read is moved aside.

    gaps.jsonl   one JSON object a line, the oldest of the broker (and of each partition) first; one that is open (no
                 end) lasted when it was written; with a stream_id it is one partition's alone (0, unless it says which)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

import msgspec

from penstock.base.ids import PartitionId, PartitionKey, TimestampUs
from penstock.messages import GapInfo, joined
from penstock.messages.fields import PartitionField, StreamIdField
from penstock.vfs import Vfs

GAPS_PATH = "gaps.jsonl"
GAPS_MAX = 1_000
PARTITION_GAPS_MAX = 20


class _Line(GapInfo, frozen=True, kw_only=True):
    """One line of the file. `stream_id`: of one partition of it alone; None: of the whole broker."""

    stream_id: StreamIdField | None = None
    partition: PartitionField = PartitionId(0)


_decoder = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class GapsSave:
    """A disk task: writes all gaps of one moment, whole and by rename. One at a time."""

    vfs: Vfs
    content: bytes

    def run(self) -> None:
        """Write and sync."""
        file = self.vfs.open(GAPS_PATH + ".new", create=True)
        try:
            file.truncate(0)
            file.write_at(0, self.content)
            file.sync()
        finally:
            file.close()
        self.vfs.rename(GAPS_PATH + ".new", GAPS_PATH)
        self.vfs.sync_dir("")


@dataclass(slots=True)
class _History:
    """The gaps of one listener. None of them overlap."""

    closed: deque[GapInfo]
    open: GapInfo | None = None

    def all(self) -> tuple[GapInfo, ...]:
        return (*self.closed, *((self.open,) if self.open is not None else ()))

    def since(self, start_us: int, limit: int) -> Iterator[GapInfo]:
        """The latest ones that reach past `start_us`, latest first."""
        if self.open is not None:
            yield self.open
        for gap in islice(reversed(self.closed), limit):
            if gap.end_us is not None and gap.end_us <= start_us:
                return
            yield gap


def _behind(history: _History, start_us: int) -> int:
    """When a gap begins that would begin within the last one: where that ends.

    The subscription was confirmed at the end of a gap, and is known to have stood from the question on: a connection
    that is lost at once was so last known to work while that gap was open still.
    """
    if history.closed:
        last = history.closed[-1]
        if last.end_us is not None and last.start_us <= start_us < last.end_us:
            return last.end_us
    return start_us


class Gaps:
    """The gaps of one broker (`key` None) and those of single partitions."""

    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs
        self._broker = _History(deque(maxlen=GAPS_MAX))
        self._partitions: dict[PartitionKey, _History] = {}
        self._unknown: list[bytes] = []  # lines that this version cannot read
        self.ended_count = self.ended_us = 0  # since the start, of the broker and of partitions

    def load(self, *, last_sign_of_life_us: int, now_us: int) -> str | None:
        """Read what earlier runs left, and begin the gap that this start will end. A note if that cannot be read.

        `last_sign_of_life_us` is when the broker is last known to have listened, for a stop that left no mark.
        """
        note = None
        try:
            lines = self._lines()
        except OSError as error:
            lines, note = [], self._move_aside(error)
        for line in lines:
            try:
                gap = _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._unknown.append(line)
                continue
            key = None if gap.stream_id is None else PartitionKey(gap.stream_id, gap.partition)
            history = self._history(key)
            plain = GapInfo(start_us=gap.start_us, end_us=gap.end_us, reason=gap.reason)
            if gap.end_us is None:
                history.open = plain
            else:
                history.closed.append(plain)
        broker = self._broker
        if broker.open is None and (last_sign_of_life_us or broker.closed):
            start_us = max(last_sign_of_life_us, broker.closed[-1].end_us or 0 if broker.closed else 0)
            broker.open = GapInfo(
                start_us=TimestampUs(min(start_us, now_us)), reason="the broker stopped without saying so"
            )
        return note

    def _lines(self) -> list[bytes]:
        try:
            file = self._vfs.open(GAPS_PATH, read_only=True)
        except FileNotFoundError:
            return []
        try:
            return [line for line in file.read_at(0, file.size()).split(b"\n") if line]
        finally:
            file.close()

    def _move_aside(self, error: OSError) -> str:
        """What cannot be read must not be replaced either; what there is to tell."""
        told = f"cannot read {GAPS_PATH} ({error.strerror or error}): earlier gaps are not shown"
        try:
            taken = {name.rstrip("/") for name in self._vfs.list("")}
            number = 1
            while (path := f"{GAPS_PATH}.unread-{number}") in taken:
                number += 1
            self._vfs.rename(GAPS_PATH, path)
        except OSError as second:
            return f"{told}, and new ones cannot be kept ({second.strerror or second})"
        return f"{told}; it was moved to {path}"

    def _history(self, key: PartitionKey | None) -> _History:
        if key is None:
            return self._broker
        return self._partitions.setdefault(key, _History(deque(maxlen=PARTITION_GAPS_MAX)))

    @property
    def is_open(self) -> bool:
        """Whether nobody listens now."""
        return self._broker.open is not None

    @property
    def open(self) -> GapInfo | None:
        """The gap that the broker has now."""
        return self._broker.open

    def open_for(self, reason: str) -> set[PartitionKey]:
        """The partitions that have a gap of their own now, for that reason."""
        histories = self._partitions.items()
        return {key for key, one in histories if one.open is not None and one.open.reason == reason}

    def is_open_for(self, key: PartitionKey, reason: str) -> bool:
        """Whether the partition has a gap of its own now, for that reason."""
        history = self._partitions.get(key)
        return history is not None and history.open is not None and history.open.reason == reason

    def open_since(self, key: PartitionKey | None = None) -> int | None:
        """When the gap began that the broker (or the partition itself) has now, if it has one."""
        history = self._broker if key is None else self._partitions.get(key)
        return None if history is None or history.open is None else history.open.start_us

    def begin(self, now_us: int, reason: str, key: PartitionKey | None = None) -> bool:
        """Nobody listens from now on. A gap that is open already keeps its start (and False comes back)."""
        history = self._history(key)
        if history.open is not None:
            return False
        history.open = GapInfo(start_us=TimestampUs(_behind(history, now_us)), reason=reason)
        return True

    def end(self, now_us: int, key: PartitionKey | None = None) -> GapInfo | None:
        """The subscriptions (or that of the partition) are confirmed: the gap that this ends, or None."""
        began = self.drop(key)
        return None if began is None else self.ended(began, now_us, key)

    def ended(self, began: GapInfo, now_us: int, key: PartitionKey | None = None) -> GapInfo | None:
        """Keep the gap that began so and ends now; None: it is none. A calendar that was set back is no reason."""
        start_us, end_us = sorted((began.start_us, now_us))
        if start_us == end_us:
            return None
        gap = GapInfo(start_us=TimestampUs(start_us), end_us=TimestampUs(end_us), reason=began.reason)
        self._history(key).closed.append(gap)
        self.ended_count += 1
        self.ended_us += end_us - start_us
        return gap

    def drop(self, key: PartitionKey | None = None) -> GapInfo | None:
        """The gap that is open is none, or another broker tells of it; what it was."""
        history = self._broker if key is None else self._partitions.get(key)
        if history is None:
            return None
        dropped, history.open = history.open, None
        return dropped

    def add(self, gap: GapInfo, key: PartitionKey) -> None:
        """One of the broker counts for that partition."""
        self._history(key).closed.append(gap)

    def keep_only(self, stream_ids: Container[int]) -> None:
        """All other streams were deleted."""
        for key in [key for key in self._partitions if key.stream_id not in stream_ids]:
            del self._partitions[key]

    def forget(self, key: PartitionKey) -> bool:
        """The partition is gone; whether it had gaps."""
        return self._partitions.pop(key, None) is not None

    def save(self) -> GapsSave:
        """The task that writes what is known now."""
        lines = [*self._unknown, *map(msgspec.json.encode, self._broker.all())]
        for key, history in self._partitions.items():
            lines += (msgspec.json.encode({**key._asdict(), **msgspec.structs.asdict(gap)}) for gap in history.all())
        return GapsSave(self._vfs, b"".join(line + b"\n" for line in lines))

    def since(self, start_us: int, *, limit: int = 20) -> tuple[GapInfo, ...]:
        """The latest ones of the broker that reach past `start_us`, oldest first."""
        return tuple(sorted(self._broker.since(start_us, limit), key=attrgetter("start_us")))

    def of(
        self, key: PartitionKey, start_us: int, *, with_broker: bool, with_open: bool, limit: int = 20
    ) -> tuple[GapInfo, ...]:
        """The same of a partition; `with_broker`: those of the broker count for it, `with_open`: the one it has now."""
        history = self._partitions.get(key)
        found = [] if history is None else list(history.since(start_us, limit))
        if with_broker:
            found += (gap for gap in self._broker.since(start_us, limit) if gap.end_us is not None)
        if with_open and self._broker.open is not None:
            found.append(self._broker.open)
        return joined(found)[-limit:]
