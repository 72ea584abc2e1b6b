"""The config of a stream as JetStream writes it, and as Penstock does.

Rules: a field that is absent, null or at JetStream's default is accepted. Any other value is kept or refused (err_code
10052) with the field's name; none is ignored. A config is first completed, as nats-server does it, so that two configs
can be compared. What Penstock has no field for, and keeps, stands in the stream's metadata under KEPT, which this API
does not show.

    request ─▶ parsed_config ─▶ completed config ─▶ to_penstock ─▶ StreamConfig
                                       ▲                              │
                                       └─────────── shown_config ◀────┘
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.config import Acks, Compression, Discard, Durability, Intake, Storage, StreamConfig, first_overlap
from penstock.base.subjects import (
    INTERNAL_NAME_PREFIX,
    INTERNAL_SUBJECT_PREFIX,
    overlap,
    stream_name_mistake,
    subject_mistake,
)
from penstock.jetstream.errors import ApiError, invalid_config, invalid_json
from penstock.jetstream.partition_streams import PARTITION_OF, PARTITIONS
from penstock.metadata.image import StreamState

KEPT = "_jetstream"
"""Key of a stream's metadata: what the API keeps of a config, as JSON. A stream without it was not made here."""
API_LEVEL = limits.JETSTREAM_API_LEVEL
"""JetStream's API level of this gateway; nats-server 2.12 has it, too."""
API_VERSION = "2.12.0"
REQUEST_BYTES_MAX = 256 * 1024  # headers and JSON of one request; a config with all that a stream may have is smaller

BYTES_MIN = 64 * limits.KIB
"""Least `max_bytes` of a stream made here. A batch takes up to 1 KiB beside its rows, so a smaller limit would hold a
few messages only. A smaller one is told as it was given."""

Config = dict[str, Any]
"""A config as JetStream's JSON has it, with every field."""

_NS_OF_MS = 1_000_000
_S_NS = 1_000_000_000
_WINDOW_NS = limits.DEDUP_WINDOW_MS_DEFAULT * _NS_OF_MS
_NS_MIN = 100 * _NS_OF_MS  # of an age and a window, as nats-server
_REPLICAS_MAX = 5  # as nats-server
_ADDED = ("_nats.level", "_nats.req.level", "_nats.ver", PARTITIONS, PARTITION_OF)
"""Keys of the metadata that the API adds."""


class ConfigField(NamedTuple):
    """One field of JetStream's stream config."""

    name: str
    go_type: str  # as nats-server names it in errors
    default: Any
    becomes: str  # Penstock's field, or how it is kept; empty: any other value than the default is refused
    note: str = ""
    choices: tuple[str, ...] = ()
    is_omitted: bool = False  # left out of answers at its default


