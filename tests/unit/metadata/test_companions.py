"""Companion logs in the image: one flag, from which all else follows."""

from __future__ import annotations

import msgspec
import pytest

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
    find_stream,
    is_companion,
    target_id,
    target_key,
    with_companion,
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
RAISE = RaiseFeatureLevel(feature_level=(0, 4), by="", at_us=7)


def test_the_image_holds_a_flag_and_all_else_is_the_streams_own() -> None:
    before = image()
    changed, outcome = apply(before, before.index + 1, ADD)
    assert isinstance(outcome, CommandOutcome)
    assert outcome.changed
    assert outcome.stream is changed.by_id(STREAM)
    assert len(changed.streams) == 1
    state = changed.by_id(STREAM)
    companion = companion_of(state)
    assert companion.partitions is state.partitions
    assert (companion.config.replicas, companion.config.min_isr) == (3, 2)
    assert companion.config.durability is Durability.FSYNC
    assert companion.config.is_internal
    assert check_stream_config(companion.config) == companion.config
    assert list(with_companion(state)) == [companion, state]
    again, outcome = apply(changed, changed.index + 1, ADD)
    assert isinstance(outcome, CommandOutcome)
    assert not outcome.changed
    assert again.streams[STREAM] == state


def test_its_ids_are_those_of_no_stream() -> None:
    key = PartitionKey(STREAM, PartitionId(1))
    assert is_companion(companion_key(key).stream_id)
    assert not is_companion(STREAM)
    assert companion_key(key).partition == 1
    assert target_key(companion_key(key)) == key == target_key(key)
    assert companion_key(companion_key(key)) == companion_key(key)
    changed = after(image(), ADD)
    found = find_stream(changed, companion_key(key).stream_id)
    assert found == companion_of(changed.by_id(STREAM))
    assert target_id(found.stream_id) == STREAM
    assert find_stream(image(), companion_key(key).stream_id) is None
    assert find_stream(changed, companion_key(PartitionKey(StreamId(9), PartitionId(0))).stream_id) is None


@pytest.mark.parametrize(
    ("intake", "companions"),
    [(Intake.PAUSED, Intake.OPEN), (Intake.READ_ONLY, Intake.OPEN), (Intake.SEALED, Intake.SEALED)],
)
def test_it_takes_marks_while_its_stream_takes_no_messages(intake: Intake, companions: Intake) -> None:
    changed = after(image(), ADD, SetIntake(stream_id=STREAM, intake=intake, since_us=9))
    assert companion_of(changed.by_id(STREAM)).intake is companions


def test_it_is_stored_as_its_stream_is() -> None:
    for fields in ({"storage": Storage.MEMORY}, {"encryption": Encryption.AES_256_GCM}):
        config = companion_of(after(image(**fields), ADD).by_id(STREAM)).config
        assert {name: getattr(config, name) for name in fields} == fields


def test_a_stream_with_metadata_has_one() -> None:
    """A config with metadata has no hash: no broker could apply the command, and none started again."""
    state = after(image(metadata={"team": "shop"}, description="d", former_subjects=("t",)), ADD).by_id(STREAM)
    companion = companion_of(state)
    assert companion.config.metadata is msgspec.UNSET
    assert companion_of(state).config is companion.config, "each partition's config is the same object"


def test_it_grows_with_its_stream() -> None:
    more = AddPartitions(stream_id=STREAM, before=2, assignments=((ONE, TWO, THREE),))
    state = after(image(), ADD, more).by_id(STREAM)
    companion = companion_of(state)
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


@pytest.mark.parametrize(("has_companion", "leader"), [(False, THREE), (True, TWO)])
def test_a_longer_log_of_a_replica_that_was_out_of_sync_does_not_lead_where_there_are_marks(
    has_companion: bool, leader: BrokerId
) -> None:
    """It may lack marks that were answered: those that counted have them on their disks."""
    rules = ElectionRules(1, allow_unclean_election=False, has_companion=has_companion)
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
            companion_epoch=LeaderEpoch(epoch), companion_end=Offset(companion_end),
        )  # fmt: skip
        recoveries.add_log_ends(image, one, image.brokers[one].incarnation, [end], 0)
    return recoveries.due(image, 10**9)


def in_recovery(*, has_companion: bool = True) -> ClusterImage:
    """All three brokers have returned from unclean stops."""
    made = after(image(), *([ADD] if has_companion else []))
    state = made.by_id(STREAM)
    nobody = PartitionState((ONE, TWO, THREE), (TWO,), (), None, LeaderEpoch(5), 9, None, (ONE, TWO, THREE))
    return made.with_changed(state.with_partitions((nobody, state.partitions[1])))


@pytest.mark.parametrize("has_companion", [True, False])
@pytest.mark.parametrize("log_end", [0, 9])
def test_of_equally_long_logs_that_with_the_marks_leads(log_end: int, has_companion: bool) -> None:
    """The first has returned with an older copy of its disk, from before the marks; it has all messages."""
    before = in_recovery(has_companion=has_companion)
    (recovery,) = told(before, (1, log_end, 4, 2), (2, log_end, 4, 7), (3, log_end, 4, 7))
    led = after(before, RecoverPartitions(recoveries=(recovery,))).by_id(STREAM).partitions[0]
    assert led.leader == (TWO if has_companion else ONE)
    assert (ONE in led.unsure) is has_companion, "it may lead only if it is the longest by then"


def test_no_replica_leads_that_lacks_messages_or_marks_which_another_has() -> None:
    assert told(in_recovery(), (1, 9, 4, 2), (2, 8, 4, 7), (3, 8, 4, 7)) == []
