"""The promises: what holds, what is excused, and what is a violation."""

from __future__ import annotations

import pytest

from penstock.base.config import Durability, StreamConfig
from penstock.batch import codec
from penstock.hot.message_group import MessageGroup
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory, SentMessage
from tests.extent import each_change
from tests.sim.models.clients import SLOTS
from tests.sim.plan.plan import make_plan
from tests.sim.run.world import World


def checks_with(*values: bytes, **config) -> tuple[Checks, PartitionHistory]:
    checks = Checks(1, lambda _history, _end: None)
    checks.begin(StreamConfig(name="a", subject="a.>", **config))
    checks.sent.update(dict.fromkeys(values, "a.>"))
    return checks, checks.of("a.>", 0)


def batch(base_offset: int, *values: bytes, leader_epoch: int = 1) -> bytes:
    group = MessageGroup.of([b"a.x"] * len(values), values)
    data, _ = codec.encode(group, 0, len(values), base_offset=base_offset, timestamp_us=1, leader_epoch=leader_epoch)
    return bytes(data)


def test_what_was_acked_is_what_is_read() -> None:
    checks, history = checks_with(b"1", b"2")
    checks.promised(history, 1, 1, b"2", fsynced=True)
    rows = checks.read(history, 0, 2, batch(0, b"1", b"2"))
    assert rows is not None
    assert rows.values == [b"1", b"2"]
    assert history.promised_end == 2


@pytest.mark.parametrize(
    ("offset", "values", "what"),
    [
        (0, (b"2",), "offset 0 was b'1', and now b'2'"),
        (1, (b"1",), "is at offset 0, and is read at 1"),
        (1, (b"never sent",), "was never sent"),
    ],
)
def test_what_is_read_is_not_what_was_acked(offset: int, values: tuple[bytes, ...], what: str) -> None:
    checks, history = checks_with(b"1", b"2")
    checks.promised(history, 0, 1, b"1", fsynced=True)
    with pytest.raises(ViolationError, match=what):
        checks.read(history, offset, offset + 1, batch(offset, *values))


@pytest.mark.parametrize("read_first", [False, True])
def test_what_was_purged_may_have_been_sent_again_and_is_read_in_both_places(read_first: bool) -> None:
    checks, history = checks_with(b"1", b"2")
    history.truncating = 5

    def read_old() -> None:  # from a replica that has not heard of the purge yet
        checks.read(history, 3, 4, batch(3, b"1"))

    if read_first:
        read_old()
    checks.promised(history, 7, 1, b"1", fsynced=True)
    read_old()
    with pytest.raises(ViolationError, match="is at offset 7, and is read at 9"):
        checks.read(history, 9, 10, batch(9, b"1"))


def test_a_hole() -> None:
    checks, history = checks_with(b"1", b"2")
    with pytest.raises(ViolationError, match="got offsets"):
        checks.read(history, 0, 2, batch(1, b"2"))


def keyed_batch(base_offset: int, *messages: SentMessage) -> bytes:
    subjects, values, keys = ([one[at] for one in messages] for at in (0, 2, 4))
    group = MessageGroup.of(subjects, values, keys=keys)
    data, _ = codec.encode(group, 0, len(messages), base_offset=base_offset, timestamp_us=1, leader_epoch=1)
    return bytes(data)


OLD, GONE = SentMessage(b"a.1", b"old", b"old", key=b"x"), SentMessage(b"a.2", b"a.2", None, key=b"x")


def compacted(*messages: SentMessage) -> tuple[Checks, PartitionHistory]:
    checks, history = checks_with(compact=True)
    for offset, message in enumerate(messages):
        checks.sends(history.config, message)
        checks.promised(history, offset, 1, message.name, fsynced=True)
    return checks, history


def test_a_reader_passes_over_what_has_a_later_one_of_its_key() -> None:
    checks, history = compacted(OLD, GONE)
    rows = checks.read(history, 0, 2, keyed_batch(1, GONE))
    assert rows is not None
    assert rows.values == [b"a.2"]
    with pytest.raises(ViolationError, match="1 is the last of key b'x', and is passed over"):
        checks.read(history, 0, 2, keyed_batch(0, OLD))
    history.is_damaged = True
    assert checks.read(history, 0, 2, keyed_batch(0, OLD)) is not None


def test_rows_in_another_order_are_none_that_compaction_leaves() -> None:
    checks, history = compacted(OLD, GONE)
    with pytest.raises(ViolationError, match="got offsets"):
        checks.read(history, 0, 2, keyed_batch(1, GONE) + keyed_batch(0, OLD))
    with pytest.raises(ViolationError, match="got offsets"):
        checks.read(history, 0, 1, keyed_batch(0, OLD, GONE))


