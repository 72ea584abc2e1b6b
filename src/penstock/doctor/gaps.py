"""Gaps (times without a subscription) of all streams, merged by cause.

Rules: gaps are recorded per partition. Those with one cause are reported once, with all their partitions; causes that
overlap are one event, such as the restart of a broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from penstock.messages import GapInfo, StreamInfo
from penstock.messages.streams import BROKER_STOPPED, LEADER_CHANGED


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


class Event(NamedTuple):
    """Causes that overlap in time: what one restart, or one failure, did to several partitions. The longest first."""

    causes: tuple[Cause, ...]

    @property
    def end_us(self) -> int | None:
        """The last end; None: it lasts."""
        ends = [one.gap.end_us for one in self.causes]
        return None if None in ends else max(end for end in ends if end is not None)

    @property
    def is_planned(self) -> bool:
        """True if a broker was stopped in an orderly way, and nothing else happened meanwhile."""
        reasons = {one.gap.reason for one in self.causes}
        return BROKER_STOPPED in reasons and reasons <= {BROKER_STOPPED, LEADER_CHANGED}


def events(found: Iterable[Cause]) -> list[Event]:
    """Return the events in order of time."""
    groups: list[list[Cause]] = []
    end_us: int | None = 0  # of the last group
    for cause in sorted(found, key=lambda one: one.gap.start_us):
        if groups and (end_us is None or cause.gap.start_us <= end_us):
            groups[-1].append(cause)
            end_us = None if end_us is None or cause.gap.end_us is None else max(end_us, cause.gap.end_us)
        else:
            groups.append([cause])
            end_us = cause.gap.end_us
    return [Event(tuple(sorted(group, key=_longest_first))) for group in groups]


def _longest_first(cause: Cause) -> tuple[bool, int]:
    gap = cause.gap
    return gap.end_us is not None, -((gap.end_us or 0) - gap.start_us)


def label(info: StreamInfo, partition: int) -> str:
    """Return the name of a partition in the report."""
    return f"{info.name}/{partition}" if len(info.partitions) > 1 else info.name


def _reaches(gap: GapInfo, start_us: int) -> bool:
    return gap.end_us is None or gap.end_us >= start_us
