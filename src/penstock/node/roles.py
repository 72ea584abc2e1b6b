"""Who leads and who follows here: the image, partition by partition, made true.

Rules: only a broker that is registered leads or follows. A partition whose log is being cut waits for that, whatever it
is to be then. Only a leader is subscribed: any other subscriber would turn a fast "no responders" into a time-out. A
leader epoch that the log has already seen is nobody's to lead in: two leaderships under one number would make two
different messages look the same. A leader of which the metadata leader has not heard for a session may have a successor
that it does not know: of a partition with several replicas it is mute, which is not subscribed, and takes and tells
nothing of which it is not sure, until it is heard again and leads still. What followers fetch meanwhile is committed.

| the image says            | here it was      | what is done                                                      |
|---------------------------|------------------|-------------------------------------------------------------------|
| this broker leads         | anything else    | begin a leadership, subscribe                                     |
| this broker leads         | leader, as now   | look at the ISR                                                   |
| … but it is not heard     | leader           | unsubscribe, refuse; subscribe again once it is heard             |
| another one leads         | leader           | unsubscribe, drop pending acks, follow                            |
| another one leads         | follower         | follow that one                                                   |
| … but its stream is paused| leader           | unsubscribe, refuse; subscribe again once it is resumed           |
| nobody leads              | anything         | stop that; what is committed can be read                          |
| … until the longest log   | anything         | the same, and tell the metadata leader where the log ends         |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.config import Intake
from penstock.base.ids import BrokerId, Incarnation
from penstock.commitlog import LogConfig
from penstock.metadata.image import ClusterImage
from penstock.node.chronicle import Chronicle
from penstock.node.following import Follows
from penstock.node.leading import Leading
from penstock.node.listening import NOBODY_LED, NOT_HEARD, Listening
from penstock.node.moving import Moving
from penstock.node.partition import Partition
from penstock.node.step import Outbox
from penstock.node.upkeep import Upkeep

_ANOTHER_LED = "another broker led it"
_LATELY_US = (limits.REPLICA_FETCH_WAIT_MS + 100) * 1_000  # of an answer that comes when a long poll ends


class Roles:
    """Gives partitions their place. `image` is to be called first, and whenever brokers have come or gone."""

    def __init__(
        self,
        broker_id: BrokerId,
        outbox: Outbox,
        leading: Leading,
        follows: Follows,
        listening: Listening,
        upkeep: Upkeep,
        moving: Moving,
        clock: Callable[[], Now],
        chronicle: Chronicle,
        *,
        began: Callable[[Partition], None],
        resigned: Callable[[Partition], None],
        nobody_leads: Callable[[Partition], None],
    ) -> None:
        self.live: Mapping[BrokerId, Incarnation] = {}  # the present run of each broker that is there
        self._broker_id = broker_id
        self._outbox = outbox
        self._leading = leading
        self._follows = follows
        self._listening = listening
        self._upkeep = upkeep
        self._moving = moving
        self._clock = clock
        self._chronicle = chronicle
        self._began = began
        self._resigned = resigned
        self._nobody_leads = nobody_leads
        self._is_registered = False
        self._is_heard = True

    def image(self, image: ClusterImage, own: Incarnation | None) -> bool:
        """Who is there; `own` is the run in which this broker leads and follows. Whether any of it is news."""
        live = {one.broker_id: one.incarnation for one in image.brokers.values() if one.is_live}
        is_registered = own is not None and live.get(self._broker_id) == own
        if live == self.live and is_registered == self._is_registered:
            return False
        before, self.live, self._is_registered = self.live, live, is_registered
        self._leading.runs_changed(before, live)
        if own is not None and is_registered:
            self._leading.registered(own)
            self._follows.registered(own, self._clock())
        return True

    def heard(self, partitions: Iterable[Partition], awake_us: int, *, is_heard: bool) -> None:
        """The metadata leader has stopped answering this broker, or answers again.

        `awake_us`: when this process is last known to have run; nobody stored what was published after that.
        """
        self._is_heard = is_heard
        for partition in partitions:
            if partition.leadership is None or partition.is_mute == self._must_be_mute(partition):
                continue
            if is_heard:
                partition.is_mute = False
                self._subscribe(partition, NOT_HEARD)
            else:
                partition.is_mute = True
                self._unsubscribe(partition)
                partition.listened_us = min(partition.listened_us, awake_us)

    @property
    def is_heard(self) -> bool:
        """Whether the metadata leader answers this broker."""
        return self._is_heard

    def _must_be_mute(self, partition: Partition) -> bool:
        return not self._is_heard and partition.is_replicated

    def update(self, partition: Partition) -> None:
        """Have the partition be what the image says."""
        if partition.cutting is not None:
            return  # again, when that is done
        state = partition.stream.partitions[partition.key.partition]
        if self._is_registered and state.leader == self._broker_id:
            self._lead(partition)
            self._upkeep.truncate(partition)
            return
        if partition.leadership is not None:
            self._chronicle.ended(_name(partition))
            self._resign(partition)
        if self._is_registered and state.leader is not None and self._broker_id in state.holders:
            self._configure(partition)
            self._follows.follow(partition, state)
            self._listening.led_elsewhere(partition, self._clock())
        else:
            self._unfollow(partition)
            if self._is_registered and state.leader is None:
                if not partition.is_deaf:
                    self._listening.nobody(partition, self._clock())
                if self._broker_id in state.replicas:  # an observer's log is nobody's, however long
                    self._nobody_leads(partition)

    def leave(self, partition: Partition) -> None:
        """The partition is gone from here."""
        if partition.leadership is not None:
            self._leading.end(partition)
        self._unfollow(partition)

    def _lead(self, partition: Partition) -> None:
        state = partition.stream.partitions[partition.key.partition]
        leadership = partition.leadership
        if leadership is not None and leadership.leader_epoch == state.leader_epoch:
            self._configure(partition)
            self._moving.look(partition)
            self._listening.subscriptions.move_if_due(partition)
            self._pause_or_resume(partition)
            before = leadership.isr
            self._leading.image(partition, state, self.live, self._clock())
            if leadership.waits_for_own_disk:
                self._upkeep.flush(partition)
            if leadership.isr != before:
                self._chronicle.isr(_name(partition), before, leadership.isr)
            return
        if leadership is not None:
            self._resign(partition)
        else:
            self._chronicle.led(_name(partition))
        goes_on = state.leader_epoch == partition.led_epoch + 1
        was_followed, listens_still = partition.following is not None, self._listens_still(partition)
        self._unfollow(partition)
        if listens_still:  # until it hears of this, as this broker does now
            partition.listened_us = self._clock().wall_us
        if state.leader_epoch <= partition.log.leader_epoch:
            partition.cannot_lead = (
                f"its log has seen leader epoch {partition.log.leader_epoch}, and the metadata says "
                f"{state.leader_epoch}: the metadata has lost commands"
            )
            partition.tell(partition.cannot_lead, self._outbox)
            return
        partition.cannot_lead = ""
        self._configure(partition)
        self._leading.begin(partition, state, self.live, self._clock())
        partition.is_mute = self._must_be_mute(partition)
        self._moving.look(partition)  # before anything comes
        partition.led_epoch = state.leader_epoch
        reason = _ANOTHER_LED if was_followed else NOBODY_LED
        self._subscribe(partition, reason if state.leader_epoch > 1 else "", goes_on=goes_on)  # else it is new
        self._upkeep.advance(partition)
        self._began(partition)

    def _resign(self, partition: Partition) -> None:
        self._leading.end(partition)
        if not partition.is_mute:
            self._unsubscribe(partition)
        partition.is_mute = False
        partition.resign(self._outbox.step)
        self._moving.look(partition)
        self._resigned(partition)

    def _listens_still(self, partition: Partition) -> bool:
        """Whether the leader that it follows is there, and has said lately that it has NATS: it gives over, alive."""
        following = partition.following
        if following is None or following.leader not in self.live or not self._follows.reaches(partition):
            return False
        heard_us = self._follows.listened_us(partition)
        return heard_us is not None and self._clock().elapsed_us - heard_us <= _LATELY_US

    def _subscribe(self, partition: Partition, reason: str, *, goes_on: bool = True) -> None:
        """Listen, unless that is not to be; `reason`: why nobody did until now, as far as this broker knows."""
        if partition.is_deaf:
            return
        if not partition.is_mute:
            self._listening.listen(partition)
        if reason:
            self._listening.took_over(partition, self._clock(), reason, goes_on=goes_on)
        else:
            self._listening.begins(partition)

    def _pause_or_resume(self, partition: Partition) -> None:
        """The image may have another intake of it. A pause is no gap: it is meant."""
        is_listening = self._listening.listens(partition)
        if partition.is_deaf and is_listening:
            self._unsubscribe(partition)
            self._listening.paused(partition, self._clock())
        elif not partition.is_deaf and not is_listening and not partition.is_mute:
            partition.listened_us = self._clock().wall_us
            self._subscribe(partition, "")

    def _unsubscribe(self, partition: Partition) -> None:
        self._listening.resign(partition, self._clock())
        partition.subscribed = False
        partition.refusal = ""

    def others_listened_us(self, partition: Partition) -> int | None:
        """The last time at which another leader was subscribed, wall clock; None: this broker leads the partition."""
        if partition.leadership is not None and not partition.is_mute:
            return None
        if (heard_us := self._follows.listened_us(partition)) is None:
            return partition.listened_us
        now = self._clock()  # its leader did until then, at least
        return max(partition.listened_us, now.wall_us - (now.elapsed_us - heard_us))

    def _unfollow(self, partition: Partition) -> None:
        if partition.following is not None:
            if (until_us := self.others_listened_us(partition)) is not None:
                partition.listened_us = until_us
            self._follows.end(partition)
            partition.following = None

    def _configure(self, partition: Partition) -> None:
        config = LogConfig.of(partition.stream.config)
        if partition.stream.moves_keys and partition.key.partition >= partition.stream.counts[0]:
            config = replace(config, keeps_tombstones=True)  # or what an older partition has of a key would come back
        is_leader = partition.stream.partitions[partition.key.partition].leader == self._broker_id
        if partition.stream.intake is Intake.SEALED:
            config = config.untouched()
        elif not is_leader:
            config = config.following()
        if partition.log.config != config:
            partition.log.configure(config)


def _name(partition: Partition) -> str:
    return f"{partition.stream.name}/{partition.key.partition}"
