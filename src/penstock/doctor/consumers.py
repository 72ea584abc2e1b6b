"""Checks of the consumers of JetStream's API: those that deliver nothing, and who may have forgotten them.

Rules: one that no client asks is told of if it is durable, or keeps messages: in a stream with retention `workqueue` or
`interest` what it has not acked stays for its sake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from penstock.base.config import RetentionPolicy
from penstock.client.consume.stream_consumers import ConsumerInfo
from penstock.doctor.findings import Finding, bounded, ok, warn

CHECK = "consumers"
STREAMS_ASKED_MAX = 1_000
"""Streams of whose consumers the leaders are asked."""
ABANDONED_AFTER = timedelta(hours=1)
"""Without a delivery and without a waiting client, while messages are pending."""
_LETTER_ADVICE = "mend that stream: they are sent again within a minute; `penstock consumer info {place}` says more"


def judge_consumers(
    found: Sequence[ConsumerInfo], now: datetime, retentions: Mapping[str, RetentionPolicy] | None = None
) -> Iterator[Finding]:
    """Tell of consumers that are blocked, of durable ones without clients, and of those that rest and keep messages.

    `retentions`: of the streams whose messages go with acks.
    """
    consumed = retentions or {}
    paused = sum(one.paused_until is not None for one in found)
    count = "no consumers" if not found else "1 consumer" if len(found) == 1 else f"{len(found)} consumers"
    well = ok(CHECK, f"{count}, none is blocked" + (f"; {paused} paused" if paused else ""))
    yield from bounded((finding for one in found for finding in _of_one(one, now, consumed.get(one.stream))), well)


def judge_named(streams: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Tell of groups and archives that count as consumers and have committed nothing, so that nothing goes.

    `streams`: by name, those of its `interest_of` that have no offset yet.
    """
    for stream, names in streams.items():
        for name in names:
            text = f"stream {stream} keeps all its messages for {name} (interest_of), which has committed no offset"
            yield warn(CHECK, text, f"start it, or take it out of `penstock stream alter {stream} --interest-of`")


def _of_one(one: ConsumerInfo, now: datetime, retention: RetentionPolicy | None) -> Iterator[Finding]:
    label = f"{one.name} of stream {one.stream}" + (f", partition {one.partition}," if one.partition else "")
    place = f"{one.stream} {one.name}" + (f" --partition {one.partition}" if one.partition else "")
    if one.dead_letters_error:
        text = f"{label} has {one.dead_letters_waiting} messages that stream {one.dead_letters} does not take"
        yield warn(CHECK, f"{text} as dead letters: {one.dead_letters_error}", _LETTER_ADVICE.format(place=place))
    if one.is_full:
        text = f"{label} delivers nothing new: {one.ack_pending} messages wait for an ack, as many as may"
        advice = f"see whether its clients ack; `penstock consumer info {place}`; or raise its max_ack_pending"
        yield warn(CHECK, text, advice)
    elif retention is not None and _is_at_rest(one, now) and one.pending + one.ack_pending:
        what = "is paused" if one.paused_until is not None else "is not asked by any client"
        acked = f", {one.ack_pending} of them delivered and not acked," if one.ack_pending else ""
        text = f"{label} {what}, and keeps {one.pending + one.ack_pending} messages{acked} of a stream with retention "
        advice = f"start its clients, or `penstock consumer delete {place}`: docs/how-to/work-queues.md"
        yield warn(CHECK, f"{text}{retention.value}", advice)
    elif one.is_durable and _is_abandoned(one, now):
        text = f"{label} has {one.pending} pending messages, and no client asks for them"
        yield warn(CHECK, text, f"start its clients, or `penstock consumer delete {place}`")


def _is_abandoned(one: ConsumerInfo, now: datetime) -> bool:
    return bool(one.pending) and one.paused_until is None and _is_at_rest(one, now)


def _is_at_rest(one: ConsumerInfo, now: datetime) -> bool:
    if one.is_push or one.waiting:
        return False
    return now - (one.last_delivered or one.created) > ABANDONED_AFTER
