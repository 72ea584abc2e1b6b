"""Messages that others go for, as the node has them come and go; below feature level 0.4 some go later."""

from __future__ import annotations

import errno

import pytest

from penstock.base import limits
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode
from penstock.batch.header import MAY_HOLD_IDS, MAY_ROLL_UP_ALL, MAY_ROLL_UP_SUBJECTS
from penstock.messages import AlterStreamRequest, AlterStreamResponse, AppendRequest, SetIntakeRequest
from penstock.node.partition.partition import NO_ROLLUP, Partition
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind, no_faults
from tests.envelopes import enveloped, message
from tests.extent import each_change
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.members import Brokers, formed
from tests.unit.node.test_expiry import block, go_on
from tests.unit.node.test_full_disk import journal_refuses

CONFIG = {"allow_rollup": True, "segment_age_ms": 60_000, "dedup_window_ms": None}


def started(version: str = "1", **config: object) -> Broker:
    broker = Broker(broker_version=version).start()
    broker.create("orders", **{**CONFIG, **config})
    return broker


def values(broker: Broker) -> list[bytes | None]:
    """What readers are shown once all that is committed is decided on."""
    for _ in range(2):
        broker.turn()
        broker.tick(limits.DECISION_PAUSE_MS_MAX)
    return broker.values("orders")


def publish(broker: Broker, value: bytes, *lines: str, subject: str = "orders.a", reply: str | None = "r") -> None:
    broker.publish(subject, value, reply=reply, headers=block(*lines) if lines else None)


def partition_of(broker: Broker, name: str = "orders") -> Partition:
    return next(one for one in broker.node._partitions.values() if one.stream.name == name)


def flags(broker: Broker) -> list[int]:
    view = partition_of(broker).log.view()
    return [header.flags for header, _ in view.batches(view.log_start, view.log_end)]


def test_below_the_level_older_ones_of_its_subject_go_once_it_is_sealed() -> None:
    broker = started("0.3.0")
    publish(broker, b"gone")
    publish(broker, b"kept", subject="orders.b")
    publish(broker, b"rollup", "Nats-Rollup: sub")
    publish(broker, b"later")
    assert flags(broker) == [0, 0, MAY_ROLL_UP_SUBJECTS, 0]
    go_on(broker, 59_000)
    assert values(broker) == [b"gone", b"kept", b"rollup", b"later"]
    go_on(broker, 15_000)
    assert values(broker) == [b"kept", b"rollup", b"later"]
    assert broker.notices == []
    after = broker.crash().start()
    assert values(after) == [b"kept", b"rollup", b"later"]
    after.stop()


def test_below_the_level_after_an_hour_at_the_latest() -> None:
    broker = started("0.3.0", segment_age_ms=None)
    publish(broker, b"gone")
    publish(broker, b"rollup", "Nats-Rollup: sub")
    broker.tick(limits.EXPIRING_SEGMENT_AGE_MS - 1_000)
    go_on(broker, 20_000)
    assert values(broker) == [b"rollup"]


def test_below_the_level_after_a_start_it_is_known_again() -> None:
    broker = started("0.3.0")
    publish(broker, b"gone")
    publish(broker, b"rollup", "Nats-Rollup: sub")
    after = broker.crash().start()
    go_on(after, 80_000)
    assert values(after) == [b"rollup"]
    after.stop()


def test_all_before_it_go_at_once() -> None:
    broker = started()
    publish(broker, b"gone")
    publish(broker, b"gone", subject="orders.b")
    broker.deliver([(b"orders.a", None, None, b"gone"), (b"orders.a", b"r", block("Nats-Rollup: ALL"), b"rollup"),
                    (b"orders.a", None, None, b"later")])  # fmt: skip
    assert values(broker) == [b"rollup", b"later"]
    assert broker.acks[-1].body["offset"] == 3
    assert (partition_of(broker).rollup_at, partition_of(broker).log.log_start) == (NO_ROLLUP, 3)
    for number in range(20):
        publish(broker, b"%d" % number, "Nats-Rollup: all")
    assert values(broker) == [b"19"]
    after = broker.crash().start()
    assert values(after) == [b"19"]
    publish(after, b"next")
    assert after.acks[-1].body["offset"] == 25
    after.stop()


