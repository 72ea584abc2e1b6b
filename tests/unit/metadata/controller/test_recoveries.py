"""When the longest log leads, as far as the metadata leader has heard; the stories tell which."""

from __future__ import annotations

import msgspec
import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionId, StreamId
from penstock.messages import LogEnd
from penstock.metadata.commands import AlterStream, Command, RecoverPartitions
from tests.extent import each_change
from tests.unit.metadata.controller.test_controller import ONE, TERM, THREE, TWO, Cluster, log_end


def killed(*order: BrokerId) -> tuple[Cluster, StreamId]:
    """All have come back from unclean stops, in that order; then the last two had acked something without the first."""
    cluster = Cluster()
    stream_id = cluster.create("orders", ONE, TWO, THREE, min_isr=2)
    for broker_id in order:
        cluster.register(broker_id, clean_stop=False)
        cluster.commit()
        partition = cluster.partition(stream_id)
        if broker_id == order[0] and partition.leader is not None:
            cluster.change_isr(partition.leader, (stream_id, partition.isr))
            cluster.commit()
    assert cluster.partition(stream_id).leader is None
    return cluster, stream_id


def told(
    cluster: Cluster, stream_id: StreamId, broker_id: BrokerId, end: int, *, failed: bool = False
) -> list[Command]:
    cluster.heartbeat(broker_id, log_ends=(log_end(cluster, stream_id, end, failed=failed),))
    return cluster.take()


def test_the_longest_log_leads_as_soon_as_all_have_told() -> None:
    cluster, stream_id = killed(ONE, TWO, THREE)
    assert told(cluster, stream_id, ONE, 70) == []
    assert told(cluster, stream_id, THREE, 10) == []
    (command,) = told(cluster, stream_id, TWO, 90)
    assert isinstance(command, RecoverPartitions)
    assert [end.broker_id for end in command.recoveries[0].ends] == [ONE, TWO, THREE]
    assert told(cluster, stream_id, TWO, 90) == []  # it is under way
    cluster.commit()
    assert cluster.partition(stream_id).leader == TWO
    assert cluster.after(10_000, ONE, TWO, THREE) == []


def test_who_was_not_in_sync_is_waited_for_a_while_and_who_was_as_long_as_it_is_there() -> None:
    cluster, stream_id = killed(ONE, TWO, THREE)
    told(cluster, stream_id, THREE, 10)
    assert cluster.after(2 * limits.RECOVERY_WAIT_MS, ONE, TWO, THREE) == []
    cluster, stream_id = killed(ONE, TWO, THREE)
    told(cluster, stream_id, THREE, 10)
    told(cluster, stream_id, TWO, 20)
    assert cluster.after(limits.RECOVERY_WAIT_MS - 100, ONE, TWO, THREE) == []
    assert len(cluster.after(100, ONE, TWO, THREE)) == 1
    cluster.commit()
    assert cluster.partition(stream_id).leader == TWO


def test_who_is_there_and_does_not_tell_is_waited_for_unless_the_stream_allows_another_leader() -> None:
    """Its disk hangs: an operator who gives up what it may have is heard."""
    cluster, stream_id = killed(ONE, TWO, THREE)
    told(cluster, stream_id, ONE, 20)
    told(cluster, stream_id, TWO, 20)
    assert cluster.after(10 * limits.RECOVERY_WAIT_MS, ONE, TWO, THREE) == []
    cluster.apply(AlterStream(stream_id=stream_id, changes={"allow_unclean_election": True}), raft_term=TERM)
    (command,) = cluster.after(limits.RECOVERY_WAIT_MS + 200, ONE, TWO, THREE)
    assert isinstance(command, RecoverPartitions)
    cluster.commit()
    assert cluster.partition(stream_id).leader == TWO, "of those who tell, one that had all that was acked"


def test_who_is_away_is_waited_for_if_it_had_all_that_was_acked() -> None:
    cluster, stream_id = killed(ONE, TWO, THREE)
    told(cluster, stream_id, TWO, 20)
    cluster.after(3_000, ONE, TWO)
    cluster.commit()
    assert cluster.image.live_brokers() == {ONE, TWO}
    told(cluster, stream_id, ONE, 90)
    assert cluster.after(10_000, ONE, TWO) == []
    cluster.register(THREE, clean_stop=False)
    cluster.commit()
    (command,) = told(cluster, stream_id, THREE, 10)
    assert isinstance(command, RecoverPartitions)
    cluster.commit()
    assert cluster.partition(stream_id).leader == ONE


def test_what_an_earlier_run_has_told_does_not_count() -> None:
    cluster, stream_id = killed(ONE, TWO, THREE)
    told(cluster, stream_id, ONE, 70)
    told(cluster, stream_id, TWO, 90)
    cluster.register(TWO, clean_stop=False)
    cluster.commit()
    assert told(cluster, stream_id, THREE, 10) == []
    assert len(told(cluster, stream_id, TWO, 60)) == 1
    cluster.commit()
    assert cluster.partition(stream_id).leader == ONE


