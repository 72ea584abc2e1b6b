"""The controller with a metadata log that the test commits, and a clock that it moves."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

import pytest

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, StreamId
from penstock.messages import (
    ChangeIsrRequest,
    ChangeIsrResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    IsrChange,
    IsrMember,
    IsrResult,
    LogEnd,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    ResignedLeadership,
    Response,
    StopBrokerRequest,
    StopBrokerResponse,
    UnreachableLeader,
)
from penstock.metadata.commands import (
    ChangeIsr,
    Command,
    CreateStream,
    Election,
    ElectionReason,
    ElectLeaders,
    FenceBroker,
    RaiseFeatureLevel,
    RegisterBroker,
    StopBroker,
)
from penstock.metadata.controller.command_proposals import Proposal
from penstock.metadata.controller.controller import Controller, ControllerConfig, RaftContact
from penstock.metadata.effects.apply import apply
from penstock.metadata.image import ClusterImage, PartitionState

_R = TypeVar("_R", bound=Response)

TERM = 4
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
PREFERRED_MS = limits.PREFERRED_LEADER_STEADY_MS


class Cluster:
    """Broker 1 leads the metadata of three; `commit` is the Raft group, and what it proposes waits until then."""

    def __init__(self, brokers: int = 3, *, has_keys: bool = True) -> None:
        self.controller = Controller(ONE, ControllerConfig(), has_keys=has_keys)
        self.image = ClusterImage()
        self.now_ms = 1_000_000
        self.proposed: list[Proposal] = []
        self.answers: dict[Hashable, Response | RemoteError] = {}
        self.callers = 0
        for number in range(1, brokers + 1):
            self.told(register(BrokerId(number)))
        self.controller.lead(self.image, TERM, self.now)

    @property
    def now(self) -> Now:
        return Now(wall_us=self.now_ms * 1_000 + 7, elapsed_us=self.now_ms * 1_000)

    def told(self, command: Command) -> None:
        """A command of before the controller led."""
        self.image, outcome = apply(self.image, self.image.index + 1, command)
        assert not isinstance(outcome, RemoteError)

    def create(self, name: str, *replicas: BrokerId, min_isr: int = 1) -> StreamId:
        config = StreamConfig(name=name, subject=name, min_isr=min_isr)
        self.apply(CreateStream(config=config, created_us=1, assignments=(replicas,)), raft_term=TERM)
        return self.image.by_name(name).stream_id

    def partition(self, stream_id: StreamId) -> PartitionState:
        return self.image.streams[stream_id].partitions[0]

    def take(self) -> list[Command]:
        """What the controller newly wants proposed."""
        step = self.controller.take()
        for answer in step.answers:
            assert answer.caller not in self.answers
            self.answers[answer.caller] = answer.response
        self.proposed += step.propose
        return [proposal.command for proposal in step.propose]

    def apply(self, command: Command, *, raft_term: int) -> None:
        index = self.image.index + 1
        self.image, outcome = apply(self.image, index, command)
        self.controller.applied(index, raft_term, self.image, outcome, self.now)

    def commit(self, *, raft_term: int = TERM) -> list[Command]:
        """All that was proposed is committed and applied, one by one; what it was."""
        self.take()
        proposals, self.proposed = self.proposed, []
        for turn, proposal in enumerate(proposals, 1):
            self.controller.proposed(proposal.number, self.image.index + turn, TERM)
        for proposal in proposals:
            self.apply(proposal.command, raft_term=raft_term)
        self.take()
        return [proposal.command for proposal in proposals]

    def caller(self) -> str:
        self.callers += 1
        return f"c{self.callers}"

    def answer(self, caller: Hashable, kind: type[_R]) -> _R:
        self.take()
        response = self.answers[caller]
        assert isinstance(response, kind), response
        return response

    def error(self, caller: Hashable) -> str:
        self.take()
        response = self.answers[caller]
        assert isinstance(response, RemoteError), response
        return response.code

    def all_heard(self) -> None:
        for broker_id in sorted(self.image.live_brokers()):
            self.heartbeat(broker_id)

    def heartbeat(
        self,
        broker_id: BrokerId,
        *unreachable: BrokerId,
        resigned: tuple[ResignedLeadership, ...] = (),
        applied: int = 0,
        has_nats: bool = True,
        has_keys: bool = False,
        log_ends: tuple[LogEnd, ...] = (),
    ) -> Hashable:
        caller = self.caller()
        request = HeartbeatRequest(
            broker_id=broker_id,
            incarnation=self.image.brokers[broker_id].incarnation,
            applied_index=applied,
            unreachable=tuple(UnreachableLeader(one, self.image.brokers[one].incarnation) for one in unreachable),
            resigned=resigned,
            has_nats=has_nats,
            has_keys=has_keys,
            log_ends=log_ends,
        )
        self.controller.heartbeat(caller, request, 77, self.now)
        return caller

    def register(
        self,
        broker_id: BrokerId,
        data_dir_id: str = "",
        *,
        clean_stop: bool = True,
        process: str = "",
        runs: tuple[str, ...] = (),
    ) -> Hashable:
        caller = self.caller()
        request = RegisterBrokerRequest(
            broker_id=broker_id,
            data_dir_id=data_dir_id or f"disk{broker_id}",
            address=f"h:{broker_id}",
            broker_version="1",
            clean_stop=clean_stop,
            process=process,
            runs=runs,
        )
        self.controller.register(caller, request, self.now)
        return caller

    def stop(self, broker_id: BrokerId, incarnation: int | None = None) -> Hashable:
        caller = self.caller()
        run = Incarnation(incarnation or self.image.brokers[broker_id].incarnation)
        self.controller.stop_broker(caller, StopBrokerRequest(broker_id=broker_id, incarnation=run), self.now)
        return caller

    def change_isr(self, broker_id: BrokerId, *wishes: tuple[StreamId, tuple[BrokerId, ...]]) -> Hashable:
        caller = self.caller()
        changes = tuple(
            IsrChange(
                stream_id,
                PartitionId(0),
                self.partition(stream_id).leader_epoch,
                self.partition(stream_id).version,
                tuple(IsrMember(one, self.image.brokers[one].incarnation) for one in isr),
                len(isr) >= (self.image.streams[stream_id].config.min_isr or 1),
            )
            for stream_id, isr in wishes
        )
        run = self.image.brokers[broker_id].incarnation
        self.controller.change_isr(caller, ChangeIsrRequest(broker_id=broker_id, incarnation=run, changes=changes))
        return caller

    def after(self, ms: int, *alive: BrokerId) -> list[Command]:
        """Time passes, with heartbeats of those brokers and ticks; what is newly proposed."""
        wanted = []
        for _ in range(ms // 100):
            self.now_ms += 100
            for broker_id in alive:
                if self.now_ms % limits.HEARTBEAT_MS == 0:
                    self.heartbeat(broker_id)
            self.controller.tick(self.now)
            wanted += self.take()
        return wanted


def register(broker_id: BrokerId) -> RegisterBroker:
    return RegisterBroker(
        broker_id=broker_id,
        data_dir_id=f"disk{broker_id}",
        address=f"h:{broker_id}",
        rack=None,
        broker_version="1",
        clean_stop=True,
        registered_us=1,
    )


def log_end(cluster: Cluster, stream_id: StreamId, end: int, *, last_epoch: int = 1, failed: bool = False) -> LogEnd:
    """That a log ends there, as a broker says that knows what the metadata leader knows."""
    leader_epoch = cluster.partition(stream_id).leader_epoch
    return LogEnd(stream_id, PartitionId(0), leader_epoch, LeaderEpoch(last_epoch), Offset(end), failed)


def fence(cluster: Cluster, broker_id: BrokerId, *silent: BrokerId) -> FenceBroker:
    incarnation = cluster.image.brokers[broker_id].incarnation
    return FenceBroker(broker_id=broker_id, incarnation=incarnation, silent=silent)


# Sessions


def test_a_silent_broker_is_fenced_once() -> None:
    cluster = Cluster()
    assert cluster.after(2_900, ONE, TWO) == []
    assert cluster.after(5_000, ONE, TWO) == [fence(cluster, THREE)]
    cluster.commit()
    assert not cluster.image.brokers[THREE].is_live
    assert cluster.after(5_000, ONE, TWO) == []


def test_the_metadata_leader_does_not_fence_itself_whether_it_sends_heartbeats_or_not() -> None:
    cluster = Cluster()
    assert cluster.after(10_000, TWO, THREE) == []


def test_a_fence_that_was_not_taken_is_proposed_again() -> None:
    cluster = Cluster()
    assert cluster.after(3_000, ONE, TWO) == [fence(cluster, THREE)]
    cluster.controller.not_proposed(cluster.proposed.pop().number, RemoteError(ErrorCode.OVERLOADED, "later"))
    assert cluster.after(100, ONE, TWO) == [fence(cluster, THREE)]


@pytest.mark.parametrize("has_keys", [True, False])
def test_who_has_keys_is_known_of_itself_and_of_others_once_they_have_said_so(has_keys: bool) -> None:
    cluster = Cluster(has_keys=has_keys)
    own = frozenset() if has_keys else {ONE}
    assert (cluster.controller.without_keys(), cluster.controller.keys_unsaid()) == (own, {TWO, THREE})
    cluster.heartbeat(TWO, has_keys=True)
    cluster.heartbeat(THREE, has_keys=False)
    assert (cluster.controller.without_keys(), cluster.controller.keys_unsaid()) == (own | {THREE}, frozenset())


def test_a_heartbeat_says_who_leads_and_how_far_the_log_is() -> None:
    cluster = Cluster()
    answer = cluster.answer(cluster.heartbeat(TWO), HeartbeatResponse)
    assert answer == HeartbeatResponse(metadata_leader=ONE, raft_term=TERM, committed_index=77)


def test_a_fenced_broker_hears_that_it_registers_again() -> None:
    cluster = Cluster()
    cluster.after(3_000, ONE, TWO)
    cluster.commit()
    assert cluster.error(cluster.heartbeat(THREE)) == ErrorCode.STALE_INCARNATION
    caller = cluster.register(THREE)
    cluster.commit()
    assert cluster.answer(caller, RegisterBrokerResponse).incarnation == cluster.image.index
    # Its session begins with the registration.
    assert cluster.after(2_900, ONE, TWO) == []
    assert cluster.after(100, ONE, TWO) == [fence(cluster, THREE)]


def test_a_new_metadata_leader_begins_all_sessions_anew() -> None:
    cluster = Cluster()
    cluster.after(2_900, ONE)
    cluster.controller.follow(TWO)
    assert cluster.after(2_000) == []
    cluster.controller.lead(cluster.image, TERM + 2, cluster.now)
    assert cluster.after(2_900) == []
    assert cluster.after(100) == [fence(cluster, TWO, THREE), fence(cluster, THREE, TWO)]


def test_a_run_that_begins_before_the_last_one_was_missed_has_its_full_time() -> None:
    cluster = Cluster()
    cluster.after(2_000, ONE, TWO)
    cluster.register(THREE)
    cluster.commit()
    assert cluster.after(2_900, ONE, TWO) == []
    assert cluster.after(100, ONE, TWO) == [fence(cluster, THREE)]


def test_a_pause_of_its_own_is_nobodys_silence() -> None:
    cluster = Cluster()
    cluster.after(100)
    cluster.now_ms += 60_000
    assert cluster.after(2_200) == []
    assert cluster.after(700) == [fence(cluster, TWO, THREE), fence(cluster, THREE, TWO)]


def test_one_that_pauses_again_and_again_still_finds_out_who_is_dead() -> None:
    cluster = Cluster()
    wanted = []
    for _ in range(40):
        cluster.now_ms += 1_900
        wanted += cluster.after(100, ONE, TWO)
    assert wanted == [fence(cluster, THREE)]


def test_who_is_behind() -> None:
    cluster = Cluster()
    cluster.heartbeat(ONE, applied=9)
    cluster.heartbeat(TWO, applied=8)
    cluster.heartbeat(TWO, applied=7)  # overtaken by the later one
    assert cluster.controller.behind(8) == (THREE,)
    assert cluster.controller.behind(9) == (TWO, THREE)


# Reports


def unreachable(cluster: Cluster, *streams: StreamId, silent: tuple[BrokerId, ...] = ()) -> ElectLeaders:
    return ElectLeaders(
        elections=tuple(
            Election(one, PartitionId(0), cluster.partition(one).leader_epoch, ElectionReason.UNREACHABLE)
            for one in streams
        ),
        silent=silent,
    )


def test_most_of_the_other_members_must_report_a_leader() -> None:
    cluster = Cluster()
    orders, trades, alone = (cluster.create(*made) for made in [("o", ONE, TWO, THREE), ("t", ONE, TWO), ("a", ONE)])
    other = cluster.create("x", THREE, ONE)
    cluster.heartbeat(TWO, ONE)
    assert cluster.take() == [unreachable(cluster, trades, silent=(THREE,))]
    cluster.commit()
    assert cluster.partition(trades).leader == TWO
    cluster.heartbeat(THREE, ONE)
    assert cluster.take() == [unreachable(cluster, orders)]
    cluster.commit()
    assert (cluster.partition(orders).leader, cluster.partition(orders).isr) == (TWO, (TWO, THREE))
    assert (cluster.partition(alone).leader, cluster.partition(other).leader) == (ONE, THREE)
    cluster.heartbeat(TWO, ONE)
    assert cluster.after(400) == []


def test_reports_count_together_for_a_while_only() -> None:
    cluster = Cluster()
    orders = cluster.create("o", ONE, TWO, THREE)
    cluster.heartbeat(TWO, ONE)
    cluster.after(2_000)
    cluster.heartbeat(THREE, ONE)
    assert cluster.take() == []
    cluster.heartbeat(TWO, ONE)
    assert cluster.take() == [unreachable(cluster, orders)]


def test_a_report_that_is_not_repeated_is_withdrawn() -> None:
    cluster = Cluster()
    cluster.create("o", ONE, TWO, THREE)
    cluster.heartbeat(TWO, ONE)
    cluster.heartbeat(TWO)
    cluster.heartbeat(THREE, ONE)
    assert cluster.after(500) == []


def test_a_report_is_about_one_run() -> None:
    cluster = Cluster()
    orders = cluster.create("o", ONE, TWO)
    earlier = UnreachableLeader(ONE, Incarnation(cluster.image.brokers[ONE].incarnation + 1))
    request = HeartbeatRequest(
        broker_id=TWO, incarnation=cluster.image.brokers[TWO].incarnation, applied_index=0, unreachable=(earlier,)
    )
    cluster.controller.heartbeat("c", request, 0, cluster.now)
    assert cluster.take() == []
    cluster.heartbeat(TWO, TWO)  # about itself
    assert cluster.take() == []
    assert cluster.partition(orders).leader == ONE


def test_brokers_that_do_not_reach_each_other_do_not_take_turns() -> None:
    cluster = Cluster()
    orders = cluster.create("o", ONE, TWO, min_isr=2)
    for _ in range(10):
        cluster.heartbeat(TWO, ONE)
        cluster.heartbeat(ONE, TWO)
        cluster.after(500)
        cluster.commit()
    assert (cluster.partition(orders).leader, cluster.partition(orders).leader_epoch) == (TWO, 2)


def test_one_election_is_under_way_at_a_time() -> None:
    cluster = Cluster()
    orders, trades = cluster.create("o", ONE, TWO), cluster.create("t", THREE, TWO)
    cluster.all_heard()
    cluster.heartbeat(TWO, ONE)
    assert cluster.take() == [unreachable(cluster, orders)]
    cluster.heartbeat(TWO, ONE, THREE)
    assert cluster.after(500) == []
    cluster.commit()
    assert cluster.after(100) == [unreachable(cluster, trades)]


def test_a_leader_that_cannot_serve_resigns() -> None:
    cluster = Cluster()
    orders, alone = cluster.create("o", TWO, ONE), cluster.create("a", TWO)
    resigned = tuple(
        ResignedLeadership(StreamId(one), PartitionId(number), LeaderEpoch(epoch))
        for one, number, epoch in [(orders, 0, 1), (alone, 0, 1), (orders, 1, 1), (orders, 0, 2), (99, 0, 1)]
    )
    cluster.heartbeat(ONE, resigned=resigned)  # which does not lead it
    assert cluster.take() == []
    cluster.heartbeat(TWO, resigned=resigned)
    election = Election(orders, PartitionId(0), LeaderEpoch(1), ElectionReason.RESIGNED)
    assert cluster.take() == [ElectLeaders(elections=(election,), silent=(THREE,))]
    cluster.commit()
    assert (cluster.partition(orders).leader, cluster.partition(orders).isr) == (ONE, (ONE,))


# Preferred leaders


def test_a_preferred_leader_leads_again_some_time_after_it_is_in_sync() -> None:
    cluster = Cluster()
    orders = cluster.create("o", ONE, TWO)
    cluster.register(ONE)
    cluster.commit()
    assert cluster.partition(orders).leader == TWO
    assert cluster.after(PREFERRED_MS, ONE, TWO, THREE) == []
    cluster.change_isr(TWO, (orders, (ONE, TWO)))
    cluster.commit()
    assert cluster.after(PREFERRED_MS, ONE, TWO, THREE) == []
    election = Election(orders, PartitionId(0), LeaderEpoch(2), ElectionReason.PREFERRED)
    assert cluster.after(3_000, ONE, TWO, THREE) == [ElectLeaders(elections=(election,))]
    cluster.commit()
    assert cluster.partition(orders).leader == ONE
    assert cluster.after(2 * PREFERRED_MS, ONE, TWO, THREE) == []


def test_who_leaves_the_isr_begins_its_time_anew() -> None:
    cluster = Cluster()
    orders = cluster.create("o", ONE, TWO)
    cluster.register(ONE)
    cluster.commit()
    for isr in ((ONE, TWO), (TWO,), (ONE, TWO)):
        cluster.change_isr(TWO, (orders, isr))
        cluster.commit()
        assert cluster.after(PREFERRED_MS - 3_000, ONE, TWO, THREE) == []


def test_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PREFERRED_ELECTIONS_MAX", 2)
    cluster = Cluster()
    streams = [cluster.create(f"s{number}", ONE, TWO) for number in range(5)]
    cluster.register(ONE)
    cluster.commit()
    cluster.change_isr(TWO, *((one, (ONE, TWO)) for one in streams))
    cluster.commit()
    cluster.after(PREFERRED_MS, ONE, TWO, THREE)
    sizes = []
    for _ in range(5):
        cluster.after(limits.PREFERRED_LEADER_INTERVAL_MS, ONE, TWO, THREE)
        sizes += [len(command.elections) for command in cluster.commit() if isinstance(command, ElectLeaders)]
    assert sizes == [2, 2, 1]


# Registration


def test_registration_is_answered_once_it_is_applied() -> None:
    cluster = Cluster(2)
    caller = cluster.register(THREE, clean_stop=False)
    (command,) = cluster.take()
    assert isinstance(command, RegisterBroker)
    assert (command.clean_stop, command.registered_us) == (False, cluster.now.wall_us)
    assert caller not in cluster.answers
    again = cluster.register(THREE, clean_stop=False)
    assert cluster.error(again) == ErrorCode.OVERLOADED
    assert len(cluster.proposed) == 1
    cluster.commit()
    assert cluster.answer(caller, RegisterBrokerResponse).incarnation == 3


def test_a_copy_of_a_data_directory_is_refused() -> None:
    cluster = Cluster(2)
    assert cluster.error(cluster.register(THREE, "disk2")) == ErrorCode.CLUSTER_MISMATCH


@pytest.mark.parametrize(
    ("runs", "is_refused"),
    [
        (("a", "c"), True),
        (("c",), True),
        (("a", "b", "c"), False),
        (("", "c"), False),  # anybody may have run on it
        ((), False),  # of an older version
    ],
)
def test_who_does_not_know_of_the_last_run_has_an_older_copy(runs: tuple[str, ...], *, is_refused: bool) -> None:
    cluster = Cluster(2)
    cluster.register(THREE, process="b", runs=("a", "b"))
    cluster.commit()
    cluster.after(3_000, ONE, TWO)
    cluster.commit()
    caller = cluster.register(THREE, process="c", runs=runs)
    if is_refused:
        assert cluster.error(caller) == ErrorCode.CLUSTER_MISMATCH
        refusal = cluster.answers[caller]
        assert isinstance(refusal, RemoteError)
        assert refusal.details == {"broker_id": 3, "older_copy": True}
    cluster.commit()
    assert cluster.image.brokers[THREE].process == ("b" if is_refused else "c")


@pytest.mark.parametrize(("log_index", "is_refused"), [(6, True), (7, False), (None, False)])
def test_who_lacks_what_it_has_acknowledged_has_an_older_copy(log_index: int | None, *, is_refused: bool) -> None:
    cluster = Cluster(2)
    cluster.register(THREE, process="p", runs=("p",))
    cluster.commit()
    cluster.after(limits.DUPLICATE_PROCESS_MS + 100, ONE, TWO)
    request = RegisterBrokerRequest(
        broker_id=THREE,
        data_dir_id="disk3",
        address="h:3",
        broker_version="1",
        clean_stop=False,
        process="q",
        runs=("p", "q"),
        log_index=log_index,
    )
    cluster.controller.register("c", request, cluster.now, RaftContact(acknowledged_index=7))
    cluster.commit()
    assert isinstance(cluster.answers["c"], RemoteError) == is_refused


def test_what_is_known_of_a_run_holds_for_its_disk_only() -> None:
    cluster = Cluster(2)
    cluster.register(THREE, process="b", runs=("b",))
    cluster.commit()
    cluster.after(3_000, ONE, TWO)
    cluster.commit()
    cluster.register(THREE, "empty", process="c", runs=("c",))
    cluster.commit()
    assert cluster.image.brokers[THREE].process == "c"
    cluster.after(limits.DUPLICATE_PROCESS_MS + 100, ONE)
    cluster.register(TWO, process="d", runs=("d",))  # no process is known of its last run
    cluster.commit()
    assert cluster.image.brokers[TWO].process == "d"


@pytest.mark.parametrize("address", ["h:99999", "h:", "[::1", "a..b:1", ":1"])
def test_nobody_is_registered_where_nobody_can_be_reached(address: str) -> None:
    cluster = Cluster(2)
    request = RegisterBrokerRequest(
        broker_id=THREE, data_dir_id="d", address=address, broker_version="1", clean_stop=False
    )
    cluster.controller.register("c", request, cluster.now)
    assert cluster.error("c") == ErrorCode.BAD_REQUEST


def rivals() -> Cluster:
    """Broker 3 is registered with the process p, and has led nothing yet."""
    cluster = Cluster(2)
    cluster.register(THREE, process="p")
    cluster.commit()
    cluster.after(limits.DUPLICATE_PROCESS_MS, ONE, TWO, THREE)
    return cluster


def test_a_copy_is_not_registered_beside_the_original() -> None:
    cluster = rivals()
    for _ in range(30):
        cluster.after(limits.HEARTBEAT_MS, ONE, TWO, THREE)
        caller = cluster.register(THREE, process="copy", runs=("p", "copy"))
        assert cluster.error(caller) == ErrorCode.BROKER_UNAVAILABLE
        refusal = cluster.answers[caller]
        assert isinstance(refusal, RemoteError)
        assert refusal.details == {"broker_id": 3, "taken": True}
    assert cluster.image.brokers[THREE].process == "p"


def test_a_broker_that_was_killed_comes_back_within_two_heartbeats() -> None:
    cluster = rivals()
    assert cluster.error(cluster.register(THREE, process="q"))
    cluster.after(limits.DUPLICATE_PROCESS_MS, ONE, TWO)
    assert cluster.error(cluster.register(THREE, process="q"))  # a heartbeat may come in this very moment
    cluster.after(100, ONE, TWO)
    cluster.register(THREE, process="q")
    cluster.commit()
    assert cluster.image.brokers[THREE].process == "q"


def test_a_new_metadata_leader_gives_the_original_the_time_to_be_heard() -> None:
    cluster = rivals()
    cluster.controller.lead(cluster.image, TERM + 1, cluster.now)
    assert cluster.error(cluster.register(THREE, process="copy"))
    cluster.after(limits.DUPLICATE_PROCESS_MS, ONE, TWO, THREE)
    assert cluster.error(cluster.register(THREE, process="copy"))
    assert cluster.image.brokers[THREE].process == "p"


@pytest.mark.parametrize(("speaker", "process"), [("q", "q"), ("p", "p"), (None, "p")])
def test_who_speaks_in_the_raft_group_is_who_is_there(speaker: str | None, process: str) -> None:
    cluster = rivals()
    cluster.controller.lead(cluster.image, TERM + 1, cluster.now)
    request = RegisterBrokerRequest(
        broker_id=THREE, data_dir_id="disk3", address="h:3", broker_version="1", clean_stop=False, process="q"
    )
    cluster.controller.register("c", request, cluster.now, RaftContact(speaker=speaker))
    cluster.commit()
    assert cluster.image.brokers[THREE].process == process


def test_a_broker_that_is_older_than_the_level_is_not_registered() -> None:
    cluster = Cluster(2)
    cluster.apply(RaiseFeatureLevel(feature_level=(0, 4)), raft_term=TERM)
    request = RegisterBrokerRequest(
        broker_id=THREE, data_dir_id="disk3", address="h:3", broker_version="0.3.0", clean_stop=False
    )
    cluster.controller.register("c", request, cluster.now)
    assert cluster.error("c") == ErrorCode.UNSUPPORTED_VERSION
    assert not cluster.take()
    assert THREE not in cluster.image.brokers


def test_the_number_of_brokers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BROKERS_MAX", 2)
    cluster = Cluster(2)
    assert cluster.error(cluster.register(THREE)) == ErrorCode.TOO_LARGE
    cluster.register(TWO)
    assert len(cluster.take()) == 1


def test_two_brokers_of_one_id_do_not_fence_each_other() -> None:
    cluster = Cluster(2)
    assert cluster.error(cluster.register(TWO, "other")) == ErrorCode.BROKER_UNAVAILABLE
    cluster.after(3_000, ONE)
    cluster.commit()
    caller = cluster.register(TWO, "other")
    cluster.commit()
    cluster.answer(caller, RegisterBrokerResponse)
    assert cluster.image.brokers[TWO].data_dir_id == "other"


# Stopping


def test_a_stop_is_answered_once_others_lead() -> None:
    cluster = Cluster()
    orders = cluster.create("o", TWO, ONE)
    cluster.all_heard()
    caller = cluster.stop(TWO)
    assert cluster.error(cluster.stop(TWO)) == ErrorCode.OVERLOADED
    assert cluster.commit() == [StopBroker(broker_id=TWO, incarnation=Incarnation(2))]
    cluster.answer(caller, StopBrokerResponse)
    assert cluster.partition(orders).leader == ONE
    # The answer was lost: asked again, it is found done.
    cluster.answer(cluster.stop(TWO), StopBrokerResponse)
    caller = cluster.stop(TWO, 99)
    cluster.commit()
    assert cluster.error(caller) == ErrorCode.STALE_INCARNATION


# Who is silent is given nothing


def test_of_two_that_die_together_the_second_does_not_lead_in_between() -> None:
    cluster = Cluster(4)
    orders = cluster.create("o", TWO, THREE, ONE)
    cluster.all_heard()
    cluster.now_ms += 400
    cluster.heartbeat(THREE)  # its last one: its session ends later
    cluster.after(2_600, ONE, BrokerId(4))
    (command,) = cluster.commit()
    assert command == FenceBroker(broker_id=TWO, incarnation=Incarnation(2), silent=(THREE,))
    assert cluster.partition(orders).leader == ONE


def test_who_is_silent_leads_where_nobody_else_can() -> None:
    cluster = Cluster()
    orders = cluster.create("o", TWO, THREE)
    cluster.all_heard()
    cluster.now_ms += 400
    cluster.heartbeat(THREE)
    cluster.after(2_600, ONE)
    cluster.commit()
    assert cluster.partition(orders).leader == THREE


def test_a_stop_waits_until_it_is_known_who_can_take_over() -> None:
    cluster = Cluster()
    orders = cluster.create("o", ONE, TWO, THREE)
    caller = cluster.stop(ONE)
    cluster.heartbeat(ONE)
    assert cluster.take() == []
    again = cluster.stop(ONE)
    assert cluster.error(caller) == ErrorCode.OVERLOADED
    cluster.after(limits.RECENT_HEARTBEAT_MS, ONE, THREE)
    cluster.commit()
    cluster.answer(again, StopBrokerResponse)
    assert cluster.partition(orders).leader == THREE


def test_a_stop_goes_on_as_soon_as_all_are_heard_of() -> None:
    cluster = Cluster()
    orders = cluster.create("o", ONE, TWO, THREE)
    caller = cluster.stop(ONE)
    cluster.heartbeat(TWO)
    assert cluster.take() == []
    cluster.heartbeat(THREE)
    cluster.commit()
    cluster.answer(caller, StopBrokerResponse)
    assert cluster.partition(orders).leader == TWO


def test_streams_are_placed_on_those_that_were_heard_of_lately() -> None:
    cluster = Cluster()
    assert cluster.controller.ready(cluster.now) == set()  # who is there is not known yet
    cluster.all_heard()
    assert cluster.controller.ready(cluster.now) == {ONE, TWO, THREE}
    cluster.after(limits.RECENT_HEARTBEAT_MS + 100, TWO)
    assert cluster.controller.ready(cluster.now) == {ONE, TWO}
    cluster.controller.follow(TWO)
    assert cluster.controller.ready(cluster.now) == set()


# Changes of ISRs


def test_each_change_has_its_result() -> None:
    cluster = Cluster()
    orders, trades = cluster.create("o", ONE, TWO, THREE), cluster.create("t", TWO, ONE)
    caller = cluster.change_isr(ONE, (orders, (ONE, TWO)), (trades, (ONE,)))
    cluster.commit()
    done, refused = cluster.answer(caller, ChangeIsrResponse).results
    assert done == IsrResult(version=2)
    assert (refused.version, refused.error) == (0, ErrorCode.NOT_LEADER)


def test_what_waits_becomes_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ISR_CHANGES_PER_COMMAND_MAX", 3)
    cluster = Cluster()
    streams = [cluster.create(f"s{number}", ONE, TWO) for number in range(6)]
    for isr in ((ONE,), (ONE, TWO)):
        cluster.change_isr(ONE, (streams[5], isr))
        cluster.commit()
    callers = [cluster.change_isr(ONE, (streams[0], (ONE,)))]
    callers += [cluster.change_isr(ONE, (one, (ONE,)), (two, (ONE,))) for one, two in [streams[1:3], streams[3:5]]]
    callers += [cluster.change_isr(ONE, (streams[5], (ONE,)))]
    sizes = []
    while commands := cluster.commit():
        sizes += [len(command.changes) for command in commands if isinstance(command, ChangeIsr)]
    assert sizes == [1, 2, 3]
    versions = [[result.version for result in cluster.answer(one, ChangeIsrResponse).results] for one in callers]
    assert versions == [[2], [2, 2], [2, 2], [4]]


def test_a_request_larger_than_a_command_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ISR_CHANGES_PER_COMMAND_MAX", 1)
    cluster = Cluster()
    streams = [cluster.create(f"s{number}", ONE, TWO) for number in range(2)]
    cluster.change_isr(ONE, *((one, (ONE,)) for one in streams))
    assert [len(command.changes) for command in cluster.take() if isinstance(command, ChangeIsr)] == [2]


def test_changes_of_a_run_that_is_over_are_refused_together() -> None:
    cluster = Cluster()
    orders = cluster.create("o", ONE, TWO)
    first = cluster.change_isr(ONE, (orders, (ONE,)))
    cluster.take()
    cluster.register(ONE)
    stale = cluster.change_isr(ONE, (orders, (ONE, TWO)))
    cluster.commit()
    cluster.commit()
    assert cluster.answer(first, ChangeIsrResponse).results == (IsrResult(version=2),)
    assert cluster.error(stale) == ErrorCode.STALE_INCARNATION


def test_what_waits_is_bounded() -> None:
    cluster = Cluster()
    orders = cluster.create("o", ONE, TWO)
    callers = [cluster.change_isr(ONE, (orders, (ONE,))) for _ in range(limits.ISR_REQUESTS_WAITING_MAX + 2)]
    assert cluster.error(callers[-1]) == ErrorCode.OVERLOADED
    while cluster.commit():
        pass
    assert set(cluster.answers) >= set(callers)


# The log of commands


def test_only_the_leader_answers_and_says_who_it_is() -> None:
    cluster = Cluster()
    orders = cluster.create("o", ONE, TWO)
    waiting = [cluster.register(THREE), cluster.stop(TWO)]
    waiting += [cluster.change_isr(ONE, (orders, (ONE,))) for _ in range(2)]
    cluster.controller.follow(TWO)
    waiting += [cluster.register(THREE), cluster.stop(TWO), cluster.heartbeat(TWO)]
    waiting += [cluster.change_isr(ONE, (orders, (ONE,)))]
    assert cluster.take() == []
    for caller in waiting:
        assert cluster.error(caller) == ErrorCode.NOT_METADATA_LEADER
        response = cluster.answers[caller]
        assert isinstance(response, RemoteError)
        assert response.details["leader"] == TWO


def test_another_entry_at_the_index_is_not_the_command() -> None:
    cluster = Cluster(2)
    caller = cluster.register(THREE)
    cluster.commit(raft_term=TERM + 1)
    assert cluster.error(caller) == ErrorCode.NOT_METADATA_LEADER


def test_an_entry_that_was_never_applied_is_given_up() -> None:
    cluster = Cluster(2)
    caller = cluster.register(THREE)
    cluster.take()
    cluster.controller.proposed(cluster.proposed[0].number, cluster.image.index + 1, TERM)
    cluster.image = ClusterImage(cluster.image.index + 1, cluster.image.streams, cluster.image.names,
                                 cluster.image.brokers, cluster.image.loads)  # fmt: skip
    cluster.create("o", ONE)
    assert cluster.error(caller) == ErrorCode.NOT_METADATA_LEADER


def test_what_the_group_does_not_take_is_answered() -> None:
    cluster = Cluster(2)
    caller = cluster.register(THREE)
    cluster.take()
    cluster.controller.not_proposed(cluster.proposed[0].number, RemoteError(ErrorCode.OVERLOADED, "too much"))
    assert cluster.error(caller) == ErrorCode.OVERLOADED
    again = cluster.register(THREE)
    cluster.take()
    assert again not in cluster.answers


def test_who_lost_nats_hands_over_to_whom_has_it_alone() -> None:
    cluster = Cluster(3)
    stream_id = cluster.create("s", ONE, TWO, THREE)
    cluster.all_heard()
    resigned = (ResignedLeadership(stream_id, PartitionId(0), LeaderEpoch(1), is_whole=True),)
    cluster.heartbeat(TWO, has_nats=False)
    cluster.heartbeat(ONE, resigned=resigned, has_nats=False)
    cluster.commit()
    assert (cluster.partition(stream_id).leader, cluster.partition(stream_id).isr) == (THREE, (TWO, THREE))


def test_where_nobody_has_nats_the_leader_stays() -> None:
    cluster = Cluster(2)
    stream_id = cluster.create("s", ONE, TWO)
    resigned = (ResignedLeadership(stream_id, PartitionId(0), LeaderEpoch(1), is_whole=True),)
    cluster.heartbeat(TWO, has_nats=False)
    cluster.heartbeat(ONE, resigned=resigned, has_nats=False)
    assert cluster.commit() == []
    cluster.heartbeat(TWO)
    cluster.heartbeat(ONE, resigned=resigned, has_nats=False)
    cluster.commit()
    assert cluster.partition(stream_id).leader == TWO


def test_whom_nats_refused_a_subscription_is_the_last_to_lead_for_a_while() -> None:
    cluster = Cluster(2)
    stream_id = cluster.create("s", ONE, TWO)
    refused = ResignedLeadership(stream_id, PartitionId(0), LeaderEpoch(1), is_whole=True, is_refused=True)
    cluster.all_heard()
    cluster.heartbeat(ONE, resigned=(refused,))
    cluster.commit()
    assert cluster.partition(stream_id).leader == TWO