def test_many_of_one_read_are_seen_to_with_one_request() -> None:
    broker = started()
    before = partition_of(broker).truncated
    assert before is None
    applied = broker.node._cluster.quorum._raft.applied
    broker.deliver([(b"orders.a", None, block("Nats-Rollup: all"), b"%d" % number) for number in range(500)])
    assert values(broker) == [b"499"]
    assert broker.node._cluster.quorum._raft.applied == applied + 1


def test_in_an_envelope_and_over_the_socket() -> None:
    broker = started()
    publish(broker, b"gone")
    publish(broker, enveloped(message({"value": b"enveloped"}, [(b"Nats-Rollup", b"all")])))
    assert values(broker) == [b"enveloped"]
    request = AppendRequest(stream_id=broker.stream_id("orders"))
    rows = [("orders.a", None, b"%d" % number, None) for number in range(3)]
    rows[1] = ("orders.a", None, b"1", block("Nats-Rollup: all"))
    assert broker.request(request, batch_of(rows)) in broker.replies
    assert values(broker) == [b"1", b"2"]
    both = [("orders.a", None, b"3", block("Nats-Rollup: sub", "Nats-Msg-Id: x"))]
    broker.request(request, batch_of(both))
    assert flags(broker)[-2:] == [MAY_ROLL_UP_ALL, MAY_ROLL_UP_SUBJECTS | MAY_HOLD_IDS]
    go_on(broker, 80_000)
    assert values(broker) == [b"2", b"3"] or values(broker) == [b"3"]


def test_what_is_refused() -> None:
    broker = started(allow_rollup=False)
    publish(broker, b"no", "Nats-Rollup: sub", reply="disabled")
    publish(broker, b"no", "Nats-Rollup: all", reply="disabled")
    publish(broker, b"yes", "Nats-Rollup:", reply="none")
    broker.ask(AlterStreamRequest(name="orders", changes={"allow_rollup": True}), AlterStreamResponse)
    publish(broker, b"no", "Nats-Rollup: others", reply="invalid")
    publish(broker, b"no", "Nats-Rollup: all", "Nats-Expected-Last-Sequence: 7", reply="wrong")
    publish(broker, b"rollup", "Nats-Rollup: all", reply="allowed")
    codes = [(ack.reply, ack.err_code) for ack in broker.acks]
    assert codes == [("disabled", 10111)] * 2 + [("none", 0), ("invalid", 10111), ("wrong", 10071), ("allowed", 0)]
    assert values(broker) == [b"rollup"]


def test_rollups_wait_while_deletion_is_suspended() -> None:
    broker = started()
    broker.ask(AlterStreamRequest(name="orders", changes={"suspend_deletion": "yes"}), AlterStreamResponse)
    publish(broker, b"1")
    publish(broker, b"all", "Nats-Rollup: all")
    publish(broker, b"2")
    publish(broker, b"sub", "Nats-Rollup: sub")
    go_on(broker, 300_000)
    assert values(broker) == [b"1", b"all", b"2", b"sub"]
    broker.ask(AlterStreamRequest(name="orders", changes={"suspend_deletion": "no"}), AlterStreamResponse)
    go_on(broker, 300_000)
    assert values(broker) == [b"sub"]


def test_over_the_socket_the_whole_batch_is_refused() -> None:
    broker = started()
    request = AppendRequest(stream_id=broker.stream_id("orders"))
    batch = batch_of([("orders.a", None, b"v", None), ("orders.a", None, b"v", block("Nats-Rollup: others"))])
    assert broker.refusal(request, batch).code == ErrorCode.BAD_REQUEST
    assert broker.read("orders") == []


def test_nothing_goes_for_what_is_not_committed() -> None:
    broker = started()
    publish(broker, b"kept")
    broker.syncs_hang = True
    publish(broker, b"rollup", "Nats-Rollup: all", reply="late")
    broker.tick(5_000)
    assert values(broker) == [b"kept"]
    after = broker.crash()
    broker.syncs_hang = False
    broker.turn()
    assert values(broker) == [b"rollup"]
    assert broker.acked()[-1] == "late"
    assert values(after.start()) == [b"kept"], "a power loss takes it, and nothing else"
    after.stop()


def test_nothing_goes_for_it_when_what_came_before_it_is_committed() -> None:
    broker = started()
    broker.syncs_hang = True
    publish(broker, b"kept", reply="first")
    publish(broker, b"rollup", "Nats-Rollup: all", reply="second")
    broker.run_disk()
    broker.turn()
    assert broker.acked() == ["first"]
    assert partition_of(broker).committed_end == 1
    assert partition_of(broker).log.log_start == 0
    broker.syncs_hang = False
    broker.turn()
    assert values(broker) == [b"rollup"]