FIELDS = (
    ConfigField(
        "name", "string", "", "name", f"letters, digits, `-` and `_`, up to {limits.STREAM_NAME_CHARS_MAX} of them"
    ),
    ConfigField("description", "string", "", "description", is_omitted=True),
    ConfigField("subjects", "[]string", [], "subject, more_subjects", "none: the stream's name"),
    ConfigField(
        "retention",
        "RetentionPolicy",
        "limits",
        "retention",
        "from and to `workqueue` it cannot be changed",
        ("limits", "interest", "workqueue"),
    ),
    ConfigField("max_consumers", "int", -1, "kept", "consumers at the leader"),
    ConfigField("max_msgs", "int64", -1, "max_messages"),
    ConfigField(
        "max_bytes",
        "int64",
        -1,
        "max_bytes",
        f"of batches on the disk; less than {BYTES_MIN} becomes that",
    ),
    ConfigField("max_age", "time.Duration", 0, "max_age_ms", "whole milliseconds"),
    ConfigField("max_msgs_per_subject", "int64", -1, "max_messages_per_subject"),
    ConfigField("max_msg_size", "int32", -1, "max_message_bytes", f"at most {limits.MESSAGE_BYTES_MAX}"),
    ConfigField("discard", "DiscardPolicy", "old", "discard", choices=("old", "new")),
    ConfigField("storage", "StorageType", "file", "storage", choices=("file", "memory")),
    ConfigField("num_replicas", "int", 1, "replicas", "cannot be changed later"),
    ConfigField("no_ack", "bool", False, "acks", "`never`", is_omitted=True),
    ConfigField("duplicate_window", "time.Duration", 0, "dedup_window_ms", "whole milliseconds; none: 2 minutes"),
    ConfigField("placement", "Placement", None, "", "brokers are chosen by load and rack", is_omitted=True),
    ConfigField("mirror", "StreamSource", None, "", is_omitted=True),
    ConfigField("sources", "[]*StreamSource", None, "", is_omitted=True),
    ConfigField("compression", "StoreCompression", "none", "compression", "`s2` is LZ4 here", choices=("none", "s2")),
    ConfigField(
        "first_seq",
        "uint64",
        0,
        "first_offset",
        f"one more than it, at most {limits.FIRST_OFFSET_MAX + 1}; cannot be changed later",
        is_omitted=True,
    ),
    ConfigField("subject_transform", "SubjectTransformConfig", None, "", is_omitted=True),
    ConfigField("republish", "RePublish", None, "", "`penstock relay` can do that", is_omitted=True),
    ConfigField("allow_direct", "bool", False, "kept", "true for streams that were not made by this API"),
    ConfigField("mirror_direct", "bool", False, "kept", "by an update only, and without an effect"),
    ConfigField("discard_new_per_subject", "bool", False, "discard_new_per_subject", is_omitted=True),
    ConfigField("sealed", "bool", False, "the intake `sealed`", "by an update only"),
    ConfigField("deny_delete", "bool", False, "deny_delete"),
    ConfigField("deny_purge", "bool", False, "deny_purge"),
    ConfigField("allow_rollup_hdrs", "bool", False, "allow_rollup"),
    ConfigField("consumer_limits", "StreamConsumerLimits", {}, "kept", "`inactive_threshold`, `max_ack_pending`"),
    ConfigField("allow_msg_ttl", "bool", False, "allow_message_ttl"),
    ConfigField(
        "subject_delete_marker_ttl",
        "time.Duration",
        0,
        "subject_delete_marker_ttl_ms",
        "whole milliseconds",
        is_omitted=True,
    ),
    ConfigField("allow_msg_counter", "bool", False, "", is_omitted=True),
    ConfigField("allow_atomic", "bool", False, "allow_atomic", is_omitted=True),
    ConfigField(
        "allow_msg_schedules",
        "bool",
        False,
        "allow_message_schedules",
        "`@at` only; cannot be disabled later",
        is_omitted=True,
    ),
    ConfigField("allow_batched", "bool", False, "", is_omitted=True),
    ConfigField(
        "persist_mode",
        "PersistModeType",
        "",
        "durability",
        "`async` is `os`, else `auto`; cannot be changed by this API",
        ("", "default", "async"),
        is_omitted=True,
    ),
    ConfigField("metadata", "map[string]string", {}, "metadata", "without `_nats.` keys that the API adds"),
)
_BY_NAME = {field.name: field for field in FIELDS}
_UNLIMITED = ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")


# From a request


class WantedConfig(NamedTuple):
    """A request to create or update a stream."""

    config: Config
    is_pedantic: bool  # refuse what would otherwise be adapted


def parsed_config(payload: bytes) -> WantedConfig:
    """Return the completed config of a request. Raise ApiError for what is no config; values are checked later."""
    wanted = json_object(payload, "StreamConfigRequest") if payload.strip() else {}
    is_pedantic = wanted.pop("pedantic", False)
    if not isinstance(is_pedantic, bool | None):
        raise _wrong_type("pedantic", "bool", is_pedantic)
    config: Config = {}
    for name, value in wanted.items():
        field = _BY_NAME.get(name)
        if field is not None:
            config[name] = typed(field, value)
        elif value not in (None, False, 0, "", [], {}):
            raise invalid_json(f'json: unknown field "{name}"')
    return WantedConfig(config, bool(is_pedantic))


def json_object(payload: bytes, go_type: str) -> dict[str, Any]:
    """Return a JSON object from the network. Raise ApiError (10025)."""
    try:
        found = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        text = str(error)
        raise invalid_json("unexpected EOF" if "truncated" in text else text) from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise invalid_json(f"json: cannot unmarshal {_kind(found)} into Go value of type server.{go_type}")
    return found


