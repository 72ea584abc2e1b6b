"""Companion logs in the image: one flag for each kind, from which all else follows."""

from __future__ import annotations

import msgspec
import pytest

from penstock.base.companion_kinds import CompanionKind
from penstock.base.config import Durability, Encryption, Intake, Storage, StreamConfig, check_stream_config
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, PartitionKey, StreamId
from penstock.messages import LogEnd
from penstock.metadata.commands import (
    AddCompanion,
    AddPartitions,
    Command,
    CreateStream,
    PartitionRecovery,
    RaiseFeatureLevel,
    RecoverPartitions,
    RegisterBroker,
    ReplicaEnd,
    SetIntake,
)
from penstock.metadata.companions import (
    companion_key,
    companion_of,
    consumers_key,
    find_stream,
    is_companion,
    is_consumers,
    is_marks,
    kind_of,
    marks_key,
    name_for_users,
    target_id,
    target_key,
    with_companions,
)
from penstock.metadata.controller.recoveries import Recoveries
from penstock.metadata.effects.apply import apply
from penstock.metadata.elections import ElectionRules, recovered
from penstock.metadata.feature_versions import unsupported_reason
from penstock.metadata.image import ClusterImage, CommandOutcome, PartitionState
from penstock.metadata.persistence.snapshot import decode_image, encode_image

STREAM = StreamId(4)
ONE, TWO, THREE = map(BrokerId, (1, 2, 3))


def after(image: ClusterImage, *commands: Command) -> ClusterImage:
    for command in commands:
        image, outcome = apply(image, image.index + 1, command)
        assert isinstance(outcome, CommandOutcome), outcome
    return image


def image(**config: object) -> ClusterImage:
    """Three brokers, and a stream on them."""
    fields = {"name": "s", "subject": "s", "partitions": 2, "replicas": 3, **config}
    registered = [
        RegisterBroker(
            broker_id=one, data_dir_id=f"disk-{one}", address=f"h:{one}", rack=None, broker_version="0.4.0",
            clean_stop=False, registered_us=7,
        )
        for one in (ONE, TWO, THREE)
    ]  # fmt: skip
    made = CreateStream(
        config=StreamConfig(**fields),  # type: ignore[arg-type]
        created_us=7,
        assignments=((ONE, TWO, THREE), (TWO, THREE, ONE)),
    )
    return after(ClusterImage(), *registered, made)


ADD = AddCompanion(stream_id=STREAM)
ADD_CONSUMERS = AddCompanion(stream_id=STREAM, kind=CompanionKind.CONSUMERS)
RAISE = RaiseFeatureLevel(feature_level=(0, 4), by="", at_us=7)


def test_the_image_holds_a_flag_and_all_else_is_the_streams_own() -> None:
    before = image()
    changed, outcome = apply(before, before.index + 1, ADD)
    assert isinstance(outcome, CommandOutcome)
    assert outcome.changed
    assert outcome.stream is changed.by_id(STREAM)
    assert len(changed.streams) == 1
    state = changed.by_id(STREAM)
    companion = companion_of(state, CompanionKind.MARKS)
    assert companion.partitions is state.partitions
    assert (companion.config.replicas, companion.config.min_isr) == (3, 2)
    assert companion.config.durability is Durability.FSYNC
    assert companion.config.is_internal
    assert check_stream_config(companion.config) == companion.config
    assert list(with_companions(state)) == [companion, state]
    again, outcome = apply(changed, changed.index + 1, ADD)
    assert isinstance(outcome, CommandOutcome)
    assert not outcome.changed
    assert again.streams[STREAM] == state


def test_its_ids_are_those_of_no_stream() -> None:
    key = PartitionKey(STREAM, PartitionId(1))
    assert is_companion(marks_key(key).stream_id)
    assert not is_companion(STREAM)
    assert marks_key(key).partition == 1
    assert target_key(marks_key(key)) == key == target_key(key)
    assert marks_key(marks_key(key)) == marks_key(key)
    changed = after(image(), ADD)
    found = find_stream(changed, marks_key(key).stream_id)
    assert found == companion_of(changed.by_id(STREAM), CompanionKind.MARKS)
    assert target_id(found.stream_id) == STREAM
    assert find_stream(image(), marks_key(key).stream_id) is None
    assert find_stream(changed, marks_key(PartitionKey(StreamId(9), PartitionId(0))).stream_id) is None


