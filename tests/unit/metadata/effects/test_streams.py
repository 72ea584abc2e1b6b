"""Streams: what commands about them come to, and that nothing but commands changes the image."""

from __future__ import annotations

import msgspec
import pytest

from penstock.base import limits
from penstock.base.config import Acks, Durability, Intake, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionId, StreamId
from penstock.metadata.commands import (
    AddCompanion,
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    SetIntake,
    StartBroker,
    TruncatePartition,
    decode_command,
)
from penstock.metadata.effects.apply import apply
from penstock.metadata.effects.streams import altered_config, check_create, check_room, created_config, replicas_wanted
from penstock.metadata.image import ClusterImage, CommandOutcome, PartitionState, TruncatedEnd

ORDERS = StreamConfig(name="orders", subject="orders.>")
ORDERS_MADE = created_config(ORDERS, 1)
TRADES = StreamConfig(name="trades", subject="trades", partitions=3)


def create(config: StreamConfig = ORDERS) -> CreateStream:
    return CreateStream(config=config, created_us=7)


def folded(
    *commands: Command, image: ClusterImage | None = None
) -> tuple[ClusterImage, list[CommandOutcome | RemoteError]]:
    image = image or ClusterImage()
    outcomes = []
    for command in commands:
        image, outcome = apply(image, image.index + 1, command)
        outcomes.append(outcome)
    return image, outcomes


def code_of(outcome: CommandOutcome | RemoteError) -> str:
    assert isinstance(outcome, RemoteError), outcome
    return outcome.code


def test_id_is_the_index_of_the_command() -> None:
    image, outcomes = folded(StartBroker(started_us=1), create())
    state = image.by_name("orders")
    assert (state.stream_id, state.created_us) == (2, 7)
    assert state.partitions == (PartitionState((BrokerId(1),), (BrokerId(1),), (), BrokerId(1), LeaderEpoch(1), 1),)
    assert outcomes[1] == CommandOutcome(stream=state, changed=True, partitions=state.partition_keys())


def test_the_same_again_is_the_same_stream() -> None:
    image, outcomes = folded(create(), create())
    assert outcomes[1] == CommandOutcome(stream=image.by_name("orders"), changed=False)
    assert (len(image.streams), image.index) == (1, 2)


def test_another_config_under_the_name_is_refused_and_says_why() -> None:
    other = StreamConfig(name="orders", subject="orders.*", max_bytes=5)
    image, outcomes = folded(create(), create(other))
    assert code_of(outcomes[1]) == ErrorCode.STREAM_EXISTS
    assert isinstance(outcomes[1], RemoteError)
    assert outcomes[1].details["differences"] == {"subject": ["orders.>", "orders.*"], "max_bytes": [None, 5]}
    assert image.by_name("orders").config == ORDERS_MADE


def test_created_again_is_another_stream() -> None:
    image, _ = folded(create(), DeleteStream(stream_id=1), create())
    assert image.by_name("orders").stream_id == 3
    with pytest.raises(RemoteError, match="another one") as caught:
        image.by_id(1)
    assert caught.value.code == ErrorCode.STREAM_CHANGED
    with pytest.raises(RemoteError) as caught:
        image.by_id(4)
    assert caught.value.code == ErrorCode.STREAM_NOT_FOUND


@pytest.mark.parametrize("missing", [0, 9, 10**12])
def test_delete_of_nothing(missing: int) -> None:
    image, outcomes = folded(create(), DeleteStream(stream_id=missing))
    assert code_of(outcomes[1]) == ErrorCode.STREAM_NOT_FOUND
    assert image.index == 2


def test_second_delete_finds_it_gone() -> None:
    _, outcomes = folded(create(), DeleteStream(stream_id=1), DeleteStream(stream_id=1))
    assert code_of(outcomes[2]) == ErrorCode.STREAM_CHANGED


def test_alter() -> None:
    image, outcomes = folded(create(), AlterStream(stream_id=1, changes={"max_age_ms": 5, "durability": "os"}))
    config = image.by_name("orders").config
    assert (config.max_age_ms, config.durability, config.subject) == (5, Durability.OS, "orders.>")
    assert isinstance(outcomes[1], CommandOutcome)
    assert outcomes[1].changed