def typed(field: ConfigField, value: Any) -> Any:
    """Return the value, or a copy of the default for null. Raise ApiError (10025) if its type is another one."""
    if value is None:
        return field.default
    match field.go_type:
        case "bool":
            is_right = isinstance(value, bool)
        case "string":
            is_right = isinstance(value, str)
        case "int" | "int64" | "int32" | "uint64" | "time.Duration":
            low = 0 if field.go_type == "uint64" else -(2**31) if field.go_type == "int32" else -(2**63)
            high = 2**31 if field.go_type == "int32" else 2**63
            is_right = isinstance(value, int) and not isinstance(value, bool) and low <= value < high
        case "[]time.Duration":
            is_right = isinstance(value, list) and all(type(one) is int for one in value)
        case "[]string":
            is_right = isinstance(value, list) and all(isinstance(one, str) for one in value)
        case "map[string]string":
            is_right = isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
        case "[]*StreamSource":
            is_right = isinstance(value, list)
        case _ if field.choices:
            if value == "" and isinstance(value, str):
                return field.default
            if value not in field.choices or not isinstance(value, str):
                raise invalid_json(f"can not unmarshal {json.dumps(json.dumps(value))}")
            is_right = True
        case _:
            is_right = isinstance(value, dict)
    if not is_right:
        raise _wrong_type(field.name, field.go_type, value)
    return value


def _wrong_type(name: str, go_type: str, value: Any) -> ApiError:
    kind = f"number {value}" if isinstance(value, int) and not isinstance(value, bool) else _kind(value)
    text = f"cannot unmarshal {kind[:64]} into Go struct field StreamConfigRequest.{name} of type {go_type}"
    return invalid_json(f"json: {text}")


def _kind(value: Any) -> str:
    kinds: dict[type, str] = {bool: "bool", str: "string", list: "array", dict: "object", type(None): "null"}
    return kinds.get(type(value), "number")


def completed(wanted: WantedConfig) -> Config:
    """Return the config with every field, as nats-server completes it. Raise ApiError for values that it refuses."""
    given, is_pedantic = wanted
    config = {field.name: given.get(field.name, field.default) for field in FIELDS}
    for name in _UNLIMITED:
        if config[name] < -1 and is_pedantic:
            raise ApiError(400, 10157, f"pedantic mode: {name} must be set to -1")
        if config[name] <= 0:
            config[name] = -1
    if not config["subjects"]:
        config["subjects"] = [config["name"]]
    config["num_replicas"] = config["num_replicas"] or 1
    if config["first_seq"] == 1:  # where a stream begins anyway
        config["first_seq"] = 0
    if config["persist_mode"] == "default":
        config["persist_mode"] = ""
    for name in ("placement", "subject_transform", "republish", "consumer_limits"):
        config[name] = {key: value for key, value in (config[name] or {}).items() if value} or _BY_NAME[name].default
    for name in ("mirror", "sources"):
        config[name] = config[name] or None
    config["metadata"] = {key: value for key, value in config["metadata"].items() if key not in _ADDED}
    if not config["duplicate_window"]:
        config["duplicate_window"] = _WINDOW_NS
        if 0 < config["max_age"] < _WINDOW_NS:
            if is_pedantic:
                raise ApiError(400, 10157, "pedantic mode: duplicate window cannot be bigger than max age")
            config["duplicate_window"] = config["max_age"]
    if config["subject_delete_marker_ttl"] >= _S_NS:
        for name, what in (("allow_msg_ttl", "message TTLs"), ("allow_rollup_hdrs", "roll-ups")):
            if not config[name] and is_pedantic:
                raise invalid_config(f"subject delete marker cannot be set if {what} are disabled")
        if not config["allow_rollup_hdrs"]:
            config["deny_purge"] = False
        config["allow_msg_ttl"] = config["allow_rollup_hdrs"] = True
    if config["allow_msg_schedules"] and config["discard"] != "new" and not config["allow_rollup_hdrs"]:
        if is_pedantic:
            raise invalid_config("message scheduling cannot be set if roll-ups are disabled")
        config["allow_rollup_hdrs"], config["deny_purge"] = True, False
    if config["sealed"]:
        config |= _OF_SEALED
    _check(config)
    return config


_OF_SEALED = {"max_age": 0, "discard": "new", "deny_delete": True, "deny_purge": True, "allow_rollup_hdrs": False}
"""Fields that a sealed stream shows, as nats-server."""


def _check(config: Config) -> None:
    """Raise ApiError for the first value that nats-server refuses, with its text."""
    if config["num_replicas"] < 0:
        raise ApiError(400, 10133, "replicas count cannot be negative")
    for is_wrong, text in _mistakes(config):
        if is_wrong:
            raise invalid_config(text)


