"""Completion of a consumer's config: what nats-server puts where a client gave nothing, or a negative number."""

from __future__ import annotations

from penstock.jetstream.errors import consumer_refusal
from penstock.jetstream.readers.config.ack_checks import ACK_PENDING_DEFAULT, ACK_WAIT_NS_DEFAULT, PIN_NS_DEFAULT
from penstock.jetstream.readers.config.fields import INACTIVE_NS_DEFAULT, MAX_WAITING_DEFAULT
from penstock.jetstream.stream_config import Config, ConsumerLimits
from penstock.jetstream.stream_state import NO_TIME

_NOT_NEGATIVE = (
    "max_waiting",
    "max_batch",
    "max_expires",
    "max_bytes",
    "idle_heartbeat",
    "inactive_threshold",
    "priority_timeout",
)


def complete_config(config: Config, limited: ConsumerLimits, *, is_durable: bool, is_pedantic: bool) -> None:
    """Complete a config in place. Raise ApiError (10157) in pedantic mode, where its client has to do that."""
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
