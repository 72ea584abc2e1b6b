"""The table of a node's metrics. Names follow Prometheus: base units, `_total` for counters.

Rules: a metric never changes its meaning; a removed name is not reused. Labels have few values, or are bounded by
limits (see `metrics_collector`). No label holds user data: neither keys, nor subjects, nor addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.base.clock import Now
from penstock.base.meters import Metric, MetricKind
from penstock.node.partition.counters import PartitionCounters
from penstock.node.partition.partition import Partition

_US = 1e-6
_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

COUNTERS = {
    "messages_in": Metric("penstock_messages_in_total", _COUNTER, "Messages stored by the partitions led here."),
    "bytes_in": Metric("penstock_bytes_in_total", _COUNTER, "Bytes of these messages in the logs."),
    "acks_made": Metric("penstock_acks_total", _COUNTER, "Acks sent over NATS: messages reported as stored."),
    "duplicates": Metric("penstock_duplicates_total", _COUNTER, "Messages and batches that were stored already."),
    "schema_checked": Metric("penstock_schema_checked_total", _COUNTER,
                             "Messages checked by the schemas of their stream, also those on subjects without one."),
    "schema_refused": Metric("penstock_schema_refused_total", _COUNTER,
                             "Messages refused because their values do not fit the schema of their subject; a batch of "
                             "the socket API counts once."),
    "misfits": Metric("penstock_schema_misfits_total", _COUNTER,
                      "Messages stored though their values do not fit the schema of their subject."),
    "schema_refreshes": Metric("penstock_schema_refreshes_total", _COUNTER,
                               "Looks of leaders for new versions of the schemas by which they check values."),
    "schema_refresh_failures": Metric("penstock_schema_refresh_failures_total", _COUNTER,
                                      "Of these, those without an answer or without schemas that can be used."),
    "schema_registered": Metric("penstock_schema_registered_total", _COUNTER,
                                "Versions of schemas that were registered with this broker."),
    "dropped": Metric("penstock_dropped_total", _COUNTER, "Messages from NATS that were refused or dropped."),
    "fetched_bytes": Metric("penstock_fetched_bytes_total", _COUNTER, "Bytes of batches sent to clients."),
    "replicated_bytes": Metric("penstock_replicated_bytes_total", _COUNTER, "Bytes fetched by the followers here."),
    "disk_full": Metric("penstock_disk_full_total", _COUNTER, "Appends that failed because the disk was full."),
    "cleaned_segments": Metric("penstock_cleaned_segments_total", _COUNTER,
                               "Segments that the cleaner rewrote: merged, compacted, compressed or expired."),
    "cleaned_bytes": Metric("penstock_cleaner_saved_bytes", _GAUGE,
                            "Bytes by which the cleaner has made logs smaller since the start."),
    "retained_segments": Metric("penstock_retention_segments_total", _COUNTER, "Segments that retention removed."),
    "scrub_passes": Metric("penstock_scrub_passes_total", _COUNTER, "Passes over all logs in search of damage."),
    "scrubbed_bytes": Metric("penstock_scrubbed_bytes_total", _COUNTER, "Bytes read in search of damage."),
    "scrubbed_damage": Metric("penstock_scrub_findings_total", _COUNTER, "Damaged places that these passes found."),
    "repaired_ranges": Metric("penstock_repaired_ranges_total", _COUNTER, "Damaged ranges repaired from a replica."),
    "repaired_bytes": Metric("penstock_repaired_bytes_total", _COUNTER, "Bytes fetched from a replica for repairs."),
}  # fmt: skip
"""By the name of the node's counter."""

