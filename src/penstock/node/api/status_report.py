"""Builds the reports for clients and operators: streams, partitions, brokers, status. Reads state, changes nothing."""

from __future__ import annotations

from collections import Counter

import msgspec

from penstock.base.companion_kinds import CompanionKind
from penstock.base.errors import ErrorCode
from penstock.base.ids import BrokerId, Offset, PartitionId, PartitionKey, TimestampUs
from penstock.commitlog import LogState
from penstock.messages import (
    BrokerInfo,
    DamageInfo,
    FollowerInfo,
    KeyMark,
    NatsStatus,
    PartitionHealth,
    PartitionInfo,
    StatusResponse,
    StreamInfo,
)
from penstock.messages.streams import NATS_NOT_CONNECTED
from penstock.metadata.feature_levels import level_text
from penstock.metadata.image import StreamState
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.controller.api_admin import shown
from penstock.node.partition.counters import NodeCounters
from penstock.node.partition.leader_hints import no_leader_reason
from penstock.node.partition.partition import Partition
from penstock.node.replicas.replicas import Replicas
from penstock.node.subscriptions.nats_listener import NOT_HEARD, NatsListener

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


class StatusReport:
    """Builds the responses from the node's state."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        replicas: Replicas,
        listening: NatsListener,
        meters: NodeCounters,
    ) -> None:
        self._settings = context.settings
        self._cluster = cluster
        self._replicas = replicas
        self._listening = listening
        self._meters = meters
        self.started_us = 0  # wall-clock time of the start

    def brokers(self) -> tuple[BrokerInfo, ...]:
        voters = self._cluster.quorum.membership.voters
        return tuple(
            BrokerInfo(
                broker_id=one.broker_id,
                address=one.address,
                broker_version=one.broker_version,
                rack=one.rack,
                is_live=one.is_live,
                votes=one.broker_id in voters,
                is_reachable=self._cluster.is_reachable(one.broker_id),
            )
            for _, one in sorted(self._cluster.image.brokers.items())
        )

    def _brokers_heard(self) -> tuple[BrokerInfo, ...]:
        """Return the brokers with how long they have been silent, if this broker is the metadata leader."""
        silent_us = self._cluster.silent_us
        return tuple(
            msgspec.structs.replace(one, silent_ms=silent_us[one.broker_id] // 1_000)
            if one.broker_id in silent_us
            else one
            for one in self.brokers()
        )

    def _address(self, leader: BrokerId | None) -> str:
        known = None if leader is None else self._cluster.image.brokers.get(leader)
        return "" if known is None else known.address

    def stream(self, state: StreamState) -> StreamInfo:
        """Return the stream's present state."""
        return StreamInfo(
            stream_id=state.stream_id,
            config=state.config,
            partitions=tuple(self._partition(state, number) for number in range(len(state.partitions))),
            created_us=TimestampUs(state.created_us),
            intake=state.intake,
            intake_us=TimestampUs(state.intake_us) if state.intake_us else None,
            counts=state.counts,
            key_marks=tuple(KeyMark(one.partitions, one.partition, one.end_offset) for one in state.marks),
            owner=state.owner,
        )

    def _partition(self, state: StreamState, number: int) -> PartitionInfo:
        key = PartitionKey(state.stream_id, PartitionId(number))
        partition = self._replicas.partitions.get(key)
        return self._closed_partition(state, key) if partition is None else self._open_partition(state, partition)

    def _health(self, key: PartitionKey) -> tuple[PartitionHealth, str]:
        """Return the partition's state and the reason."""
        partition = self._replicas.partitions.get(key)
        leader = self._cluster.image.partition(*key).leader
        if leader is not None and self._cluster.quorum.leader is None and not self._cluster.is_reachable(leader):
            # With a metadata leader there would be another leader soon, or other brokers could reach this one.
            return PartitionHealth.NO_LEADER, f"broker {leader} led it last, and cannot be reached from here"
        if partition is None:
            return self._absent(key)
        if partition.closed:
            return PartitionHealth.FAILED, partition.closed
        if partition.stream.has_marks and (unusable := self._replicas.companions.unusable(partition)) is not None:
            opens = unusable.code == ErrorCode.NOT_YET
            return PartitionHealth.STARTING if opens else PartitionHealth.FAILED, unusable.message
        state = partition.log.state
        if state in _STATES:
            mending = partition.mending if state is LogState.READ_ONLY else ""
            return _STATES[state], "; ".join(filter(None, (_STATE_REASONS[state], mending)))
        if impediment := partition.impediment or partition.stall:
            return PartitionHealth.IMPEDED, impediment
        if partition.cannot_lead:
            return PartitionHealth.STARTING, partition.cannot_lead
        if partition.following is not None:
            trouble = "" if partition.following.is_in_sync else self._replicas.follows.trouble(partition)
            return PartitionHealth.NOT_FOLLOWING if trouble else PartitionHealth.ONLINE, trouble
        if partition.leadership is None:
            return PartitionHealth.NO_LEADER, self._why_nobody(key)
        if partition.is_mute:
            return PartitionHealth.NO_LEADER, NOT_HEARD
        if not (partition.subscribed or partition.is_deaf):
            return PartitionHealth.STARTING, partition.refusal or NATS_NOT_CONNECTED
        return PartitionHealth.ONLINE, partition.unmarked or self._refuses_consumers(partition)

    def _refuses_consumers(self, partition: Partition) -> str:
        """Return why a leader serves no consumers with acks, unless that is about to change; messages go on."""
        if not partition.stream.has_consumers:
            return ""
        trouble = self._replicas.companions.troubles.find(partition, CompanionKind.CONSUMERS)
        return "" if trouble is None or trouble.code == ErrorCode.NOT_YET else trouble.message

    def _absent(self, key: PartitionKey) -> tuple[PartitionHealth, str]:
        if (failure := self._replicas.streams.failures.get(key)) is not None:
            return PartitionHealth.FAILED, failure.message
        known = self._cluster.image.partition(*key)
        if known.leader is None:
            return PartitionHealth.NO_LEADER, self._why_nobody(key)
        return PartitionHealth.STARTING if self._settings.broker_id in known.holders else PartitionHealth.ONLINE, ""

    def _why_nobody(self, key: PartitionKey) -> str:
        image = self._cluster.image
        return no_leader_reason(image, image.by_id(key.stream_id), key.partition)

    def _closed_partition(self, state: StreamState, key: PartitionKey) -> PartitionInfo:
        health, reason = self._health(key)
        known = state.partitions[key.partition]
        return PartitionInfo(
            partition=key.partition,
            leader=self._address(known.leader),
            leader_id=known.leader,
            leader_epoch=known.leader_epoch,
            replicas=known.replicas,
            isr=known.isr,
            eligible=known.eligible,
            observers=known.observers,
            state=health,
            state_reason=reason,
        )

    def _open_partition(self, state: StreamState, partition: Partition) -> PartitionInfo:
        log = partition.log
        health, reason = self._health(partition.key)
        number = partition.key.partition
        known = state.partitions[number]
        hidden = self._replicas.hidden_rows
        _, to_erase, to_erase_reason = hidden.erasure(partition) if hidden.has_marks(partition) else (0, 0, "")
        return PartitionInfo(
            partition=number,
            leader=self._address(known.leader),
            leader_id=known.leader,
            leader_epoch=partition.leader_epoch,
            replicas=known.replicas,
            isr=known.isr,
            eligible=known.eligible,
            observers=known.observers,
            behind_us=self._replicas.behind_us(partition),
            followers=_followers(partition),
            log_start=Offset(partition.log_start),
            committed_end=Offset(partition.committed_end),
            messages=partition.messages_from(0),
            log_end=Offset(log.log_end),
            flushed_end=Offset(log.flushed_end),
            size_bytes=log.size_bytes,
            segment_count=log.segment_count,
            last_timestamp_us=TimestampUs(log.last_timestamp_us) if log.log_end > partition.log_start else None,
            state=health,
            state_reason=reason,
            damage=tuple(
                DamageInfo(
                    file=damage.file,
                    position=damage.position,
                    expected=damage.expected,
                    found=damage.found,
                    base_offset=Offset(damage.base_offset),
                    end_offset=None if damage.end_offset is None else Offset(damage.end_offset),
                )
                for damage in log.damage
            ),
            gaps=self._listening.gaps_of(partition),
            dropped=dict(partition.dropped),
            dedup_ids=0 if partition.dedup is None else partition.dedup.count,
            dedup_ids_forgotten=0 if partition.dedup is None else partition.dedup.forgotten,
            producers=0 if partition.producers is None else partition.producers.count,
            archives={
                one.archive: one.end_offset for one in state.archived if one.partition == partition.key.partition
            },
            archived_end=Offset(partition.archived_end) if state.archived else None,
            to_erase=to_erase,
            to_erase_reason=to_erase_reason,
        )

    def state(self, key: PartitionKey) -> PartitionHealth:
        # The status needs this for every partition: decide the usual case without `_health`.
        partition = self._replicas.partitions.get(key)
        is_online = (
            partition is not None
            and partition.subscribed
            and partition.is_writable
            and not partition.impediment
            and not partition.stream.has_marks
        )
        return PartitionHealth.ONLINE if is_online else self._health(key)[0]

    def status(self, now_us: int, *, in_flight_bytes: int) -> StatusResponse:
        """Return the status as the node knows it; the driver adds its connections and its link to NATS."""
        by_state = Counter(
            self.state(PartitionKey(stream_id, PartitionId(number)))
            for stream_id, state in self._cluster.image.streams.items()
            for number in range(len(state.partitions))
        )
        return StatusResponse(
            broker_id=self._settings.broker_id,
            broker_version=self._settings.broker_version,
            cluster_id=self._cluster.cluster_id,
            address=self._settings.address,
            data_dir=self._settings.data_dir,
            started_us=TimestampUs(self.started_us),
            now_us=TimestampUs(now_us),
            uptime_ms=max(0, now_us - self.started_us) // 1_000,
            nats=NatsStatus(state="connecting", gaps=self._listening.gaps.since(0)),
            metadata_leader=self._cluster.quorum.leader,
            metadata_heard_ms=self._cluster.heard_ms,
            voters=len(self._cluster.quorum.membership.voters),
            voters_reachable=self._cluster.voters_reachable,
            waits_for=self._cluster.waits_for,
            brokers=self._brokers_heard(),
            feature_level=level_text(self._cluster.image.feature_level),
            apis=shown(self._cluster.image.apis),
            disk_is_full=self._replicas.is_disk_full,
            streams=len(self._cluster.image.streams),
            partitions=by_state.total(),
            partitions_by_state={str(state): count for state, count in by_state.items()},
            in_flight_bytes=in_flight_bytes,
            in_flight_bytes_max=self._settings.broker_in_flight_bytes_max,
            counters=self._meters.totals(),
        )


def _followers(partition: Partition) -> tuple[FollowerInfo, ...]:
    leadership = partition.leadership
    lags = {} if leadership is None else leadership.lag()
    impeded = frozenset() if leadership is None else leadership.impeded_followers
    return tuple(
        FollowerInfo(broker_id=broker_id, lag=lag, is_impeded=broker_id in impeded)
        for broker_id, lag in sorted(lags.items())
    )