def _mistakes(config: Config) -> Iterator[tuple[bool, str]]:
    size = len(config["description"].encode("utf-8", "surrogatepass"))
    size_max = limits.STREAM_DESCRIPTION_BYTES_MAX
    yield size > size_max, f"stream description is too long, maximum allowed is {size_max}"
    yield config["num_replicas"] > _REPLICAS_MAX, f"maximum replicas is {_REPLICAS_MAX}"
    age_ns, window_ns = config["max_age"], config["duplicate_window"]
    yield age_ns < 0, "max age can not be negative"
    yield 0 < age_ns < _NS_MIN, "max age needs to be >= 100ms"
    yield window_ns < 0, "duplicates window can not be negative"
    yield 0 < age_ns < window_ns, "duplicates window can not be larger then max age"
    yield window_ns < _NS_MIN, "duplicates window needs to be >= 100ms"
    yield config["deny_purge"] and config["allow_rollup_hdrs"], "roll-ups require the purge permission"
    if config["discard_new_per_subject"]:
        is_new, most = config["discard"] == "new", config["max_msgs_per_subject"]
        yield not is_new, "discard new per subject requires discard new policy to be set"
        yield most <= 0, "discard new per subject requires max msgs per subject > 0"
    marker_ns = config["subject_delete_marker_ttl"]
    yield 0 < marker_ns < _S_NS, "subject delete marker TTL must be at least 1 second"
    yield marker_ns < 0, "subject delete marker TTL must not be negative"
    is_refused = config["allow_msg_schedules"] and config["discard"] == "new" and not config["sealed"]
    yield is_refused, "message scheduling cannot use discard new"
    if config["persist_mode"] == "async":
        yield config["storage"] != "file", "async persist mode is only supported on file storage"
        yield config["num_replicas"] > 1, "async persist mode is not supported on replicated streams"
        yield config["allow_atomic"], "async persist mode is not supported with atomic batch publish"
    has_mirror = config["mirror"] is not None
    yield has_mirror and marker_ns > 0, "subject delete markers forbidden on mirrors"
    yield from _subject_mistakes(config)


def _subject_mistakes(config: Config) -> Iterator[tuple[bool, str]]:
    subjects, is_silent = config["subjects"], config["no_ack"]
    too_many = len(subjects) > limits.STREAM_SUBJECTS_MAX
    yield too_many, f"subjects: a stream has at most {limits.STREAM_SUBJECTS_MAX}, and these are {len(subjects)}"
    yield any(subject_mistake(one, wildcards=True) for one in subjects), "invalid subject"
    if (clash := first_overlap(subjects)) is not None:
        yield True, f'subject "{clash[0]}" overlaps with "{clash[1]}"'
    for one in subjects:
        yield one == ">" and not is_silent, "capturing all subjects requires no-ack to be true"
        for prefix, api in (("$JS", "jetstream"), ("$JSC", "jetstream"), ("$SYS", "system")):
            is_reserved = overlap(one, f"{prefix}.>") and one[0] not in "*>"
            yield is_reserved and not is_silent, f"subjects that overlap with {api} api require no-ack to be true"


# To Penstock


def _brief(value: object) -> str:
    """Return a value as JSON, and of a long one its beginning, with an ellipsis."""
    text = json.dumps(value)
    return text if len(text) <= _BRIEF_CHARS else f"{text[: _BRIEF_CHARS - 1]}…"


def refused_fields(config: Config) -> Iterator[str]:
    """Yield why a field's value cannot be honoured, each with its name."""
    for field in FIELDS:
        if not field.becomes and config[field.name] != field.default:
            note = f": {field.note}" if field.note else ""
            yield f"{field.name}: {_brief(config[field.name])} is not supported{note}"
    for name, value in config["consumer_limits"].items():
        if name not in _CONSUMER_LIMITS or type(value) is not int or not 0 < value < 2**63:
            yield f"consumer_limits: {_brief({name: value})} is not supported"
    for name in ("max_age", "duplicate_window", "subject_delete_marker_ttl"):
        if config[name] % _NS_OF_MS:
            yield f"{name}: {config[name]} ns are not whole milliseconds"
    if (mistake := stream_name_mistake(config["name"])) is not None:
        yield f"name: {mistake}"
    if config["name"].startswith(INTERNAL_NAME_PREFIX):
        yield f"name: {config['name']}: Penstock's own streams begin with {INTERNAL_NAME_PREFIX}"
    for one in config["subjects"]:
        if overlap(one, f"{INTERNAL_SUBJECT_PREFIX}>") and one[:1] not in "*>":
            yield f"subjects: {one}: Penstock's own subjects begin with {INTERNAL_SUBJECT_PREFIX}"
    if config["first_seq"] > limits.FIRST_OFFSET_MAX + 1:
        yield f"first_seq: {config['first_seq']} is not supported: at most {limits.FIRST_OFFSET_MAX + 1}"
    if KEPT in config["metadata"]:
        yield f"metadata: the key {KEPT} is the API's own"