BATCH_ROWS = Metric("penstock_batch_rows", _HISTOGRAM, "Messages in a batch, as its leader wrote it.")
BATCH_BYTES = Metric("penstock_batch_bytes", _HISTOGRAM, "Bytes of a batch, as its leader wrote it.")
ACK_SECONDS = Metric(
    "penstock_ack_seconds", _HISTOGRAM,
    "Time from the arrival of a message over NATS until its ack was handed to the connection; if its log had to be "
    "opened or read first, from then on.",
    scale=_US,
)  # fmt: skip
LOG_SYNC_SECONDS = Metric("penstock_log_sync_seconds", _HISTOGRAM, "One sync (fdatasync) of a log.", scale=_US)
METADATA_SYNC_SECONDS = Metric(
    "penstock_metadata_sync_seconds", _HISTOGRAM, "One write and sync of the metadata.", scale=_US
)
IN_FLIGHT_BYTES = Metric("penstock_in_flight_bytes", _GAUGE, "Bytes in memory of messages that are not acked yet.")
IN_FLIGHT_BYTES_MAX = Metric("penstock_in_flight_bytes_max", _GAUGE, "With so many the broker stops reading from NATS.")
SUBJECT_FILTER_BYTES = Metric(
    "penstock_subject_filter_bytes", _GAUGE,
    "Bytes in memory of filters of subject indexes, by which look-ups of subjects skip segments.",
)  # fmt: skip
LEADER_CHANGES = Metric(
    "penstock_leader_changes_total", _COUNTER,
    "Leaderships of partitions that this broker began; of all brokers together: how often leaders changed.",
)  # fmt: skip
STALLED_SYNCS = Metric("penstock_stalled_syncs", _GAUGE, "Logs with a sync that has not returned for long.")
GAPS = Metric(
    "penstock_subscription_gaps_total", _COUNTER,
    "Ended gaps: times in which the broker, or the leader of a partition, was not subscribed to NATS.",
)  # fmt: skip
GAP_SECONDS = Metric("penstock_subscription_gap_seconds_total", _COUNTER, "Duration of these gaps.", scale=_US)
GAP_OPEN_SECONDS = Metric(
    "penstock_subscription_gap_open_seconds", _GAUGE, "Time since this broker was last subscribed; 0 if it is.",
    scale=_US,
)  # fmt: skip
RAFT_TERM = Metric("penstock_raft_term", _GAUGE, "The Raft term of the metadata.")
RAFT_COMMIT = Metric("penstock_raft_commit_index", _GAUGE, "Index up to which the metadata is known to be committed.")
RAFT_APPLIED = Metric("penstock_raft_applied_index", _GAUGE, "Index up to which the metadata is applied here.")
RAFT_LEADER = Metric("penstock_raft_leader_id", _GAUGE, "Id of the metadata leader; 0 if not known.")
RAFT_IS_LEADER = Metric("penstock_raft_is_leader", _GAUGE, "1 if this broker is the metadata leader.")
VOTERS = Metric("penstock_raft_voters", _GAUGE, "Brokers that vote on the metadata.")
VOTERS_REACHABLE = Metric("penstock_raft_voters_reachable", _GAUGE, "Voters that this broker reaches, itself included.")
BROKERS = Metric("penstock_brokers", _GAUGE, "Brokers of the cluster, live or away.", ("state",))
STREAMS = Metric("penstock_streams", _GAUGE, "Streams of the cluster.")
SCHEMA_VERSIONS = Metric(
    "penstock_schema_versions", _GAUGE,
    "Versions of schemas in the cluster, as the leader of `__schemas` knows them once it is asked; 0 of other brokers.",
)  # fmt: skip
PARTITIONS = Metric(
    "penstock_partitions", _GAUGE, "Partitions of the cluster, by their state as this broker sees it.", ("state",)
)
GROUP_OFFSETS = Metric("penstock_group_offsets", _GAUGE, "Committed offsets of consumer groups that this broker keeps.")
_GROUP = ("group", "stream", "partition")
GROUP_OFFSET = Metric(
    "penstock_group_committed_offset", _GAUGE, "Committed offset: the next that a group reads.", _GROUP
)
GROUP_LAG = Metric(
    "penstock_group_lag", _GAUGE,
    "Consumer lag: messages that a group has still to read, if its coordinator has a replica of the partition; what "
    "retention or `stream purge` has deleted does not count.", _GROUP,
)  # fmt: skip

_PLACE = ("stream", "partition")
DROPPED = Metric(
    "penstock_partition_dropped_total", _COUNTER, "Messages from NATS that were refused or dropped, by reason. "
    "consumer_control: heartbeats and flow control of JetStream, which are no messages. "
    "unmet_expectation: another publisher was first.",
    (*_PLACE, "reason"),
)  # fmt: skip


class PartitionRow(NamedTuple):
    """The source of a partition's values."""

    partition: Partition
    traffic: PartitionCounters
    behind_us: int | None
    now: Now


class OfPartition(NamedTuple):
    """One metric of each partition held here. `value` returns None if there is none."""

    metric: Metric
    value: Callable[[PartitionRow], float | None]
    joined: Callable[[float, float], float]  # joins the values of several partitions


def _added(one: float, other: float) -> float:
    return one + other


def _each(
    name: str,
    kind: MetricKind,
    meaning: str,
    value: Callable[[PartitionRow], float | None],
    joined: Callable[[float, float], float] = _added,
    scale: float = 1,
) -> OfPartition:
    return OfPartition(Metric(f"penstock_partition_{name}", kind, meaning, _PLACE, scale), value, joined)


def _isr_size(row: PartitionRow) -> float | None:
    leadership = row.partition.leadership
    return None if leadership is None else len(leadership.isr)


def _lacks_replicas(row: PartitionRow) -> float | None:
    leadership = row.partition.leadership
    return None if leadership is None else float(len(leadership.isr) < len(leadership.replicas))


