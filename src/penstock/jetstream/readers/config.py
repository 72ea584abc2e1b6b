"""The config of a consumer: JetStream's fields, those that are refused, and how it is told.

Rules: a field that is absent, null or at JetStream's default is accepted; what cannot be honoured is refused with 10052
and the field's name. What only acks use (`ack_wait`, `max_deliver`, …) has no effect without them, here as in
JetStream, and is told as it was given. Errors come in the order of nats-server's checks; those about acks and
priorities are in `ack_checks`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.subjects import is_wildcard, is_within, matches, subject_mistake
from penstock.consumers.config import ACK_PENDING_MAX, ORDER_KEY, ORDER_NONE, order_of
from penstock.jetstream.errors import ApiError, consumer_refusal, invalid_config, invalid_json, name_mismatch
from penstock.jetstream.readers.ack_checks import (
    ACK_PENDING_DEFAULT,
    ACK_WAIT_NS_DEFAULT,
    PIN_NS_DEFAULT,
    check_backoff,
    check_priorities,
)
from penstock.jetstream.stream_config import (
    API_LEVEL,
    API_VERSION,
    Config,
    ConfigField,
    ConsumerLimits,
    consumer_limits,
    json_object,
    typed,
)
from penstock.jetstream.stream_state import NO_TIME, api_time
from penstock.metadata.image import StreamState

FILTERS_MAX = limits.FETCH_SUBJECTS_MAX
"""Filter subjects of one consumer: as many as one fetch takes."""
NAME_CHARS_MAX = 255  # as JetStream
DESCRIPTION_BYTES_MAX = 4 * limits.KIB  # as JetStream
METADATA_BYTES_MAX = 16 * limits.KIB  # JetStream: 128 KiB; it is held in memory as long as the consumer lives
MAX_WAITING_MAX = 4_096  # pull requests that wait at one consumer
MAX_WAITING_DEFAULT = 512  # as JetStream
INACTIVE_NS_DEFAULT = 5_000_000_000  # as JetStream

ORDER_BY = "penstock.order_by"
"""Key of the metadata: what is in one hand at a time (`key`, `subject` or `token:N`)."""
DEAD_LETTERS = "penstock.dead_letters"
"""Key of the metadata: the stream for messages that reached max_deliver, or were terminated."""
_OWN_PREFIX, _OWN_KEYS = "penstock.", (ORDER_BY, DEAD_LETTERS)

_MS = 1_000_000  # ns
_INT = "int"
_DURATION = "time.Duration"
FIELDS = (
    ConfigField("durable_name", "string", "", "name"),
    ConfigField("name", "string", "", "name"),
    ConfigField("description", "string", "", "description"),
    ConfigField(
        "deliver_policy",
        "DeliverPolicy",
        "all",
        "start",
        choices=("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"),
    ),
    ConfigField("opt_start_seq", "uint64", 0, "start"),
    ConfigField("opt_start_time", "string", "", "start"),
    ConfigField("ack_policy", "AckPolicy", "none", "acks", choices=("none", "all", "explicit", "flow_control")),
    ConfigField("ack_wait", _DURATION, 0, "ack_wait"),
    ConfigField("max_deliver", _INT, -1, "max_deliver"),
    ConfigField("backoff", "[]time.Duration", [], "backoff"),
    ConfigField("filter_subject", "string", "", "filter"),
    ConfigField("filter_subjects", "[]string", [], "filter"),
    ConfigField("replay_policy", "ReplayPolicy", "instant", "replay", choices=("instant", "original")),
    ConfigField("rate_limit_bps", "uint64", 0, "rate"),
    ConfigField("sample_freq", "string", "", "sample_freq"),
    ConfigField("max_waiting", _INT, 0, "max_waiting"),
    ConfigField("max_ack_pending", _INT, 0, "max_ack_pending"),
    ConfigField("flow_control", "bool", False, "flow_control"),
    ConfigField("headers_only", "bool", False, "headers_only"),
    ConfigField("max_batch", _INT, 0, "max_batch"),
    ConfigField("max_expires", _DURATION, 0, "max_expires"),
    ConfigField("max_bytes", _INT, 0, "max_bytes"),
    ConfigField("deliver_subject", "string", "", "deliver_subject"),
    ConfigField("deliver_group", "string", "", "deliver_group"),
    ConfigField("idle_heartbeat", _DURATION, 0, "idle_heartbeat"),
    ConfigField("inactive_threshold", _DURATION, 0, "inactive_threshold"),
    ConfigField("num_replicas", _INT, 0, "0, or that of the stream"),
    ConfigField("mem_storage", "bool", False, "either"),
    ConfigField("direct", "bool", False, ""),
    ConfigField("sourcing", "bool", False, ""),
    ConfigField("metadata", "map[string]string", {}, "metadata"),
    ConfigField("pause_until", "string", "", "pause_until"),
    ConfigField("priority_groups", "[]string", [], "priority_groups"),
    ConfigField(
        "priority_policy",
        "PriorityPolicy",
        "none",
        "priority_policy",
        choices=("none", "overflow", "pinned_client", "prioritized"),
    ),
    ConfigField("priority_timeout", _DURATION, 0, "priority_timeout"),
)
_BY_NAME = {field.name: field for field in FIELDS}
_REFUSED = ("direct", "sourcing")
NOTES = {
    "durable_name": "it outlives its clients and the broker; no `inactive_threshold`: for ever",
    "name": "one token, up to 255 characters; drawn if there is none",
    "description": "up to 4 KiB",
    "deliver_policy": "all six",
    "ack_policy": "`none`, `all` and `explicit`; `flow_control` is refused",
    "ack_wait": "0: 30 s",
    "max_deliver": "messages that reached it wait no longer for an ack",
    "backoff": "its first value is `ack_wait`",
    "sample_freq": "metrics of acks, at most 100 a second for each stream",
    "max_ack_pending": f"0: {ACK_PENDING_DEFAULT}; more than {ACK_PENDING_MAX} count as so many, -1, too",
    "num_replicas": "0, or as the stream's; a consumer is where its stream is",
    "mem_storage": "either: a consumer with acks, or a durable one, is stored with its stream",
    "filter_subject": "",
    "filter_subjects": f"up to {FILTERS_MAX}",
    "max_waiting": f"0: {MAX_WAITING_DEFAULT}; up to {MAX_WAITING_MAX}; pull only",
    "flow_control": "push only; needs `idle_heartbeat`; at most 4 MiB are on the way without an answer",
    "rate_limit_bps": "push only",
    "idle_heartbeat": "push only, from 100 ms on",
    "deliver_subject": "makes a push consumer; no subject that a stream stores",
    "inactive_threshold": "0: 5 s; of a durable consumer: none",
    "metadata": "up to 16 KiB; with `penstock.order_by` ([order by key](../how-to/order-by-key.md)) and "
    "`penstock.dead_letters` ([dead letters](../how-to/dead-letters.md)); other keys that begin with "
    "`penstock.` are refused",
    "priority_groups": "pull only",
    "priority_policy": "all four",
    "priority_timeout": "of `pinned_client`; 0: 2 minutes",
}
"""Notes of the reference page, by field."""
_NOT_NEGATIVE = (
    "max_waiting",
    "max_batch",
    "max_expires",
    "max_bytes",
    "idle_heartbeat",
    "inactive_threshold",
    "priority_timeout",
)
_ALWAYS_TOLD = ("deliver_policy", "ack_policy", "replay_policy", "max_deliver", "num_replicas")
SHARED_CONFIGS_MAX = 1_024
"""Distinct configs that are shared by all consumers that have them."""
_NAMES = ("durable_name", "name")
_NOT_UPDATED = {  # as nats-server words it
    "deliver_policy": "deliver policy",
    "mem_storage": "storage type",
    "opt_start_seq": "start sequence",
    "opt_start_time": "start time",
    "ack_policy": "ack policy",
    "replay_policy": "replay policy",
    "idle_heartbeat": "heart beats",
    "flow_control": "flow control",
    "max_waiting": "max waiting",
}
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:[.,](\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)")
_ACTIONS = ("", "create", "update")


class ConsumerRequest(NamedTuple):
    """A request to create or update a consumer."""

    config: Config
    action: str
    is_pedantic: bool


def consumer_not_found() -> ApiError:
    return ApiError(404, 10014, "consumer not found")


def parsed_request(payload: bytes, stream: str) -> ConsumerRequest:
    """Return a request as it was given. Raise ApiError for what is none."""
    found = json_object(payload, "CreateConsumerRequest") if payload.strip() else {}
    for name in found:
        if name not in ("stream_name", "config", "action", "pedantic"):
            raise invalid_json(f'json: unknown field "{name[:64]}"')
    action, is_pedantic = found.get("action") or "", found.get("pedantic") or False
    if action not in _ACTIONS or not isinstance(action, str) or not isinstance(is_pedantic, bool):
        raise invalid_json("json: `action` is none of create and update, or `pedantic` is no bool")
    given = found.get("config")
    if not isinstance(given, dict | None):
        raise invalid_json("json: cannot unmarshal config into Go value of type server.ConsumerConfig")
    config: Config = {}
    for name, value in (given or {}).items():
        field = _BY_NAME.get(name)
        if field is None:
            raise invalid_json(f'json: unknown field "{name[:64]}"')
        try:
            config[name] = typed(field, value)
        except ApiError as error:
            where = error.description.replace("StreamConfigRequest.", "CreateConsumerRequest.config.")
            raise ApiError(error.code, error.err_code, where) from None
    for name in ("opt_start_time", "pause_until"):
        if config.get(name):
            parsed_time_us(config[name])
    if found.get("stream_name") != stream:
        raise name_mismatch()
    return ConsumerRequest(config, action, is_pedantic)


def parsed_time_us(text: str) -> int:
    """Return a time of RFC 3339 in µs, rounded up: the first message at or after it is the same. ApiError (10025)."""
    return -(-_parsed_time_ns(text) // 1_000)


def told_time(text: str) -> str:
    """Return a time of RFC 3339 as it is told, in UTC, with its nanoseconds. ApiError (10025)."""
    whole_s, rest_ns = divmod(_parsed_time_ns(text), 1_000_000_000)
    fraction = f".{rest_ns:09}".rstrip("0") if rest_ns else ""
    return f"{api_time(whole_s * 1_000_000)[:-1]}{fraction}Z"


def _parsed_time_ns(text: str) -> int:
    found = _TIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError(text)
        moment = datetime.fromisoformat(f"{found[1].upper()}{'+00:00' if found[3] in 'Zz' else found[3]}")
        whole_s = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    except (ValueError, OverflowError):
        layout = "2006-01-02T15:04:05Z07:00"
        raise invalid_json(f'parsing time "{text[:64]}" as "{layout}": cannot parse "{text[:64]}" as "2006"') from None
    return int(whole_s) * 1_000_000_000 + int((found[2] or "0").ljust(9, "0"))


class ReaderConfig(msgspec.Struct, frozen=True):
    """A consumer. Times are µs, sizes bytes; 0: none, unless another is said."""

    told: Config  # as it is told: in nats-server's order, without its names and what is at its default
    filters: tuple[str, ...] = ()  # empty: all
    policy: str = "all"
    start_seq: int = 0
    start_us: int = 0
    is_original_pace: bool = False
    rate_bytes_per_s: int = 0
    max_waiting: int = 0
    has_flow_control: bool = False
    headers_only: bool = False
    batch_max: int = 0
    expires_us_max: int = 0
    request_bytes_max: int = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    heartbeat_us: int = 0
    inactive_us: int = INACTIVE_NS_DEFAULT // 1_000  # 0: never
    pause_us: int = 0  # wall time
    is_durable: bool = False
    is_named: bool = False  # by its client; else its name was drawn, and is no part of its config
    acks: str = "none"  # the policy
    ack_wait_us: int = 0
    backoff_us: tuple[int, ...] = ()
    max_deliver: int = 0
    max_ack_pending: int = 0
    sample_percent: int = 0  # of acks, of which metrics are told
    priority: str = "none"  # the policy
    priority_groups: tuple[str, ...] = ()
    pin_us: int = 0
    order: int = ORDER_NONE  # as `consumers.config` numbers them
    dead_letters: str = ""  # the stream for messages that are given up

    @property
    def needs_keys(self) -> bool:
        """True if its rows have to be read with their keys."""
        return self.order == ORDER_KEY

    @property
    def is_stored(self) -> bool:
        """True if it outlives the leadership of its broker: its state is written as rows."""
        return self.is_durable or self.acks != "none" or self.priority != "none"

    @property
    def is_push(self) -> bool:
        return bool(self.deliver_subject)

    @property
    def told_filters(self) -> tuple[str, ...]:
        """The filters as its client gave them."""
        one = self.told.get("filter_subject")
        return (one,) if one else tuple(self.told.get("filter_subjects", ()))

    def told_of(self, name: str) -> Config:
        """Return the config of a consumer with this name, as it is told."""
        durable = {"durable_name": name} if self.is_durable else {}
        return {**durable, **({"name": name} if self.is_named else {}), **self.told}

    def told_as(self, name: str) -> Config:
        """Return `config` of a consumer's info."""
        metadata = self.told.get("metadata", {})
        level = "1" if self.pause_us or self.priority != "none" else "0"
        added = {"_nats.level": str(API_LEVEL), "_nats.req.level": level, "_nats.ver": API_VERSION}
        return {**self.told_of(name), "metadata": {**added, **metadata}}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ReaderConfig).decode


