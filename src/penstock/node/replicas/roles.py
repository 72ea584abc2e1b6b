"""Applies the metadata image to this broker's partitions: gives each its role, leader or follower.

Rules: only a registered broker leads or follows. A partition whose log is being cut waits for that before it gets a new
role. Only a leader subscribes: any other subscriber would turn a fast "no responders" into a time-out. No broker leads
in a leader epoch that its log already contains: two leaderships with one epoch would make two different messages look
the same. A leader that the metadata leader has not answered for a session may have a successor that it does not know.
Its partitions with several replicas become mute: not subscribed, no appends, no answers that may be stale, until it is
answered again and still leads. What followers fetch meanwhile can still be committed.

A partition and its companion logs get their roles together. A companion leads only beside its partition, in the same
epoch. If it is not open then, or is being cut, it begins as soon as it is open; until then no follower joins the ISR.

| the image says            | the role was     | action                                                            |
|---------------------------|------------------|-------------------------------------------------------------------|
| this broker leads         | anything else    | begin a leadership, subscribe                                     |
| this broker leads         | leader, as now   | apply the ISR                                                     |
| … but it is not answered  | leader           | unsubscribe, refuse; subscribe again once it is answered          |
| another one leads         | leader           | unsubscribe, drop pending acks, follow                            |
| another one leads         | follower         | follow that one                                                   |
| … but its stream is paused| leader           | unsubscribe, refuse; subscribe again once it is resumed           |
| no leader                 | anything         | stop that; committed messages can be read                         |
| … until the longest log   | anything         | the same, and report the log end to the metadata leader           |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.base import limits
from penstock.base.config import Intake
from penstock.base.ids import BrokerId, Incarnation, PartitionKey
from penstock.commitlog import Deciding, LogConfig
from penstock.messages.streams import LEADER_CHANGED
from penstock.metadata.companions import companion_key, is_companion, target_key
from penstock.metadata.feature_levels import LEADER_DECIDES, SUBJECT_INDEX
from penstock.metadata.image import ClusterImage, StreamState
from penstock.node.context import Context
from penstock.node.maintenance.log_maintenance import LogMaintenance
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_events import PartitionEventKind, PartitionEvents
from penstock.node.quorum.cluster_events import ClusterEventLog
from penstock.node.replicas.follower_replication import FollowerReplication
from penstock.node.replicas.key_migration import KeyMigrator
from penstock.node.replicas.leader_replication import LeaderReplication
from penstock.node.replicas.log_end_reports import LogEndReports
from penstock.node.subscriptions.nats_listener import NOBODY_LED, NOT_HEARD, NatsListener
from penstock.replication.leader import Leadership

_LATELY_US = (limits.REPLICA_FETCH_WAIT_MS + 100) * 1_000  # age of the last answer at the end of a long poll


class Roles:
    """Gives partitions their roles. Call `image` first, and whenever brokers were registered or fenced."""

    def __init__(
        self,
        context: Context,
        partitions: Mapping[PartitionKey, Partition],
        leading: LeaderReplication,
        follows: FollowerReplication,
        listening: NatsListener,
        upkeep: LogMaintenance,
        moving: KeyMigrator,
        events: PartitionEvents,
    ) -> None:
        self.live: Mapping[BrokerId, Incarnation] = {}  # current incarnation of each live broker
        self._broker_id = context.settings.broker_id
        self._outbox = context.outbox
        self._leading = leading
        self._follows = follows
        self._listening = listening
        self._upkeep = upkeep
        self._moving = moving
        self._context = context
        self._partitions = partitions
        self._events = events
        self.event_log = ClusterEventLog(self._broker_id, context.outbox)
        self.log_ends = LogEndReports(context, partitions, events)
        self._is_registered = False

    def image(self, image: ClusterImage, own: Incarnation | None) -> bool:
        """Take the live brokers; `own` is this broker's incarnation, if registered. Return True if anything changed."""
        live = {one.broker_id: one.incarnation for one in image.brokers.values() if one.is_live}
        is_registered = own is not None and live.get(self._broker_id) == own
        if live == self.live and is_registered == self._is_registered:
            return False
        before, self.live, self._is_registered = self.live, live, is_registered
        self._leading.runs_changed(before, live)
        if own is not None and is_registered:
            self._leading.registered(own)
            self._follows.registered(own, self._context.now)
        return True

    def metadata_contact_changed(self, awake_us: int, *, is_heard: bool) -> None:
        """Mute or unmute leaderships when the metadata leader stops answering this broker, or answers again.

        `awake_us`: wall-clock time when this process last ran for certain; messages published later were not stored.
        """
        self._leading.is_heard = is_heard  # a mute leader has unsubscribed
        for partition in self._partitions.values():
            if partition.leadership is None or partition.is_mute == self._must_be_mute(partition):
                continue
            if is_companion(partition.key.stream_id):
                partition.is_mute = not is_heard
            elif is_heard:
                partition.is_mute = False
                self._subscribe(partition, NOT_HEARD)
            else:
                partition.is_mute = True
                self._unsubscribe(partition)
                partition.listened_us = min(partition.listened_us, awake_us)

    @property
    def is_heard(self) -> bool:
        """True if the metadata leader answers this broker."""
        return self._leading.is_heard

    def _must_be_mute(self, partition: Partition) -> bool:
        return not self.is_heard and partition.is_replicated

    def update(self, partition: Partition) -> None:
        """Give the partition and its companion logs the roles that the image says; any of them may be passed."""
        target: Partition | None = partition
        if is_companion(partition.key.stream_id):
            target = self._partitions.get(target_key(partition.key))
        if target is not None:
            self._update(target)
        companions = [partition] if target is not partition else []
        for kind in () if target is None else target.stream.companions:
            one = self._partitions.get(companion_key(partition.key, kind))
            if one is not None and one is not partition:
                companions.append(one)
        for companion in companions:
            if companion.cutting is None:
                self._update_companion(companion, target)

    def _update(self, partition: Partition) -> None:
        if partition.cutting is not None:
            return  # `update` is called again when the cut is done
        state = partition.stream.partitions[partition.key.partition]
        if self._is_registered and state.leader == self._broker_id:
            self._lead(partition)
            self._upkeep.truncate(partition)
            return
        if partition.leadership is not None:
            self.event_log.ended(_name(partition))
            self._resign(partition)
        if self._is_registered and state.leader is not None and self._broker_id in state.holders:
            self._configure(partition)
            self._follows.follow(partition, state)
            self._listening.led_elsewhere(partition, self._context.now)
        else:
            self._unfollow(partition)
            if self._is_registered and state.leader is None:
                if not partition.is_deaf:
                    self._listening.nobody(partition, self._context.now)
                if self._broker_id in state.replicas:  # a read replica never leads, however long its log is
                    self.log_ends.nobody_leads(partition, self.live.keys())

    def _update_companion(self, companion: Partition, target: Partition | None) -> None:
        state = companion.stream.partitions[companion.key.partition]
        tied = None if target is None else target.leadership
        if companion.leadership is not None and companion.leadership.target is not tied:
            self._resign(companion)
        if self._is_registered and state.leader == self._broker_id:
            self._unfollow(companion)
            if tied is not None and tied.leader_epoch == state.leader_epoch:
                self._lead_companion(companion, tied)
        elif self._is_registered and state.leader is not None and self._broker_id in state.holders:
            self._configure(companion)
            self._follows.follow(companion, state)
        else:
            self._unfollow(companion)

    def _lead_companion(self, companion: Partition, target: Leadership) -> None:
        self._configure(companion)
        if companion.leadership is not None:  # its target has passed the image on
            if companion.leadership.waits_for_own_disk:
                self._upkeep.flush(companion)
        elif self._may_begin(companion):
            state = companion.stream.partitions[companion.key.partition]
            self._leading.begin(companion, state, self.live, self._context.now, target)
            companion.is_mute = self._must_be_mute(companion)
            companion.led_epoch = state.leader_epoch
            self._upkeep.advance_high_watermark(companion)
            self._events.add(PartitionEventKind.BEGAN, companion)

    def leave(self, partition: Partition) -> None:
        """End the role of a partition that is removed from this broker, or whose log is about to be closed."""
        if partition.leadership is not None:
            self._leading.end(partition)
        self._unfollow(partition)

    def _lead(self, partition: Partition) -> None:
        state = partition.stream.partitions[partition.key.partition]
        leadership = partition.leadership
        if leadership is not None and leadership.leader_epoch == state.leader_epoch:
            self._configure(partition)
            self._moving.reconcile(partition)
            self._listening.follow_subjects(partition, self._context.now)
            self._pause_or_resume(partition)
            before = leadership.isr
            self._leading.image(partition, state, self.live, self._context.now)
            if leadership.waits_for_own_disk:
                self._upkeep.flush(partition)
            if leadership.isr != before:
                self.event_log.isr(_name(partition), before, leadership.isr)
            return
        if leadership is not None:
            self._resign(partition)
        else:
            self.event_log.led(_name(partition))
        goes_on = state.leader_epoch == partition.led_epoch + 1
        was_followed, listens_still = partition.following is not None, self._listens_still(partition)
        self._unfollow(partition)
        if listens_still:  # until it learns of its successor, as this broker does now
            partition.listened_us = self._context.now.wall_us
        if not self._may_begin(partition):
            return
        self._configure(partition)
        self._leading.begin(partition, state, self.live, self._context.now)
        partition.is_mute = self._must_be_mute(partition)
        self._moving.reconcile(partition)  # before any message arrives
        partition.led_epoch = state.leader_epoch
        reason = LEADER_CHANGED if was_followed else NOBODY_LED
        # in epoch 1 the partition is new
        self._subscribe(partition, reason if state.leader_epoch > 1 else "", goes_on=goes_on)
        self._upkeep.advance_high_watermark(partition)
        self._events.add(PartitionEventKind.BEGAN, partition)

    def _may_begin(self, partition: Partition) -> bool:
        """True if the log has not seen the epoch of the leadership that the image says."""
        leader_epoch = partition.stream.partitions[partition.key.partition].leader_epoch
        if leader_epoch > partition.log.leader_epoch:
            partition.cannot_lead = ""
            return True
        partition.cannot_lead = (
            f"its log has seen leader epoch {partition.log.leader_epoch}, and the metadata says "
            f"{leader_epoch}: the metadata has lost commands"
        )
        partition.tell(partition.cannot_lead, self._outbox)
        return False

    def _resign(self, partition: Partition) -> None:
        """End the leadership, and those of its companion logs."""
        leadership = partition.leadership
        assert leadership is not None
        for one in reversed(leadership.tied()):
            self._resign_one(self._partitions[one.key])

    def _resign_one(self, partition: Partition) -> None:
        self._leading.end(partition)
        if not (partition.is_mute or is_companion(partition.key.stream_id)):
            self._unsubscribe(partition)
        partition.is_mute = False
        partition.resign(self._outbox.step)
        self._moving.reconcile(partition)
        self._events.add(PartitionEventKind.RESIGNED, partition)

    def _listens_still(self, partition: Partition) -> bool:
        """True if the followed leader is alive and was connected to NATS lately: then it hands over without a gap."""
        following = partition.following
        if following is None or following.leader not in self.live or not self._follows.reaches(partition):
            return False
        heard_us = self._follows.listened_us(partition)
        return heard_us is not None and self._context.now.elapsed_us - heard_us <= _LATELY_US

    def _subscribe(self, partition: Partition, reason: str, *, goes_on: bool = True) -> None:
        """Subscribe, unless intake is off or the leader is mute. `reason`: why the partition may have had a gap."""
        if partition.is_deaf:
            return
        if not partition.is_mute:
            self._listening.listen(partition)
        if reason:
            self._listening.took_over(partition, self._context.now, reason, goes_on=goes_on)
        else:
            self._listening.begins(partition)

    def _pause_or_resume(self, partition: Partition) -> None:
        """Follow a changed intake setting. A pause is intended, so it is not reported as a gap."""
        is_listening = self._listening.listens(partition)
        if partition.is_deaf and is_listening:
            self._unsubscribe(partition)
            self._listening.paused(partition, self._context.now)
        elif not partition.is_deaf and not is_listening and not partition.is_mute:
            partition.listened_us = self._context.now.wall_us
            self._subscribe(partition, "")

    def _unsubscribe(self, partition: Partition) -> None:
        self._listening.resign(partition, self._context.now)
        partition.subscribed = False
        partition.refusal = ""

    def others_listened_us(self, partition: Partition) -> int | None:
        """Last wall-clock time at which another leader was subscribed; None if this broker leads."""
        if partition.leadership is not None and not partition.is_mute:
            return None
        if (heard_us := self._follows.listened_us(partition)) is None:
            return partition.listened_us
        now = self._context.now  # its leader was subscribed at least until then
        return max(partition.listened_us, now.wall_us - (now.elapsed_us - heard_us))

    def _unfollow(self, partition: Partition) -> None:
        if partition.following is not None:
            if (until_us := self.others_listened_us(partition)) is not None:
                partition.listened_us = until_us
            self._follows.end(partition)
            partition.following = None

    def _configure(self, partition: Partition) -> None:
        config = LogConfig.of(partition.stream.config)
        config = replace(config, rolls_up=config.rolls_up and not partition.stream.decides_rollups)
        if partition.stream.moves_keys and partition.key.partition >= partition.stream.counts[0]:
            # else the key's old value in an older partition would reappear
            config = replace(config, keeps_tombstones=True)
        if not partition.stream.config.is_internal and self._context.image.has_feature(SUBJECT_INDEX):
            config = replace(config, indexes_subjects=True)
        is_leader = partition.stream.partitions[partition.key.partition].leader == self._broker_id
        if expires_by_rows(self._context.image, partition.stream):
            config = replace(config, deciding=Deciding.ELSEWHERE)
            if partition.stream.config.marker_ttl_ms:
                config = replace(config, max_age_us=None)  # old messages may leave markers
        elif leader_decides(self._context.image, partition.stream, partition.key.partition):
            config = replace(config, deciding=Deciding.BY_MARKS if is_leader else Deciding.ELSEWHERE)
        if partition.stream.intake is Intake.SEALED:
            config = config.untouched()
        elif not is_leader:
            config = config.following()
        if partition.log.config != config:
            is_decided_anew = partition.log.config.deciding is not config.deciding
            partition.log.configure(config)
            if is_decided_anew and partition.leadership is not None:  # as at another feature level
                self._events.add(PartitionEventKind.SHOWN, partition)


def leader_decides(image: ClusterImage, stream: StreamState, number: int) -> bool:
    """True if the partition's leader decides for all replicas which rows compaction and expiry remove (ADR 89).

    Internal streams are read where they are led, and what one replica has alone needs no agreement.
    """
    if stream.config.is_internal or len(stream.partitions[number].holders) < 2:
        return False
    return image.has_feature(LEADER_DECIDES)


def expires_by_rows(image: ClusterImage, stream: StreamState) -> bool:
    """True if the leader hides the messages of a stream as they expire, in all of its log (ADR 97).

    With compaction messages go after a pass, so segment by segment, as below the feature level.
    """
    config = stream.config
    if not config.allow_message_ttl or config.compact or config.is_internal:
        return False
    is_rolled_up = config.allow_rollup and not stream.decides_rollups  # by each cleaner
    return image.has_feature(LEADER_DECIDES) and not is_rolled_up


def _name(partition: Partition) -> str:
    return f"{partition.stream.name}/{partition.key.partition}"
