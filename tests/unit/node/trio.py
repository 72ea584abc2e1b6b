"""Three brokers without sockets, threads or clocks of their own: real nodes, one time, and a network between them.

Rules: nothing happens that the test did not ask for. What a broker asks of another one arrives at once and in order,
and so does the answer, as long as both are up and nothing is cut between them. A message from NATS goes to every broker
that subscribes to its subject, also to one that others do not reach. What was asked on a connection that is gone is
answered to nobody.

| what           | how                                                                                            |
|----------------|------------------------------------------------------------------------------------------------|
| time           | `tick`: from one deadline of any broker to the next                                            |
| the network    | `cut`, `heal`; clients and NATS reach every broker that is up                                   |
| a broker       | `start`, `stop` (cleanly), `kill` (the process; the files stay), `power` (what is not synced goes) |
| its disk       | `wipe`: an empty one, as another data directory; `brokers[N].disk_runs_at_once`                |
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from penstock.base.ids import BrokerId
from penstock.messages import Request
from penstock.metadata.image import ClusterImage
from penstock.node.partition import Partition
from penstock.vfs.memory import Keep, MemoryVfs
from tests.unit.node.harness import Broker, Clock

NUMBERS = (1, 2, 3)
_TURNS_MAX = 10_000
_STEP_US = 1_000


class Question(NamedTuple):
    """What a broker has asked of another one."""

    asker: int
    connection: int
    token: int


class Trio:
    """Brokers 1 to 3, which are the voters; `brokers` has those that are up."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.brokers: dict[int, Broker] = {}
        self._disks = {number: MemoryVfs() for number in NUMBERS}
        self._data_dirs = {number: f"disk{number}" for number in NUMBERS}
        self._apart: set[frozenset[int]] = set()
        self._connections: dict[frozenset[int], int] = {}
        self._numbers = count(1)

    # What there is

    def image(self) -> ClusterImage:
        """What the cluster agrees on, as far as any broker that is up has heard."""
        return max((broker.node._cluster.image for broker in self.brokers.values()), key=lambda image: image.index)

    def partition(self, number: int, name: str, partition: int = 0) -> Partition | None:
        """A replica as its broker has it."""
        stream_id = self.image().by_name(name).stream_id
        return next(
            (one for key, one in self.brokers[number].node._partitions.items() if key == (stream_id, partition)), None
        )

    def metadata_leaders(self) -> list[int]:
        """Who takes itself for the metadata leader."""
        return [number for number, broker in self.brokers.items() if broker.node._cluster.quorum.is_leader]

    # Brokers

    def start(self, number: int) -> None:
        """On the files that are there."""
        assert number not in self.brokers
        voters = {BrokerId(other): f"broker{other}:1" for other in NUMBERS}
        broker = self.brokers[number] = Broker(
            self._disks[number],
            clock=self.clock,
            broker_id=BrokerId(number),
            address=voters[BrokerId(number)],
            data_dir_id=self._data_dirs[number],
            voters=voters,
        )
        broker.start()
        self._connect()

    def kill(self, number: int, *, power: bool = False) -> None:
        """The process ends at once; perhaps because the power fails."""
        self._disconnect(number)
        memory = self.brokers.pop(number).memory
        self._disks[number] = memory.crash_clone(Keep.SYNCED) if power else memory
        self.turn()

    def stop(self, number: int) -> None:
        """As SIGTERM does it: others lead first."""
        broker = self.brokers[number]
        left: list[bool] = []
        broker.node.leave(self.clock.now, lambda: left.append(True))
        self.turn()
        assert left
        broker.settle()
        broker.do(broker.node.stop(self.clock.now))
        waiting = [caller for caller in broker.open_requests if not isinstance(caller, Question)]
        assert not waiting, f"never answered: {waiting}"
        self._disconnect(number)
        del self.brokers[number]
        self.turn()

    def wipe(self, number: int) -> None:
        """A broker that is down gets an empty disk."""
        assert number not in self.brokers
        self._disks[number] = MemoryVfs()
        self._data_dirs[number] = f"another disk{number}"

    # The network

    def cut(self, one: int, other: int) -> None:
        """From now on the two do not reach each other."""
        self._apart.add(frozenset((one, other)))
        self._lose(frozenset((one, other)))
        self.turn()

    def heal(self) -> None:
        """All reach each other."""
        self._apart.clear()
        self._connect()

    def _connect(self) -> None:
        for one in self.brokers:
            for other in self.brokers:
                pair = frozenset((one, other))
                if one < other and pair not in self._apart and pair not in self._connections:
                    self._connections[pair] = next(self._numbers)
                    self.brokers[one].node.peer_up(BrokerId(other), self.clock.now)
                    self.brokers[other].node.peer_up(BrokerId(one), self.clock.now)
        self.turn()

    def _disconnect(self, number: int) -> None:
        for pair in [pair for pair in self._connections if number in pair]:
            self._lose(pair)

    def _lose(self, pair: frozenset[int]) -> None:
        if (connection := self._connections.pop(pair, None)) is None:
            return
        for number in pair:
            broker, (other,) = self.brokers[number], pair - {number}
            broker.node.peer_lost(BrokerId(other), self.clock.now)
            broker.node.gone(
                [one for one in broker.open_requests if isinstance(one, Question) and one.connection == connection]
            )

    # Carrying out

    def turn(self) -> None:
        """Carry out all that is decided, and deliver all that is said, until nothing moves."""
        for _ in range(_TURNS_MAX):
            for broker in self.brokers.values():
                broker.turn()
            moved = [self._carry(number, broker) for number, broker in self.brokers.items()]
            if not any(moved):
                return
        raise AssertionError("it never comes to rest")

    def _carry(self, number: int, broker: Broker) -> bool:
        asked, broker.asked = broker.asked, []
        for one in asked:
            connection = self._connections.get(frozenset((number, one.to)))
            if connection is not None:
                question = Question(number, connection, one.token)
                self.brokers[one.to].request(one.request, one.payload, caller=question)
        answered = [caller for caller in broker.replies if isinstance(caller, Question)]
        for caller in answered:
            reply, raw = broker.replies.pop(caller), broker.payloads.pop(caller, b"")
            if self._connections.get(frozenset((number, caller.asker))) == caller.connection:
                asker = self.brokers[caller.asker]
                asker.node.answered(BrokerId(number), caller.token, reply.response, raw, self.clock.now)
                asker.turn()
        return bool(asked or answered)

    def tick(self, ms: int) -> None:
        """Time passes for all of them."""
        end_us = self.clock.elapsed_us + ms * 1_000
        while self.clock.elapsed_us < end_us:
            wake_us = min((broker.node.next_wake_us for broker in self.brokers.values()), default=end_us)
            at_us = min(max(wake_us, self.clock.elapsed_us + _STEP_US), end_us)
            self.clock.advance_ms((at_us - self.clock.elapsed_us) / 1_000)
            for broker in self.brokers.values():
                broker.tick()
            self.turn()

    # NATS and clients

    def publish(self, subject: str, *values: bytes, reply: str | None = None) -> None:
        """Messages from NATS, to whoever subscribes."""
        for broker in self.brokers.values():
            broker.publish(subject, *values, reply=reply)
        self.turn()

    def ask(self, number: int, request: Request, raw: bytes = b"") -> None:
        """A client asks a broker."""
        self.brokers[number].request(request, raw)
        self.turn()
