"""The segments of one log: the sealed ones, and the active one that is written behind them.

Rules: only the log's own task touches it. What readers see of it is a tuple that never changes: see `seen`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from penstock.batch.header import BatchHeader
from penstock.commitlog import files, segment
from penstock.commitlog.retention import LogConfig
from penstock.commitlog.segment import ActiveSegment, Damage, Segment
from penstock.vfs import Vfs

NEVER_US = 2**63 - 1


class Segments:
    """What a log is made of. `active` None: there is damage, nothing may be written.

    `roll_bytes`, `roll_at_us`: a batch that would make the active segment larger, or is as late, goes into a new one.
    """

    __slots__ = (
        "_age_us",
        "_directory",
        "_ids",
        "_sealed_bytes",
        "_vfs",
        "active",
        "roll_at_us",
        "roll_bytes",
        "sealed",
    )

    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        ids: tuple[int, int],
        sealed: Iterable[Segment],
        active: ActiveSegment | None,
        config: LogConfig,
    ) -> None:
        self._vfs = vfs
        self._directory = directory
        self._ids = ids
        self.active: ActiveSegment | None = active
        self.sealed = tuple(sealed)
        self._sealed_bytes = sum(one.size_bytes for one in self.sealed)
        self.configure(config)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return self._sealed_bytes + (0 if self.active is None else self.active.size_bytes)

    @property
    def count(self) -> int:
        """How many there are, the active one too."""
        return len(self.sealed) + (self.active is not None)

    def configure(self, config: LogConfig) -> None:
        """Roll by these rules from now on."""
        self.roll_bytes = config.segment_bytes
        self._age_us = config.roll_age_us
        self.set_roll_time()

    def room_for(self, headers: Sequence[BatchHeader]) -> int:
        """How many of these batches, from the first on, go into the active segment; one at least into an empty one."""
        active = self.active
        assert active is not None
        size_bytes, roll_at_us = active.size_bytes, self.roll_at_us
        for number, header in enumerate(headers):
            if not (active.count or number):
                roll_at_us = self._roll_time(header.min_timestamp_us)
            elif size_bytes + header.size_bytes > self.roll_bytes or header.min_timestamp_us >= roll_at_us:
                return number
            size_bytes += header.size_bytes
        return len(headers)

    def set_roll_time(self) -> None:
        """The active segment has its first batch now, or none yet."""
        self.roll_at_us = self._roll_time(None if self.active is None else self.active.first_timestamp_us())

    def _roll_time(self, first_timestamp_us: int | None) -> int:
        return NEVER_US if first_timestamp_us is None or self._age_us is None else first_timestamp_us + self._age_us

    def create_next(self, base_offset: int, undo: Callable[[Callable[[], None]], None]) -> ActiveSegment:
        """An empty segment file for what comes from `base_offset` on, or OSError.

        `undo` runs what it is given: a file of that name would stand in the way once the old segment goes on.
        """
        segment.clear_the_way(self._vfs, self._directory, base_offset, *self._ids)
        try:
            return segment.create(self._vfs, self._directory, base_offset, *self._ids)
        except OSError:
            undo(lambda: self._vfs.remove(files.segment_path(self._directory, base_offset)))
            raise

    def seal(self, following: ActiveSegment, log_end: int, last_timestamp_us: int) -> Segment:
        """The active segment ends here, and `following` is the active one; gives what was sealed."""
        active = self.active
        assert active is not None
        sealed = active.seen(log_end, last_timestamp_us)
        self.sealed = (*self.sealed, sealed)
        self._sealed_bytes += active.size_bytes
        self.active = following
        self.set_roll_time()
        return sealed

    def seen(self, log_end: int, last_timestamp_us: int, damage: tuple[Damage, ...]) -> tuple[Segment, ...]:
        """All of them as they are now, for readers; `damage` is the active one's."""
        if self.active is None:
            return self.sealed
        return (*self.sealed, self.active.seen(log_end, last_timestamp_us, damage))

    def swap(self, old: Segment, new: Segment) -> None:
        """One was written anew."""
        self.sealed = tuple(new if one is old else one for one in self.sealed)
        self._sealed_bytes += new.size_bytes - old.size_bytes

    def replace(self, sealed: Iterable[Segment], active: ActiveSegment) -> None:
        """The log was cut: this is what is left."""
        self.sealed = tuple(sealed)
        self._sealed_bytes = sum(one.size_bytes for one in self.sealed)
        self.active = active
        self.set_roll_time()

    def has_byte(self, path: str, position: int) -> bool:
        """Whether the file at `path` is a segment, and large enough to have a byte there."""
        if (active := self.active) is not None and active.path == path:
            return position < active.size_bytes
        return any(one.path == path and position < one.size_bytes for one in self.sealed)

    def give_up_below(self, log_start: int) -> tuple[str, ...]:
        """Forget what ends at or below `log_start`; the paths of what is to be removed."""
        kept = tuple(one for one in self.sealed if one.end_offset > log_start)
        gone = self.sealed[: len(self.sealed) - len(kept)]
        self.sealed = kept
        self._sealed_bytes -= sum(one.size_bytes for one in gone)
        return tuple(one.path for one in gone)
