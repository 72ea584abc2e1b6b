"""Stories of the cluster's metadata, in tests/scenarios/metadata: commands, and what becomes of partitions.

| command                                                     | does                                                   |
|-------------------------------------------------------------|--------------------------------------------------------|
| `cluster N`                                                 | N brokers register, each with its own disk             |
| `create NAME replicas=1,2,3 [min_isr=N] [unclean]`          | a stream of one partition; `replicas=1,2;2,3`: of two  |
| `alter NAME field=value …`, `delete NAME`                   | changes, deletes                                       |
| `register ID clean` or `unclean` `[disk=D]`                 | a broker starts                                        |
| `fence ID [run=N]`, `stop ID [run=N]`                       | a run of it ends; the present one                      |
| `isr NAME 1,2 [resumed] [unsynced]`                         | its leader wants that ISR; it commits, if they are     |
|                                                             | enough, unless it has not synced; or at once           |
| … `by=ID` `run=N` `epoch=N` `version=N` `stale=ID`          | asked for wrongly; `stale`: with an earlier run of it  |
| `elect NAME REASON [epoch=N]`                               | another leader                                         |
| `recover NAME 1=EPOCH:END 2=failed … [stale=ID]`            | the longest of these logs leads; `failed:EPOCH:END`    |
| `show`                                                      | all partitions                                         |

Each command shows the partitions that it changed; `UNCLEAN` marks a leader that may lack what was acked.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, PartitionKey
from penstock.messages import IsrChange, IsrMember
from penstock.metadata.commands import (
    AlterStream,
    ChangeIsr,
    Command,
    CreateStream,
    DeleteStream,
    Election,
    ElectionReason,
    ElectLeaders,
    FenceBroker,
    PartitionRecovery,
    RecoverPartitions,
    RegisterBroker,
    ReplicaEnd,
    StopBroker,
)
from penstock.metadata.effects.apply import apply
from penstock.metadata.image import ClusterImage, PartitionState


def ids(text: str) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(number)) for number in text.split(","))


def listed(brokers: tuple[BrokerId, ...]) -> str:
    return ",".join(map(str, brokers)) or "-"


def told(partition: PartitionState) -> str:
    awaited = f" awaits={partition.awaited_data_dir_id}" if partition.awaited_data_dir_id else ""
    unsure = f" unsure={listed(partition.unsure)}" if partition.unsure else ""
    return (
        f"leader={partition.leader or '-'} isr={listed(partition.isr)} eligible={listed(partition.eligible)} "
        f"epoch={partition.leader_epoch} version={partition.version}{unsure}{awaited}"
    )


class Story:
    """An image that is told what happens."""

    def __init__(self) -> None:
        self.image = ClusterImage()

    def tell(self, line: str) -> list[str]:
        """What a person would see of it."""
        word, *rest = line.split()
        words = [part for part in rest if "=" not in part]
        options = dict(part.split("=", 1) for part in rest if "=" in part)
        seen: list[str] = getattr(self, f"_{word}")(words, options)
        return seen

    def apply(self, command: Command) -> list[str]:
        self.image, outcome = apply(self.image, self.image.index + 1, command)
        if isinstance(outcome, RemoteError):
            return [f"refused: {outcome}"]
        seen = [f"refused: {result}" for result in outcome.results if isinstance(result, RemoteError)]
        if outcome.deleted:
            return seen
        return seen + [self._line(key) + (" UNCLEAN" if key in outcome.unclean else "") for key in outcome.partitions]

    def _line(self, key: PartitionKey) -> str:
        state = self.image.streams[key.stream_id]
        number = f"/{key.partition}" if len(state.partitions) > 1 else ""
        return f"{state.name}{number}: {told(state.partitions[key.partition])}"

    def _cluster(self, words: list[str], options: dict[str, str]) -> list[str]:
        return [line for number in range(1, int(words[0]) + 1) for line in self._register([str(number), "clean"], {})]

    def _register(self, words: list[str], options: dict[str, str]) -> list[str]:
        broker_id = int(words[0])
        return self.apply(
            RegisterBroker(
                broker_id=BrokerId(broker_id),
                data_dir_id=options.get("disk", f"disk{broker_id}"),
                address=f"127.0.0.1:{7000 + broker_id}",
                rack=None,
                broker_version="1",
                clean_stop={"clean": True, "unclean": False}[words[1]],
                registered_us=1,
            )
        )

    def _run(self, broker_id: BrokerId, options: dict[str, str]) -> Incarnation:
        return Incarnation(int(options["run"])) if "run" in options else self.image.brokers[broker_id].incarnation

    def _fence(self, words: list[str], options: dict[str, str]) -> list[str]:
        broker_id = BrokerId(int(words[0]))
        return self.apply(FenceBroker(broker_id=broker_id, incarnation=self._run(broker_id, options)))

    def _stop(self, words: list[str], options: dict[str, str]) -> list[str]:
        broker_id = BrokerId(int(words[0]))
        return self.apply(StopBroker(broker_id=broker_id, incarnation=self._run(broker_id, options)))

    def _create(self, words: list[str], options: dict[str, str]) -> list[str]:
        assignments = tuple(ids(replicas) for replicas in options["replicas"].split(";"))
        config = StreamConfig(
            name=words[0],
            subject=words[0],
            partitions=len(assignments),
            min_isr=int(options["min_isr"]) if "min_isr" in options else None,
            allow_unclean_election="unclean" in words,
        )
        return self.apply(CreateStream(config=config, created_us=1, assignments=assignments))

    def _alter(self, words: list[str], options: dict[str, str]) -> list[str]:
        changes: dict[str, Any] = {name: msgspec.json.decode(value) for name, value in options.items()}
        return self.apply(AlterStream(stream_id=self.image.by_name(words[0]).stream_id, changes=changes))

    def _delete(self, words: list[str], options: dict[str, str]) -> list[str]:
        return self.apply(DeleteStream(stream_id=self.image.by_name(words[0]).stream_id))

    def _isr(self, words: list[str], options: dict[str, str]) -> list[str]:
        state = self.image.by_name(words[0])
        partition = state.partitions[0]
        leader = BrokerId(int(options.get("by", partition.leader or 1)))
        members = tuple(
            IsrMember(one, Incarnation(self.image.brokers[one].incarnation - (options.get("stale") == str(one))))
            for one in ids(words[1])
        )
        change = IsrChange(
            state.stream_id,
            PartitionId(0),
            LeaderEpoch(int(options.get("epoch", partition.leader_epoch))),
            int(options.get("version", partition.version)),
            members,
            "resumed" in words or ("unsynced" not in words and len(members) >= (state.config.min_isr or 1)),
        )
        return self.apply(ChangeIsr(broker_id=leader, incarnation=self._run(leader, options), changes=(change,)))

    def _elect(self, words: list[str], options: dict[str, str]) -> list[str]:
        state = self.image.by_name(words[0])
        epoch = LeaderEpoch(int(options.get("epoch", state.partitions[0].leader_epoch)))
        election = Election(state.stream_id, PartitionId(0), epoch, ElectionReason(words[1]))
        return self.apply(ElectLeaders(elections=(election,)))

    def _recover(self, words: list[str], options: dict[str, str]) -> list[str]:
        state = self.image.by_name(words[0])
        epoch = LeaderEpoch(int(options.get("epoch", state.partitions[0].leader_epoch)))
        ends = []
        for one, told in options.items():
            if one.isdigit():
                run = Incarnation(self.image.brokers[BrokerId(int(one))].incarnation - (options.get("stale") == one))
                has_failed = told.startswith("failed")
                last_epoch, log_end = map(int, (told.removeprefix("failed").strip(":") or "0:0").split(":"))
                ends.append(ReplicaEnd(BrokerId(int(one)), run, LeaderEpoch(last_epoch), Offset(log_end), has_failed))
        recovery = PartitionRecovery(state.stream_id, PartitionId(0), epoch, tuple(ends))
        return self.apply(RecoverPartitions(recoveries=(recovery,)))

    def _show(self, words: list[str], options: dict[str, str]) -> list[str]:
        return [self._line(key) for state in self.image.streams.values() for key in state.partition_keys()]
