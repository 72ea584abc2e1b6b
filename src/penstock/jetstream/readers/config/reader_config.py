"""The config of a consumer as the broker uses it, and how it is told.

Rules: a field that is absent, null or at JetStream's default is accepted. What only acks use (`ack_wait`,
`max_deliver`, …) has no effect without them, here as in JetStream, and is told as it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from penstock.base.subjects import is_within
from penstock.consumers.config import ACK_PENDING_MAX, ORDER_KEY, ORDER_NONE, order_of
from penstock.jetstream.errors import consumer_refusal, invalid_config
from penstock.jetstream.readers.config.checks import check_config, refuse_unsupported
from penstock.jetstream.readers.config.completion import complete_config
from penstock.jetstream.readers.config.fields import BY_NAME, DEAD_LETTERS, FIELDS, INACTIVE_NS_DEFAULT, ORDER_BY
from penstock.jetstream.readers.config.parsing import parsed_time_us, told_time
from penstock.jetstream.stream_config import API_LEVEL, API_VERSION, Config, consumer_limits
from penstock.metadata.image import StreamState

_ALWAYS_TOLD = ("deliver_policy", "ack_policy", "replay_policy", "max_deliver", "num_replicas")
SHARED_CONFIGS_MAX = 1_024
"""Distinct configs that are shared by all consumers that have them."""
_NAMES = ("durable_name", "name")


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
    complete_config(config, limited, is_durable=is_durable, is_pedantic=pedantic)
    check_config(state, config)
    if 0 < limited.ack_pending < config["max_ack_pending"]:
        raise consumer_refusal(10121, f"consumer max ack pending exceeds system limit of {limited.ack_pending}")
    if 0 < limited.inactive_ns < config["inactive_threshold"]:
        raise consumer_refusal(
            10153, f"consumer inactive threshold exceeds system limit of {limited.inactive_ns / 1e9:g}s"
        )
    refuse_unsupported(state, config)
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


def _told(config: Config) -> Config:
    told = {
        name: value
        for name, value in config.items()
        if name not in _NAMES and (value != BY_NAME[name].default or name in _ALWAYS_TOLD)
    }
    if "pause_until" in told:
        told["pause_until"] = told_time(told["pause_until"])
    return _in_order(told)


def _in_order(config: Config) -> Config:
    return {name: config[name] for name in BY_NAME if name in config}
