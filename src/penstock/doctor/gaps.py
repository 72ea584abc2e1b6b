"""Gaps (times without a subscription) of all streams, merged by cause.

Rules: gaps are recorded per partition. Those with one cause are reported once, with all their partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from penstock.messages import GapInfo, StreamInfo


class Cause(NamedTuple):
    """A gap, at its longest, and the partitions it affected."""

    gap: GapInfo
    where: tuple[str, ...]


def causes(infos: Iterable[StreamInfo]) -> list[Cause]:
    """Return the causes in order of time: overlapping gaps with the same reason are one."""
    each = [(gap, label(info, part.partition)) for info in infos for part in info.partitions for gap in part.gaps]
    found: list[tuple[GapInfo, dict[str, None]]] = []
    latest: dict[str, int] = {}  # reason → index in `found`
    for gap, where in sorted(each, key=lambda one: one[0].start_us):
        at = latest.get(gap.reason)
        if at is not None and _reaches(found[at][0], gap.start_us):
            before, places = found[at]
            if before.end_us is not None and (gap.end_us is None or gap.end_us > before.end_us):
                found[at] = msgspec.structs.replace(before, end_us=gap.end_us), places
            places[where] = None
        else:
            latest[gap.reason] = len(found)
            found.append((gap, {where: None}))
    return [Cause(gap, tuple(places)) for gap, places in found]


def label(info: StreamInfo, partition: int) -> str:
    """Return the name of a partition in the report."""
    return f"{info.name}/{partition}" if len(info.partitions) > 1 else info.name


def _reaches(gap: GapInfo, start_us: int) -> bool:
    return gap.end_us is None or gap.end_us >= start_us