@pytest.mark.parametrize(("before", "after"), [("yes", "yes"), ("copying", "no"), ("no", "no")])
def test_an_alteration_may_leave_deletion_suspended_by_a_user(before: str, after: str) -> None:
    ended = AlterStream(stream_id=1, changes={"suspend_deletion": "no", "max_age_ms": 5}, keep_suspended=True)
    image, _ = folded(create(), AlterStream(stream_id=1, changes={"suspend_deletion": before}), ended)
    config = image.by_name("orders").config
    assert (config.max_age_ms, config.suspend_deletion) == (5, msgspec.UNSET if after == "no" else after)


@pytest.mark.parametrize("field", ["deny_delete", "deny_purge"])
def test_what_is_denied_for_ever_cannot_be_allowed_again(field: str) -> None:
    image, outcomes = folded(
        create(),
        AlterStream(stream_id=1, changes={field: True}),
        AlterStream(stream_id=1, changes={field: False, "max_age_ms": 5}),
        AlterStream(stream_id=1, changes={field: True, "max_age_ms": 6}),
    )
    assert isinstance(outcomes[2], RemoteError)
    assert outcomes[2].details["mistakes"] == [f"{field}: cannot be taken back once it is set"]
    assert (image.by_name("orders").config.max_age_ms, getattr(image.by_name("orders").config, field)) == (6, True)


def test_interest_brings_the_log_of_marks_and_a_change_to_a_queue_is_refused() -> None:
    image, outcomes = folded(
        create(),
        AlterStream(stream_id=1, changes={"retention": "interest"}),
        AlterStream(stream_id=1, changes={"retention": "workqueue"}),
    )
    assert image.by_name("orders").has_marks
    assert isinstance(outcomes[2], RemoteError)
    assert outcomes[2].code == ErrorCode.INVALID_CONFIG
    assert image.by_name("orders").config.drops_unwanted


def test_a_truncation_is_refused_where_purges_are_denied() -> None:
    denied = AlterStream(stream_id=1, changes={"deny_purge": True})
    command = TruncatePartition(stream_id=1, partition=0, leader_epoch=1, before=3)
    _, outcomes = folded(create(), denied, command)
    assert isinstance(outcomes[2], RemoteError)
    assert (outcomes[2].code, "deny_purge is set" in str(outcomes[2])) == (ErrorCode.READ_ONLY, True)


def test_deletion_that_is_suspended_can_be_resumed_in_a_sealed_stream() -> None:
    """It means nothing there, and the doctor reports it."""
    suspended, resumed = (AlterStream(stream_id=1, changes={"suspend_deletion": one}) for one in ("copying", "no"))
    image, _ = folded(create(), suspended, intake(Intake.SEALED), resumed)
    assert image.by_name("orders").config.suspend_deletion is msgspec.UNSET


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"subject": "x"}, ["subject"]),
        ({"name": "x", "bogus": 1}, ["name", "bogus"]),
        ({"max_age_ms": 0, "segment_bytes": 1}, ["max_age_ms", "segment_bytes"]),
        ({"max_age_ms": "soon"}, ["max_age_ms"]),
        ({"durability": "hope"}, ["durability"]),
        ({"max_message_bytes": None}, ["max_message_bytes"]),
    ],
)
def test_alter_refuses_with_every_mistake(changes: dict[str, object], named: list[str]) -> None:
    with pytest.raises(RemoteError) as caught:
        altered_config(ORDERS_MADE, changes)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert all(name in str(caught.value) for name in named)


def test_alter_names_the_choices_there_are() -> None:
    with pytest.raises(RemoteError) as caught:
        altered_config(ORDERS_MADE, {"compression": "gzip", "durability": 7, "max_age_ms": "soon"})
    assert caught.value.details["mistakes"] == [
        "compression: it is one of 'none', 'lz4', 'zstd'",
        "durability: it is one of 'auto', 'fsync', 'os'",
        "max_age_ms: expected `int | None`, got `str`",
    ]


def test_alter_cannot_make_what_create_would_refuse() -> None:
    with pytest.raises(RemoteError) as caught:
        altered_config(created_config(StreamConfig(name="all", subject=">", acks=Acks.NEVER), 1), {"acks": "reply"})
    assert caught.value.code == ErrorCode.INVALID_CONFIG