def test_a_run_that_ends_before_the_longest_is_elected_refuses_the_election() -> None:
    cluster, stream_id = killed(ONE, TWO, THREE)
    for broker_id, end in ((ONE, 70), (TWO, 90), (THREE, 10)):
        told(cluster, stream_id, broker_id, end)
    command = cluster.proposed.pop()
    cluster.register(TWO, clean_stop=False)
    cluster.commit()
    cluster.controller.proposed(command.number, cluster.image.index + 1, TERM)
    cluster.apply(command.command, raft_term=TERM)
    assert cluster.partition(stream_id).leader is None
    assert len(told(cluster, stream_id, TWO, 60)) == 1
    cluster.commit()
    assert cluster.partition(stream_id).leader == ONE


def test_a_new_metadata_leader_hears_all_anew() -> None:
    cluster, stream_id = killed(ONE, TWO, THREE)
    told(cluster, stream_id, ONE, 70)
    told(cluster, stream_id, TWO, 90)
    cluster.controller.follow(TWO)
    cluster.controller.lead(cluster.image, TERM, cluster.now)
    assert told(cluster, stream_id, THREE, 10) == []
    assert told(cluster, stream_id, TWO, 90) == []
    assert len(told(cluster, stream_id, ONE, 70)) == 1


@pytest.mark.parametrize(("failed", "leader"), [((ONE,), THREE), ((TWO,), THREE), ((THREE,), None)])
def test_a_failed_log_does_not_lead_and_is_waited_for_if_it_may_be_the_longest(
    failed: tuple[BrokerId, ...], leader: BrokerId | None
) -> None:
    cluster, stream_id = killed(ONE, TWO, THREE)
    for broker_id, end in ((ONE, 70), (TWO, 80), (THREE, 90)):
        told(cluster, stream_id, broker_id, end, failed=broker_id in failed)
    cluster.commit()
    assert cluster.partition(stream_id).leader == leader


def test_what_was_not_taken_is_proposed_again() -> None:
    cluster, stream_id = killed(ONE, TWO, THREE)
    for broker_id in (ONE, TWO, THREE):
        told(cluster, stream_id, broker_id, 10)
    for _ in range(2):
        (proposal,) = cluster.proposed
        cluster.proposed = []
        cluster.controller.not_proposed(proposal.number, RemoteError(ErrorCode.OVERLOADED, "later"))
        assert len(cluster.after(100, ONE, TWO, THREE)) == 1


def test_once_unclean_elections_are_allowed_a_replica_leads_whose_log_has_not_failed() -> None:
    cluster, stream_id = killed(ONE, TWO, THREE)
    for broker_id in (ONE, TWO, THREE):
        told(cluster, stream_id, broker_id, 10, failed=broker_id != ONE)
    assert cluster.after(10_000, ONE, TWO, THREE) == []
    cluster.apply(AlterStream(stream_id=stream_id, changes={"allow_unclean_election": True}), raft_term=TERM)
    cluster.after(100)
    cluster.commit()
    assert cluster.partition(stream_id).leader == ONE


def test_what_cannot_be_is_left_out() -> None:
    cluster, stream_id = killed(ONE, TWO, THREE)
    other = cluster.create("trades", ONE)
    end = log_end(cluster, stream_id, 5)
    wrong = [
        LogEnd(StreamId(9_999), PartitionId(0), end.leader_epoch, LeaderEpoch(1), Offset(5)),
        LogEnd(stream_id, PartitionId(7), end.leader_epoch, LeaderEpoch(1), Offset(5)),
        LogEnd(stream_id, PartitionId(0), LeaderEpoch(end.leader_epoch + 1), LeaderEpoch(1), Offset(5)),
        LogEnd(other, PartitionId(0), LeaderEpoch(1), LeaderEpoch(1), Offset(5)),
    ]
    cluster.heartbeat(ONE, log_ends=(*wrong, end, msgspec.structs.replace(end, log_end=Offset(7))))
    cluster.heartbeat(TWO, log_ends=(*wrong, end))
    assert cluster.take() == []
    assert len(told(cluster, stream_id, THREE, 10)) == 1


@each_change
def test_thousands_are_led_in_a_few_commands() -> None:
    cluster = Cluster()
    count = limits.RECOVERIES_PER_COMMAND_MAX + 5
    streams = [cluster.create(f"s{number}", ONE, TWO, THREE, min_isr=2) for number in range(count)]
    for broker_id in (ONE, TWO, THREE):
        cluster.register(broker_id, clean_stop=False)
        cluster.commit()
    for broker_id in (ONE, TWO, THREE):
        ends = tuple(log_end(cluster, stream_id, 10 + broker_id) for stream_id in streams)
        for start in range(0, count, limits.LOG_ENDS_PER_HEARTBEAT_MAX):
            cluster.heartbeat(broker_id, log_ends=ends[start : start + limits.LOG_ENDS_PER_HEARTBEAT_MAX])
    assert len(cluster.commit()) == 1
    cluster.after(100)
    assert len(cluster.commit()) == 1
    assert {cluster.partition(stream_id).leader for stream_id in streams} == {THREE}
