"""The segments of one log: the sealed ones, and the active one behind them.

Rules: only the log's own task uses it. Readers get an immutable tuple: see `seen`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.batch.header import BatchHeader
from penstock.commitlog.config import LogConfig
from penstock.commitlog.segment.damage import Damage
from penstock.commitlog.segment.segment import ActiveSegment, Erased, Segment, SubjectMemory, live_bytes
from penstock.live.row_set import RowSet

NEVER_US = 2**63 - 1


class Segments:
    """The segments of a log. `active` None: there is corruption, and nothing may be written.

    `roll_bytes`, `roll_at_us`: a batch that would exceed this size, or has this timestamp or a later one, goes into a
    new segment.
    """

    __slots__ = ("_age_us", "_live", "_sealed_bytes", "active", "roll_at_us", "roll_bytes", "sealed")

    def __init__(self, sealed: Iterable[Segment], active: ActiveSegment | None, config: LogConfig) -> None:
        self.active: ActiveSegment | None = active
        self.sealed = tuple(sealed)
        self._sealed_bytes = sum(one.size_bytes for one in self.sealed)
        # live bytes of these sealed segments without these rows
        self._live: tuple[tuple[Segment, ...], RowSet, int] | None = None
        self.configure(config)

    @property
    def size_bytes(self) -> int:
        """Total size of all segment files in bytes."""
        return self._sealed_bytes + (0 if self.active is None else self.active.size_bytes)

    def live_bytes(self, hidden: RowSet, log_end: int) -> int:
        """Total size of all segment files in bytes, less the share of hidden rows: see `segment.live_bytes`."""
        if self._live is None or self._live[0] is not self.sealed or self._live[1] is not hidden:
            found = (
                live_bytes(one.size_bytes, one.base_offset, one.end_offset, one.erased, hidden) for one in self.sealed
            )
            self._live = self.sealed, hidden, sum(found)
        active = self.active
        if active is None:
            return self._live[2]
        return self._live[2] + live_bytes(active.size_bytes, active.base_offset, log_end, None, hidden)

    @property
    def count(self) -> int:
        """Number of segments, including the active one."""
        return len(self.sealed) + (self.active is not None)

    @property
    def first_base(self) -> int:
        """Base offset of the first segment: at or below log_start."""
        first = self.sealed[0] if self.sealed else self.active
        return 0 if first is None else first.base_offset

    def configure(self, config: LogConfig) -> None:
        """Apply the config's roll limits."""
        self.roll_bytes = config.segment_bytes
        self._age_us = config.roll_age_us
        self.set_roll_time()

    def room_for(self, headers: Sequence[BatchHeader]) -> int:
        """Return how many of these batches fit into the active segment; at least one if it is empty."""
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
        """Recompute the roll time when the active segment gets its first batch or is replaced."""
        self.roll_at_us = self._roll_time(None if self.active is None else self.active.first_timestamp_us())

    def _roll_time(self, first_timestamp_us: int | None) -> int:
        return NEVER_US if first_timestamp_us is None or self._age_us is None else first_timestamp_us + self._age_us

    def seal(self, following: ActiveSegment, log_end: int, last_timestamp_us: int) -> Segment:
        """Seal the active segment, make `following` the active one, and return the sealed one."""
        active = self.active
        assert active is not None
        sealed = active.seen(log_end, last_timestamp_us)
        sealed.subjects = SubjectMemory()  # an index takes the place of what is in memory
        self.sealed = (*self.sealed, sealed)
        self._sealed_bytes += active.size_bytes
        self.active = following
        self.set_roll_time()
        return sealed

    def seen(self, log_end: int, last_timestamp_us: int, damage: tuple[Damage, ...]) -> tuple[Segment, ...]:
        """Return all segments as they are now, for readers; `damage` is the active one's."""
        if self.active is None:
            return self.sealed
        return (*self.sealed, self.active.seen(log_end, last_timestamp_us, damage))

    def swap(self, old: Segment, new: Segment) -> None:
        """Replace a segment by its rewrite."""
        self.sealed = tuple(new if one is old else one for one in self.sealed)
        self._sealed_bytes += new.size_bytes - old.size_bytes

    def looked_at(self, segment: Segment, lacking: Erased) -> None:
        """Note what a sealed segment's file lacks."""
        segment.erased = lacking
        self._live = None

    def replace(self, sealed: Iterable[Segment], active: ActiveSegment) -> None:
        """Replace all segments after a truncation."""
        self.sealed = tuple(sealed)
        self._sealed_bytes = sum(one.size_bytes for one in self.sealed)
        self.active = active
        self.set_roll_time()

    def has_byte(self, path: str, position: int) -> bool:
        """True if the file at `path` is a segment and has a byte at this position."""
        if (active := self.active) is not None and active.path == path:
            return position < active.size_bytes
        return any(one.path == path and position < one.size_bytes for one in self.sealed)

    def give_up_below(self, log_start: int) -> tuple[str, ...]:
        """Drop segments that end at or below `log_start`; return their paths, to be removed."""
        kept = tuple(one for one in self.sealed if one.end_offset > log_start)
        gone = self.sealed[: len(self.sealed) - len(kept)]
        self.sealed = kept
        self._sealed_bytes -= sum(one.size_bytes for one in gone)
        return tuple(one.path for one in gone)