def test_what_was_journaled_is_not_lost_to_stricter_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that allows less starts on what one that allowed more has made."""
    monkeypatch.setattr(limits, "STREAM_NAME_CHARS_MAX", 3)
    monkeypatch.setattr(limits, "MESSAGE_BYTES_MAX", 10)
    monkeypatch.setattr(limits, "STREAMS_MAX", 0)
    image, _ = folded(create(), AlterStream(stream_id=1, changes={"max_message_bytes": 11}))
    assert image.by_name("orders").config.max_message_bytes == 11


@pytest.mark.parametrize("changes", [{"name": "x"}, {"partitions": 2}, {"replicas": 1, "max_bytes": 9}])
def test_what_the_image_also_holds_elsewhere_is_never_altered(changes: dict[str, object]) -> None:
    image, outcomes = folded(create(), AlterStream(stream_id=1, changes=changes))
    assert code_of(outcomes[1]) == ErrorCode.INVALID_CONFIG
    assert image.by_name("orders").config == ORDERS_MADE


@pytest.mark.parametrize("changes", [{"durability": "hope"}, {"a_later_field": 1}])
def test_a_change_that_is_none_of_this_version_is_not_refused_in_silence(changes: dict[str, object]) -> None:
    """It was checked before it was agreed on: brokers of the later version have carried it out."""
    image, _ = folded(create())
    with pytest.raises(msgspec.ValidationError):
        apply(image, 2, AlterStream(stream_id=1, changes=changes))


def test_every_start_raises_every_epoch() -> None:
    image, _ = folded(create(), StartBroker(started_us=1), create(TRADES), StartBroker(started_us=2))
    epochs = {name: [(one.leader_epoch, one.version) for one in image.by_name(name).partitions] for name in image.names}
    assert epochs == {"orders": [(3, 3)], "trades": [(2, 2)] * 3}


def test_invalid_create_names_every_mistake() -> None:
    with pytest.raises(RemoteError) as caught:
        check_create(ClusterImage(), StreamConfig(name="a b", subject="x..y", max_bytes=0), brokers=1, ready=1)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert len(caught.value.details["mistakes"]) == 3


def test_number_of_streams_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAMS_MAX", 1)
    image, _ = folded(create())
    with pytest.raises(RemoteError) as caught:
        check_create(image, StreamConfig(name="b", subject="b"), brokers=1, ready=1)
    assert caught.value.code == ErrorCode.TOO_LARGE
    assert check_create(image, ORDERS, brokers=1, ready=1) is image.by_name("orders")


def test_number_of_partitions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_MAX", 5)
    image, _ = folded(create(), create(TRADES))
    assert check_create(image, StreamConfig(name="b", subject="b"), brokers=1, ready=1) is None
    with pytest.raises(RemoteError, match="4 partitions together, companion logs included; with 2 more") as caught:
        check_create(image, StreamConfig(name="b", subject="b", partitions=2), brokers=1, ready=1)
    assert caught.value.code == ErrorCode.TOO_LARGE
    with pytest.raises(RemoteError, match="with 2 more they pass 5"):
        check_create(image, StreamConfig(name="b", subject="b", max_messages_per_subject=1), brokers=1, ready=1)
    image, _ = folded(create(), create(TRADES), AddCompanion(stream_id=StreamId(1)))
    with pytest.raises(RemoteError, match="5 partitions together, companion logs included; with 3 more"):
        check_room(image, len(image.by_name("trades").partitions), streams=0)


def test_replicas_are_where_the_command_says() -> None:
    one, two, three = BrokerId(1), BrokerId(2), BrokerId(3)
    assignments = ((one, two), (two, three), (one, two))
    image, _ = folded(CreateStream(config=TRADES, created_us=7, assignments=assignments))
    state = image.by_name("trades")
    assert [(part.replicas, part.isr, part.leader) for part in state.partitions] == [
        ((one, two), (one, two), one),
        ((two, three), (two, three), two),
        ((one, two), (one, two), one),
    ]
    assert (state.config.replicas, state.config.min_isr) == (2, 1)


@pytest.mark.parametrize(
    ("replicas", "brokers", "made"), [(None, 1, (1, 1)), (None, 2, (2, 1)), (None, 9, (3, 2)), (5, 9, (5, 3))]
)
def test_none_becomes_a_number_when_the_stream_is_made(
    replicas: int | None, brokers: int, made: tuple[int, int]
) -> None:
    config = StreamConfig(name="a", subject="a", replicas=replicas)
    check_create(ClusterImage(), config, brokers=brokers, ready=brokers)
    found = created_config(config, replicas_wanted(config, brokers))
    assert (found.replicas, found.min_isr) == made
    assert created_config(found, 7) is found


def test_none_is_whatever_the_stream_has_by_now() -> None:
    two = (BrokerId(1), BrokerId(2))
    image, _ = folded(CreateStream(config=ORDERS, created_us=7, assignments=(two,)))
    assert check_create(image, ORDERS, brokers=3, ready=3) is image.by_name("orders")
    for other in ({"replicas": 3}, {"min_isr": 2}, {"partitions": 2, "subject": "orders"}):
        with pytest.raises(RemoteError) as caught:
            check_create(image, msgspec.structs.replace(ORDERS, **other), brokers=3, ready=3)
        assert caught.value.code == ErrorCode.STREAM_EXISTS
        assert other.keys() <= caught.value.details["differences"].keys()


def test_more_replicas_than_the_cluster_has_brokers_are_refused() -> None:
    config = msgspec.structs.replace(ORDERS, replicas=2)
    with pytest.raises(RemoteError) as caught:
        check_create(ClusterImage(), config, brokers=1, ready=1)
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert caught.value.message.endswith("but the cluster has 1; ask for fewer, or add brokers first")
    assert check_create(ClusterImage(), config, brokers=2, ready=2) is None


@pytest.mark.parametrize(("replicas", "brokers", "ready"), [(2, 3, 1), (None, 3, 2), (None, 1, 0), (3, 3, 0)])
def test_what_waits_only_for_brokers_that_are_away_can_be_asked_again(
    replicas: int | None, brokers: int, ready: int
) -> None:
    """How many copies a stream gets must not depend on who happens to be there when it is made."""
    config = msgspec.structs.replace(ORDERS, replicas=replicas)
    with pytest.raises(RemoteError) as caught:
        check_create(ClusterImage(), config, brokers=brokers, ready=ready)
    assert caught.value.code == ErrorCode.BROKER_UNAVAILABLE
    assert check_create(ClusterImage(), config, brokers=brokers, ready=brokers) is None


def test_a_min_isr_above_the_replicas_is_refused() -> None:
    config = msgspec.structs.replace(ORDERS, min_isr=2)
    with pytest.raises(RemoteError) as caught:
        check_create(ClusterImage(), config, brokers=1, ready=1)
    mistake = "min_isr: 2 in-sync replicas are more than 1 in all"
    assert (caught.value.code, caught.value.details["mistakes"]) == (ErrorCode.INVALID_CONFIG, [mistake])
    assert check_create(ClusterImage(), config, brokers=3, ready=3) is None


def test_min_isr_can_be_altered_within_the_replicas() -> None:
    three = (BrokerId(1), BrokerId(2), BrokerId(3))
    image, _ = folded(
        CreateStream(config=ORDERS, created_us=7, assignments=(three,)),
        AlterStream(stream_id=1, changes={"min_isr": 3}),
    )
    config = image.by_name("orders").config
    assert config.min_isr == 3
    assert altered_config(config, {"min_isr": None}).min_isr == 2
    with pytest.raises(RemoteError, match="min_isr: 4 is not between 1 and 3"):
        altered_config(config, {"min_isr": 4})


def test_a_command_of_before_there_were_partitions() -> None:
    data = msgspec.msgpack.encode(
        {"type": "create_stream", "config": {"name": "orders", "subject": "orders.>"}, "created_us": 7}
    )
    image, _ = folded(decode_command(data))
    state = image.by_name("orders")
    assert state.partitions == (PartitionState.made((BrokerId(1),)),)
    assert (state.config.partitions, state.config.replicas, state.config.min_isr) == (1, 1, 1)


def test_an_image_never_changes() -> None:
    before, _ = folded(create())
    after, _ = folded(AlterStream(stream_id=1, changes={"max_bytes": 9}), DeleteStream(stream_id=1), image=before)
    assert before.by_name("orders").config == ORDERS_MADE
    assert (before.index, after.index, len(after.streams)) == (1, 3, 0)
    with pytest.raises(TypeError):
        before.streams[1] = before.by_name("orders")  # type: ignore[index]


def test_commands_follow_each_other() -> None:
    """With gaps: the log of commands has entries of its own, too."""
    image, _ = apply(ClusterImage(), 5, create())
    assert image.by_name("orders").stream_id == 5
    with pytest.raises(AssertionError):
        apply(image, 5, create(TRADES))


def truncate(partition: int, before: int, leader_epoch: int = 1) -> TruncatePartition:
    return TruncatePartition(
        stream_id=StreamId(1),
        partition=PartitionId(partition),
        leader_epoch=LeaderEpoch(leader_epoch),
        before=Offset(before),
    )


def truncated(image: ClusterImage) -> list[tuple[int, int, int]]:
    return [(one.partition, one.before, one.leader_epoch) for one in image.by_name("trades").truncated]


def test_what_is_given_up_of_each_partition_only_rises_within_a_leadership() -> None:
    image, outcomes = folded(create(TRADES), truncate(2, 50), truncate(0, 7), truncate(2, 40), truncate(2, 50))
    assert truncated(image) == [(0, 7, 1), (2, 50, 1)]
    assert [isinstance(one, CommandOutcome) and one.changed for one in outcomes] == [True, True, True, False, False]
    assert image.by_name("trades").truncated_at(2) == TruncatedEnd(PartitionId(2), Offset(50), LeaderEpoch(1))
    assert image.by_name("trades").truncated_at(1) is None


def test_a_later_leader_knows_better_what_there_is() -> None:
    image, outcomes = folded(create(TRADES), truncate(0, 50), StartBroker(started_us=9), truncate(0, 60))
    assert code_of(outcomes[3]) == ErrorCode.FENCED_EPOCH
    image, outcomes = folded(truncate(0, 60, 3), truncate(0, 30, 2), image=image)  # after an unclean election, perhaps
    assert code_of(outcomes[0]) == ErrorCode.UNKNOWN_EPOCH
    assert truncated(image) == [(0, 30, 2)]


def test_only_a_partition_that_is_there_is_truncated() -> None:
    _, outcomes = folded(create(TRADES), truncate(3, 1), DeleteStream(stream_id=1), truncate(0, 1))
    assert [code_of(outcomes[number]) for number in (1, 3)] == [ErrorCode.BAD_REQUEST, ErrorCode.STREAM_CHANGED]


def test_what_was_given_up_stays_when_other_things_change() -> None:
    image, _ = folded(
        create(TRADES),
        truncate(1, 5),
        intake(Intake.PAUSED),
        AlterStream(stream_id=1, changes={"max_bytes": 5}),
        StartBroker(started_us=9),
    )
    state = image.by_name("trades")
    assert (truncated(image), state.intake, state.intake_us) == ([(1, 5, 1)], Intake.PAUSED, 100)


def intake(wanted: Intake, since_us: int = 100) -> SetIntake:
    return SetIntake(stream_id=StreamId(1), intake=wanted, since_us=since_us)


def test_the_time_of_an_intake_rises_whatever_the_clocks_say() -> None:
    image, outcomes = folded(
        create(),
        intake(Intake.PAUSED),
        intake(Intake.PAUSED, 200),
        intake(Intake.READ_ONLY, 50),
        intake(Intake.OPEN, 150),
    )
    assert [isinstance(one, CommandOutcome) and one.stream and one.stream.intake_us for one in outcomes] == [
        0,
        100,
        100,
        101,
        150,
    ]
    assert image.by_name("orders").intake is Intake.OPEN


def test_a_sealed_stream_stays_so_and_keeps_what_it_has() -> None:
    image, outcomes = folded(
        create(),
        intake(Intake.SEALED),
        intake(Intake.OPEN),
        intake(Intake.SEALED),
        truncate(0, 3),
        AlterStream(stream_id=1, changes={"max_age_ms": 5, "min_isr": 1}),
        AlterStream(stream_id=1, changes={"min_isr": 1, "allow_unclean_election": True}),
    )
    assert [code_of(outcomes[number]) for number in (2, 4, 5)] == [
        ErrorCode.READ_ONLY,
        ErrorCode.READ_ONLY,
        ErrorCode.INVALID_CONFIG,
    ]
    assert isinstance(outcomes[3], CommandOutcome)
    assert not outcomes[3].changed
    state = image.by_name("orders")
    assert (state.intake, state.config.max_age_ms, state.config.allow_unclean_election) == (Intake.SEALED, None, True)
    image, _ = folded(DeleteStream(stream_id=1), image=image)
    assert not image.streams