def test_a_start_goes_on_with_what_was_acked() -> None:
    broker = started()
    publish(broker, b"gone")
    broker.vfs.plan = journal_refuses
    publish(broker, b"gone", "Nats-Rollup: all")
    publish(broker, b"rollup", "Nats-Rollup: all", reply="acked")
    publish(broker, b"later")
    assert "acked" in broker.acked()
    after = broker.crash().start()
    assert values(after) == [b"rollup", b"later"]
    after.stop()


def test_it_is_tried_again_until_the_metadata_takes_it() -> None:
    broker = started()
    publish(broker, b"gone")
    broker.vfs.plan = journal_refuses
    publish(broker, b"rollup", "Nats-Rollup: all")
    go_on(broker, 60_000)
    assert values(broker) == [b"rollup"], "readers need not wait for that"
    assert partition_of(broker).log.log_start == 0
    broker.vfs.plan = no_faults
    go_on(broker, 30_000)
    assert values(broker) == [b"rollup"]
    assert partition_of(broker).log.log_start == 1


def test_a_full_disk_in_the_middle_of_a_read_loses_none_that_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 2)
    broker = started()
    publish(broker, b"gone")
    writes = iter([False, True])
    broker.vfs.plan = lambda one: (
        FileFault(errno.ENOSPC)
        if one.kind is FileOperationKind.WRITE and one.path.endswith(".arrows") and next(writes, False)
        else None
    )
    read = [
        (b"orders.a", None, None if number % 2 else block("Nats-Rollup: all"), b"%d" % number) for number in range(4)
    ]
    broker.deliver(read)
    broker.vfs.plan = no_faults
    assert values(broker) == [b"0", b"1"]


def test_a_disk_that_cannot_be_read_is_read_again() -> None:
    broker = started()
    publish(broker, b"gone")
    broker.vfs.plan = journal_refuses
    publish(broker, b"rollup", "Nats-Rollup: all")
    after = broker.crash()
    reads: list[str] = []

    def plan(one: FileOperation) -> FileFault | None:
        is_messages = one.path.endswith(".arrows") and "-orders/" in one.path
        if one.kind is FileOperationKind.READ and is_messages and partitions(after):
            reads.append(one.path)
            return FileFault(errno.EIO)
        return None

    after.vfs.plan = plan
    after.start()
    go_on(after, 3_000)
    assert len(reads) > 1
    assert len([one for one in after.notices if "rollups or interest cannot be applied" in one]) == 1, "it is told once"
    after.vfs.plan = no_faults
    go_on(after, 2_000)
    assert values(after) == [b"rollup"]
    after.stop()


def partitions(broker: Broker) -> bool:
    """Whether the log of the stream is open."""
    return any(one.stream.name == "orders" for one in broker.node._partitions.values())


@pytest.mark.parametrize("intake", [Intake.SEALED, Intake.READ_ONLY, Intake.PAUSED])
def test_of_a_sealed_stream_nothing_goes(intake: Intake) -> None:
    broker = started()
    publish(broker, b"kept")
    broker.syncs_hang = True
    publish(broker, b"rollup", "Nats-Rollup: all")
    broker.request(SetIntakeRequest(name="orders", intake=intake))
    broker.syncs_hang = False
    broker.turn()
    go_on(broker, 5_000)
    wanted = [b"kept", b"rollup"] if intake is Intake.SEALED else [b"rollup"]
    assert values(broker) == wanted
    after = broker.crash().start()
    assert values(after) == wanted
    after.stop()


def test_a_stream_that_is_deleted_meanwhile_is_not_asked_for() -> None:
    broker = started()
    publish(broker, b"gone")
    broker.vfs.plan = journal_refuses
    publish(broker, b"rollup", "Nats-Rollup: all")
    broker.vfs.plan = no_faults
    broker.delete("orders")
    go_on(broker, 60_000)
    assert broker.streams() == {}
    assert broker.node._replicas.rollups.next_deadline_us is None


# Several brokers


def starts(brokers: Brokers, name: str) -> set[int]:
    return {partition_of(one, name).log.log_start for one in brokers.members.values()}