@pytest.mark.parametrize(
    ("intake", "companions"),
    [(Intake.PAUSED, Intake.OPEN), (Intake.READ_ONLY, Intake.OPEN), (Intake.SEALED, Intake.SEALED)],
)
def test_it_takes_marks_while_its_stream_takes_no_messages(intake: Intake, companions: Intake) -> None:
    changed = after(image(), ADD, SetIntake(stream_id=STREAM, intake=intake, since_us=9))
    assert companion_of(changed.by_id(STREAM), CompanionKind.MARKS).intake is companions


def test_it_is_stored_as_its_stream_is() -> None:
    for fields in ({"storage": Storage.MEMORY}, {"encryption": Encryption.AES_256_GCM}):
        config = companion_of(after(image(**fields), ADD).by_id(STREAM), CompanionKind.MARKS).config
        assert {name: getattr(config, name) for name in fields} == fields


def test_a_stream_with_metadata_has_one() -> None:
    """A config with metadata has no hash: no broker could apply the command, and none started again."""
    state = after(image(metadata={"team": "shop"}, description="d", former_subjects=("t",)), ADD).by_id(STREAM)
    companion = companion_of(state, CompanionKind.MARKS)
    assert companion.config.metadata is msgspec.UNSET
    assert companion_of(state, CompanionKind.MARKS).config is companion.config, (
        "each partition's config is the same object"
    )


def test_it_grows_with_its_stream() -> None:
    more = AddPartitions(stream_id=STREAM, before=2, assignments=((ONE, TWO, THREE),))
    state = after(image(), ADD, more).by_id(STREAM)
    companion = companion_of(state, CompanionKind.MARKS)
    assert companion.partitions is state.partitions
    assert companion.config.partitions == 3


def test_a_snapshot_without_any_is_as_before_there_were_some() -> None:
    before, changed = image(), after(image(), RAISE, ADD)
    assert encode_image(before)[1] == 1, "the version"
    assert encode_image(changed)[1] == 4
    for one in (before, changed):
        assert decode_image(encode_image(one)) == one
    false = encode_image(changed).replace(b"\x04", b"\x03", 1)
    with pytest.raises(RemoteError, match="companions in version 3"):
        decode_image(false)


def test_it_waits_for_the_feature_level() -> None:
    error = unsupported_reason(image(), ADD)
    assert error is not None
    assert error.code == ErrorCode.UNSUPPORTED_VERSION
    assert unsupported_reason(after(image(), RAISE), ADD) is None


@pytest.mark.parametrize(("has_marks", "leader"), [(False, THREE), (True, TWO)])
def test_a_longer_log_of_a_replica_that_was_out_of_sync_does_not_lead_where_there_are_marks(
    has_marks: bool, leader: BrokerId
) -> None:
    """It may lack marks that were answered: those that counted have them on their disks."""
    rules = ElectionRules(1, allow_unclean_election=False, has_marks=has_marks)
    partition = PartitionState((ONE, TWO, THREE), (TWO,), (), None, LeaderEpoch(5), 9, None, (ONE, TWO))
    ends = {
        one: ReplicaEnd(one, Incarnation(1), LeaderEpoch(5), Offset(end))
        for one, end in ((ONE, 7), (TWO, 8), (THREE, 9))
    }
    elected = recovered(partition, ends, {ONE, TWO, THREE}, rules)
    assert elected is not None
    assert elected.partition.leader == leader
    assert not elected.is_unclean


def told(image: ClusterImage, *ends: tuple[int, int, int, int]) -> list[PartitionRecovery]:
    """The recoveries that are due once brokers have told: broker, log end, epoch and end of the companion."""
    recoveries = Recoveries()
    for number, log_end, epoch, companion_end in ends:
        one = BrokerId(number)
        end = LogEnd(
            STREAM, PartitionId(0), LeaderEpoch(5), LeaderEpoch(5 if log_end else 0), Offset(log_end),
            marks_epoch=LeaderEpoch(epoch), marks_end=Offset(companion_end),
        )  # fmt: skip
        recoveries.add_log_ends(image, one, image.brokers[one].incarnation, [end], 0)
    return recoveries.due(image, 10**9)


