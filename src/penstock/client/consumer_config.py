"""The config of a consumer of JetStream's API, from the arguments of Python calls: seconds, offsets, places.

Rules: what is not given is left out, so that the broker's default holds. JetStream's durations are nanoseconds, its
sequences are `offset + 1`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from penstock.base.subjects import subject_mistake
from penstock.client.checks import duration_s, fixed_place_of, several, whole_number
from penstock.client.values import EARLIEST, LATEST, Start, microseconds_of

ORDER_BY = "penstock.order_by"
"""Key of a consumer's metadata: what is with one client at a time (`key`, `subject` or `token:N`)."""
DEAD_LETTERS = "penstock.dead_letters"
"""Key of a consumer's metadata: the stream that stores the messages that the consumer gives up."""
AckPolicy = Literal["explicit", "all", "none"]


def consumer_config(
    name: str,
    *,
    subject: str | Sequence[str] = (),
    start: Start = EARLIEST,
    acks: AckPolicy = "explicit",
    ack_wait: float | None = None,
    deliveries_max: int | None = None,
    ack_pending_max: int | None = None,
    backoff: Sequence[float] = (),
    order_by: str | None = None,
    dead_letters: str | None = None,
    inactive_after: float | None = None,
    description: str = "",
) -> dict[str, Any]:
    """Return JetStream's fields. ValueError, TypeError: an argument that cannot be."""
    if acks not in ("explicit", "all", "none"):
        raise ValueError(f"acks is {acks!r}; give 'explicit', 'all' or 'none'")
    fields: dict[str, Any] = {"ack_policy": acks, **_durability(name, acks, inactive_after)}
    fields |= _filters(several(subject)) | _place(start)
    if ack_wait is not None:
        fields["ack_wait"] = _nanoseconds("ack_wait", ack_wait)
    if deliveries_max is not None:
        fields["max_deliver"] = whole_number("deliveries_max", deliveries_max)
    if ack_pending_max is not None:
        fields["max_ack_pending"] = whole_number("ack_pending_max", ack_pending_max)
    if backoff:
        fields["backoff"] = [_nanoseconds("backoff", one) for one in backoff]
    if metadata := _metadata(order_by, dead_letters):
        fields["metadata"] = metadata
    if description:
        fields["description"] = description
    return fields


def with_fields(config: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with other fields of JetStream's, which win; of the metadata, key by key."""
    metadata = {**config.get("metadata", {}), **(given.get("metadata") or {})}
    return {**config, **given, **({"metadata": metadata} if metadata else {})}


def _metadata(order_by: str | None, dead_letters: str | None) -> dict[str, str]:
    """Return what Penstock's options are in the metadata. ValueError: an empty name of a stream."""
    found = {} if order_by is None else {ORDER_BY: order_by}
    if dead_letters is None:
        return found
    if not dead_letters:
        raise ValueError("dead_letters is empty; give the name of a stream, or None for no dead letters")
    return {**found, DEAD_LETTERS: dead_letters}


def _durability(name: str, acks: str, inactive_after: float | None) -> dict[str, Any]:
    if inactive_after is not None:
        return {"inactive_threshold": _nanoseconds("inactive_after", inactive_after)}
    return {} if acks == "none" else {"durable_name": name}


def _filters(subjects: tuple[str, ...]) -> dict[str, Any]:
    for one in subjects:
        if (mistake := subject_mistake(one, wildcards=True)) is not None:
            raise ValueError(mistake)
    if len(subjects) > 1:
        return {"filter_subjects": list(subjects)}
    return {"filter_subject": subjects[0]} if subjects else {}


def _place(start: Start) -> dict[str, Any]:
    place = fixed_place_of(start)
    if place == EARLIEST:
        return {"deliver_policy": "all"}
    if place == LATEST:
        return {"deliver_policy": "new"}
    if isinstance(place, timedelta):
        place = datetime.now(UTC) - place
    if isinstance(place, datetime):
        microseconds_of(place)  # ValueError: it has no time zone
        return {"deliver_policy": "by_start_time", "opt_start_time": place.astimezone(UTC).isoformat()}
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": whole_number("offset", place) + 1}


def _nanoseconds(what: str, seconds: float) -> int:
    if (given := duration_s(what, seconds)) <= 0:
        raise ValueError(f"{what} is {given:g} s; give some time")
    return round(given * 1e9)
