"""The fields of a stream's config as command-line options: syntax and help texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from penstock.base.config import (
    Acks,
    Compression,
    Discard,
    Durability,
    Encryption,
    Retain,
    RetentionPolicy,
    SchemaCheck,
    Storage,
    StreamConfig,
    SuspendDeletion,
)
from penstock.base.partitioning import parse_split
from penstock.base.units import format_duration_ms, format_short_bytes, parse_bytes, parse_duration_ms

UNLIMITED = "none"


def _count(text: str) -> int:
    digits = text.replace("_", "").replace(",", "")
    if not (digits.isascii() and digits.isdigit()):
        is_negative = digits.removeprefix("-").isdigit() and digits.isascii()
        raise ValueError(f"{text!r} is negative" if is_negative else f"{text!r} is not a whole number")
    return int(digits)


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse


def _split(text: str) -> str:
    parse_split(text)
    return text


def _yes_or_no(text: str) -> bool:
    return _one_of("yes", "no")(text) == "yes"


class Field(NamedTuple):
    """A field of a stream's config as an option. `show` formats a value as the user writes it."""

    name: str
    flag: str
    metavar: str
    meaning: str
    parse: Callable[[Any], Any]
    show: Callable[[Any], str] = str
    unlimited: bool = False  # True if `none` is allowed; it means `nothing`
    nothing: str = "no limit"
    default: str = ""  # the default in words, if it is None and that does not mean "no limit"
    is_many: bool = False  # it may be given several times: `parse` takes the list of texts


def _switch(name: str, flag: str, meaning: str, default: str = "") -> Field:
    """Return a field with the values yes and no."""
    return Field(name, flag, "yes|no", meaning, _yes_or_no, lambda value: "yes" if value else "no", default=default)


def _pairs(texts: list[str]) -> dict[str, str]:
    """Parse `KEY=VALUE` texts; one empty text means none."""
    if texts == [""]:
        return {}
    if bad := [text for text in texts if not text.partition("=")[0] or "=" not in text]:
        raise ValueError(f"{bad[0]!r} is not KEY=VALUE")
    found: dict[str, str] = {}
    for key, _, value in (text.partition("=") for text in texts):
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found


