"""Whatever happens to a controller: everyone who asks is answered once, and nothing is under way twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import LogEnd
from penstock.metadata.commands import ChangeIsr, Command, ElectLeaders, RecoverPartitions
from penstock.metadata.elections import recovers
from tests.extent import examples
from tests.unit.metadata.controller.test_controller import ONE, TERM, THREE, TWO, Cluster, log_end

ALL = (ONE, TWO, THREE)
BROKERS = st.sampled_from(ALL)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("heartbeat"), BROKERS, st.lists(BROKERS, max_size=2)),
        st.tuples(st.just("register"), BROKERS, st.booleans()),
        st.tuples(st.just("stop"), BROKERS),
        st.tuples(st.just("isr"), st.sampled_from([0, 1]), st.lists(BROKERS, min_size=1, max_size=3, unique=True)),
        st.tuples(st.just("pass"), st.sampled_from([500, 1_500, 40_000])),
        st.tuples(st.just("commit")),
        st.tuples(st.just("refuse")),
        st.tuples(st.just("lose")),
    ),
    max_size=60,
)


def kind_of(command: Command) -> Hashable:
    if isinstance(command, ElectLeaders | RecoverPartitions):
        return type(command)
    fields = msgspec.structs.asdict(command)
    return (type(command), fields["broker_id"], fields.get("incarnation"))


class Model(Cluster):
    """A cluster whose broker 1 may lose the metadata leadership and take it again."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Hashable] = []
        self.streams = [self.create("o", ONE, TWO, THREE, min_isr=2), self.create("t", TWO, THREE)]

    def do(self, event: tuple) -> None:
        getattr(self, f"_{event[0]}")(*event[1:])
        self.take()
        under_way = Counter(kind_of(proposal.command) for proposal in self.proposed)
        assert max(under_way.values(), default=1) == 1
        for proposal in self.proposed:
            if isinstance(proposal.command, ChangeIsr):
                assert len(proposal.command.changes) <= 4_096

    def _heartbeat(self, broker_id: BrokerId, unreachable: list[BrokerId]) -> None:
        self.asked.append(self.heartbeat(broker_id, *unreachable, log_ends=self.log_ends(broker_id)))

    def log_ends(self, broker_id: BrokerId) -> tuple[LogEnd, ...]:
        live = self.image.live_brokers()
        waiting = [one for one in self.streams if recovers(self.partition(one), live)]
        return tuple(log_end(self, stream_id, int(broker_id)) for stream_id in waiting)

    def _register(self, broker_id: BrokerId, clean_stop: bool) -> None:
        self.asked.append(self.register(broker_id, clean_stop=clean_stop))

    def _stop(self, broker_id: BrokerId) -> None:
        self.asked.append(self.stop(broker_id))

    def _isr(self, number: int, isr: list[BrokerId]) -> None:
        stream_id = self.streams[number]
        leader = self.partition(stream_id).leader or ONE
        self.asked.append(self.change_isr(leader, (stream_id, tuple({leader, *isr}))))

    def _pass(self, ms: int) -> None:
        for _ in range(ms // 500):
            self.now_ms += 500
            self.controller.tick(self.now)

    def _commit(self) -> None:
        self.commit()

    def _refuse(self) -> None:
        proposals, self.proposed = self.proposed, []
        for proposal in proposals:
            self.controller.not_proposed(proposal.number, RemoteError(ErrorCode.OVERLOADED, "later"))

    def _lose(self) -> None:
        self.proposed = []
        self.controller.follow(TWO)
        self.take()
        assert set(self.asked) == set(self.answers)
        self.controller.lead(self.image, TERM, self.now)


@settings(max_examples=examples(100), deadline=None)
@given(EVENTS)
def test_any_events(events: list[tuple]) -> None:
    model = Model()
    for event in events:
        model.do(event)
    model.do(("pass", limits.RECENT_HEARTBEAT_MS))  # a stop may wait for who is there to take over
    for _ in range(len(events) + 2):  # what waits behind what is under way
        model.commit()
    assert set(model.asked) == set(model.answers)
    # Left alone, it comes to rest with every live broker in its place, and asks for nothing more.
    for broker_id in ALL:
        model.now_ms += 100
        model.commit()
        model.register(broker_id)
        model.commit()
    for broker_id in ALL:
        model.heartbeat(broker_id, log_ends=model.log_ends(broker_id))
    model.commit()
    model.after(3_000, *ALL)
    model.commit()
    assert model.image.live_brokers() == set(ALL)
    for stream_id in model.streams:
        leader = model.partition(stream_id).leader
        assert leader is not None
        model.change_isr(leader, (stream_id, model.partition(stream_id).replicas))
        model.commit()
        assert model.partition(stream_id).isr == model.partition(stream_id).replicas
    for _ in range(20):
        model.after(2_000, *ALL)
        model.commit()
    assert [model.partition(stream_id).leader for stream_id in model.streams] == [ONE, TWO]
    assert model.after(60_000, *ALL) == []