def test_a_message_keeps_its_key() -> None:
    checks, history = compacted(OLD)
    with pytest.raises(ViolationError, match="was sent with key b'x', and is read with None"):
        checks.read(history, 0, 1, keyed_batch(0, OLD._replace(key=None)))


def test_after_a_power_loss_took_something_nobody_knows_what_is_the_last_of_a_key() -> None:
    """What was taken may come back, with a log that has it still."""
    checks, history = compacted(OLD, GONE)
    checks._cut(history, 1)
    checks.passed_over(history, [0])


def test_an_epoch_that_goes_back() -> None:
    checks, history = checks_with(b"1", b"2")
    with pytest.raises(ViolationError, match="epoch 1 follows epoch 2"):
        checks.read(history, 0, 2, batch(0, b"1", leader_epoch=2) + batch(1, b"2"))


def test_damage_is_excused_only_where_it_was_made() -> None:
    checks, history = checks_with(b"1")
    raw = batch(0, b"1")
    damaged = raw[:-1] + bytes([raw[-1] ^ 1])
    with pytest.raises(ViolationError):
        checks.read(history, 0, 1, damaged)
    history.damaged.add((1, 1))
    assert checks.read(history, 0, 1, damaged) is None


def test_an_ack_before_the_sync_is_for_durability_os() -> None:
    checks, history = checks_with(b"1")
    with pytest.raises(ViolationError, match="before it was synced"):
        checks.promised(history, 0, 1, b"1", fsynced=False)
    checks, history = checks_with(b"1", durability=Durability.OS)
    checks.promised(history, 0, 1, b"1", fsynced=False)


def test_news_of_what_a_power_loss_took_are_late() -> None:
    checks, history = checks_with(b"1", b"2", b"3", durability=Durability.OS)
    history.leaders[4] = (1, 1)
    checks._cut(history, 1)
    checks.promised(history, 1, 4, b"2", fsynced=False)
    assert history.known == {}
    checks.promised(history, 1, 5, b"3", fsynced=False)
    assert history.known == {1: b"3"}


@each_change
@pytest.mark.parametrize("may_lose", [True, False])
def test_what_was_committed_and_nobody_heard_of_is_lost_only_with_all_who_had_it(may_lose: bool) -> None:
    world = World(make_plan(2, 3, SLOTS)._replace(operations=(), faults=()))
    assert world.run().error == ""
    leader, look = next(
        (broker, look)
        for broker in world.brokers.values()
        if broker.node is not None
        for look in inspector.partitions(broker.node)
        if look.is_leader
    )
    checks, history = world.checks, world.checks.of(look.subject, look.partition)
    history.committed_end = look.log_end + 1  # of the leader before
    history.may_lose = may_lose
    later = look._replace(leader_epoch=look.leader_epoch + 1)
    if may_lose:
        checks._led(history, leader, later)
        assert history.is_lost(look.log_end, look.leader_epoch)
        assert history.committed_end == look.log_end
    else:
        with pytest.raises(ViolationError, match=f"{look.log_end} is committed, and not there"):
            checks._led(history, leader, later)


@each_change
def test_what_was_lost_is_forgotten_of_a_damaged_stream_too() -> None:
    """Nothing is promised of it any more; but what comes in the place of what was lost is something else."""
    world = World(make_plan(2, 3, SLOTS)._replace(operations=(), faults=()))
    assert world.run().error == ""
    broker = world.brokers[1]
    assert broker.node is not None
    look = next(inspector.partitions(broker.node))
    checks, history = world.checks, world.checks.of(look.subject, look.partition)
    checks.sent.update({b"old": look.subject, b"new": look.subject})
    checks.promised(history, look.log_end, look.leader_epoch, b"old", fsynced=True)
    history.may_lose = history.is_damaged = True
    checks._led(history, broker, look._replace(leader_epoch=look.leader_epoch + 1))
    checks.promised(history, look.log_end, look.leader_epoch + 1, b"new", fsynced=True)
    assert history.known[look.log_end] == b"new"