FIELDS = (
    Field(
        "max_age_ms",
        "--max-age",
        "DURATION",
        "Delete messages that are older, such as 7d.",
        parse_duration_ms,
        format_duration_ms,
        unlimited=True,
    ),
    Field(
        "max_messages",
        "--max-messages",
        "N",
        "Keep the last N messages of each partition.",
        _count,
        unlimited=True,
    ),
    Field(
        "max_bytes",
        "--max-bytes",
        "SIZE",
        "Keep about this many bytes of each partition, such as 10GiB.",
        parse_bytes,
        format_short_bytes,
        unlimited=True,
    ),
    Field(
        "max_messages_per_subject",
        "--max-messages-per-subject",
        "N",
        "Show readers only the last N messages of each subject of a partition; earlier ones are deleted.",
        _count,
        unlimited=True,
    ),
    Field(
        "discard",
        "--discard",
        "|".join(Discard),
        "At --max-messages and --max-bytes: 'old' stores a message and deletes the oldest ones, 'new' refuses it.",
        _one_of(*Discard),
    ),
    _switch(
        "discard_new_per_subject",
        "--discard-new-per-subject",
        "Whether a message is refused if its subject has --max-messages-per-subject already. It needs --discard new. "
        "If not, the newer message takes the place of the oldest one.",
    ),
    Field(
        "retention",
        "--retention",
        "|".join(RetentionPolicy),
        "Whether acks of the stream's consumers remove messages: 'limits', never; 'workqueue', the ack of the one "
        "consumer that a message belongs to; 'interest', the acks of all consumers that want it, and a message that "
        "none wants is never shown. It goes with one partition, and without --compact, --group and --retain "
        "until-archived. 'limits' and 'interest' can be changed into each other.",
        _one_of(*RetentionPolicy),
    ),
    Field(
        "interest_of",
        "--interest-of",
        "group:NAME,archive:NAME…",
        "With --retention interest: consumer groups and archives that count as consumers. A message stays until each "
        "has committed an offset behind it; one that has committed nothing yet keeps all. '' for none.",
        lambda text: tuple(filter(None, text.split(","))),
        lambda names: ",".join(names) or "none",
    ),
    Field(
        "retain",
        "--retain",
        "|".join(Retain),
        "When --max-age, --max-messages and --max-bytes delete a message: 'limits', once it is beyond a limit; "
        "'until-archived', once it is beyond a limit and every archive has reported that it stored the message. With "
        "'until-archived' nothing is deleted before an archive has reported.",
        _one_of(*Retain),
    ),
    Field(
        "suspend_deletion",
        "--suspend-deletion",
        "|".join(SuspendDeletion),
        "'yes': retention, compaction, message TTLs and rollups delete nothing until it is 'no' again; a purge still "
        "does. 'copying' is the same, set by a copy, restore or import, which sets 'no' when it is complete.",
        _one_of(*SuspendDeletion),
    ),
    Field(
        "schema_check",
        "--schema-check",
        "|".join(SchemaCheck),
        "Messages whose values do not fit the registered schema of their subject (see 'penstock schema register'): "
        "'no' stores them, 'count' stores and counts them, 'refuse' refuses them with the reason. A subject without a "
        "schema is not checked.",
        _one_of(*SchemaCheck),
    ),
    Field(
        "max_message_bytes", "--max-message-bytes", "SIZE", "Refuse larger messages.", parse_bytes, format_short_bytes
    ),
    Field(
        "acks",
        "--acks",
        "|".join(Acks),
        "Which messages are acked: 'reply', those with a reply subject; 'envelope', only those in an envelope; "
        "'never', none.",
        _one_of(*Acks),
    ),
    Field(
        "durability",
        "--durability",
        "|".join(Durability),
        "When a message is acked: 'fsync', once it is on the disk; 'os', once it is in the page cache; 'auto', like "
        "'os' while several replicas are in sync, else like 'fsync'. All replicas in sync have an acked message.",
        _one_of(*Durability),
    ),
    Field(
        "partitions",
        "--partitions",
        "N",
        "The number of partitions. Each is a log with an order of its own; --partition-by chooses the partition of a "
        "message.",
        _count,
    ),
    Field(
        "partition_by",
        "--partition-by",
        "HOW",
        "What chooses the partition of a message: 'publisher', the publisher, who publishes on SUBJECT for partition "
        "0 and on SUBJECT.N for partition N; 'key', the hash of its key; 'token:N', the hash of the Nth token of its "
        "subject (the first is 1); 'range', its key and --range-bounds; 'range:N', the Nth token and --range-bounds; "
        "'group', at random; 'mapped', a subject mapping in nats-server, to SUBJECT.0, SUBJECT.1, … (see `penstock "
        "nats-config`).",
        _split,
    ),
    Field(
        "range_bounds",
        "--range-bounds",
        "KEY,KEY…",
        "With --partition-by range: the first key of partition 1, of partition 2, and so on: g,n,t makes four "
        "partitions.",
        lambda text: tuple(text.split(",")),
        lambda bounds: ",".join(bounds) or "none",
    ),
    Field(
        "group",
        "--group",
        "NAME",
        "The streams of a group are one NATS queue group: each message is stored by one of them, at random.",
        str,
        unlimited=True,
        nothing="it gets everything",
    ),
    Field(
        "replicas",
        "--replicas",
        "N",
        "The number of brokers that hold each partition.",
        _count,
        default="3, or the number of brokers of the cluster if that is less; brokers that are away count",
    ),
    Field(
        "observers",
        "--observers",
        "N",
        "The number of further brokers that hold a copy of each partition for readers. They never lead, and no ack "
        "waits for them.",
        _count,
    ),
    Field(
        "min_isr",
        "--min-isr",
        "N",
        "The number of replicas that must have a message before it is acked.",
        _count,
        default="half of the replicas, rounded up",
    ),
    _switch(
        "allow_unclean_election",
        "--allow-unclean-election",
        "Whether a replica out of sync may become leader if no other can: acked messages may be lost.",
    ),
    Field(
        "dedup_window_ms",
        "--dedup-window",
        "DURATION",
        "A message whose Nats-Msg-Id came before within this time is acked as a duplicate and not stored again.",
        parse_duration_ms,
        format_duration_ms,
        unlimited=True,
        nothing="no deduplication",
    ),
    Field(
        "dedup_ids_max",
        "--dedup-ids-max",
        "N",
        "The number of message ids of a partition that are kept in memory. Beyond it the oldest are forgotten before "
        "the window ends.",
        _count,
    ),
    _switch(
        "compact",
        "--compact",
        "Whether to keep only the last message of each key, as a table does. Messages without a key are kept.",
    ),
    Field(
        "compaction_lag_ms",
        "--compaction-lag",
        "DURATION",
        "With --compact: compact no message that is younger than this, or than the dedup window.",
        parse_duration_ms,
        format_duration_ms,
    ),
    Field(
        "tombstone_retention_ms",
        "--tombstone-retention",
        "DURATION",
        "With --compact: keep a tombstone for this long after compaction has removed the earlier messages of its key. "
        "A reader that reads one replica from beginning to end within that time sees every deletion.",
        parse_duration_ms,
        format_duration_ms,
    ),
    Field(
        "compression",
        "--compression",
        "|".join(Compression),
        "Compress segments that are sealed and committed: 'zstd' is smallest, 'lz4' is fastest to read. Segments that "
        "are already compressed do not change.",
        _one_of(*Compression),
    ),
    _switch(
        "allow_message_ttl",
        "--allow-message-ttl",
        "Whether a message may have a time to live, such as 1h, in the header Nats-TTL. If not, such a message is "
        "refused.",
    ),
    Field(
        "subject_delete_marker_ttl_ms",
        "--subject-delete-marker-ttl",
        "DURATION",
        "When the last message of a subject expires, by its time to live or the stream's maximum age, it leaves a "
        "marker on the subject for so long, as in JetStream: at least 1s. It needs --allow-message-ttl and "
        "--allow-rollup.",
        parse_duration_ms,
        format_duration_ms,
        unlimited=True,
        nothing="no markers",
    ),
    _switch(
        "allow_rollup",
        "--allow-rollup",
        "Whether a message may delete all earlier ones, of its subject or of the stream, with the header Nats-Rollup. "
        "If not, such a message is refused.",
    ),
    _switch(
        "allow_message_schedules",
        "--allow-message-schedules",
        "Whether a message may be sent to another subject of the stream at a given time, with the header "
        "'Nats-Schedule: @at TIME'. If not, such a message is refused. It needs --allow-rollup, one partition and "
        "--discard old.",
    ),
    _switch(
        "allow_atomic",
        "--allow-atomic",
        "Whether messages with the headers Nats-Batch-Id and Nats-Batch-Sequence are stored together, or none of them "
        "(atomic batches of JetStream). If not, such a message is refused. The stream has one partition.",
    ),
    Field(
        "encryption",
        "--encryption",
        "|".join(Encryption),
        "Encryption of the files on the disk, with the keys of each broker (encryption_keys_file).",
        _one_of(*Encryption),
    ),
    _switch(
        "nats_readable",
        "--nats-readable",
        "Whether NATS clients may read it through JetStream's API: its messages go out over NATS, in clear.",
        default="no if it is encrypted, else yes",
    ),
    Field(
        "first_offset",
        "--first-offset",
        "N",
        "Offset of the first message of each partition; its sequence in acks and in JetStream's API is one more. It "
        "cannot be changed.",
        _count,
    ),
    Field("storage", "--storage", "|".join(Storage), "'memory' is lost when the broker stops.", _one_of(*Storage)),
    Field(
        "segment_bytes", "--segment-bytes", "SIZE", "Begin a new file at this size.", parse_bytes, format_short_bytes
    ),
    Field(
        "segment_age_ms",
        "--segment-age",
        "DURATION",
        "Begin a new file at this age.",
        parse_duration_ms,
        format_duration_ms,
        unlimited=True,
    ),
    _switch(
        "deny_delete", "--deny-delete", "Whether deletions of single messages are refused; it cannot be taken back."
    ),
    _switch("deny_purge", "--deny-purge", "Whether purges are refused; it cannot be taken back."),
    Field("description", "--description", "TEXT", "A description for people; '' for none.", str),
    Field(
        "metadata",
        "--metadata",
        "KEY=VALUE",
        "A value for programs, which Penstock only keeps; give it once for each. They replace all earlier ones; '' "
        "for none.",
        _pairs,
        lambda metadata: " ".join(f"{key}={value}" for key, value in metadata.items()),
        is_many=True,
    ),
)

_BY_NAME = {field.name: field for field in FIELDS}


def flag_of(name: str) -> str:
    """Return the option for a field; the field's own name if there is none."""
    return _BY_NAME[name].flag if name in _BY_NAME else name


_DEFAULTS = StreamConfig(name="", subject="")
_UNSET_IS_NONE = ("encryption", "description", "metadata", "max_messages_per_subject", "interest_of")


def sent(name: str, value: Any) -> Any:
    """Return a field's value in an answer: one at a default of UNSET is left out there, and so None."""
    is_left_out = value is None and name in _BY_NAME and getattr(_DEFAULTS, name) is msgspec.UNSET
    return msgspec.UNSET if is_left_out else value


def shown(name: str, value: Any) -> str:
    """Return a field's value as the user writes it."""
    if name not in _BY_NAME:
        return repr(value)
    if value is msgspec.UNSET:
        return {"discard": "old", "first_offset": "0", "retention": "limits"}.get(
            name, UNLIMITED if name in _UNSET_IS_NONE else "no"
        )
    return UNLIMITED if value is None else _BY_NAME[name].show(value)
