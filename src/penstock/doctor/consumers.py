"""Checks of the consumers of JetStream's API: those that deliver nothing, and who may have forgotten them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from penstock.client.consume.stream_consumers import ConsumerInfo
from penstock.doctor.findings import Finding, bounded, ok, warn

CHECK = "consumers"
STREAMS_ASKED_MAX = 1_000
"""Streams of whose consumers the leaders are asked."""
ABANDONED_AFTER = timedelta(hours=1)
"""Without a delivery and without a waiting client, while messages are pending."""
_LETTER_ADVICE = "mend that stream: they are sent again within a minute; `penstock consumer info {place}` says more"


def judge_consumers(found: Sequence[ConsumerInfo], now: datetime) -> Iterator[Finding]:
    """Tell of consumers that are blocked, and of durable ones without clients."""
    paused = sum(one.paused_until is not None for one in found)
    count = "no consumers" if not found else "1 consumer" if len(found) == 1 else f"{len(found)} consumers"
    well = ok(CHECK, f"{count}, none is blocked" + (f"; {paused} paused" if paused else ""))
    yield from bounded((finding for one in found for finding in _of_one(one, now)), well)


def _of_one(one: ConsumerInfo, now: datetime) -> Iterator[Finding]:
    label = f"{one.name} of stream {one.stream}" + (f", partition {one.partition}," if one.partition else "")
    place = f"{one.stream} {one.name}" + (f" --partition {one.partition}" if one.partition else "")
    if one.dead_letters_error:
        text = f"{label} has {one.dead_letters_waiting} messages that stream {one.dead_letters} does not take"
        yield warn(CHECK, f"{text} as dead letters: {one.dead_letters_error}", _LETTER_ADVICE.format(place=place))
    if one.is_full:
        text = f"{label} delivers nothing new: {one.ack_pending} messages wait for an ack, as many as may"
        advice = f"see whether its clients ack; `penstock consumer info {place}`; or raise its max_ack_pending"
        yield warn(CHECK, text, advice)
    elif one.is_durable and _is_abandoned(one, now):
        text = f"{label} has {one.pending} pending messages, and no client asks for them"
        yield warn(CHECK, text, f"start its clients, or `penstock consumer delete {place}`")


def _is_abandoned(one: ConsumerInfo, now: datetime) -> bool:
    if one.is_push or one.waiting or not one.pending or one.paused_until is not None:
        return False
    return now - (one.last_delivered or one.created) > ABANDONED_AFTER
