"""Fields of a consumer's config, their defaults and limits, and the notes of the reference page."""

from __future__ import annotations

from penstock.base import limits
from penstock.consumers.config import ACK_PENDING_MAX
from penstock.jetstream.readers.config.ack_checks import ACK_PENDING_DEFAULT
from penstock.jetstream.stream_config import ConfigField

FILTERS_MAX = limits.FETCH_SUBJECTS_MAX
"""Filter subjects of one consumer: as many as one fetch takes."""
MAX_WAITING_MAX = 4_096  # pull requests that wait at one consumer
MAX_WAITING_DEFAULT = 512  # as JetStream
INACTIVE_NS_DEFAULT = 5_000_000_000  # as JetStream
ORDER_BY = "penstock.order_by"
"""Key of the metadata: what is in one hand at a time (`key`, `subject` or `token:N`)."""
DEAD_LETTERS = "penstock.dead_letters"
"""Key of the metadata: the stream for messages that reached max_deliver, or were terminated."""
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
BY_NAME = {field.name: field for field in FIELDS}
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
    "priority_timeout": "of `pinned_client`; 0: 2 minutes. As with nats-server, a new leader knows no pin: it ends a "
    "pull with the old one (423), and the first one without a pin gets a new one",
}
"""Notes of the reference page, by field."""
