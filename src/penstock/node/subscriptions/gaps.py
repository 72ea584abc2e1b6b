"""Gaps: times in which no leader of a partition was subscribed; kept across restarts.

Rules: a gap begins when the last leader is last known to have been subscribed, and ends when NATS has confirmed the
subscription of the next leader, or of the same one again. The real gap is never longer than the recorded one, except
for the moments by which the next leader learns of the change later than the previous one. Messages published in a gap
may not be stored; acked messages are. The broker that ends a gap records it.

The broker has gaps, too: from when its connection was last known to work (or it stops) until its subscriptions are
confirmed. Such a gap counts for a partition if this broker was its last leader before and its first one after. It is
kept if it counts for any partition: by the broker for the partitions with one replica, which no other broker ever
leads, and also by each partition with several. The last GAPS_MAX of the broker and PARTITION_GAPS_MAX of each partition
are kept. A line that cannot be read stays in the file as it is; a file that cannot be read is moved aside.

    gaps.jsonl   one JSON object a line, the oldest of the broker (and of each partition) first; without an end it was
                 open at the time of writing; with a stream_id it is that of one partition (0, unless given)
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
    """One line of the file. `stream_id`: the gap is that of one partition; None: of the whole broker."""

    stream_id: StreamIdField | None = None
    partition: PartitionField = PartitionId(0)


_decoder = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class GapsSave:
    """Disk task that writes all gaps of one moment to a new file and renames it. One at a time."""

    vfs: Vfs
    content: bytes

    def run(self) -> None:
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
    """The gaps of the broker or of one partition. None of them overlap."""

    closed: deque[GapInfo]
    open: GapInfo | None = None

    def all(self) -> tuple[GapInfo, ...]:
        return (*self.closed, *((self.open,) if self.open is not None else ()))

    def since(self, start_us: int, limit: int) -> Iterator[GapInfo]:
        """Yield the latest gaps that reach past `start_us`, latest first."""
        if self.open is not None:
            yield self.open
        for gap in islice(reversed(self.closed), limit):
            if gap.end_us is not None and gap.end_us <= start_us:
                return
            yield gap


def _behind(history: _History, start_us: int) -> int:
    """Return the start of a new gap: the end of the last one, if `start_us` lies within that.

    The subscription was confirmed at the end of the last gap and has existed since the confirmation was requested; a
    connection lost right after that was last known to work while that gap was still open.
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
        self._unknown: list[bytes] = []  # lines that this version cannot decode
        self.ended_count = self.ended_us = 0  # since the start, of the broker and of partitions

    def load(self, *, last_sign_of_life_us: int, now_us: int) -> str | None:
        """Read the gaps of earlier runs and open the one that this start will end. Return a notice on a read error.

        `last_sign_of_life_us`: when the broker is last known to have been subscribed, after a stop that left no mark.
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
        """Move an unreadable file aside, so that it is not overwritten; return the notice."""
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
        """True while the broker has an open gap."""
        return self._broker.open is not None

    @property
    def open(self) -> GapInfo | None:
        """The open gap of the broker, if any."""
        return self._broker.open

    def open_for(self, reason: str) -> set[PartitionKey]:
        """Return the partitions with an open gap of their own for that reason."""
        histories = self._partitions.items()
        return {key for key, one in histories if one.open is not None and one.open.reason == reason}

    def is_open_for(self, key: PartitionKey, reason: str) -> bool:
        """True if the partition has an open gap of its own for that reason."""
        history = self._partitions.get(key)
        return history is not None and history.open is not None and history.open.reason == reason

    def open_since(self, key: PartitionKey | None = None) -> int | None:
        """Return the start of the open gap of the broker, or of the partition itself; None if it has none."""
        history = self._broker if key is None else self._partitions.get(key)
        return None if history is None or history.open is None else history.open.start_us

    def begin(self, now_us: int, reason: str, key: PartitionKey | None = None) -> bool:
        """Open a gap; return False if one is open already, which keeps its start."""
        history = self._history(key)
        if history.open is not None:
            return False
        history.open = GapInfo(start_us=TimestampUs(_behind(history, now_us)), reason=reason)
        return True

    def end(self, now_us: int, key: PartitionKey | None = None) -> GapInfo | None:
        """Close the open gap, as the subscriptions are confirmed; return it, or None if there was none."""
        began = self.drop(key)
        return None if began is None else self.ended(began, now_us, key)

    def ended(self, began: GapInfo, now_us: int, key: PartitionKey | None = None) -> GapInfo | None:
        """Record a gap that ends now; return None if it has no length. A clock that was set back does not matter."""
        start_us, end_us = sorted((began.start_us, now_us))
        if start_us == end_us:
            return None
        gap = GapInfo(start_us=TimestampUs(start_us), end_us=TimestampUs(end_us), reason=began.reason)
        self._history(key).closed.append(gap)
        self.ended_count += 1
        self.ended_us += end_us - start_us
        return gap

    def drop(self, key: PartitionKey | None = None) -> GapInfo | None:
        """Drop the open gap without recording it (there was none, or another broker records it); return it."""
        history = self._broker if key is None else self._partitions.get(key)
        if history is None:
            return None
        dropped, history.open = history.open, None
        return dropped

    def add(self, gap: GapInfo, key: PartitionKey) -> None:
        """Record a gap of the broker that counts for that partition."""
        self._history(key).closed.append(gap)

    def keep_only(self, stream_ids: Container[int]) -> None:
        """Forget the gaps of all other streams, which were deleted."""
        for key in [key for key in self._partitions if key.stream_id not in stream_ids]:
            del self._partitions[key]

    def forget(self, key: PartitionKey) -> bool:
        """Forget a partition; return True if it had gaps."""
        return self._partitions.pop(key, None) is not None

    def save(self) -> GapsSave:
        """Return the task that writes the present gaps."""
        lines = [*self._unknown, *map(msgspec.json.encode, self._broker.all())]
        for key, history in self._partitions.items():
            lines += (msgspec.json.encode({**key._asdict(), **msgspec.structs.asdict(gap)}) for gap in history.all())
        return GapsSave(self._vfs, b"".join(line + b"\n" for line in lines))

    def since(self, start_us: int, *, limit: int = 20) -> tuple[GapInfo, ...]:
        """Return the latest gaps of the broker that reach past `start_us`, oldest first."""
        return tuple(sorted(self._broker.since(start_us, limit), key=attrgetter("start_us")))

    def of(
        self, key: PartitionKey, start_us: int, *, with_broker: bool, with_open: bool, limit: int = 20
    ) -> tuple[GapInfo, ...]:
        """Return the same for a partition; `with_broker` adds the broker's gaps, `with_open` the broker's open gap."""
        history = self._partitions.get(key)
        found = [] if history is None else list(history.since(start_us, limit))
        if with_broker:
            found += (gap for gap in self._broker.since(start_us, limit) if gap.end_us is not None)
        if with_open and self._broker.open is not None:
            found.append(self._broker.open)
        return joined(found)[-limit:]
