"""One of each metadata command, and an image that has something in every field: what their golden bytes are made of.

`python -m tests.compat.golden_metadata` writes what is missing in golden/; what is there is never written again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from penstock.access import Credential, CredentialKind, Operation, Quotas, Rule, User
from penstock.base.companion_kinds import CompanionKind
from penstock.base.config import Durability, Intake, StreamConfig
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, StreamId
from penstock.messages import IsrChange, IsrMember
from penstock.metadata.api_decisions import ApiState
from penstock.metadata.commands import (
    AddCompanion,
    AddPartitions,
    AddReplicas,
    AlterStream,
    AlterUser,
    ChangeIsr,
    ChangeRules,
    Command,
    CreateStream,
    CreateUser,
    DecideApi,
    DeleteStream,
    DeleteUser,
    Election,
    ElectionReason,
    ElectLeaders,
    ExportUsers,
    FenceBroker,
    FormCluster,
    MarkKeys,
    PartitionRecovery,
    RaiseFeatureLevel,
    RecordDeletion,
    RecoverPartitions,
    RegisterBroker,
    ReplicaEnd,
    ReportArchived,
    SetIntake,
    StartBroker,
    StopBroker,
    TruncatePartition,
    encode_command,
)
from penstock.metadata.effects.apply import apply
from penstock.metadata.image import ClusterImage
from penstock.metadata.persistence.snapshot import encode_image

GOLDEN = Path(__file__).parent / "golden"


def _broker(number: int) -> BrokerId:
    return BrokerId(number)


def _register(number: int, data_dir_id: str, rack: str | None = None) -> RegisterBroker:
    return RegisterBroker(
        broker_id=_broker(number),
        data_dir_id=data_dir_id,
        address=f"10.0.0.{number}:7422",
        rack=rack,
        broker_version="0.2.0",
        clean_stop=False,
        registered_us=1_700_000_000_000_000,
    )


_MEMBERS = (IsrMember(_broker(2), Incarnation(3)), IsrMember(_broker(1), Incarnation(2)))

_FIRST_REASONS = (ElectionReason.UNREACHABLE, ElectionReason.RESIGNED, ElectionReason.PREFERRED)

USER_US = 1_700_000_008_000_000

COMMANDS: dict[str, Command] = {
    "create-stream": CreateStream(
        config=StreamConfig(
            name="orders", subject="orders", partitions=2, min_isr=2, max_age_ms=86_400_000, durability=Durability.FSYNC
        ),
        created_us=1_700_000_000_000_001,
        assignments=((_broker(2), _broker(1), _broker(3)), (_broker(3), _broker(2), _broker(1))),
    ),
    "alter-stream": AlterStream(stream_id=5, changes={"max_bytes": 2**40, "allow_unclean_election": True}),
    "add-partitions": AddPartitions(
        stream_id=StreamId(1),
        before=2,
        assignments=((BrokerId(2), BrokerId(3), BrokerId(1)),),
        observers=((BrokerId(4),),),
    ),
    "add-partitions2": AddPartitions(
        stream_id=StreamId(1), before=2, assignments=((BrokerId(1),), (BrokerId(2),)), range_bounds=("m", "t")
    ),
    "add-replicas": AddReplicas(
        stream_id=StreamId(5), assignments=((_broker(1), _broker(2)), (_broker(1), _broker(3)))
    ),
    "add-companion": AddCompanion(stream_id=StreamId(5)),
    "add-companion2": AddCompanion(stream_id=StreamId(5), kind=CompanionKind.CONSUMERS),
    "record-deletion": RecordDeletion(
        stream_id=StreamId(5),
        partition=PartitionId(1),
        messages=9,
        ranges=((Offset(3), Offset(4)), (Offset(8), Offset(16))),
        subject="orders.*",
        keep=2,
        by="ann",
        at_us=1_700_000_012_000_000,
    ),
    "mark-keys": MarkKeys(
        stream_id=StreamId(1),
        partitions=3,
        partition=PartitionId(1),
        leader_epoch=LeaderEpoch(2),
        end_offset=Offset(9),
        marked_us=1_700_000_007_000_000,
    ),
    "alter-stream2": AlterStream(stream_id=5, changes={"observers": 1}, observers=((_broker(4),), (_broker(4),))),
    "delete-stream": DeleteStream(stream_id=5),
    "form-cluster": FormCluster(cluster_id="c-7f"),
    "form-cluster2": FormCluster(cluster_id="c-7f", feature_level=(0, 4)),
    "raise-feature-level": RaiseFeatureLevel(feature_level=(0, 4), by="ann", at_us=1_700_000_011_000_000),
    "decide-api": DecideApi(
        prefix="$JS.API.",
        before=0,
        state=ApiState.WAITING,
        decided_us=1_700_000_012_000_000,
        why="the settings of broker 2",
        broker_id=_broker(2),
        held_back_by=(_broker(2),),
    ),
    "decide-api2": DecideApi(
        prefix="$JS.penstock.API.",
        before=41,
        state=ApiState.TAKEN,
        decided_us=1_700_000_012_000_000,
        evidence=((_broker(1), Incarnation(2)), (_broker(2), Incarnation(3))),
        by="ann",
        at_us=1_700_000_012_000_000,
    ),
    "register-broker": _register(2, "disk-2", rack="east"),
    "fence-broker": FenceBroker(broker_id=_broker(2), incarnation=Incarnation(3)),
    "stop-broker": StopBroker(broker_id=_broker(2), incarnation=Incarnation(3)),
    "change-isr": ChangeIsr(
        broker_id=_broker(2),
        incarnation=Incarnation(3),
        changes=(IsrChange(StreamId(5), PartitionId(1), LeaderEpoch(4), 9, _MEMBERS, commits_resumed=True),),
    ),
    "elect-leaders": ElectLeaders(
        elections=tuple(
            Election(StreamId(5), PartitionId(number), LeaderEpoch(4), reason)
            for number, reason in enumerate(_FIRST_REASONS)
        )
    ),
    "elect-leaders2": ElectLeaders(
        elections=tuple(
            Election(StreamId(5), PartitionId(number), LeaderEpoch(4), reason)
            for number, reason in enumerate(ElectionReason)
        ),
        silent=(_broker(3),),
    ),
    "register-broker2": RegisterBroker(
        broker_id=_broker(2),
        data_dir_id="disk-2",
        address="127.0.0.1:7002",
        rack=None,
        broker_version="0.1.0",
        clean_stop=True,
        registered_us=1_700_000_000_000_001,
        run_before=4,
        process="d1f2",
    ),
    "recover-partitions": RecoverPartitions(
        recoveries=(
            PartitionRecovery(
                StreamId(5),
                PartitionId(1),
                LeaderEpoch(4),
                (
                    ReplicaEnd(_broker(2), Incarnation(3), LeaderEpoch(4), Offset(900)),
                    ReplicaEnd(_broker(1), Incarnation(2), LeaderEpoch(0), Offset(0), has_failed=True),
                ),
            ),
        ),
        silent=(_broker(3),),
    ),
    "truncate-partition": TruncatePartition(
        stream_id=StreamId(5), partition=PartitionId(1), leader_epoch=LeaderEpoch(1), before=Offset(700)
    ),
    "set-intake": SetIntake(stream_id=StreamId(5), intake=Intake.READ_ONLY, since_us=1_700_000_000_000_003),
    "report-archived": ReportArchived(
        stream_id=StreamId(5),
        partition=PartitionId(1),
        leader_epoch=LeaderEpoch(1),
        archive="lake",
        end_offset=Offset(700),
    ),
    "start-broker": StartBroker(started_us=1_700_000_000_000_002),
    "create-user": CreateUser(
        user=User(
            "ann",
            1_700_000_008_000_000,
            (
                Credential(
                    "password", CredentialKind.PASSWORD, USER_US, None, b"s" * 16, 600_000, b"k" * 32, b"v" * 32
                ),
                Credential("k1", CredentialKind.NKEY, USER_US, 1_800_000_000_000_000, public_key="U" * 56),
            ),
            (Rule(Operation.ADMIN), Rule(Operation.COMMIT_OFFSETS, stream="orders", group="billing-*")),
            Quotas(1_000, None, 7, 5),
        ),
        created_us=1_700_000_008_000_000,
        by="root",
        is_first=True,
    ),
    "alter-user": AlterUser(
        name="ann", altered_us=1_700_000_009_000_000, drop=("k1",), quotas=Quotas(None, 2_000, None, 3), by="ann"
    ),
    "alter-user-quotas": AlterUser(
        name="ann", altered_us=1_700_000_009_000_000, quotas=Quotas(None, 2_000, None, 3, 40, 5_000_000), by="ann"
    ),
    "change-rules": ChangeRules(
        name="ann", changed_us=1_700_000_009_000_001, add=(Rule(Operation.READ, subject="orders.>"),), by="ann"
    ),
    "delete-user": DeleteUser(name="bob", deleted_us=1_700_000_009_000_002, by="ann"),
    "export-users": ExportUsers(exported_us=1_700_000_009_000_004, after="bob", by="ann"),
    "delete-stream-by": DeleteStream(stream_id=5, by="ann", at_us=1_700_000_009_000_003),
}


def image() -> ClusterImage:
    """A cluster in which a disk was lost and a replica is eligible."""
    made = ClusterImage()
    isr = IsrChange(StreamId(5), PartitionId(0), LeaderEpoch(1), 1, _MEMBERS[:1])
    for index, command in enumerate(
        (
            COMMANDS["form-cluster"],
            _register(1, "disk-1"),
            _register(2, "disk-2", rack="east"),
            _register(3, "disk-3"),
            COMMANDS["create-stream"],
            ChangeIsr(broker_id=_broker(2), incarnation=Incarnation(3), changes=(isr,)),
            StopBroker(broker_id=_broker(3), incarnation=Incarnation(4)),
            FenceBroker(broker_id=_broker(1), incarnation=Incarnation(2)),
            _register(2, "another"),
        ),
        1,
    ):
        made, _ = apply(made, index, command)
    # Whoever left an ISR that could ack went on being eligible only later than these bytes were written.
    state = made.by_name("orders")
    first, second = state.partitions
    second = msgspec.structs.replace(second, eligible=(_broker(1),))
    streams = made.streams.with_items({state.stream_id: msgspec.structs.replace(state, partitions=(first, second))})
    return replace(made, streams=streams)


def later_image() -> ClusterImage:
    """The same, once the other who had all that was acked has come back from an unclean stop."""
    made, _ = apply(image(), image().index + 1, _register(1, "disk-1"))
    return made


def truncated_image() -> ClusterImage:
    """The same, once the beginning of a partition was given up."""
    before = later_image()
    (epoch, _) = (one.leader_epoch for one in before.by_name("orders").partitions)
    command = TruncatePartition(stream_id=StreamId(5), partition=PartitionId(0), leader_epoch=epoch, before=Offset(700))
    made, _ = apply(before, before.index + 1, command)
    return made


def read_only_image() -> ClusterImage:
    """The same, once the stream takes no messages."""
    before = truncated_image()
    made, _ = apply(before, before.index + 1, COMMANDS["set-intake"])
    return made


def archived_image() -> ClusterImage:
    """The same, once two archives have told what they have."""
    made = read_only_image()
    (epoch, _) = (one.leader_epoch for one in made.by_name("orders").partitions)
    for archive in ("lake", "attic"):
        command = ReportArchived(
            stream_id=StreamId(5),
            partition=PartitionId(0),
            leader_epoch=epoch,
            archive=archive,
            end_offset=Offset(800),
        )
        made, _ = apply(made, made.index + 1, command)
    return made


def observed_image() -> ClusterImage:
    """The same, once a further broker observes the stream."""
    made = archived_image()
    for command in (_register(4, "disk-4"), COMMANDS["alter-stream2"]):
        made, _ = apply(made, made.index + 1, command)
    return made


def grown_image() -> ClusterImage:
    """The same, once the stream got a partition more, and one of the older ones has given up its keys."""
    made = observed_image()
    state = made.by_name("orders")
    add = AddPartitions(
        stream_id=StreamId(5),
        before=2,
        assignments=(state.partitions[0].replicas,),
        observers=(state.partitions[0].observers,),
    )
    mark = MarkKeys(
        stream_id=StreamId(5),
        partitions=3,
        partition=PartitionId(0),
        leader_epoch=state.partitions[0].leader_epoch,
        end_offset=Offset(900),
        marked_us=1_700_000_007_000_000,
    )
    for command in (add, mark):
        made, outcome = apply(made, made.index + 1, command)
        assert not isinstance(outcome, Exception), outcome
    return made


def guarded_image() -> ClusterImage:
    """The same, once there is a user."""
    made = grown_image()
    for name in ("create-user", "alter-user", "change-rules"):
        made, outcome = apply(made, made.index + 1, COMMANDS[name])
        assert not isinstance(outcome, Exception), outcome
    return made


def owned_image() -> ClusterImage:
    """The same, once that user has made a stream."""
    before = guarded_image()
    command = CreateStream(
        config=StreamConfig(name="bills", subject="bills", replicas=1, min_isr=1),
        created_us=1_700_000_010_000_000,
        assignments=((_broker(4),),),
        by="ann",
        at_us=1_700_000_010_000_000,
    )
    made, outcome = apply(before, before.index + 1, command)
    assert not isinstance(outcome, Exception), outcome
    return made


def raised_image() -> ClusterImage:
    """The same, once all brokers were upgraded and the feature level was raised."""
    made = owned_image()
    upgraded = (
        msgspec.structs.replace(_register(number, one.data_dir_id), broker_version="0.4.0")
        for number, one in sorted(made.brokers.items())
    )
    for command in (*upgraded, COMMANDS["raise-feature-level"]):
        made, outcome = apply(made, made.index + 1, command)
        assert not isinstance(outcome, Exception), outcome
    return made


def companion_image() -> ClusterImage:
    """The same, once one of the streams has companion logs."""
    made, _ = apply(raised_image(), raised_image().index + 1, COMMANDS["add-companion"])
    return made


def api_image() -> ClusterImage:
    """The same, once somebody wants to serve JetStream's API."""
    made, _ = apply(companion_image(), companion_image().index + 1, COMMANDS["decide-api"])
    return made


def consumers_image() -> ClusterImage:
    """The same, once that stream has logs of consumers, too, and another one has them alone."""
    made = api_image()
    bills = AddCompanion(stream_id=made.by_name("bills").stream_id, kind=CompanionKind.CONSUMERS)
    for command in (COMMANDS["add-companion2"], bills):
        made, outcome = apply(made, made.index + 1, command)
        assert not isinstance(outcome, Exception), outcome
    return made


IMAGES = (
    image,
    later_image,
    truncated_image,
    read_only_image,
    archived_image,
    observed_image,
    grown_image,
    guarded_image,
    owned_image,
    raised_image,
    companion_image,
    api_image,
    consumers_image,
)
"""By the number in the name of their file."""


def golden_bytes() -> dict[str, bytes]:
    """File name → what it holds."""
    commands = {f"command-{name}.bin": encode_command(command) for name, command in COMMANDS.items()}
    images = {f"image{number}.bin": encode_image(made()) for number, made in enumerate(IMAGES, 1)}
    return {**commands, **images}


if __name__ == "__main__":
    for name, data in golden_bytes().items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(data)
