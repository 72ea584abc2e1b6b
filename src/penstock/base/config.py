"""What a stream promises: its name, subject and rules. Parsed once; every mistake is reported, not just the first."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, get_args, get_type_hints

import msgspec

from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.base.partitioning import PUBLISHER, PartitionBy, Split, bounds_mistakes, parse_split, token_mistake
from penstock.base.subjects import (
    INTERNAL_NAME_PREFIX,
    INTERNAL_SUBJECT_PREFIX,
    begins_with_wildcard,
    is_wildcard,
    partition_subject,
    queue_group_mistake,
    stream_name_mistake,
    subject_mistake,
)


class Acks(StrEnum):
    """On whose behalf a stream uses a message's reply subject."""

    REPLY = "reply"  # every message with a reply subject is acked on it, as JetStream does
    ENVELOPE = "envelope"  # only messages in an envelope are acked; plain reply subjects are the application's
    NEVER = "never"  # nothing is acked


class Durability(StrEnum):
    """What must have happened before a message is acked and can be read."""

    AUTO = "auto"  # with one replica: as `fsync`
    FSYNC = "fsync"  # on the disk (fdatasync; one serves all messages that wait)
    OS = "os"  # in the page cache: survives the process, not the power


class Intake(StrEnum):
    """Whether a stream takes messages. Not a field of its config: it changes by requests of its own."""

    OPEN = "open"
    PAUSED = "paused"  # nobody listens for it, and appends are refused
    READ_ONLY = "read_only"  # messages are refused, each with an error
    SEALED = "sealed"  # the same, for good; and nothing of it goes but all of it


class Storage(StrEnum):
    """Where the log of a stream lives."""

    FILE = "file"
    MEMORY = "memory"  # gone when the broker stops


class Retain(StrEnum):
    """What `max_age_ms`, `max_messages` and `max_bytes` may delete."""

    LIMITS = "limits"  # all that is beyond them
    UNTIL_ARCHIVED = "until-archived"  # of that, what every archive has: see `penstock.node.archives`


class Compression(StrEnum):
    """How the cleaner compresses what it writes anew: Arrow's own body compression."""

    NONE = "none"
    LZ4 = "lz4"  # in frames; quick to read
    ZSTD = "zstd"  # smaller


