"""Checks of a consumer's config that are about acks, redelivery and priorities, as nats-server's checkConsumerCfg."""

from __future__ import annotations

import re

from penstock.jetstream.errors import consumer_refusal
from penstock.jetstream.stream_config import Config

ACK_WAIT_NS_DEFAULT = 30_000_000_000  # as JetStream
ACK_PENDING_DEFAULT = 1_000  # as JetStream
PIN_NS_DEFAULT = 120_000_000_000  # as JetStream
BACKOFF_MAX = 64
"""Steps of a backoff list."""
GROUPS_MAX = 16
"""Priority groups of one consumer."""
GROUP = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
"""A name of a priority group."""
BAD_GROUP = "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 characters"


def check_backoff(config: Config) -> None:
    """Raise ApiError if the times of redelivery do not fit together."""
    backoff = config["backoff"]
    if any(wait < 0 for wait in backoff):
        raise consumer_refusal(10184, "consumer backoff needs to be positive")
    if config["ack_wait"] < 0:
        raise consumer_refusal(10183, "consumer ack wait needs to be positive")
    if backoff and config["max_deliver"] != -1 and len(backoff) > config["max_deliver"]:
        raise consumer_refusal(10116, "max deliver is required to be > length of backoff values")
    if len(backoff) > BACKOFF_MAX:
        raise consumer_refusal(10052, f"backoff: {len(backoff)} values; the limit is {BACKOFF_MAX}", 500)


def check_priorities(config: Config) -> None:
    """Raise ApiError if priority groups and their policy do not fit together."""
    groups = config["priority_groups"]
    if config["priority_policy"] == "none":
        if groups:
            raise consumer_refusal(10196, "consumer can not have priority groups when policy is none")
        if config["priority_timeout"] > 0:
            raise consumer_refusal(10197, "PinnedTTL cannot be set when PriorityPolicy is none")
        return
    if config["deliver_subject"]:
        raise consumer_refusal(10178, "priority groups can not be used with push consumers")
    if not groups:
        raise consumer_refusal(10159, "Setting PriorityPolicy requires at least one PriorityGroup to be set")
    for group in groups:
        if not group:
            raise consumer_refusal(10161, "Group name cannot be an empty string")
        if GROUP.fullmatch(group) is None:
            raise consumer_refusal(10162, BAD_GROUP)
    if len(groups) > GROUPS_MAX:
        raise consumer_refusal(10052, f"priority_groups: {len(groups)} groups; the limit is {GROUPS_MAX}", 500)