def shared(config: ReaderConfig) -> ReaderConfig:
    """Return an equal config: the same object for all consumers that have it, for there are many."""
    return _shared(_encode(config))


@lru_cache(SHARED_CONFIGS_MAX)
def _shared(encoded: bytes) -> ReaderConfig:
    return _decode(encoded)


def reader_config(state: StreamState, given: Config, *, pedantic: bool = False) -> ReaderConfig:
    """Return a checked config, completed as nats-server does. Raise ApiError."""
    config = {field.name: given.get(field.name, field.default) for field in FIELDS}
    limited = consumer_limits(state)
    is_durable = bool(config["durable_name"])
    _complete(config, limited, is_durable=is_durable, is_pedantic=pedantic)
    _check(state, config)
    if 0 < limited.ack_pending < config["max_ack_pending"]:
        raise consumer_refusal(10121, f"consumer max ack pending exceeds system limit of {limited.ack_pending}")
    if 0 < limited.inactive_ns < config["inactive_threshold"]:
        raise consumer_refusal(
            10153, f"consumer inactive threshold exceeds system limit of {limited.inactive_ns / 1e9:g}s"
        )
    _refuse(state, config)
    filters = (config["filter_subject"],) if config["filter_subject"] else tuple(config["filter_subjects"])
    return _of(config, () if any(_covers_all(one, state.config.subjects) for one in filters) else filters)


