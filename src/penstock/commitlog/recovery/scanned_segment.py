"""One segment file found by recovery, and checks across several."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.commitlog.files.checkpoint import Checkpoint
from penstock.commitlog.segment.rebuild import SegmentScan


@dataclass(slots=True)
class ScannedSegment:
    """One segment file and its scan. `foreign`: the reason why it is not treated as part of this log."""

    path: str
    base_offset: int
    next_base: int | None
    size_bytes: int
    flushed_position: int | None
    foreign: str | None = None
    scan: SegmentScan | None = None  # None: it was not scanned, as its index agrees with it
    last_timestamp_us: int = 0
    refusal: OSError | None = None  # the reason why it cannot be written

    def has_batches(self) -> bool:
        """True if the segment has any valid batch."""
        scan = self.scan
        if scan is None or scan.head is not None or scan.entries:
            return True
        return scan.torn is not None and scan.torn.whole is not None


def end_of(one: ScannedSegment, flushed_end: int) -> int:
    """Return the segment's end offset, including corrupt ranges."""
    if one.scan is None:
        assert one.next_base is not None
        return one.next_base
    lost_end = max((damage.end_offset or 0 for damage in one.scan.damage), default=0)
    return max(one.scan.end_offset, lost_end)


def start_mistake(point: Checkpoint, found: list[ScannedSegment]) -> str | None:
    """Return why the log cannot begin at the checkpoint's log_start, given the segments; None if it can."""
    if point.log_start > point.flushed_end:
        return f"it says that the log begins at offset {point.log_start}, beyond {point.flushed_end} that was flushed"
    last = found[-1]
    end = last.base_offset if last.scan is None else max(last.base_offset, last.scan.end_offset)
    if point.log_start > end and last.foreign is None:
        return f"it says that the log begins at offset {point.log_start}; the segments end at {end}"
    return None
