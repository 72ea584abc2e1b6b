"""Translates a JetStream stream's config to a stream config, and lists settings without an equivalent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.config import Acks, Discard, RetentionPolicy, StreamConfig, annotation_mistakes
from penstock.base.errors import ErrorCode
from penstock.base.subjects import begins_with_wildcard
from penstock.base.units import format_bytes
from penstock.jetstream.stream_config import FIELDS, fields_here, filled
from penstock.ops.carried_consumers import is_kept

ORIGIN = "penstock.subject"
"""Metadata key of a JetStream stream after the cut-over: its original subjects, with spaces between them."""
COMPLETE = "penstock.imported"
"""Metadata key of a JetStream stream after a complete cut-over: the last sequence that was imported, and into which
stream of Penstock: `SEQUENCE in CLUSTER/STREAM_ID`."""

_OTHERS = ("_nats.", ORIGIN, COMPLETE)
_NO_EQUAL = {
    "max_consumers": "here only JetStream's API sets limits of consumers",
    "consumer_limits": "here only JetStream's API sets limits of consumers",
    "mirror": "the mirror continues in JetStream, not here",
    "sources": "the sources are still copied in JetStream, not here",
    "republish": "`penstock relay` can do that",
    "subject_transform": "subjects are kept as JetStream stored them",
}
"""Reasons why a field is not imported; of any other field there is nothing here."""
_WITHOUT_NOTE = ("first_seq", "mirror_direct", "allow_direct", "persist_mode")
"""Fields that are not imported without a loss: sequences are kept, and the others change nothing of a stream."""


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
    notes = list(_not_imported(config))
    if config.get("retention") == RetentionPolicy.INTEREST:
        text = "JetStream's stream has retention interest: here a limit removes messages until a cut-over sets it"
        notes.append(f"{text}, or `{interest_command(name)}`, once all its consumers are here")
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


def interest_command(name: str) -> str:
    """Return the command that gives a stream the retention `interest`."""
    return f"penstock stream alter {name} --retention interest"


def consumer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return JetStream's config of a consumer without what its server has written there."""
    metadata = {key: value for key, value in (config.get("metadata") or {}).items() if not key.startswith("_nats.")}
    found = {name: value for name, value in config.items() if name != "metadata"}
    return {**found, "metadata": metadata} if metadata else found


def consumer_left_out(config: Mapping[str, Any]) -> str:
    """Return why a consumer is not imported; empty: it is."""
    if not is_kept(config):
        return "it is not durable and has no acks, so it ends with its clients"
    if not config.get("durable_name") and config.get("inactive_threshold"):
        return "it is not durable: it ends without clients, which make another one"
    return ""


def _not_imported(config: Mapping[str, Any]) -> Iterator[str]:
    for field in FIELDS:
        value = config.get(field.name)
        is_left_out = field.becomes in ("", "kept")
        if is_left_out and value and value != field.default and field.name not in _WITHOUT_NOTE:
            told = f" {value}" if isinstance(value, str) else ""
            why = _NO_EQUAL.get(field.name, "there is no such thing here")
            yield f"JetStream's stream has {field.name}{told}: {why}"


def _limits(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Return the fields that are not at their defaults: below level 0.4 a cluster refuses some of them."""
    given = filled(config)
    found = fields_here(given)
    found["max_message_bytes"] = min(found["max_message_bytes"], limits.MESSAGE_BYTES_MAX)
    found["dedup_window_ms"] = found["dedup_window_ms"] or None
    found["discard_new_per_subject"] &= found["discard"] == Discard.NEW and bool(found["max_messages_per_subject"])
    marker_ms = found["subject_delete_marker_ttl_ms"] or 0
    has_markers = found["allow_rollup"] and found["allow_message_ttl"]
    if marker_ms and not (has_markers and marker_ms >= limits.SUBJECT_DELETE_MARKER_TTL_MS_MIN):
        found["subject_delete_marker_ttl_ms"] = None
        needed = f"allow_rollup_hdrs, allow_msg_ttl and {limits.SUBJECT_DELETE_MARKER_TTL_MS_MIN} ms"
        notes.append(f"JetStream's stream has subject_delete_marker_ttl: without at least {needed} it is none here")
    # These have their own rules; where the log begins follows from the sequences, which are kept.
    # Durability is chosen here: what JetStream acks before a sync says nothing of what this cluster shall promise.
    for name in ("acks", "description", "metadata", "first_offset", "durability"):
        del found[name]
    # Without its consumers nothing that is imported would stay. A work queue keeps all until they come, and no stream
    # can become one later.
    if found["retention"] == RetentionPolicy.INTEREST:
        del found["retention"]
    made, plain = (msgspec.convert(one | {"name": "", "subject": ""}, StreamConfig) for one in (found, {}))
    fields = {name: getattr(made, name) for name in found if getattr(made, name) != getattr(plain, name)}
    if "max_bytes" in fields:
        size_text = format_bytes(fields["max_bytes"])
        notes.append(f"max_bytes is {size_text} here, of batches on the disk, which may be fewer messages")
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
