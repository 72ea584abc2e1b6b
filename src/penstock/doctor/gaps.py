"""The times in which nobody listened, of all streams together: one for each cause.

Rules: they are those of the partitions. What one thing did to several partitions is told once, with all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from penstock.messages import GapInfo, StreamInfo


class Cause(NamedTuple):
    """One time, at most, and the partitions that nobody listened for."""

    gap: GapInfo
    where: tuple[str, ...]


def causes(infos: Iterable[StreamInfo]) -> list[Cause]:
    """Of all partitions of these streams, earliest first: gaps of one reason that overlap are one."""
    each = [(gap, label(info, part.partition)) for info in infos for part in info.partitions for gap in part.gaps]
    found: list[tuple[GapInfo, dict[str, None]]] = []
    latest: dict[str, int] = {}  # of each reason, where it stands
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
    """What a partition is called beside others."""
    return f"{info.name}/{partition}" if len(info.partitions) > 1 else info.name


def _reaches(gap: GapInfo, start_us: int) -> bool:
    return gap.end_us is None or gap.end_us >= start_us
