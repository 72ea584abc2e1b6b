"""The logs of one partition beside its image: what disks have, and what was acked, while brokers crash and come back.

Rules: a message is its leader epoch and a number. A leader writes, and all who are in sync have it; if they are enough,
and nobody else may lead any more, it is acked. Who joins them has all. Others have a part of it. An unclean stop may
lose any tail. Another disk has what it had when it was here.
"""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionKey
from penstock.metadata.commands import PartitionRecovery, RegisterBroker, ReplicaEnd
from penstock.metadata.elections import holders
from penstock.metadata.image import ClusterImage, PartitionState

Log = list[tuple[int, int]]


def _common(one: Log, other: Log) -> Log:
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


class Copies:
    """All logs of one partition, by the disk that they are on."""

    def __init__(self) -> None:
        self._logs: dict[tuple[BrokerId, str], Log] = {}
        self._acked: Log = []
        self._number = 0

    def _log(self, image: ClusterImage, broker_id: BrokerId) -> Log:
        return self._logs.setdefault((broker_id, image.brokers[broker_id].data_dir_id), [])

    def _has_all(self, log: Log) -> bool:
        return log[: len(self._acked)] == self._acked

    def crashed(self, draw: st.DrawFn, command: RegisterBroker) -> None:
        """A broker comes back from an unclean stop."""
        log = self._logs.get((command.broker_id, command.data_dir_id))
        if log:
            del log[draw(st.integers(0, len(log))) :]

    def joined(self, image: ClusterImage, partition: PartitionState, joined: set[BrokerId]) -> None:
        """The leader has found that these have all that it has."""
        for one in joined if partition.leader is not None else ():
            self._log(image, one)[:] = self._log(image, partition.leader)

    def works(self, draw: st.DrawFn, image: ClusterImage, partition: PartitionState, min_isr: int) -> None:
        """Messages come, if somebody leads, and go to the others."""
        if partition.leader is None:
            return
        log = self._log(image, partition.leader)
        for _ in range(draw(st.integers(0, 2))):
            self._number += 1
            log.append((partition.leader_epoch, self._number))
        is_acked = draw(st.booleans())
        for one in partition.replicas:
            if one == partition.leader or one not in image.live_brokers():
                continue
            copy = self._log(image, one)
            if one in partition.isr and is_acked:
                copy[:] = log
            elif one not in partition.isr and draw(st.booleans()):
                common = _common(copy, log)
                copy[:] = log[: draw(st.integers(len(common), len(log)))]
        if is_acked and len(partition.isr) >= min_isr and not (partition.eligible or partition.unsure):
            self._acked = list(log)

    def recovery(self, draw: st.DrawFn, image: ClusterImage, key: PartitionKey) -> PartitionRecovery:
        """What those tell who are there; who was not in sync may be late."""
        partition = image.partition(*key)
        told = []
        for one in partition.replicas:
            if one in image.live_brokers() and (one in holders(partition) or draw(st.booleans())):
                log = self._log(image, one)
                last_epoch = LeaderEpoch(log[-1][0] if log else 0)
                incarnation, has_failed = image.brokers[one].incarnation, draw(st.integers(0, 5)) == 0
                if has_failed and draw(st.booleans()):  # it cannot be opened
                    told.append(ReplicaEnd(one, incarnation, LeaderEpoch(0), Offset(0), has_failed))
                else:
                    told.append(ReplicaEnd(one, incarnation, last_epoch, Offset(len(log)), has_failed))
        return PartitionRecovery(*key, partition.leader_epoch, tuple(told))

    def led(
        self,
        image: ClusterImage,
        before: PartitionState,
        partition: PartitionState,
        recovery: PartitionRecovery | None,
        *,
        is_unclean: bool,
    ) -> None:
        """A leader begins: with all that was acked, or of those who counted nobody has it, be it in a failed log."""
        assert partition.leader is not None
        log = self._log(image, partition.leader)
        if not (self._has_all(log) or is_unclean):
            if recovery is None:
                assert image.live_brokers() & set(partition.replicas) == {partition.leader}
            else:
                assert not [one for one in holders(before) if self._has_all(self._log(image, one))]
        self._acked = _common(self._acked, log)