def _of(config: Config, filters: tuple[str, ...]) -> ReaderConfig:
    return ReaderConfig(
        told=_told(config),
        filters=filters,
        policy=config["deliver_policy"],
        start_seq=config["opt_start_seq"],
        start_us=parsed_time_us(config["opt_start_time"]) if config["opt_start_time"] else 0,
        is_original_pace=config["replay_policy"] == "original",
        rate_bytes_per_s=config["rate_limit_bps"] // 8 if config["rate_limit_bps"] >= 8 else config["rate_limit_bps"],
        max_waiting=config["max_waiting"],
        has_flow_control=config["flow_control"],
        headers_only=config["headers_only"],
        batch_max=config["max_batch"],
        expires_us_max=config["max_expires"] // 1_000,
        request_bytes_max=config["max_bytes"],
        deliver_subject=config["deliver_subject"],
        deliver_group=config["deliver_group"],
        heartbeat_us=config["idle_heartbeat"] // 1_000,
        inactive_us=config["inactive_threshold"] // 1_000,
        pause_us=_pause_us(config["pause_until"]),
        is_durable=bool(config["durable_name"]),
        is_named=bool(config["name"]),
        acks=config["ack_policy"],
        ack_wait_us=config["ack_wait"] // 1_000,
        backoff_us=tuple(wait // 1_000 for wait in config["backoff"]),
        max_deliver=max(0, config["max_deliver"]),
        max_ack_pending=min(
            config["max_ack_pending"] if config["max_ack_pending"] > 0 else ACK_PENDING_MAX, ACK_PENDING_MAX
        ),
        sample_percent=min(100, int(config["sample_freq"].removesuffix("%") or 0)),
        priority=config["priority_policy"],
        priority_groups=tuple(config["priority_groups"]),
        pin_us=config["priority_timeout"] // 1_000,
        order=_order(config),
        dead_letters=_dead_letters(config),
    )


def _order(config: Config) -> int:
    """Return the order by key. Raise ApiError."""
    order_by = config["metadata"].get(ORDER_BY)
    if order_by is None:
        return ORDER_NONE
    if config["ack_policy"] != "explicit":
        raise invalid_config(f"{ORDER_BY}: a consumer with an order takes an ack of each message; ack_policy: explicit")
    try:
        return order_of(order_by)
    except ValueError as error:
        raise invalid_config(f"{ORDER_BY}: {error}") from None


def _dead_letters(config: Config) -> str:
    """Return the name of the stream of dead letters; empty: none. Raise ApiError."""
    stream: str = config["metadata"].get(DEAD_LETTERS, "")
    if stream and config["ack_policy"] != "explicit":
        raise invalid_config(
            f"{DEAD_LETTERS}: only a consumer with an ack of each message has them; ack_policy: explicit"
        )
    return stream


def stored_config(told: Config, filters: tuple[str, ...]) -> ReaderConfig:
    """Return the config of a consumer from what was stored when it was created."""
    return _of({field.name: told.get(field.name, field.default) for field in FIELDS}, filters)


def _covers_all(pattern: str, subjects: Sequence[str]) -> bool:
    """True if it takes all messages of the stream: then nothing has to be filtered, and counting is quick."""
    return pattern == ">" or all(is_within(one, pattern) for one in subjects)


def _pause_us(text: str) -> int:
    return max(0, parsed_time_us(text)) if text else 0


def paused_until(config: ReaderConfig, until: str) -> ReaderConfig:
    """Return the config with another end of the pause; empty: none. Raise ApiError."""
    pause_us = _pause_us(until)
    told = {name: value for name, value in config.told.items() if name != "pause_until"}
    if pause_us:
        told["pause_until"] = told_time(until)
    return msgspec.structs.replace(config, told=_in_order(told), pause_us=pause_us)


def check_update(old: ReaderConfig, new: ReaderConfig) -> None:
    """Raise ApiError (10012) if the change is none that nats-server makes."""
    for name, words in _NOT_UPDATED.items():
        if name == "max_waiting" and old.is_push != new.is_push:
            kinds = ("pull", "push") if new.is_push else ("push", "pull")
            raise consumer_refusal(10012, f"can not update {kinds[0]} consumer to {kinds[1]} based", 500)
        if _value(old, name) != _value(new, name):
            raise consumer_refusal(10012, f"{words} can not be updated", 500)
    if old.order != new.order:
        raise consumer_refusal(10012, f"{ORDER_BY} can not be updated", 500)
    if old.is_durable != new.is_durable:
        raise consumer_refusal(10012, "durable name can not be updated", 500)


def _value(config: ReaderConfig, name: str) -> Any:
    return config.told.get(name, _BY_NAME[name].default)


def _told(config: Config) -> Config:
    told = {
        name: value
        for name, value in config.items()
        if name not in _NAMES and (value != _BY_NAME[name].default or name in _ALWAYS_TOLD)
    }
    if "pause_until" in told:
        told["pause_until"] = told_time(told["pause_until"])
    return _in_order(told)


def _in_order(config: Config) -> Config:
    return {name: config[name] for name in _BY_NAME if name in config}


def _complete(config: Config, limited: ConsumerLimits, *, is_durable: bool, is_pedantic: bool) -> None:
    if config["max_deliver"] == 0 or config["max_deliver"] < -1:
        if is_pedantic and config["max_deliver"] < -1:
            raise consumer_refusal(10157, "pedantic mode: max_deliver must be set to -1")
        config["max_deliver"] = -1
    if config["max_ack_pending"] < -1:
        config["max_ack_pending"] = -1
    for name in _NOT_NEGATIVE:
        if config[name] < 0:
            if is_pedantic:
                raise consumer_refusal(10157, f"pedantic mode: {name} must not be negative")
            config[name] = 0
    if config["pause_until"] in (NO_TIME, None):
        config["pause_until"] = ""
    if not config["deliver_subject"] and not config["max_waiting"]:
        config["max_waiting"] = MAX_WAITING_DEFAULT
    _complete_acks(config, limited, is_pedantic=is_pedantic)
    if not config["inactive_threshold"]:
        if is_pedantic and limited.inactive_ns:
            text = "inactive_threshold must be set if it's configured in stream limits"
            raise consumer_refusal(10157, f"pedantic mode: {text}")
        config["inactive_threshold"] = limited.inactive_ns or (0 if is_durable else INACTIVE_NS_DEFAULT)
    if config["priority_policy"] == "pinned_client" and not config["priority_timeout"]:
        config["priority_timeout"] = PIN_NS_DEFAULT


def _complete_acks(config: Config, limited: ConsumerLimits, *, is_pedantic: bool) -> None:
    has_acks = config["ack_policy"] in ("explicit", "all")
    if has_acks and not config["ack_wait"]:
        config["ack_wait"] = ACK_WAIT_NS_DEFAULT
    if config["backoff"]:
        if is_pedantic and config["ack_wait"] != config["backoff"][0]:
            raise consumer_refusal(10157, "pedantic mode: first backoff value has to equal batch AckWait")
        config["ack_wait"] = config["backoff"][0]
    if not config["max_ack_pending"] and has_acks:
        if is_pedantic and limited.ack_pending > 0:
            text = "max_ack_pending must be set if it's configured in stream limits"
            raise consumer_refusal(10157, f"pedantic mode: {text}")
        config["max_ack_pending"] = limited.ack_pending if limited.ack_pending > 0 else ACK_PENDING_DEFAULT


def _check(state: StreamState, config: Config) -> None:
    """Raise ApiError as nats-server's checkConsumerCfg does."""
    bad_name = "can not contain '.', '*', '>', '\\', '/'"
    for name, words in (("name", "consumer name"), ("durable_name", "consumer durable name")):
        if config[name] and not is_name(config[name]):
            raise invalid_config(f"{words} {bad_name}")
    if config["num_replicas"] < 0:
        raise consumer_refusal(10133, "replicas count cannot be negative")
    if config["num_replicas"] > max(1, state.config.replicas or 1):
        raise consumer_refusal(10126, "consumer config replica count exceeds parent stream")
    check_backoff(config)
    if len(config["description"].encode()) > DESCRIPTION_BYTES_MAX:
        raise consumer_refusal(10107, f"consumer description is too long, maximum allowed is {DESCRIPTION_BYTES_MAX}")
    if config["deliver_subject"]:
        _check_push(state, config)
    else:
        _check_pull(config)
    _check_filters(config)
    _check_start(config)
    sampled = config["sample_freq"].removesuffix("%")
    if sampled and not re.fullmatch(r"\+?\d{1,18}", sampled):
        raise consumer_refusal(
            10095,
            f'failed to parse consumer sampling configuration: strconv.Atoi: parsing "{sampled[:64]}": invalid syntax',
        )
    if config["flow_control"] and not config["idle_heartbeat"]:
        raise consumer_refusal(10108, "consumer with flow control also needs heartbeats")
    if config["durable_name"] and config["name"] and config["name"] != config["durable_name"]:
        raise consumer_refusal(10132, "Consumer Durable and Name have to be equal if both are provided")
    if sum(len(one.encode()) + len(other.encode()) for one, other in config["metadata"].items()) > METADATA_BYTES_MAX:
        size = f"{METADATA_BYTES_MAX // limits.KIB}KB"
        raise consumer_refusal(10135, f"consumer metadata exceeds maximum size of {size}")
    _check_own_keys(config)
    check_priorities(config)


def _check_own_keys(config: Config) -> None:
    """Refuse a mistyped key of Penstock's own: it would be stored, and the consumer had no order or dead letters."""
    for key in config["metadata"]:
        if key.startswith(_OWN_PREFIX) and key not in _OWN_KEYS:
            near = get_close_matches(key, _OWN_KEYS, 1)
            raise invalid_config(f"{key}: a consumer has no such key" + (f"; did you mean {near[0]}?" if near else ""))


def _check_push(state: StreamState, config: Config) -> None:
    subject = config["deliver_subject"]
    if is_wildcard(subject):
        raise consumer_refusal(10079, "consumer deliver subject has wildcards")
    if subject_mistake(subject) is not None or subject_mistake(config["deliver_group"] or "x") is not None:
        raise consumer_refusal(10112, "invalid push consumer deliver subject")
    if any(matches(one, subject) for one in state.config.subjects):
        raise delivery_cycle()
    if config["max_waiting"]:
        raise consumer_refusal(10080, "consumer in push mode can not set max waiting")
    if config["max_ack_pending"] > 0 and config["ack_policy"] == "none":
        raise consumer_refusal(10082, "consumer requires ack policy for max ack pending")
    if 0 < config["idle_heartbeat"] < 100 * _MS:
        raise consumer_refusal(10083, "consumer idle heartbeat needs to be >= 100ms")


def delivery_cycle() -> ApiError:
    return ApiError(400, 10081, "consumer deliver subject forms a cycle")


def _check_pull(config: Config) -> None:
    if config["rate_limit_bps"]:
        raise consumer_refusal(10086, "consumer in pull mode can not have rate limit set")
    if config["idle_heartbeat"]:
        raise consumer_refusal(10088, "consumer idle heartbeat requires a push based consumer")
    if config["flow_control"]:
        raise consumer_refusal(10089, "consumer flow control requires a push based consumer")
    if 0 < config["max_expires"] < _MS:
        raise consumer_refusal(10115, "consumer max request expires needs to be >= 1ms")


def _check_filters(config: Config) -> None:
    one, several = config["filter_subject"], config["filter_subjects"]
    if one and several:
        raise consumer_refusal(10136, "consumer cannot have both FilterSubject and FilterSubjects specified")
    if "" in several:
        raise consumer_refusal(10139, "consumer filter in FilterSubjects cannot be empty")
    if len(several) > FILTERS_MAX:
        raise invalid_config(f"filter_subjects: {len(several)} subjects; the limit is {FILTERS_MAX}")
    filters = [one] if one else several
    if any(subject_mistake(subject, wildcards=True) is not None for subject in filters):
        raise invalid_config("nats: invalid subject")  # as nats-server's ErrBadSubject
    patterns = [subject for subject in filters if is_wildcard(subject)]
    if len(set(filters)) < len(filters) or any(
        is_within(subject, pattern) for pattern in patterns for subject in filters if subject is not pattern
    ):
        raise consumer_refusal(10138, "consumer subject filters cannot overlap")


def _check_start(config: Config) -> None:
    policy = config["deliver_policy"]
    words = policy.replace("_", " ").removeprefix("by ")
    says = f"consumer delivery policy is deliver {'by ' if policy.startswith('by') else ''}{words}, but optional"
    has_seq, has_time = bool(config["opt_start_seq"]), bool(config["opt_start_time"])
    if policy == "by_start_sequence" and not has_seq:
        raise consumer_refusal(10094, f"{says} start sequence is not set")
    if policy == "by_start_time" and not has_time:
        raise consumer_refusal(10094, f"{says} start time is not set")
    if has_seq and policy != "by_start_sequence":
        raise consumer_refusal(10094, f"{says} start sequence is also set")
    if has_time and policy != "by_start_time":
        raise consumer_refusal(10094, f"{says} start time is also set")
    if policy == "last_per_subject" and not (config["filter_subject"] or config["filter_subjects"]):
        raise consumer_refusal(10094, f"{says} filter subject is not set")


def _refuse(state: StreamState, config: Config) -> None:
    """Raise ApiError (10052) for what is not supported."""
    for name in _REFUSED:
        if config[name] != _BY_NAME[name].default:
            raise invalid_config(f"{name}: this is not supported; leave it out")
    if config["ack_policy"] == "flow_control":
        raise invalid_config("ack_policy: flow_control is not supported; use explicit")
    replicas = max(1, state.config.replicas or 1)
    is_reader = config["ack_policy"] == "none" and not config["durable_name"] and config["priority_policy"] == "none"
    if config["num_replicas"] not in (0, 1 if is_reader else replicas):
        why = "consumers without acks live in memory at the leader; only 0 and 1 are supported"
        why = why if is_reader else f"a consumer is stored with its stream: 0, or {replicas} as the stream's"
        raise invalid_config(f"num_replicas: {why}")
    if config["max_waiting"] > MAX_WAITING_MAX:
        raise invalid_config(f"max_waiting: {config['max_waiting']} is above the limit of {MAX_WAITING_MAX}")


def is_name(name: str) -> bool:
    """True if a consumer may have this name: it is one token of a subject, and no path."""
    return len(name) <= NAME_CHARS_MAX and subject_mistake(name) is None and not set(name) & set(".*>\\/")