def in_recovery(*, has_marks: bool = True) -> ClusterImage:
    """All three brokers have returned from unclean stops."""
    made = after(image(), *([ADD] if has_marks else []))
    state = made.by_id(STREAM)
    nobody = PartitionState((ONE, TWO, THREE), (TWO,), (), None, LeaderEpoch(5), 9, None, (ONE, TWO, THREE))
    return made.with_changed(state.with_partitions((nobody, state.partitions[1])))


@pytest.mark.parametrize("has_marks", [True, False])
@pytest.mark.parametrize("log_end", [0, 9])
def test_of_equally_long_logs_that_with_the_marks_leads(log_end: int, has_marks: bool) -> None:
    """The first has returned with an older copy of its disk, from before the marks; it has all messages."""
    before = in_recovery(has_marks=has_marks)
    (recovery,) = told(before, (1, log_end, 4, 2), (2, log_end, 4, 7), (3, log_end, 4, 7))
    led = after(before, RecoverPartitions(recoveries=(recovery,))).by_id(STREAM).partitions[0]
    assert led.leader == (TWO if has_marks else ONE)
    assert (ONE in led.unsure) is has_marks, "it may lead only if it is the longest by then"


def test_no_replica_leads_that_lacks_messages_or_marks_which_another_has() -> None:
    assert told(in_recovery(), (1, 9, 4, 2), (2, 8, 4, 7), (3, 8, 4, 7)) == []


def test_each_kind_has_a_flag_and_an_id_of_its_own() -> None:
    key = PartitionKey(STREAM, PartitionId(1))
    for kind, find, has in (
        (CompanionKind.MARKS, marks_key, is_marks),
        (CompanionKind.CONSUMERS, consumers_key, is_consumers),
    ):
        found = find(key)
        assert found == companion_key(key, kind) == find(marks_key(key)) == find(consumers_key(key))
        assert has(found.stream_id)
        assert kind_of(found.stream_id) is kind
        assert is_companion(found.stream_id)
        assert target_key(found) == key
    assert kind_of(STREAM) is None
    assert not is_marks(consumers_key(key).stream_id)
    only = after(image(), ADD_CONSUMERS).by_id(STREAM)
    assert only.companions == (CompanionKind.CONSUMERS,)
    both = after(image(), ADD_CONSUMERS, ADD, ADD_CONSUMERS).by_id(STREAM)
    assert both.companions == (CompanionKind.MARKS, CompanionKind.CONSUMERS)
    assert [kind_of(one.stream_id) for one in with_companions(both)] == [*both.companions, None]
    assert find_stream(after(image(), ADD), consumers_key(key).stream_id) is None
    assert find_stream(after(image(), ADD_CONSUMERS), marks_key(key).stream_id) is None


@pytest.mark.parametrize("durability", Durability)
def test_a_log_of_consumers_is_as_durable_as_the_messages_and_is_compacted(durability: Durability) -> None:
    state = after(image(durability=durability, segment_bytes=1 << 30), ADD_CONSUMERS).by_id(STREAM)
    config = companion_of(state, CompanionKind.CONSUMERS).config
    assert config.durability is durability
    assert config.compact
    assert config.is_internal
    assert config.segment_bytes < 1 << 30
    assert check_stream_config(config) == config
    assert config.name == f"__consumers-{STREAM}"
    assert name_for_users(companion_of(state, CompanionKind.CONSUMERS)) == "the log of consumers of stream 's'"
    for fields in ({"storage": Storage.MEMORY}, {"encryption": Encryption.AES_256_GCM}, {"min_isr": 1}):
        config = companion_of(after(image(**fields), ADD_CONSUMERS).by_id(STREAM), CompanionKind.CONSUMERS).config
        assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize("intake", [Intake.PAUSED, Intake.READ_ONLY, Intake.SEALED])