class Encryption(StrEnum):
    """How what is on the disk is encrypted: each replica's files with keys of their own."""

    NONE = "none"
    AES_256_GCM = "aes-256-gcm"


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The config of one stream. `None` means: without limit.

    A field that is added later is UNSET where it says what was meant before: then it is left out of what is stored, or
    told, and an earlier version knows all that it reads of a stream that does not use it.
    """

    name: str
    subject: str
    acks: Acks = Acks.REPLY
    durability: Durability = Durability.AUTO
    storage: Storage = Storage.FILE
    max_age_ms: int | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    max_message_bytes: int = limits.MESSAGE_BYTES_DEFAULT
    segment_bytes: int = limits.SEGMENT_BYTES_DEFAULT
    segment_age_ms: int | None = 24 * 3_600_000
    partitions: int = 1
    partition_by: str = PartitionBy.PUBLISHER  # how a message finds its partition: see `base.partitioning`
    range_bounds: tuple[str, ...] = ()  # of `range`: the first key of partition n + 1, in any order
    group: str | None = None  # streams of one group share what comes: each message goes to one of them, by chance
    replicas: int | None = None  # of each partition; None: decided when it is created, by how many the cluster has
    min_isr: int | None = None  # in-sync replicas that an ack takes; None: more than half of the replicas, or half
    allow_unclean_election: bool = False  # whether a replica that lacks acked messages may lead rather than none
    dedup_window_ms: int | None = limits.DEDUP_WINDOW_MS_DEFAULT  # an id again within it is a duplicate; None: never
    dedup_ids_max: int = limits.DEDUP_IDS_DEFAULT  # ids kept of one partition; with more the oldest go first
    compact: bool = False  # whether of each key only the last message is kept, for good
    compaction_lag_ms: int = 0  # messages stay at least so long; and for dedup_window_ms
    tombstone_retention_ms: int = limits.TOMBSTONE_RETENTION_MS_DEFAULT  # so long tombstones stay behind what they end
    compression: Compression = Compression.NONE  # of sealed segments: what the cleaner writes from now on
    allow_message_ttl: bool = False  # whether messages may have a time to live of their own, in a Nats-TTL
    allow_rollup: bool = False  # whether older ones may go for a message, by a Nats-Rollup
    retain: Retain = Retain.LIMITS  # what the three limits may delete
    observers: int = 0  # brokers beyond `replicas` that hold a copy of each partition for readers alone
    encryption: Encryption | msgspec.UnsetType = msgspec.UNSET  # of the files with messages; UNSET: none. Never altered

    @property
    def split(self) -> Split:
        """How messages find their partitions; with one partition nothing is to be found."""
        return parse_split(self.partition_by) if self.partitions > 1 else PUBLISHER

    @property
    def competes(self) -> bool:
        """Whether chance decides which log a message comes into: what is sent again may come into another one."""
        return self.group is not None or self.split.how is PartitionBy.GROUP

    def subject_of(self, partition: int) -> str:
        """Where one of its partitions listens: `<subject>.<n>`, or all of them on the subject itself."""
        split = self.split
        if split.how is PartitionBy.MAPPED:
            return f"{self.subject}.{partition}"
        return partition_subject(self.subject, partition) if split.has_subjects else self.subject

    @property
    def listening_patterns(self) -> tuple[str, ...]:
        """Patterns that cover what its partitions listen to, also those that it may get later."""
        if not parse_split(self.partition_by).has_subjects or self.subject.endswith(">"):
            return (self.subject,)
        return self.subject, f"{self.subject}.*"

    def __post_init__(self) -> None:
        if self.encryption is Encryption.NONE:  # said in one way only: equal configs are equal
            msgspec.structs.force_setattr(self, "encryption", msgspec.UNSET)

    @property
    def is_encrypted(self) -> bool:
        """Whether the files that hold its messages are encrypted."""
        return self.encryption is Encryption.AES_256_GCM

    @property
    def is_internal(self) -> bool:
        """Whether Penstock keeps it for itself: nobody listens for it, and clients only read it."""
        return self.name.startswith(INTERNAL_NAME_PREFIX) and self.subject.startswith(INTERNAL_SUBJECT_PREFIX)


ALTERABLE = frozenset(
    {
        "acks",
        "durability",
        "max_age_ms",
        "max_messages",
        "max_bytes",
        "max_message_bytes",
        "segment_bytes",
        "segment_age_ms",
        "min_isr",
        "allow_unclean_election",
        "dedup_window_ms",
        "dedup_ids_max",
        "compact",
        "compaction_lag_ms",
        "tombstone_retention_ms",
        "compression",
        "allow_message_ttl",
        "allow_rollup",
        "retain",
        "observers",
        "partitions",  # it can only get more, by themselves, or with
        "range_bounds",
    }
)
"""Fields that can change while a stream has data; the others would make it another stream."""

ALTERABLE_SEALED = frozenset({"min_isr", "allow_unclean_election", "durability", "observers"})
"""Those of them that a sealed stream can still change: who leads or copies it, not what it holds."""


_PYTHONS = {"null": "None", "array": "list", "object": "dict"}
_NAMED = re.compile("`[^`]*`")  # so msgspec names types


def field_type_mistake(name: str, value: object) -> str | None:
    """What is wrong with a value of a field that there is, if it is of another type, or none of its choices."""
    field_type = get_type_hints(StreamConfig)[name]
    try:
        msgspec.convert(value, field_type)
    except msgspec.ValidationError as error:
        text = _NAMED.sub(_in_python, str(error))
        return f"{name}: {_choices(field_type) or text[:1].lower() + text[1:]}"
    return None


def _in_python(found: re.Match[str]) -> str:
    return re.sub(r"\w+", lambda word: _PYTHONS.get(word[0], word[0]), found[0])


def _choices(field_type: Any) -> str:
    """What a field of that type can be, if it is one of a few; else nothing."""
    field_type = next((one for one in get_args(field_type) if one is not msgspec.UnsetType), field_type)
    if not (isinstance(field_type, type) and issubclass(field_type, StrEnum)):
        return ""
    names = [f"'{one}'" for one in field_type]
    return f"it is {' or '.join(names)}" if len(names) < 3 else f"it is one of {', '.join(names)}"


def stream_config_mistakes(config: StreamConfig) -> list[str]:
    """Everything that is wrong with `config`, each naming its field; empty if it can work."""
    mistakes = []
    if (mistake := stream_name_mistake(config.name)) is not None:
        mistakes.append(f"name: {mistake}")
    if (mistake := subject_mistake(config.subject, wildcards=True)) is not None:
        mistakes.append(f"subject: {mistake}")
    else:
        mistakes += _consequences(config)
    bounds: tuple[tuple[str, int | None, int, int], ...] = (
        ("max_age_ms", config.max_age_ms, 1, 2**53),
        ("max_messages", config.max_messages, 1, 2**53),
        ("max_bytes", config.max_bytes, 1, 2**53),
        ("max_message_bytes", config.max_message_bytes, 1, limits.MESSAGE_BYTES_MAX),
        ("segment_bytes", config.segment_bytes, limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX),
        ("segment_age_ms", config.segment_age_ms, 1, 2**53),
        ("partitions", config.partitions, 1, limits.STREAM_PARTITIONS_MAX),
        ("replicas", config.replicas, 1, limits.REPLICAS_MAX),
        ("observers", config.observers, 0, limits.OBSERVERS_MAX),
        ("dedup_window_ms", config.dedup_window_ms, 1, 2**53),
        ("dedup_ids_max", config.dedup_ids_max, 1, limits.DEDUP_IDS_MAX),
        ("compaction_lag_ms", config.compaction_lag_ms, 0, 2**53),
        ("tombstone_retention_ms", config.tombstone_retention_ms, 0, 2**53),
        ("min_isr", config.min_isr, 1, limits.REPLICAS_MAX if config.replicas is None else config.replicas),
    )
    mistakes += [
        f"{field}: {value} is not between {low} and {high}"
        for field, value, low, high in bounds
        if value is not None and not low <= value <= high
    ]
    return mistakes


def _consequences(config: StreamConfig) -> list[str]:
    """What cannot be with this subject, which is legal."""
    mistakes = []
    if config.acks is Acks.REPLY and begins_with_wildcard(config.subject):
        mistakes.append(
            f"acks: the subject {config.subject!r} begins with a wildcard, so 'reply' would answer requests that are "
            "meant for others; choose 'envelope' or 'never'"
        )
    if config.storage is Storage.MEMORY and config.is_encrypted:
        mistakes.append("encryption: nothing of a stream in memory is on the disk; choose 'none', or storage 'file'")
    mistakes += _split_mistakes(config)
    return mistakes


def _split_mistakes(config: StreamConfig) -> list[str]:
    """What cannot be with its partitions, or its group."""
    mistakes = []
    if config.group is not None and (mistake := queue_group_mistake(config.group)) is not None:
        mistakes.append(f"group: {mistake}")
    try:
        split = parse_split(config.partition_by)
    except ValueError as error:
        return [*mistakes, f"partition_by: {error}"]
    if split.how is PartitionBy.RANGE:
        mistakes += [f"range_bounds: {one}" for one in bounds_mistakes(config.range_bounds)]
        if len(config.range_bounds) != config.partitions - 1:
            text = f"{config.partitions} partitions have {config.partitions - 1}, the first key of each but the first"
            mistakes.append(f"range_bounds: {len(config.range_bounds)} are given; {text}")
    elif config.range_bounds:
        mistakes.append("range_bounds: only partition_by 'range' or 'range:N' has any")
    if split.token and (mistake := token_mistake(split.token, config.subject)) is not None:
        mistakes.append(f"partition_by: {mistake}")
    if not 1 < config.partitions <= limits.STREAM_PARTITIONS_MAX:
        return mistakes
    if config.group is not None and split.is_by_leaders:
        text = f"of a group only one stream gets a message, and with partition_by {config.partition_by!r} each "
        mistakes.append(f"group: {text}partition has to see them all; choose 'group' or 'publisher'")
    if split.has_subjects:
        mistakes += _subject_mistakes(config, split)
    return mistakes


def _subject_mistakes(config: StreamConfig, split: Split) -> list[str]:
    """Where each partition has a subject of its own."""
    if split.how is PartitionBy.PUBLISHER and is_wildcard(config.subject):
        text = f"a stream on a subject with wildcards, as {config.subject!r}, has one, or another partition_by"
        return [f"partitions: partition n listens on <subject>.<n>, so {text}: 'token:N', 'key', 'range' or 'group'"]
    if config.subject.endswith(">"):
        return [f"partition_by: partition n listens on <subject>.<n>, and nothing can stand behind {config.subject!r}"]
    mistake = subject_mistake(config.subject_of(config.partitions - 1), wildcards=True)
    return [] if mistake is None else [f"partitions: of the last one, {mistake}"]


def check_stream_config(config: StreamConfig) -> StreamConfig:
    """`config` itself, or ConfigError with every mistake."""
    if mistakes := stream_config_mistakes(config):
        raise ConfigError(mistakes)
    return config
