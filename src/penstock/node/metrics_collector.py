"""Reads a node's metrics as the families of a metrics page. Changes nothing, with one exception: the offsets of groups
that no client has requested since their coordinator's failover are read from the log.

Rules: the work is done when a page is requested, never while messages flow. The size of a page is bounded: with more
than METRIC_PARTITIONS_MAX partitions the values are summed per stream, with `*` for the partition, and with more
streams than that over all of them; likewise for the offsets of groups. Long loops pause now and then (they yield None),
and must tolerate that partitions, groups and leaderships come and go meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import islice

from penstock.access import User
from penstock.base import limits
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.base.meters import Families, Family, Histogram, Sample, single
from penstock.messages import PartitionHealth
from penstock.metadata.persistent_map import PersistentMap
from penstock.node import metrics
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.metrics import EACH_PARTITION, PartitionRow
from penstock.node.partition.counters import NodeCounters, PartitionCounters
from penstock.node.partition.partition import Partition
from penstock.node.replicas.replicas import Replicas
from penstock.node.request_router import RequestRouter
from penstock.node.subscriptions.nats_listener import NatsListener

ALL = "*"
"""Label of summed values; no stream or group has this name."""
_NO_TRAFFIC = PartitionCounters(Histogram.of_rows(), Histogram.of_sizes())
_Labels = tuple[str, ...]


class NodeMetricsCollector:
    """Collects the node's metrics."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        replicas: Replicas,
        listening: NatsListener,
        router: RequestRouter,
        meters: NodeCounters,
    ) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._listening = listening
        self._router = router
        self._meters = meters
        self._context = context
        self._expiries = Expiries()

    def families(self) -> Families:
        yield from self._counted()
        yield from self._broker()
        yield from self._raft()
        end_us = self._expiries.next_us(self._cluster.image.users, self._context.now.wall_us)
        yield Family(metrics.CREDENTIAL_EXPIRES, [] if end_us is None else [Sample((), end_us)])
        yield from self._states()
        yield from self._partitions()
        yield from self._groups()

    def _counted(self) -> Families:
        meters = self._meters
        told = meters.totals()
        for name, metric in metrics.COUNTERS.items():
            yield single(metric, told.get(name, 0))
        yield single(metrics.BATCH_ROWS, meters.batch_rows)
        yield single(metrics.BATCH_BYTES, meters.batch_bytes)
        yield single(metrics.ACK_SECONDS, meters.ack_us)
        yield single(metrics.LOG_SYNC_SECONDS, meters.sync_us)
        yield single(metrics.METADATA_SYNC_SECONDS, self._cluster.quorum.sync_us)

    def _broker(self) -> Families:
        gaps, now = self._listening.gaps, self._context.now
        yield single(metrics.IN_FLIGHT_BYTES, self._router.in_flight.size_bytes)
        yield single(metrics.IN_FLIGHT_BYTES_MAX, self._context.settings.broker_in_flight_bytes_max)
        yield single(metrics.SUBJECT_FILTER_BYTES, self._replicas.streams.filters.size_bytes)
        yield single(metrics.LEADER_CHANGES, self._replicas.roles.event_log.led_count)
        yield single(metrics.STALLED_SYNCS, self._replicas.log_maintenance.stalled_count)
        yield single(metrics.GAPS, gaps.ended_count)
        yield single(metrics.GAP_SECONDS, gaps.ended_us)
        since_us = gaps.open_since()
        yield single(metrics.GAP_OPEN_SECONDS, 0 if since_us is None else max(0, now.wall_us - since_us))

    def _raft(self) -> Families:
        cluster, quorum = self._cluster, self._cluster.quorum
        yield single(metrics.RAFT_TERM, quorum.term)
        yield single(metrics.RAFT_COMMIT, quorum.commit)
        yield single(metrics.RAFT_APPLIED, quorum.applied)
        yield single(metrics.RAFT_LEADER, 0 if quorum.leader is None else int(quorum.leader))
        yield single(metrics.RAFT_IS_LEADER, int(quorum.is_leader))
        yield single(metrics.VOTERS, len(quorum.membership.voters))
        yield single(metrics.VOTERS_REACHABLE, cluster.voters_reachable)
        known = Counter("live" if one.is_live else "away" for one in cluster.image.brokers.values())
        yield Family(metrics.BROKERS, [Sample((state,), known[state]) for state in ("live", "away")])

    def _states(self) -> Families:
        """Count partitions by state, like the broker's status."""
        streams = list(self._cluster.image.streams.values())
        yield single(metrics.STREAMS, len(streams))
        yield single(metrics.SCHEMA_VERSIONS, self._router.schemas.version_count)
        by_state: Counter[str] = Counter()
        places = ((one.stream_id, number) for one in streams for number in range(len(one.partitions)))
        for stream_id, number in _with_pauses(places):
            if stream_id is None:
                yield None
            elif stream_id in self._cluster.image.streams:
                by_state[self._router.report.state(PartitionKey(StreamId(stream_id), PartitionId(number)))] += 1
        yield Family(metrics.PARTITIONS, [Sample((str(state),), by_state[state]) for state in PartitionHealth])

    # By partition

    def _partitions(self) -> Families:
        there = list(self._replicas.partitions.values())
        labels_of = _level(there)
        values: list[dict[_Labels, float]] = [{} for _ in EACH_PARTITION]
        dropped: dict[_Labels, int] = defaultdict(int)
        for at, partition in enumerate(there):
            if at % limits.METRIC_TURN == limits.METRIC_TURN - 1:
                yield None
            if partition.when_idle is not None:
                continue  # its stream was deleted
            labels = labels_of(partition)
            for row, found in zip(EACH_PARTITION, values, strict=True):
                if (value := row.value(self._of(partition))) is not None:
                    found[labels] = row.joined(found[labels], value) if labels in found else value
            for reason, count in partition.dropped.items():
                dropped[*labels, reason] += count
        for row, found in zip(EACH_PARTITION, values, strict=True):
            yield Family(row.metric, [Sample(labels, value) for labels, value in found.items()])
            yield None
        yield Family(metrics.DROPPED, [Sample(labels, count) for labels, count in dropped.items()])

    def _of(self, partition: Partition) -> PartitionRow:
        traffic = self._meters.traffic.get(partition.key, _NO_TRAFFIC)
        return PartitionRow(partition, traffic, self._replicas.behind_us(partition), self._context.now)

    # By group

    def _groups(self) -> Families:
        kept = self._router.offsets.known()
        count = sum(map(len, kept))
        yield single(metrics.GROUP_OFFSETS, count)
        committed: dict[_Labels, float] = {}
        lags: dict[_Labels, float] = {}
        is_named = count <= limits.METRIC_GROUP_OFFSETS_MAX
        streams = 0 if is_named else sum(one.stream_count for one in kept)
        is_grouped = is_named or streams <= limits.METRIC_GROUP_OFFSETS_MAX
        for offsets in kept:
            for group, stream_id, of_partitions in offsets.all():
                yield None
                state = self._cluster.image.streams.get(StreamId(stream_id))
                if state is None:
                    continue
                for number, one in of_partitions.items():
                    labels = (group, state.name, str(number) if is_named else ALL) if is_grouped else (ALL, ALL, ALL)
                    offset = one.position.offset
                    committed[labels] = committed.get(labels, 0) + offset
                    lag = self._lag_of(PartitionKey(StreamId(stream_id), PartitionId(number)), offset)
                    if lag is not None:
                        lags[labels] = lags.get(labels, 0) + lag
        yield Family(metrics.GROUP_OFFSET, [Sample(labels, value) for labels, value in committed.items()])
        yield Family(metrics.GROUP_LAG, [Sample(labels, value) for labels, value in lags.items()])

    def _lag_of(self, key: PartitionKey, offset: int) -> int | None:
        """Consumer lag in messages still shown; None if this broker neither leads nor follows the partition."""
        partition = self._replicas.partitions.get(key)
        if partition is None or (partition.leadership is None and partition.following is None):
            return None
        return partition.messages_from(offset)


