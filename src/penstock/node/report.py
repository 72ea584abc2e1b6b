"""What an operator and a client are told: streams, partitions, the broker. Reads everything, changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from penstock.base import limits
from penstock.base.ids import BrokerId, Offset, PartitionId, PartitionKey, TimestampUs
from penstock.batch.schema import FORMAT_VERSION
from penstock.commitlog import LogState
from penstock.messages import (
    BrokerInfo,
    DamageInfo,
    NatsStatus,
    PartitionHealth,
    PartitionInfo,
    StatusResponse,
    StreamInfo,
)
from penstock.metadata.image import StreamState
from penstock.node.catalog import Catalog
from penstock.node.gaps import Gaps
from penstock.node.partition import Partition
from penstock.node.streams import Streams

_STATES = {
    LogState.TRUNCATING: PartitionHealth.STARTING,
    LogState.READ_ONLY: PartitionHealth.READ_ONLY,
    LogState.FENCED: PartitionHealth.FENCED,
}
_STATE_REASONS = {
    LogState.TRUNCATING: "what its leader does not have is being cut off",
    LogState.READ_ONLY: "stored bytes are damaged; what is sound can be read",
    LogState.FENCED: "a sync of the log failed; restart the broker once the disk is sound",
}


_FIRST_BROKER = BrokerId(1)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the node knows about the broker around it."""

    broker_id: BrokerId = _FIRST_BROKER
    broker_version: str = ""
    cluster_id: str = ""  # empty: not known yet
    data_dir_id: str = ""  # made with the data directory, at random
    voters: Mapping[BrokerId, str] = field(default_factory=lambda: MappingProxyType({}))  # the first ones: HOST:PORT
    join: tuple[str, ...] = ()  # HOST:PORT of brokers whose cluster this one is to join
    rack: str | None = None
    address: str = ""  # HOST:PORT told to clients and to other brokers
    data_dir: str = ""  # for people only
    nats_urls: tuple[str, ...] = ()  # for publishers, without credentials
    format_version: int = FORMAT_VERSION
    partition_in_flight_bytes_max: int = limits.PARTITION_IN_FLIGHT_BYTES_MAX
    broker_in_flight_bytes_max: int = limits.BROKER_IN_FLIGHT_BYTES_MAX
    log_files_max: int = limits.LOG_FILES_MAX


class Report:
    """Puts the answers together."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        streams: Streams,
        gaps: Gaps,
        counters: Mapping[str, int],
        *,
        started_us: int,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._streams = streams
        self._gaps = gaps
        self._counters = counters
        self._started_us = started_us

    def brokers(self) -> tuple[BrokerInfo, ...]:
        """The brokers of the cluster."""
        settings = self._settings
        return (
            BrokerInfo(broker_id=settings.broker_id, address=settings.address, broker_version=settings.broker_version),
        )

    def stream(self, state: StreamState) -> StreamInfo:
        """One stream as it is now."""
        return StreamInfo(
            stream_id=state.stream_id,
            config=state.config,
            partitions=tuple(self._partition(state, number) for number in range(len(state.partitions))),
            created_us=TimestampUs(state.created_us),
        )

    def _partition(self, state: StreamState, number: int) -> PartitionInfo:
        key = PartitionKey(state.stream_id, PartitionId(number))
        partition = self._streams.partitions.get(key)
        return self._closed_partition(state, key) if partition is None else self._open_partition(state, partition)

    def _health(self, key: PartitionKey) -> tuple[PartitionHealth, str]:
        """What the partition can do now, and why no more."""
        partition = self._streams.partitions.get(key)
        if partition is None:
            failure = self._streams.failures.get(key)
            return (PartitionHealth.STARTING, "") if failure is None else (PartitionHealth.FAILED, failure)
        state = partition.log.state
        if state is not LogState.WRITABLE:
            return _STATES[state], _STATE_REASONS[state]
        if partition.cannot_lead:
            return PartitionHealth.STARTING, partition.cannot_lead
        if not partition.subscribed:
            return PartitionHealth.STARTING, partition.refusal or "not subscribed: NATS is not connected"
        return PartitionHealth.ONLINE, ""

    def _closed_partition(self, state: StreamState, key: PartitionKey) -> PartitionInfo:
        health, reason = self._health(key)
        known = state.partitions[key.partition]
        nothing = Offset(0)
        return PartitionInfo(
            partition=key.partition,
            leader=self._settings.address,
            leader_id=known.leader,
            leader_epoch=known.leader_epoch,
            replicas=known.replicas,
            isr=known.isr,
            eligible=known.eligible,
            log_start=nothing,
            committed_end=nothing,
            log_end=nothing,
            state=health,
            state_reason=reason,
        )

    def _open_partition(self, state: StreamState, partition: Partition) -> PartitionInfo:
        log = partition.log
        health, reason = self._health(partition.key)
        known = state.partitions[partition.key.partition]
        return PartitionInfo(
            partition=partition.key.partition,
            leader=self._settings.address,
            leader_id=known.leader,
            leader_epoch=partition.leader_epoch,
            replicas=known.replicas,
            isr=known.isr,
            eligible=known.eligible,
            log_start=Offset(log.log_start),
            committed_end=Offset(partition.committed_end),
            log_end=Offset(log.log_end),
            flushed_end=Offset(log.flushed_end),
            size_bytes=log.size_bytes,
            segment_count=log.segment_count,
            last_timestamp_us=TimestampUs(log.last_timestamp_us) if log.log_end > log.log_start else None,
            state=health,
            state_reason=reason,
            damage=tuple(
                DamageInfo(
                    file=damage.file,
                    position=damage.position,
                    expected="sound bytes",
                    found=damage.reason,
                    base_offset=Offset(damage.base_offset),
                    end_offset=None if damage.end_offset is None else Offset(damage.end_offset),
                )
                for damage in log.damage
            ),
            gaps=self._gaps.since(state.created_us, partition.key),
            dropped=dict(partition.dropped),
        )

    def status(self, now_us: int, *, in_flight_bytes: int) -> StatusResponse:
        """The broker as the node knows it; the driver adds its connections and its link to NATS."""
        by_state: Counter[str] = Counter()
        partitions = self._streams.partitions
        for stream_id, state in self._catalog.image.streams.items():
            for number in range(len(state.partitions)):
                key = PartitionKey(stream_id, PartitionId(number))
                # All streams at once: what nearly all of them are is seen at a glance.
                partition = partitions.get(key)
                is_online = partition is not None and partition.subscribed and partition.is_writable
                by_state[PartitionHealth.ONLINE if is_online else self._health(key)[0]] += 1
        return StatusResponse(
            broker_id=self._settings.broker_id,
            broker_version=self._settings.broker_version,
            cluster_id=self._settings.cluster_id,
            address=self._settings.address,
            data_dir=self._settings.data_dir,
            started_us=TimestampUs(self._started_us),
            uptime_ms=max(0, now_us - self._started_us) // 1_000,
            nats=NatsStatus(state="connecting", gaps=self._gaps.since(0)),
            streams=len(self._catalog.image.streams),
            partitions=len(self._streams.partitions),
            partitions_by_state=dict(by_state),
            in_flight_bytes=in_flight_bytes,
            in_flight_bytes_max=self._settings.broker_in_flight_bytes_max,
            counters=dict(self._counters),
        )