def _below_min_isr(row: PartitionRow) -> float | None:
    leadership = row.partition.leadership
    return None if leadership is None else float(not leadership.accepts)


def _oldest_unacked_us(row: PartitionRow) -> float | None:
    if row.partition.leadership is None:
        return None
    since_us = row.partition.in_flight.oldest_us
    return 0 if since_us is None else max(0, row.now.elapsed_us - since_us)


def _unsubscribed(row: PartitionRow) -> float | None:
    partition = row.partition
    return None if partition.leadership is None else float(not (partition.subscribed or partition.is_deaf))


EACH_PARTITION = (
    _each("messages_in_total", _COUNTER, "Messages stored while this broker led it.",
          lambda row: row.traffic.messages_in),
    _each("bytes_in_total", _COUNTER, "Bytes of these messages in the log.",
          lambda row: row.traffic.bytes_in),
    _each("offsets_out_total", _COUNTER, "Offsets sent to clients; after compaction more than "
          "messages.", lambda row: row.traffic.offsets_out),
    _each("bytes_out_total", _COUNTER, "Bytes of batches sent to clients.",
          lambda row: row.traffic.bytes_out),
    _each("log_start_offset", _GAUGE, "Log start offset: the first that is kept.", lambda row: row.partition.log_start),
    _each("committed_end_offset", _GAUGE, "High watermark: end of the committed offsets, as far as "
          "this broker knows.",
          lambda row: row.partition.committed_end),
    _each("messages", _GAUGE, "Messages that readers are shown here, without deleted ones.",
          lambda row: row.partition.messages_from(0)),
    _each("log_end_offset", _GAUGE, "Log end offset of this replica.", lambda row: row.partition.log.log_end),
    _each("size_bytes", _GAUGE, "Bytes of its segments here.", lambda row: row.partition.log.size_bytes),
    _each("segments", _GAUGE, "Segments here.", lambda row: row.partition.log.segment_count),
    _each("is_leader", _GAUGE, "1 if this broker leads it.", lambda row: int(row.partition.leadership is not None)),
    _each("leader_epoch", _GAUGE, "Leader epoch: counts its leaderships.", lambda row: row.partition.leader_epoch, max),
    _each("isr_size", _GAUGE, "Replicas in sync, as its leader knows.", _isr_size, min),
    _each("under_replicated", _GAUGE, "1 if fewer than all replicas are in sync, as its leader knows.",
          _lacks_replicas),
    _each("below_min_isr", _GAUGE, "1 if too few replicas are in sync to take messages, as its leader knows.",
          _below_min_isr),
    _each("unsubscribed", _GAUGE, "1 if its leader should be subscribed, and is not.", _unsubscribed),
    _each("in_flight_bytes", _GAUGE, "Bytes in memory of its messages that are not acked yet.",
          lambda row: None if row.partition.leadership is None else row.partition.in_flight.size_bytes),
    _each("oldest_unacked_seconds", _GAUGE, "Age of its oldest message that is not committed yet.",
          _oldest_unacked_us, max, _US),
    _each("behind_seconds", _GAUGE, "Staleness: all that was committed longer ago can be read from this "
          "replica.",
          lambda row: row.behind_us, max, _US),
    _each("last_message_timestamp_seconds", _GAUGE, "When its last message was stored (Unix time).",
          lambda row: row.partition.log.last_timestamp_us or None, max, _US),
    _each("damaged_ranges", _GAUGE, "Ranges of its log here that are damaged.",
          lambda row: len(row.partition.log.damage)),
)  # fmt: skip
"""Metrics of each partition."""

CREDENTIAL_EXPIRES = Metric(
    "penstock_credential_expires_seconds", _GAUGE,
    "When the next password, token or nkey of a user expires (Unix time); of those that have not expired.", scale=_US,
)  # fmt: skip

METRICS = (
    *COUNTERS.values(), BATCH_ROWS, BATCH_BYTES, ACK_SECONDS, LOG_SYNC_SECONDS, METADATA_SYNC_SECONDS,
    IN_FLIGHT_BYTES, IN_FLIGHT_BYTES_MAX, SUBJECT_FILTER_BYTES, LEADER_CHANGES, STALLED_SYNCS, GAPS, GAP_SECONDS,
    GAP_OPEN_SECONDS, RAFT_TERM, RAFT_COMMIT, RAFT_APPLIED, RAFT_LEADER, RAFT_IS_LEADER, VOTERS, VOTERS_REACHABLE,
    BROKERS, CREDENTIAL_EXPIRES, STREAMS, SCHEMA_VERSIONS, PARTITIONS, *(one.metric for one in EACH_PARTITION), DROPPED,
    GROUP_OFFSETS, GROUP_OFFSET, GROUP_LAG,
)  # fmt: skip
"""All metrics, in the order of the page."""
