"""Checks of an update: what of a consumer's config can be changed."""

from __future__ import annotations

from typing import Any

from penstock.jetstream.errors import consumer_refusal
from penstock.jetstream.readers.config.fields import BY_NAME, ORDER_BY
from penstock.jetstream.readers.config.reader_config import ReaderConfig

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
    return config.told.get(name, BY_NAME[name].default)