_BRIEF_CHARS = 64  # of a refused value in an error
_CONSUMER_LIMITS = ("inactive_threshold", "max_ack_pending")


def to_penstock(config: Config) -> StreamConfig:
    """Return Penstock's config. Raise ApiError (10052) with all that cannot be honoured."""
    if mistakes := list(refused_fields(config)):
        raise invalid_config("; ".join(mistakes))
    first, *more = config["subjects"]
    try:
        return msgspec.convert(
            {"name": config["name"], "subject": first, "more_subjects": tuple(more), "replicas": config["num_replicas"]}
            | fields_here(config),
            StreamConfig,
        )
    except msgspec.ValidationError as error:
        raise invalid_config(str(error)) from None


def filled(config: Mapping[str, Any]) -> Config:
    """Return a config that JetStream told, with every field that there is here."""
    return {field.name: field.default if (found := config.get(field.name)) is None else found for field in FIELDS}


def fields_here(config: Config) -> dict[str, Any]:
    """Return Penstock's fields; `name`, `replicas` and the subjects have their own rules."""
    return {name: to(config) for name, to in _FIELDS_HERE.items()}


def _none_if_unlimited(name: str) -> Callable[[Config], int | None]:
    return lambda config: config[name] if config[name] > 0 else None


_KEPT_AT_OTHER_VALUES = ("max_consumers", "consumer_limits", "mirror_direct", "persist_mode")


def _kept_metadata(config: Config) -> dict[str, str]:
    kept = {"allow_direct": config["allow_direct"]}
    kept |= {name: config[name] for name in _KEPT_AT_OTHER_VALUES if config[name] != _BY_NAME[name].default}
    if 0 < config["max_bytes"] < BYTES_MIN:
        kept["max_bytes"] = config["max_bytes"]
    return {**config["metadata"], KEPT: json.dumps(kept)}


_FIELDS_HERE: Mapping[str, Callable[[Config], Any]] = {
    "description": lambda config: config["description"],
    "max_messages": _none_if_unlimited("max_msgs"),
    "max_bytes": lambda config: max(config["max_bytes"], BYTES_MIN) if config["max_bytes"] > 0 else None,
    "max_age_ms": lambda config: config["max_age"] // _NS_OF_MS or None,
    "max_messages_per_subject": _none_if_unlimited("max_msgs_per_subject"),
    "max_message_bytes": lambda config: (
        config["max_msg_size"] if config["max_msg_size"] > 0 else limits.MESSAGE_BYTES_MAX
    ),
    "discard": lambda config: config["discard"],
    "storage": lambda config: config["storage"],
    "acks": lambda config: Acks.NEVER if config["no_ack"] else Acks.REPLY,
    "durability": lambda config: Durability.OS if config["persist_mode"] == "async" else Durability.AUTO,
    "dedup_window_ms": lambda config: config["duplicate_window"] // _NS_OF_MS,
    "compression": lambda config: Compression.LZ4 if config["compression"] == "s2" else Compression.NONE,
    "discard_new_per_subject": lambda config: config["discard_new_per_subject"],
    "retention": lambda config: config["retention"],
    "deny_delete": lambda config: config["deny_delete"],
    "deny_purge": lambda config: config["deny_purge"],
    "allow_rollup": lambda config: config["allow_rollup_hdrs"],
    "allow_message_ttl": lambda config: config["allow_msg_ttl"],
    "allow_atomic": lambda config: config["allow_atomic"],
    "subject_delete_marker_ttl_ms": lambda config: config["subject_delete_marker_ttl"] // _NS_OF_MS or None,
    "allow_message_schedules": lambda config: config["allow_msg_schedules"],
    "metadata": _kept_metadata,
    "first_offset": lambda config: max(0, config["first_seq"] - 1),
}
"""Penstock's fields, each from JetStream's config; `name`, `replicas` and the subjects have their own rules."""

