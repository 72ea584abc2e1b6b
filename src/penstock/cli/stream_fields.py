"""The fields of a stream's config as options of commands: how they are written, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from penstock.base.config import Acks, Compression, Durability, Encryption, Retain, Storage
from penstock.base.partitioning import parse_split
from penstock.base.units import format_duration_ms, format_exact_bytes, parse_bytes, parse_duration_ms

UNLIMITED = "none"


def _count(text: str) -> int:
    digits = text.replace("_", "").replace(",", "")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(digits)


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return parse


def _split(text: str) -> str:
    parse_split(text)
    return text


def _yes_or_no(text: str) -> bool:
    return _one_of("yes", "no")(text) == "yes"


class Field(NamedTuple):
    """A field of a stream's config as an option. `show` gives its value as a person writes it."""

    name: str
    flag: str
    metavar: str
    meaning: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str
    unlimited: bool = False  # `none` means: without limit, or …
    nothing: str = "no limit"  # … this
    default: str = ""  # in words, where None is not "without limit"


def _switch(name: str, flag: str, meaning: str) -> Field:
    """One that is on or off."""
    return Field(name, flag, "yes|no", meaning, _yes_or_no, lambda value: "yes" if value else "no")


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
        "Keep the last N messages, as offsets count them.",
        _count,
        unlimited=True,
    ),
    Field(
        "max_bytes",
        "--max-bytes",
        "SIZE",
        "Keep about so many bytes, such as 10GiB.",
        parse_bytes,
        format_exact_bytes,
        unlimited=True,
    ),
    Field(
        "retain",
        "--retain",
        "|".join(Retain),
        "What these three may delete: 'limits', all that is beyond them; 'until-archived', of that only what each "
        "archive has reported that it has; and nothing before one did.",
        _one_of(*Retain),
    ),
    Field(
        "max_message_bytes", "--max-message-bytes", "SIZE", "Refuse larger messages.", parse_bytes, format_exact_bytes
    ),
    Field(
        "acks",
        "--acks",
        "|".join(Acks),
        "Who gets acks: 'reply', every message with a reply subject; 'envelope', only messages in an envelope.",
        _one_of(*Acks),
    ),
    Field(
        "durability",
        "--durability",
        "|".join(Durability),
        "When a message is acked: 'fsync', once it is on the disk; 'os', once it is in the page cache; 'auto', as "
        "'fsync' with one replica in sync, as 'os' with several: then all that are in sync have it there.",
        _one_of(*Durability),
    ),
    Field(
        "partitions",
        "--partitions",
        "N",
        "So many logs, each in order of its own; --partition-by says which gets a message.",
        _count,
    ),
    Field(
        "partition_by",
        "--partition-by",
        "HOW",
        "How a message finds its partition: 'publisher', 0 is on the subject, N on subject.N; 'mapped', the same but "
        "for 0, which is on subject.0 (see `penstock nats-config`); 'group', by chance; 'key', by the hash of its key; "
        "'token:N', by that of the Nth token of its subject, from 1; 'range' or 'range:N', by --range-bounds.",
        _split,
    ),
    Field(
        "range_bounds",
        "--range-bounds",
        "KEY,KEY…",
        "With --partition-by range: the first key of each partition but 0, such as g,n,t for four.",
        lambda text: tuple(text.split(",")),
        ",".join,
    ),
    Field(
        "group",
        "--group",
        "NAME",
        "Streams of one group share what is published: each message goes to one of them, by chance.",
        str,
        unlimited=True,
        nothing="it gets everything",
    ),
    Field(
        "replicas",
        "--replicas",
        "N",
        "So many brokers hold each partition.",
        _count,
        default="3, or as many as the cluster has brokers, with those that are away",
    ),
    Field(
        "observers",
        "--observers",
        "N",
        "So many further brokers hold a copy of each partition for readers; they never lead, and no ack waits.",
        _count,
    ),
    Field(
        "min_isr",
        "--min-isr",
        "N",
        "So many of them must have a message before it is acked.",
        _count,
        default="half of the replicas, rounded up",
    ),
    _switch(
        "allow_unclean_election",
        "--allow-unclean-election",
        "Whether a replica that lacks acked messages may lead rather than none.",
    ),
    Field(
        "dedup_window_ms",
        "--dedup-window",
        "DURATION",
        "A message whose Nats-Msg-Id came already within this time is acked as a duplicate and not stored again.",
        parse_duration_ms,
        format_duration_ms,
        unlimited=True,
        nothing="no duplicate is looked for",
    ),
    Field(
        "dedup_ids_max",
        "--dedup-ids-max",
        "N",
        "Keep so many ids of a partition in memory; with more the oldest go before the window ends.",
        _count,
    ),
    _switch(
        "compact",
        "--compact",
        "Whether of each key only the last message is kept, as of a table; messages without a key are kept.",
    ),
    Field(
        "compaction_lag_ms",
        "--compaction-lag",
        "DURATION",
        "With --compact, keep messages at least so long, and for the dedup window.",
        parse_duration_ms,
        format_duration_ms,
    ),
    Field(
        "tombstone_retention_ms",
        "--tombstone-retention",
        "DURATION",
        "With --compact, keep a tombstone so long after a pass has removed what it ended: whoever reads from the "
        "beginning to the end of one replica within that time hears of each key that is gone.",
        parse_duration_ms,
        format_duration_ms,
    ),
    Field(
        "compression",
        "--compression",
        "|".join(Compression),
        "Compress what is sealed and committed: 'zstd' makes it smallest, 'lz4' is quickest to read. What is "
        "compressed already stays as it is.",
        _one_of(*Compression),
    ),
    _switch(
        "allow_message_ttl",
        "--allow-message-ttl",
        "Whether messages may have a time to live of their own, as 1h in a header Nats-TTL; else they are refused.",
    ),
    _switch(
        "allow_rollup",
        "--allow-rollup",
        "Whether a message may have those before it go, on its subject or all, by a header Nats-Rollup; else it is "
        "refused.",
    ),
    Field(
        "encryption",
        "--encryption",
        "|".join(Encryption),
        "How what is on the disk is encrypted, with the keys of each broker (encryption_keys_file).",
        _one_of(*Encryption),
    ),
    Field("storage", "--storage", "|".join(Storage), "'memory' is gone when the broker stops.", _one_of(*Storage)),
    Field("segment_bytes", "--segment-bytes", "SIZE", "New file at this size.", parse_bytes, format_exact_bytes),
    Field(
        "segment_age_ms",
        "--segment-age",
        "DURATION",
        "New file at this age.",
        parse_duration_ms,
        format_duration_ms,
        unlimited=True,
    ),
)

_BY_NAME = {field.name: field for field in FIELDS}


def flag_of(name: str) -> str:
    """The option for a field; the field's own name where there is none."""
    return _BY_NAME[name].flag if name in _BY_NAME else name


def shown(name: str, value: Any) -> str:
    """A field's value as a person writes it."""
    if name not in _BY_NAME:
        return repr(value)
    if value is msgspec.UNSET:  # only the encryption can be that
        return str(Encryption.NONE)
    return UNLIMITED if value is None else _BY_NAME[name].show(value)