def test_all_replicas_begin_there() -> None:
    brokers = formed()
    brokers.leader.create("s", subject="s", replicas=3, allow_rollup=True)
    brokers.run(500)
    for value in (b"a", b"b"):
        brokers.led("s").publish("s", value)
    brokers.led("s").publish("s", b"c", reply="r", headers=block("Nats-Rollup: all"))
    brokers.run(1_000)
    assert starts(brokers, "s") == {2}
    assert brokers.led("s").values("s") == [b"c"]


def test_the_next_leader_goes_on_where_the_last_one_has_acked_and_no_more() -> None:
    brokers = formed()
    for number in range(20):
        brokers.leader.create(f"s{number}", subject=f"s{number}", replicas=3, allow_rollup=True)
    brokers.run(500)
    metadata = brokers.leader
    name = next(f"s{number}" for number in range(20) if brokers.led(f"s{number}") is not metadata)
    led = brokers.led(name)
    (other,) = [one for one in brokers.members.values() if one is not led and one is not metadata]
    for value in (b"a", b"b"):
        led.publish(name, value)
    brokers.run(500)
    brokers.cut(metadata.broker_id, other.broker_id)
    metadata.disk_runs_at_once = False  # it cannot save what it is asked for, and nobody else hears of it
    led.publish(name, b"c", reply="r", headers=block("Nats-Rollup: all"))
    brokers.settle()
    assert [ack.body["seq"] for ack in led.acks] == [3]
    assert starts(brokers, name) == {0}
    brokers.kill(led.broker_id)
    left = brokers.kill(metadata.broker_id)
    brokers.join(other.broker_id)
    brokers._cut.clear()
    brokers.start(metadata.broker_id, left)
    brokers.run(20_000)
    assert brokers.led(name) is other
    assert starts(brokers, name) == {2}
    assert other.values(name) == [b"c"]


@each_change
def test_one_that_the_next_leader_does_not_have_has_taken_nothing() -> None:
    brokers = formed()
    for number in range(20):
        brokers.leader.create(f"s{number}", subject=f"s{number}", replicas=2, min_isr=2, allow_rollup=True)
    brokers.run(500)
    metadata = brokers.leader
    names = [f"s{number}" for number in range(20)]
    name = next(one for one in names if metadata.broker_id not in brokers.partition(one).replicas)
    led = brokers.led(name)
    (other,) = [one for one in brokers.partition(name).replicas if one != led.broker_id]
    for value in (b"a", b"b"):
        led.publish(name, value)
    brokers.run(500)
    brokers.cut(led.broker_id, other)
    led.publish(name, b"c", reply="r", headers=block("Nats-Rollup: all"))
    brokers.run(500)
    assert led.acks == []
    assert led.values(name) == [b"a", b"b"]
    left = brokers.kill(led.broker_id)
    brokers.run(10_000)
    assert brokers.led(name).broker_id == other
    assert brokers.led(name).values(name) == [b"a", b"b"]
    brokers._cut.clear()
    brokers.start(led.broker_id, left)
    brokers.run(10_000)
    assert {one.broker_id: partition_of(one, name).log.log_start for one in brokers.members.values()
            if one.broker_id in brokers.partition(name).replicas} == {led.broker_id: 0, other: 0}  # fmt: skip


@each_change
def test_one_that_a_start_finds_takes_nothing_before_it_is_committed() -> None:
    brokers = formed()
    for number in range(20):
        brokers.leader.create(f"s{number}", subject=f"s{number}", replicas=2, min_isr=2, allow_rollup=True)
    brokers.run(500)
    names = [f"s{number}" for number in range(20)]
    name = next(one for one in names if brokers.leader.broker_id not in brokers.partition(one).replicas)
    led = brokers.led(name).broker_id
    (other,) = [one for one in brokers.partition(name).replicas if one != led]
    brokers[led].publish(name, b"a")
    brokers.run(500)
    left = brokers.kill(other)
    brokers[led].publish(name, b"b", headers=block("Nats-Rollup: all"))
    brokers.run(20_000)
    assert brokers[led].values(name) == [b"a"]
    brokers.start(led, brokers.stop(led))
    brokers.run(10_000)
    assert brokers.led(name).broker_id == led
    assert brokers[led].values(name) == [b"a"]
    assert partition_of(brokers[led], name).rollup_at == 1
    brokers.start(other, left)
    brokers.run(10_000)
    assert brokers[led].values(name) == [b"b"]
    assert {partition_of(brokers[one], name).log.log_start for one in (led, other)} == {1}