@each_change
@pytest.mark.parametrize(
    ("has_it", "counting", "changes_since", "is_lost"),
    [
        (2, (1, 2, 3), 1, False),
        (2, (1, 3), 1, True),
        (2, (1, 2, 3), 2, True),
        (0, (1, 2, 3), 1, True),
    ],
    ids=["one who counted has it", "one who did not count has it", "who counted is not known", "nobody has it"],
)
def test_what_one_who_counted_has_is_not_lost(
    has_it: int, counting: tuple[int, ...], changes_since: int, is_lost: bool
) -> None:
    world = World(make_plan(2, 3, SLOTS)._replace(operations=(), faults=()))
    assert world.run().error == ""
    broker = world.brokers[1]
    assert broker.node is not None
    look = next(inspector.partitions(broker.node))
    checks = Checks(3, lambda *_: None, has_committed=lambda _history, broker_id, _end: broker_id == has_it)
    checks.begin(world.checks.of(look.subject, look.partition).config)
    history = checks.of(look.subject, look.partition)
    history.committed_end = look.log_end + 1
    history.may_lose = True
    history.counting, history.counting_version = counting, look.version - changes_since
    if is_lost:
        checks._led(history, broker, look)
        assert history.committed_end == look.log_end
    else:
        with pytest.raises(ViolationError, match=r"b2 has it, and .* counted"):
            checks._led(history, broker, look)


def test_an_audit_that_ends_early() -> None:
    checks, history = checks_with(b"1")
    checks.promised(history, 0, 1, b"1", fsynced=True)
    with pytest.raises(ViolationError, match="the log ends at 0"):
        checks.audited(history, 0, 0)
    with pytest.raises(ViolationError, match="begins at 1"):
        checks.audited(history, 1, 1)
    checks.audited(history, 0, 1)


def test_a_broker_is_held_to_what_is_promised_though_nothing_changes_in_it() -> None:
    world = World(make_plan(2, 1, SLOTS)._replace(operations=(), faults=()))
    assert world.run().error == ""
    checks, broker = world.checks, world.brokers[1]
    history = checks.of("s0.g1.>", 0)
    checks.sent[b"lost"] = "s0.g1.>"
    broker.event(lambda: None)
    broker.end_turn()
    checks.promised(history, history.promised_end, max(history.leaders), b"lost", fsynced=True)
    with pytest.raises(ViolationError, match="is acked, and not there"):
        broker.end_turn()


def test_damage_on_one_broker_excuses_no_other() -> None:
    checks, history = checks_with(b"1")
    raw = batch(0, b"1")
    damaged = raw[:-1] + bytes([raw[-1] ^ 1])
    history.damaged.add((1, 1))
    assert checks.read(history, 0, 1, damaged, broker_id=1) is None
    with pytest.raises(ViolationError):
        checks.read(history, 0, 1, damaged, broker_id=2)


def test_what_a_power_loss_took_is_gone_back_behind_and_no_further() -> None:
    checks, history = checks_with(b"1", b"2", durability=Durability.OS)
    checks._cut(history, 5)
    assert history.is_cut_at(5)
    assert not history.is_cut_at(4)


def split_by(partition_by: str) -> tuple[Checks, list[PartitionHistory]]:
    """Of a stream whose messages find their partitions; `m` and `n`, in this order, belong into the second one."""
    checks = Checks(1, lambda _history, _end: None)
    config = StreamConfig(name="a", subject="a.>", partitions=3, partition_by=partition_by)
    checks.begin(config)
    histories = [checks.of("a.>", partition) for partition in range(3)]
    assert histories[0].split is not None
    key = histories[0].split.keys_of(1)[0]
    for number, name in enumerate((b"m", b"n"), 1):
        checks.sends(config, SentMessage(b"a.x", name, name, by=key, number=number))
    return checks, histories


def test_a_message_of_another_partition() -> None:
    checks, histories = split_by("key")
    checks.promised(histories[1], 7, 1, b"m", fsynced=True)
    with pytest.raises(ViolationError, match=r"b'n' is acked at offset 8: .* so into partition 1"):
        checks.promised(histories[2], 8, 1, b"n", fsynced=True)


def test_a_message_in_two_partitions() -> None:
    checks, histories = split_by("group")
    checks.read(histories[2], 7, 8, batch(7, b"m"))
    with pytest.raises(ViolationError, match="b'm' is read at offset 8: it is in partition 2 too, at offset 7"):
        checks.read(histories[0], 8, 9, batch(8, b"m"))


def test_messages_of_a_key_out_of_order_unless_the_first_was_lost() -> None:
    checks, histories = split_by("key")
    checks.promised(histories[1], 7, 1, b"n", fsynced=True)
    with pytest.raises(ViolationError, match=r"number 1 of .* lies behind number 2, at offset 7 of partition 1"):
        checks.promised(histories[1], 8, 1, b"m", fsynced=True)
    checks._cut(histories[1], 7)
    checks.promised(histories[1], 8, 1, b"m", fsynced=True)
