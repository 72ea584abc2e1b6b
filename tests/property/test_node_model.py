"""A broker against the list of its promises, through every order of disk work, losses of NATS, stops and crashes."""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.messages import FetchRequest
from penstock.vfs.memory import Keep
from tests.extent import examples
from tests.unit.node.harness import Broker
from tests.unit.node.workload import NAMES, PARTITIONS, Workload

names = st.sampled_from(NAMES)
numbers = st.integers(0, 20)


class NodeMachine(RuleBasedStateMachine):
    """The workload, one act after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.workload = Workload(Broker().start())

    @property
    def broker(self) -> Broker:
        return self.workload.broker

    @rule(name=names)
    def create(self, name: str) -> None:
        self.workload.create(name, segment_bytes=4096)

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.workload.delete(name)

    @rule(name=names, segment_bytes=st.sampled_from((4096, 8192)))
    def alter(self, name: str, segment_bytes: int) -> None:
        self.workload.alter(name, segment_bytes=segment_bytes)

    @rule(name=names, number=st.integers(0, 60))
    def truncate(self, name: str, number: int) -> None:
        self.workload.truncate(name, number)

    @rule(name=names, count=st.integers(1, 3), size_bytes=st.sampled_from((0, 900)))
    def publish(self, name: str, count: int, size_bytes: int) -> None:
        self.workload.publish(name, count, size_bytes)

    @rule(number=numbers)
    def publish_again(self, number: int) -> None:
        self.workload.publish_again(number)

    @rule(name=names, count=st.integers(1, 3))
    def append(self, name: str, count: int) -> None:
        self.workload.append(name, count)

    @rule(name=names, number=st.integers(0, 100))
    def append_once(self, name: str, number: int) -> None:
        self.workload.append_once(name, number)

    @rule(name=names, number=numbers, offset=st.integers(0, 5), wait_ms=st.sampled_from((0, 500, 60_000)))
    def fetch(self, name: str, number: int, offset: int, wait_ms: int) -> None:
        stream_id = self.workload.promised().get(name)
        if stream_id is not None:
            partition = number % (PARTITIONS[name] + 1)  # one too many: it is refused
            request = FetchRequest(stream_id=stream_id, partition=partition, offset=offset, wait_ms_max=wait_ms)  # type: ignore[arg-type]
            self.broker.request(request)

    @rule(number=numbers)
    def run_disk(self, number: int) -> None:
        self.workload.run_disk(number)

    @rule(number=numbers)
    def complete(self, number: int) -> None:
        self.workload.complete(number)

    @rule()
    def settle(self) -> None:
        self.workload.settle()

    @rule(ms=st.sampled_from((1, 600, 61_000)))
    def tick(self, ms: int) -> None:
        self.broker.tick(ms)
        self.workload.listen()

    @rule()
    def nats_goes_and_comes(self) -> None:
        if self.broker.nats.is_up:
            self.broker.nats_down()
        else:
            self.broker.nats_back()
            self.workload.listen()

    @rule(keep=st.sampled_from(Keep), seed=st.integers(0, 2**16))
    def crash(self, keep: Keep, seed: int) -> None:
        self._go_on(self.broker.crash(keep, Random(seed) if keep is Keep.SUBSET else None))

    @rule()
    def stop_and_start(self) -> None:
        self.workload.settle()
        self.broker.stop()
        self.workload.listen()
        self._go_on(self.broker.crash())

    def _go_on(self, after: Broker) -> None:
        after.nats.is_up = True
        self.workload.check(after.start())
        self.workload.go_on_with(after)

    @invariant()
    def readers_see_what_was_promised(self) -> None:
        for name, stream_id in self.workload.promised().items():
            info = self.broker.streams().get(name)
            for number in range(PARTITIONS[name]):
                if info is not None and info.stream_id == stream_id and self.workload.stored.get((stream_id, number)):
                    rows = {row.offset: row.value for row in self.broker.read(name, number)}
                    log_start = info.partitions[number].log_start
                    assert log_start is not None
                    self.workload.hold((stream_id, number), log_start, rows)

    @invariant()
    def in_flight_bytes_are_counted_down(self) -> None:
        if not self.broker.disk and not self.workload.executed:
            assert self.broker.node.in_flight_bytes == 0

    def teardown(self) -> None:
        self.workload.settle()
        self.broker.stop()


TestNode = NodeMachine.TestCase
TestNode.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
