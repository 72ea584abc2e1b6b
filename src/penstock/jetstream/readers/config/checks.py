"""Checks of a consumer's config, as nats-server's checkConsumerCfg, and refusals of what is not supported.

Rules: errors come in the order of nats-server's checks; those about acks and priorities are in `ack_checks`. What
cannot be honoured is refused with 10052 and the field's name.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from penstock.base import limits
from penstock.base.subjects import is_wildcard, is_within, matches, subject_mistake
from penstock.jetstream.errors import consumer_refusal, delivery_cycle, invalid_config
from penstock.jetstream.readers.config.ack_checks import check_backoff, check_priorities
from penstock.jetstream.readers.config.fields import BY_NAME, DEAD_LETTERS, FILTERS_MAX, MAX_WAITING_MAX, ORDER_BY
from penstock.jetstream.stream_config import Config
from penstock.metadata.image import StreamState

NAME_CHARS_MAX = 255  # as JetStream
DESCRIPTION_BYTES_MAX = 4 * limits.KIB  # as JetStream
METADATA_BYTES_MAX = 16 * limits.KIB  # JetStream: 128 KiB; it is held in memory as long as the consumer lives
_OWN_PREFIX, _OWN_KEYS = "penstock.", (ORDER_BY, DEAD_LETTERS)
_MS = 1_000_000  # ns
_REFUSED = ("direct", "sourcing")


def check_config(state: StreamState, config: Config) -> None:
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


def refuse_unsupported(state: StreamState, config: Config) -> None:
    """Raise ApiError (10052) for what is not supported."""
    for name in _REFUSED:
        if config[name] != BY_NAME[name].default:
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
