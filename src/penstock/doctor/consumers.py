"""Checks of consumers with acks: those that no client uses, and that keep the messages of their stream.

Rules: a consumer's info is JSON as JetStream's API tells it. A consumer is at rest if no client asks it for messages or
hears its deliveries, and none has had or acked a message for RESTING_US. Only in a stream with retention `workqueue` or
`interest` does that keep messages from going.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from penstock.base.config import RetentionPolicy
from penstock.base.units import format_duration_us
from penstock.doctor.findings import Finding, bounded, ok, warn

RESTING_US = 3_600_000_000

_CHECK = "consumers"


class StreamConsumers(NamedTuple):
    """The consumers of one stream: their infos, decoded."""

    stream: str
    retention: RetentionPolicy
    infos: Sequence[Mapping[str, Any]]


def judge_consumers(streams: Sequence[StreamConsumers], now_us: int) -> Iterator[Finding]:
    """Check the consumers of all streams whose acks remove messages; yields nothing without such a stream."""
    consumed = [one for one in streams if one.retention is not RetentionPolicy.LIMITS]
    if not consumed:
        return
    found = (finding for one in consumed for info in one.infos if (finding := _of(one, info, now_us)) is not None)
    count = sum(len(one.infos) for one in consumed)
    yield from bounded(found, ok(_CHECK, f"none of {count} rests and keeps messages of its stream"))


def _of(one: StreamConsumers, info: Mapping[str, Any], now_us: int) -> Finding | None:
    waiting, in_hand = _number(info, "num_pending"), _number(info, "num_ack_pending")
    is_used = bool(info.get("push_bound")) or _number(info, "num_waiting") > 0
    resting_us = now_us - _last_us(info, now_us)
    if is_used or not waiting + in_hand or resting_us < RESTING_US:
        return None
    if info.get("paused"):
        what, advice = "is paused", "let it go on, or delete it if it is needed no more"
    else:
        what, advice = "is not used", "start its clients, or delete it if it is needed no more"
    since = format_duration_us(resting_us // 60_000_000 * 60_000_000)
    name = f"{one.stream}/{info.get('name') or '?'}"
    text = f"{name} {what} since {since}, and keeps {waiting + in_hand} messages of a stream with retention "
    acked = f" ({in_hand} of them were delivered and not acked)" if in_hand else ""
    return warn(_CHECK, f"{text}{one.retention}{acked}", f"{advice}: docs/how-to/work-queues.md")


def _number(info: Mapping[str, Any], name: str) -> int:
    value = info.get(name)
    return value if type(value) is int else 0


def _last_us(info: Mapping[str, Any], now_us: int) -> int:
    """Return when a client last had, or acked, a message, else when the consumer was made; now if it is not told."""
    told = [_time_us(part.get("last_active")) for name in ("delivered", "ack_floor") if (part := info.get(name) or {})]
    times = [one for one in (*told, _time_us(info.get("created"))) if one is not None]
    return max(times, default=now_us)


def _time_us(text: object) -> int | None:
    """Return a time of RFC 3339, as Go writes it; None for any other value, and for Go's zero time."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is None or found.year < 1970:
        return None
    return int(found.timestamp() * 1_000_000)
