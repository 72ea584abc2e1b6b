"""Whatever commands come, the image keeps its rules, and whoever leads has all that was acked, or it is said."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, PartitionId, PartitionKey, StreamId
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
    RecoverPartitions,
    RegisterBroker,
    StopBroker,
    decode_command,
    encode_command,
)
from penstock.metadata.effects.apply import apply
from penstock.metadata.elections import recovers
from penstock.metadata.image import ClusterImage, CommandOutcome, PartitionState, StreamState, loads_of
from tests.extent import each_change, examples
from tests.unit.metadata.copies import Copies
from tests.work import lines_run

BROKERS = (BrokerId(1), BrokerId(2), BrokerId(3))
NAMES = st.sampled_from(["orders", "trades", "logs"])


def register(broker_id: BrokerId, data_dir_id: str = "", *, clean_stop: bool = True) -> RegisterBroker:
    return RegisterBroker(
        broker_id=broker_id,
        data_dir_id=data_dir_id or f"disk{broker_id}",
        address=f"127.0.0.1:{7000 + broker_id}",
        rack=None,
        broker_version="1",
        clean_stop=clean_stop,
        registered_us=1,
    )


Logs = dict[PartitionKey, Copies]


@st.composite
def next_commands(draw: st.DrawFn, image: ClusterImage, copies: Logs) -> Command:
    """A command that fits the image nearly always, so that most do something."""
    broker_id = draw(st.sampled_from(BROKERS))
    broker = image.brokers.get(broker_id)
    incarnation = Incarnation(1 if broker is None else broker.incarnation)
    kind = draw(
        st.sampled_from(["register", "fence", "stop", "create", "alter", "delete", "isr", "isr", "isr", "elect"])
    )
    live = image.live_brokers()
    if (waiting := [key for key in copies if recovers(image.partition(*key), live)]) and draw(st.booleans()):
        return RecoverPartitions(recoveries=tuple(copies[key].recovery(draw, image, key) for key in waiting))
    if kind == "register" or not image.brokers:
        return register(broker_id, draw(st.sampled_from(["", "", "", "new"])), clean_stop=draw(st.booleans()))
    if kind == "fence":
        return FenceBroker(broker_id=broker_id, incarnation=incarnation)
    if kind == "stop":
        return StopBroker(broker_id=broker_id, incarnation=incarnation)
    if kind == "create" or not image.streams:
        count, partitions = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        assignments = tuple(tuple(draw(st.permutations(BROKERS))[:count]) for _ in range(partitions))
        config = StreamConfig(
            name=draw(NAMES),
            subject="x",
            partitions=partitions,
            min_isr=draw(st.integers(1, count)),
            allow_unclean_election=draw(st.booleans()),
        )
        return CreateStream(config=config, created_us=1, assignments=assignments)
    state = draw(st.sampled_from(list(image.streams.values())))
    if kind == "alter":
        changes = draw(st.sampled_from([{"min_isr": 1}, {"min_isr": None}, {"allow_unclean_election": True}]))
        return AlterStream(stream_id=state.stream_id, changes=changes)
    if kind == "delete" and draw(st.booleans()):
        return DeleteStream(stream_id=state.stream_id)
    number = PartitionId(draw(st.integers(0, len(state.partitions) - 1)))
    partition = state.partitions[number]
    if kind == "elect":
        reason = draw(st.sampled_from(ElectionReason))
        return ElectLeaders(elections=(Election(state.stream_id, number, partition.leader_epoch, reason),))
    leader = partition.leader or broker_id
    members = tuple(
        IsrMember(one, image.brokers[one].incarnation if one in image.brokers else Incarnation(1))
        for one in partition.replicas
        if one == leader or draw(st.booleans())
    )
    change = IsrChange(
        state.stream_id,
        number,
        LeaderEpoch(partition.leader_epoch),
        partition.version - draw(st.sampled_from([0, 0, 0, 1])),
        members or (IsrMember(BrokerId(1), Incarnation(1)),),
        draw(st.booleans()),
    )
    run = image.brokers[leader].incarnation if leader in image.brokers else Incarnation(1)
    return ChangeIsr(broker_id=leader, incarnation=run, changes=(change,))


def check_partition(image: ClusterImage, state: StreamState, partition: PartitionState) -> None:
    isr, eligible = set(partition.isr), set(partition.eligible)
    assert isr
    assert isr <= set(partition.replicas)
    assert partition.isr == tuple(one for one in partition.replicas if one in isr)
    assert eligible <= set(partition.replicas)
    assert not eligible & isr
    live = image.live_brokers()
    assert len(isr) == 1 or isr <= live
    unsure, there = set(partition.unsure), live & set(partition.replicas)
    assert unsure <= set(partition.replicas)
    assert not unsure & eligible
    if partition.leader is None:
        assert not live & ((eligible | (isr if partition.awaited_data_dir_id is None else set())) - unsure)
        assert not unsure & isr or len(isr) == 1
        assert not recovers(partition, live) or len(there) > 1
        assert not (state.config.allow_unclean_election and there) or recovers(partition, live)
    else:
        assert partition.leader in isr
        assert partition.leader in live
        assert partition.awaited_data_dir_id is None
        assert not unsure & isr


def check_step(
    before: ClusterImage, command: Command, after: ClusterImage, outcome: CommandOutcome | RemoteError
) -> None:
    if isinstance(outcome, RemoteError):
        assert (after.streams, after.brokers, after.names) == (before.streams, before.brokers, before.names)
        return
    changed = set()
    for stream_id, state in after.streams.items():
        earlier = before.streams.get(stream_id)
        for number, now in enumerate(state.partitions):
            key = PartitionKey(stream_id, PartitionId(number))
            was = None if earlier is None else earlier.partitions[number]
            if now == was:
                continue
            changed.add(key)
            if was is None:
                continue
            assert now.version == was.version + 1
            assert now.replicas == was.replicas
            assert now.leader_epoch - was.leader_epoch in (0, 1)
            if now.leader is not None and now.leader != was.leader:
                assert now.leader_epoch == was.leader_epoch + 1
                had_all = now.leader in {*was.isr, *was.eligible, *was.unsure}
                assert had_all or key in outcome.unclean or outcome.recovered
            assert (key in outcome.unclean) <= state.config.allow_unclean_election
    if not outcome.deleted:
        assert set(outcome.partitions) == changed
    assert set(outcome.unclean) <= changed
    if isinstance(command, RegisterBroker):  # no leadership outlives its run
        for stream_id, state in before.streams.items():
            for was, now in zip(state.partitions, after.streams[stream_id].partitions, strict=True):
                assert was.leader != command.broker_id or now.leader_epoch > was.leader_epoch or now.leader is None


def check_copies(
    draw: st.DrawFn, copies: Logs, before: ClusterImage, command: Command, after: ClusterImage, outcome: CommandOutcome
) -> None:
    for key in [key for key in copies if key.stream_id not in after.streams]:
        del copies[key]
    told = {PartitionKey(one.stream_id, one.partition): one for one in outcome.recovered}
    for stream_id, state in after.streams.items():
        earlier = before.streams.get(stream_id)
        for key, now in zip(state.partition_keys(), state.partitions, strict=True):
            one = copies.setdefault(key, Copies())
            if isinstance(command, RegisterBroker) and not command.clean_stop:
                one.crashed(draw, command)
            if earlier is not None and now.leader_epoch > (was := earlier.partitions[key.partition]).leader_epoch:
                one.led(after, was, now, told.get(key), is_unclean=key in outcome.unclean)
            if earlier is not None and isinstance(command, ChangeIsr):
                one.joined(after, now, set(now.isr).difference(earlier.partitions[key.partition].isr))
            assert state.config.min_isr is not None
            one.works(draw, after, now, state.config.min_isr)


@each_change
@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_any_commands(data: st.DataObject) -> None:
    image = again = ClusterImage()
    copies: Logs = {}
    orders = StreamConfig(name="orders", subject="x", min_isr=2)
    told: list[Command] = [*map(register, BROKERS), CreateStream(config=orders, created_us=1, assignments=(BROKERS,))]
    for index in range(1, data.draw(st.integers(5, 50)) + 1):
        command = told[index - 1] if index <= len(told) else data.draw(next_commands(image, copies))
        before = image
        image, outcome = apply(before, index, command)
        again, _ = apply(again, index, decode_command(encode_command(command)))
        check_step(before, command, image, outcome)
        if isinstance(outcome, CommandOutcome):
            check_copies(data.draw, copies, before, command, image, outcome)
        for state in image.streams.values():
            for partition in state.partitions:
                check_partition(image, state, partition)
        assert image.loads == loads_of(image.streams.values())
        assert dict(image.names) == {state.name: stream_id for stream_id, state in image.streams.items()}
    assert again == image


def large(streams: int) -> ClusterImage:
    image = ClusterImage()
    for number in range(1, 4):
        image, _ = apply(image, number, register(BrokerId(number)))
    for number in range(streams):
        replicas = tuple(BrokerId((number + turn) % 3 + 1) for turn in range(3))
        config = StreamConfig(name=f"s{number}", subject=f"s{number}")
        command = CreateStream(config=config, created_us=1, assignments=(replicas,))
        image, _ = apply(image, image.index + 1, command)
    return image


def test_partitions_that_are_alike_and_stay_so_are_not_changed() -> None:
    image = ClusterImage()
    for index, command in enumerate(map(register, BROKERS), 1):
        image, _ = apply(image, index, command)
    config = StreamConfig(name="orders", subject="x", partitions=2)
    image, _ = apply(image, 4, CreateStream(config=config, created_us=1, assignments=(BROKERS[:2],) * 2))
    image, _ = apply(image, 5, register(BROKERS[1]))
    state = image.by_name("orders")
    alike = tuple(map(msgspec.structs.replace, state.partitions))
    assert alike[0] is not alike[1]
    image = replace(
        image, streams=image.streams.with_item(StreamId(4), msgspec.structs.replace(state, partitions=alike))
    )
    _, outcome = apply(image, 6, FenceBroker(broker_id=BROKERS[1], incarnation=Incarnation(5)))
    assert isinstance(outcome, CommandOutcome)
    assert outcome.partitions == ()


def aged(streams: int) -> ClusterImage:
    """Epochs as they are in a cluster that has lived: hardly any two alike."""
    image = large(streams)
    old = {}
    for stream_id, state in image.streams.items():
        partition = msgspec.structs.replace(state.partitions[0], leader_epoch=LeaderEpoch(stream_id))
        old[stream_id] = StreamState(stream_id, state.config, 1, (partition,))
    return replace(image, streams=image.streams.with_items(old))


@each_change
def test_a_broker_that_leads_thousands_is_fenced_at_once() -> None:
    def fenced(image: ClusterImage) -> tuple[ClusterImage, CommandOutcome]:
        after, outcome = apply(image, image.index + 1, FenceBroker(broker_id=BrokerId(1), incarnation=Incarnation(1)))
        assert isinstance(outcome, CommandOutcome)
        return after, outcome

    after, outcome = fenced(aged(10_000))
    assert len(outcome.partitions) == 10_000
    assert all(state.partitions[0].leader != 1 for state in after.streams.values())
    assert after.streams[StreamId(4)].partitions[0].isr == (2, 3)


def test_the_cost_of_a_fencing_grows_with_what_the_broker_leads() -> None:
    def cost(streams: int) -> int:
        image = aged(streams)
        fencing = FenceBroker(broker_id=BrokerId(1), incarnation=Incarnation(1))
        return lines_run(lambda: apply(image, image.index + 1, fencing))

    # Ten times as many: ten times the lines. One that looks at every partition for every other runs a hundred times.
    assert cost(2_000) < 15 * cost(200)