def test_consumers_go_on_while_their_stream_takes_no_messages(intake: Intake) -> None:
    changed = after(image(), ADD_CONSUMERS, SetIntake(stream_id=STREAM, intake=intake, since_us=9))
    assert companion_of(changed.by_id(STREAM), CompanionKind.CONSUMERS).intake is Intake.OPEN


def test_a_snapshot_tells_consumers_from_marks() -> None:
    for commands in ((RAISE, ADD), (RAISE, ADD_CONSUMERS), (RAISE, ADD, ADD_CONSUMERS)):
        made = after(image(), *commands)
        assert decode_image(encode_image(made)) == made
    false = encode_image(after(image(), RAISE, ADD_CONSUMERS)).replace(b"\x04", b"\x03", 1)
    with pytest.raises(RemoteError, match="companions in version 3"):
        decode_image(false)


def test_consumers_wait_for_the_feature_level() -> None:
    error = unsupported_reason(image(), ADD_CONSUMERS)
    assert error is not None
    assert error.code == ErrorCode.UNSUPPORTED_VERSION
    assert unsupported_reason(after(image(), RAISE), ADD_CONSUMERS) is None


@pytest.mark.parametrize(("failed", "leader"), [(False, TWO), (True, THREE)])
def test_a_longer_log_of_a_replica_that_was_out_of_sync_leads_only_if_none_with_all_consumers_can(
    failed: bool, leader: BrokerId
) -> None:
    """It may lack what consumers were told; but messages do not wait for a log of consumers."""
    rules = ElectionRules(1, allow_unclean_election=False, has_consumers=True)
    partition = PartitionState((ONE, TWO, THREE), (TWO,), (), None, LeaderEpoch(5), 9, None, (ONE, TWO))
    ends = {
        one: ReplicaEnd(one, Incarnation(1), LeaderEpoch(5), Offset(end), failed and one is not THREE)
        for one, end in ((ONE, 7), (TWO, 8), (THREE, 9))
    }
    elected = recovered(partition, ends, {ONE, TWO, THREE}, rules)
    assert elected is not None
    assert elected.partition.leader == leader
    assert not elected.is_unclean


def of_consumers(image: ClusterImage, *ends: tuple[int, int, int]) -> list[PartitionRecovery]:
    """The recoveries that are due once brokers have told: broker, log end, and end of the log of consumers."""
    recoveries = Recoveries()
    for number, log_end, consumers_end in ends:
        one = BrokerId(number)
        end = LogEnd(
            STREAM, PartitionId(0), LeaderEpoch(5), LeaderEpoch(5 if log_end else 0), Offset(log_end),
            consumers_epoch=LeaderEpoch(5 if consumers_end else 0), consumers_end=Offset(consumers_end),
        )  # fmt: skip
        recoveries.add_log_ends(image, one, image.brokers[one].incarnation, [end], 0)
    return recoveries.due(image, 10**9)


@pytest.mark.parametrize(
    ("ends", "leader"),
    [
        (((1, 9, 2), (2, 9, 7), (3, 9, 6)), TWO),  # of equally long logs
        (((1, 8, 9), (2, 9, 2), (3, 9, 3)), THREE),  # no message is lost for it
        (((1, 0, 0), (2, 0, 7), (3, 0, 7)), TWO),  # also without messages
        (((1, 9, 0), (2, 9, 0), (3, 9, 0)), ONE),  # nobody can read its log of consumers: messages go on
    ],
)
def test_of_the_replicas_with_all_messages_that_with_the_most_of_the_consumers_leads(
    ends: tuple[tuple[int, int, int], ...], leader: BrokerId
) -> None:
    before = after(image(), ADD_CONSUMERS)
    state = before.by_id(STREAM)
    nobody = PartitionState((ONE, TWO, THREE), (TWO,), (), None, LeaderEpoch(5), 9, None, (ONE, TWO, THREE))
    before = before.with_changed(state.with_partitions((nobody, state.partitions[1])))
    (recovery,) = of_consumers(before, *ends)
    assert after(before, RecoverPartitions(recoveries=(recovery,))).by_id(STREAM).partitions[0].leader == leader