_SOURCES = {
    "description": ("description",),
    "max_messages": ("max_msgs",),
    "max_bytes": ("max_bytes",),
    "max_age_ms": ("max_age",),
    "max_messages_per_subject": ("max_msgs_per_subject",),
    "max_message_bytes": ("max_msg_size",),
    "discard": ("discard",),
    "acks": ("no_ack",),
    "dedup_window_ms": ("duplicate_window",),
    "compression": ("compression",),
    "discard_new_per_subject": ("discard_new_per_subject",),
    "retention": ("retention",),
    "deny_delete": ("deny_delete",),
    "deny_purge": ("deny_purge",),
    "allow_rollup": ("allow_rollup_hdrs",),
    "allow_message_ttl": ("allow_msg_ttl",),
    "allow_atomic": ("allow_atomic",),
    "subject_delete_marker_ttl_ms": ("subject_delete_marker_ttl",),
    "allow_message_schedules": ("allow_msg_schedules",),
    "metadata": ("metadata", "allow_direct", "max_bytes", *_KEPT_AT_OTHER_VALUES),
}
"""The fields of JetStream's config from which a change of Penstock's field follows."""


def _changes_workqueue(old: Config, new: Config) -> bool:
    policies = old["retention"], new["retention"]
    return policies[0] != policies[1] and "workqueue" in policies


_UPDATE_REFUSALS: tuple[tuple[Callable[[Config, Config], bool], str], ...] = (
    (lambda old, new: old["sealed"] and not new["sealed"], "unseal a sealed stream"),
    (lambda old, new: old["storage"] != new["storage"], "change storage type"),
    (_changes_workqueue, "change retention policy to/from workqueue"),
    (lambda old, new: old["deny_delete"] and not new["deny_delete"], "cancel deny message deletes"),
    (lambda old, new: old["deny_purge"] and not new["deny_purge"], "cancel deny purge"),
    (lambda old, new: old["persist_mode"] != new["persist_mode"], "change persist mode"),
)


def changes(old: Config, new: Config) -> dict[str, Any]:
    """Return the changes of Penstock's fields for an update; subjects and `sealed` apart. Raise ApiError.

    Only fields that differ in JetStream's view are changed: one that Penstock expresses more finely stays.
    """
    for is_refused, text in _UPDATE_REFUSALS:
        if is_refused(old, new):
            raise invalid_config(f"stream configuration update can not {text}")
    if old["allow_msg_ttl"] and not new["allow_msg_ttl"]:
        raise invalid_config("message TTL status can not be disabled")
    if old["allow_msg_schedules"] and not new["allow_msg_schedules"]:
        raise invalid_config("message schedules can not be disabled")
    if old["num_replicas"] != new["num_replicas"]:
        text = f"it is {old['num_replicas']}, and cannot be changed to {new['num_replicas']}"
        raise invalid_config(f"num_replicas: {text}: a stream keeps the number with which it was created")
    if new["first_seq"] not in (0, old["first_seq"]):  # 0: it was not given
        text = f"it is {old['first_seq'] or 1}, and cannot be changed to {new['first_seq']}"
        raise invalid_config(f"first_seq: {text}: a stream keeps the one with which it was created")
    if mistakes := list(refused_fields(new)):
        raise invalid_config("; ".join(mistakes))
    if new["sealed"]:  # the intake says the rest
        old, new = old | _OF_SEALED, new | _OF_SEALED
    return {
        here: _FIELDS_HERE[here](new)
        for here, sources in _SOURCES.items()
        if any(old[name] != new[name] for name in sources)
    }


# From Penstock