def _level(there: list[Partition]) -> Callable[[Partition], _Labels]:
    """Return the labelling function for this number of partitions."""
    if len(there) <= limits.METRIC_PARTITIONS_MAX:
        return lambda partition: (partition.stream.name, str(partition.key.partition))
    if len({partition.key.stream_id for partition in there}) <= limits.METRIC_PARTITIONS_MAX:
        return lambda partition: (partition.stream.name, ALL)
    return lambda partition: (ALL, ALL)


class Expiries:
    """Expiry times of users' credentials; computed once for each version of the users."""

    def __init__(self) -> None:
        self._users: PersistentMap[str, User] | None = None
        self._ends_us: list[int] = []

    def next_us(self, users: PersistentMap[str, User], now_us: int) -> int | None:
        """Return the next expiry after `now_us`; None if there is none."""
        if users is not self._users:
            given = (one.expires_us for user in users.values() for one in user.credentials)
            self._ends_us, self._users = sorted(end_us for end_us in given if end_us is not None), users
        place = bisect_right(self._ends_us, now_us)
        return self._ends_us[place] if place < len(self._ends_us) else None


def _with_pauses(places: Iterator[tuple[StreamId, int]]) -> Iterator[tuple[StreamId | None, int]]:
    """Yield all places, and a None after every METRIC_TURN."""
    while some := list(islice(places, limits.METRIC_TURN)):
        yield from some
        yield None, 0
