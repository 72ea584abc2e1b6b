"""Translates a JetStream stream's config to a stream config, and lists settings without an equivalent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.config import Acks, Compression, Discard, Storage, StreamConfig, annotation_mistakes
from penstock.base.errors import ErrorCode
from penstock.base.subjects import begins_with_wildcard
from penstock.base.units import format_bytes

ORIGIN = "penstock.subject"
"""Metadata key of a JetStream stream after the cut-over: its original subjects, with spaces between them."""
COMPLETE = "penstock.imported"
"""Metadata key of a JetStream stream after a complete cut-over: the last sequence that was imported, and into which
stream of Penstock: `SEQUENCE in CLUSTER/STREAM_ID`."""

_NS_OF_MS = 1_000_000
_OTHERS = ("_nats.", ORIGIN, COMPLETE)
_NO_EQUAL = {
    "mirror": "the mirror continues in JetStream, not here",
    "sources": "the sources are still copied in JetStream, not here",
    "republish": "`penstock relay` can do that",
    "subject_transform": "subjects are kept as JetStream stored them",
}


class Mapped(NamedTuple):
    """A translated config; `notes` describe settings without an equivalent."""

    name: str
    subjects: tuple[str, ...]
    fields: dict[str, Any]
    notes: tuple[str, ...]

    def config(self) -> StreamConfig:
        """Return the stream config. Raise InvalidConfig with every mistake."""
        from penstock.client.checks import stream_config

        first, *more = self.subjects
        return stream_config({"name": self.name, "subject": first, "more_subjects": tuple(more), **self.fields})


def subject_aside(source: str) -> str:
    """Return the subject of a JetStream stream after the cut-over, on which no client publishes."""
    return f"_moved_to_penstock.{source}"


def is_aside(config: Mapping[str, Any]) -> bool:
    """True if the stream's subject is the one after a cut-over."""
    return config.get("subjects") == [subject_aside(config["name"])]


def origin_of(config: Mapping[str, Any]) -> list[str]:
    """Return the original subjects before the cut-over; empty if they are not recorded."""
    return str((config.get("metadata") or {}).get(ORIGIN) or "").split()


def record_of(last_seq: int, target: str) -> str:
    """Return the value of COMPLETE; `target`: CLUSTER/STREAM_ID."""
    return f"{last_seq} in {target}"


def imported_up_to(config: Mapping[str, Any], target: str) -> int:
    """Return the last sequence that a complete cut-over into `target` has imported; 0 if none is recorded."""
    recorded = str((config.get("metadata") or {}).get(COMPLETE) or "")
    sequence, _, where = recorded.partition(" in ")
    return int(sequence) if where == target and sequence.isdecimal() else 0


def mapped(config: Mapping[str, Any], *, name: str, subject: str | None, replicas: int | None, brokers: int) -> Mapped:
    """Translate JetStream's `config`. Raise InvalidConfig if it has no subject and the caller chose none."""
    from penstock.client.errors import InvalidConfig

    chosen = tuple(config.get("subjects") or ()) if subject is None else (subject,)
    if not chosen:
        text = f"subject: JetStream's stream {config.get('name')} stores no subject of its own; choose with --subject"
        raise InvalidConfig(ErrorCode.INVALID_CONFIG, text)
    notes = [f"JetStream's stream has {field}: {text}" for field, text in _NO_EQUAL.items() if config.get(field)]
    fields = _limits(config, notes)
    wanted = replicas or int(config.get("num_replicas") or 1)
    fields["replicas"] = wanted if replicas else min(wanted, brokers)
    if fields["replicas"] < wanted:
        notes.append(f"JetStream keeps {wanted} replicas; there are {brokers} brokers, so it gets {fields['replicas']}")
    if config.get("no_ack"):
        fields["acks"] = Acks.NEVER
    elif wide := [one for one in chosen if begins_with_wildcard(one)]:
        fields["acks"] = Acks.NEVER
        notes.append(f"{wide[0]} begins with a wildcard, so acks are off: they would answer requests of other services")
    return Mapped(name, chosen, fields, tuple(notes))


def _limits(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for there, here in (
        ("max_msgs", "max_messages"),
        ("max_bytes", "max_bytes"),
        ("max_msgs_per_subject", "max_messages_per_subject"),
    ):
        if (value := int(config.get(there) or -1)) > 0:
            fields[here] = value
    if (age_ns := int(config.get("max_age") or 0)) > 0:
        fields["max_age_ms"] = max(1, age_ns // _NS_OF_MS)
    size = int(config.get("max_msg_size") or -1)
    fields["max_message_bytes"] = min(size, limits.MESSAGE_BYTES_MAX) if size > 0 else limits.MESSAGE_BYTES_MAX
    window_ns = int(config.get("duplicate_window") or 0)
    fields["dedup_window_ms"] = max(1, window_ns // _NS_OF_MS) if window_ns > 0 else None
    fields["storage"] = Storage.MEMORY if config.get("storage") == "memory" else Storage.FILE
    if config.get("compression") == "s2":
        fields["compression"] = Compression.LZ4
    fields["allow_rollup"] = bool(config.get("allow_rollup_hdrs"))
    fields["allow_message_ttl"] = bool(config.get("allow_msg_ttl"))
    marker_ms = int(config.get("subject_delete_marker_ttl") or 0) // _NS_OF_MS
    if marker_ms >= limits.SUBJECT_DELETE_MARKER_TTL_MS_MIN and fields["allow_rollup"] and fields["allow_message_ttl"]:
        fields["subject_delete_marker_ttl_ms"] = marker_ms
    if (retention := config.get("retention", "limits")) != "limits":
        notes.append(f"JetStream's retention is {retention}: here messages stay until a limit removes them")
    if config.get("discard") == "new":
        fields["discard"] = Discard.NEW
    if config.get("discard_new_per_subject") and {"discard", "max_messages_per_subject"} <= fields.keys():
        fields["discard_new_per_subject"] = True
    for name in ("deny_delete", "deny_purge"):
        if config.get(name):
            fields[name] = True
    if "max_bytes" in fields:
        size_text = format_bytes(fields["max_bytes"])
        notes.append(f"max_bytes is {size_text} here, too, but of batches on the disk, which may be fewer messages")
    _annotate(fields, config, notes)
    return fields


def _annotate(fields: dict[str, Any], config: Mapping[str, Any], notes: list[str]) -> None:
    """Add the description and the metadata, without what JetStream and an earlier cut-over have written there."""
    metadata = {key: value for key, value in (config.get("metadata") or {}).items() if not key.startswith(_OTHERS)}
    for name, value in (("description", config.get("description") or ""), ("metadata", metadata)):
        annotated = msgspec.structs.replace(StreamConfig(name="", subject=""), **{name: value})
        if mistakes := annotation_mistakes(annotated):
            notes.append(f"not imported: {mistakes[0]}")
        elif value:
            fields[name] = value