def shown_config(state: StreamState) -> Config:
    """Return the config of a stream as JetStream has it, with every field; metadata without what the API adds."""
    here = state.config
    metadata = {} if here.metadata is msgspec.UNSET else dict(here.metadata)
    kept = _kept(metadata.pop(KEPT, None))
    limited = _limits_of(kept)
    most = here.max_messages_per_subject
    config = {field.name: field.default for field in FIELDS} | {
        "name": here.name,
        "description": here.description or "",
        "subjects": list(here.subjects),
        "max_msgs": here.max_messages or -1,
        "max_bytes": _told_bytes(here.max_bytes, kept),
        "max_age": (here.max_age_ms or 0) * _NS_OF_MS,
        "max_msgs_per_subject": -1 if most is msgspec.UNSET or most is None else most,
        "max_msg_size": -1 if here.max_message_bytes == limits.MESSAGE_BYTES_MAX else here.max_message_bytes,
        "discard": "new" if here.discard is Discard.NEW else "old",
        "retention": here.retention_policy.value,
        "storage": "memory" if here.storage is Storage.MEMORY else "file",
        "num_replicas": here.replicas or len(state.partitions[0].replicas),
        "no_ack": here.acks is not Acks.REPLY,
        # a stream made otherwise says nothing, so that a client that knows no such field can update it
        "persist_mode": "async" if here.durability is Durability.OS and kept.get("persist_mode") == "async" else "",
        # never above the age, as JetStream demands: an older message is gone
        "duplicate_window": min(here.dedup_window_ms or 0, here.max_age_ms or limits.OFFSET_MAX) * _NS_OF_MS,
        "compression": "none" if here.compression is Compression.NONE else "s2",
        "allow_direct": kept.get("allow_direct") is not False,
        "mirror_direct": kept.get("mirror_direct") is True,
        "discard_new_per_subject": bool(here.discard_new_per_subject),
        "sealed": state.intake is Intake.SEALED,
        "deny_delete": here.denies_deletion,
        "deny_purge": here.denies_purge,
        "allow_rollup_hdrs": here.allow_rollup,
        "allow_msg_ttl": here.allow_message_ttl,
        "allow_atomic": here.allows_batches,
        "subject_delete_marker_ttl": here.marker_ttl_ms * _NS_OF_MS,
        "allow_msg_schedules": here.allows_schedules,
        "max_consumers": limited.consumers or -1,
        "consumer_limits": limited.told,
        "metadata": metadata,
        "first_seq": here.log_begin + 1 if here.log_begin else 0,
    }
    return config | _OF_SEALED if config["sealed"] else config


def _told_bytes(size_bytes: int | None, kept: Mapping[str, Any]) -> int:
    given = kept.get("max_bytes")
    if size_bytes == BYTES_MIN and type(given) is int and 0 < given < BYTES_MIN:
        return given
    return size_bytes or -1


class ConsumerLimits(NamedTuple):
    """Limits of a stream's consumers; 0: none."""

    consumers: int = 0
    inactive_ns: int = 0  # the default, and the most that a consumer may have
    ack_pending: int = 0

    @property
    def told(self) -> dict[str, int]:
        """Return `consumer_limits`."""
        return {name: value for name, value in zip(_CONSUMER_LIMITS, self[1:], strict=True) if value}


def consumer_limits(state: StreamState) -> ConsumerLimits:
    """Return the limits of a stream's consumers."""
    metadata = state.config.metadata
    return _limits_of(_kept(None if metadata is msgspec.UNSET else metadata.get(KEPT)))


def _limits_of(kept: Mapping[str, Any]) -> ConsumerLimits:
    """Return the kept limits; a user may have written anything there."""
    of_each = kept.get("consumer_limits")
    of_each = of_each if isinstance(of_each, dict) else {}
    found = (kept.get("max_consumers"), *(of_each.get(name) for name in _CONSUMER_LIMITS))
    return ConsumerLimits(*(one if type(one) is int and 0 < one < 2**63 else 0 for one in found))


def _kept(text: str | None) -> Mapping[str, Any]:
    """Return the kept fields; a user may have written anything there."""
    if text is None:
        return {}
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return {}
    return found if isinstance(found, dict) else {}


def is_same(one: Config, other: Config) -> bool:
    """True if both configs ask for the same stream; the order of subjects is of no effect."""
    return one | {"subjects": sorted(one["subjects"])} == other | {"subjects": sorted(other["subjects"])}


def json_config(config: Config) -> Config:
    """Return the config for an answer: without defaults that JetStream leaves out, with the metadata that it adds."""
    shown = {
        field.name: config[field.name]
        for field in FIELDS
        if not (field.is_omitted and config[field.name] == field.default)
    }
    level = "1" if config["allow_msg_ttl"] or config["subject_delete_marker_ttl"] else "0"
    if config["allow_msg_schedules"] or config["allow_atomic"] or config["persist_mode"]:
        level = "2"
    shown["metadata"] = {
        **config["metadata"],
        "_nats.level": str(API_LEVEL),
        "_nats.req.level": level,
        "_nats.ver": API_VERSION,
    }
    return shown
