"""Several brokers without sockets: what one asks of another is done at once, unless the two are cut off.

Rules: one clock for all; `run` lets time pass for all of them. A request and its answer are carried one at a time, in
the order in which they were made, until nothing is left to be carried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from penstock.base.ids import BrokerId
from penstock.messages import API_OF_REQUEST, JoinResponse
from penstock.messages.apis import is_asked_by_brokers
from penstock.metadata.image import PartitionState
from penstock.node.quorum.metadata_forwarding import THE_BROKER
from penstock.node.step import PeerRequest, Reply, Step
from penstock.vfs.memory import Keep, MemoryVfs
from tests.unit.node.harness import Broker, Clock, _read

_JOINS = -1  # the token of who asks to join: it has no connection yet


class Asked(NamedTuple):
    """Who waits for an answer: the caller of a peer's request."""

    sender: BrokerId
    token: int
    era: int  # of the connection


class Member(Broker):
    """One broker of several."""

    def __init__(self, brokers: Brokers, broker_id: int, disk: str, memory: MemoryVfs | None = None) -> None:
        self.brokers = brokers
        self.broker_id = BrokerId(broker_id)
        self.disk_name = disk
        self.asked: set[Asked] = set()  # by others, and not answered
        super().__init__(
            memory,
            clock=brokers.clock,
            broker_id=self.broker_id,
            voters={BrokerId(one): f"b{one}:1" for one in brokers.ids if broker_id in brokers.ids},
            join=() if broker_id in brokers.ids else ("b1:1",),
            address=f"b{broker_id}:1",
            data_dir_id=disk,
            cluster_id=brokers.cluster_ids.get(disk, ""),
            **brokers.settings,
        )

    @property
    def image(self) -> Any:
        """What it has heard of the cluster."""
        return self.node._cluster.image

    @property
    def cluster_id(self) -> str:
        """What it says in a hello."""
        return str(self.node._cluster.cluster_id)

    @property
    def quorum(self) -> Any:
        """Its part in Raft."""
        return self.node._cluster.quorum

    def do(self, step: Step) -> None:
        """As a broker alone; what is for others is carried later."""
        super().do(step)
        if step.cluster_id:
            self.brokers.cluster_ids[self.disk_name] = step.cluster_id
        if step.join is not None:
            to = BrokerId(int(step.join.addresses[0][1:-2]))
            self.brokers.carry.append((self.broker_id, PeerRequest(to, _JOINS, step.join.request, b"")))
        for request in step.peers:
            self.brokers.carry.append((self.broker_id, request))

    def _reply(self, reply: Reply) -> None:
        if not isinstance(reply.caller, Asked):
            super()._reply(reply)
            return
        self.asked.discard(reply.caller)
        payload = reply.payload
        raw = b"" if payload is None else b"".join(map(_read, payload if isinstance(payload, tuple) else (payload,)))
        self.brokers.carry.append((self.broker_id, (reply, raw)))


class Brokers:
    """All of them, with first voters `ids`."""

    prove = False  # those that connect have the secret of the cluster

    def __init__(self, *ids: int, **settings: Any) -> None:
        self.ids = ids
        self.settings = settings
        self.clock = Clock()
        self.carry: deque[tuple[BrokerId, Any]] = deque()
        self.members: dict[BrokerId, Member] = {}
        self.cluster_ids: dict[str, str] = {}  # that stand in data directories, by name
        self._up: dict[tuple[BrokerId, BrokerId], int] = {}  # who can ask whom; the era of the connection
        self._cut: set[frozenset[int]] = set()
        self._era = 0
        self._hung: dict[BrokerId, list[tuple[BrokerId, Any]]] = {}  # and what peers have sent them since
        self._unread: dict[BrokerId, list[Callable[[], None]]] = {}  # what NATS has sent them
        for broker_id in ids:
            self.start(broker_id)

    def __getitem__(self, broker_id: int) -> Member:
        return self.members[BrokerId(broker_id)]

    def start(self, broker_id: int, memory: MemoryVfs | None = None, disk: str = "") -> Member:
        """A broker begins, with an empty disk or with this one."""
        return self.join_again(Member(self, broker_id, disk or f"disk-{broker_id}", memory))

    def join_again(self, member: Member) -> Member:
        """A broker that was made begins."""
        self.members[member.broker_id] = member
        member.start()
        for other in list(self.members):
            self._connect(member.broker_id, other)
            self._connect(other, member.broker_id)
        return member

    def kill(self, broker_id: int, keep: Keep = Keep.SYNCED) -> MemoryVfs:
        """It is gone at once; what it had on its disk."""
        gone = self.members.pop(BrokerId(broker_id))
        for pair in [pair for pair in self._up if gone.broker_id in pair]:
            self._lose(pair)
        return gone.memory.crash_clone(keep)

    def stop(self, broker_id: int) -> MemoryVfs:
        """It stops as on SIGTERM, when others lead what it led; its disk."""
        member = self[broker_id]
        for others_take_over in (member.node.hand_over, member.node.leave):
            if others_take_over == member.node.leave:
                member.node.drain(member.clock.now)
                member.nats.wanted.clear()
                member.nats.subscriptions.clear()
            done: list[bool] = []
            others_take_over(member.clock.now, partial(done.append, True))
            self.settle()
            while not done:
                self.run(50)
        member.stop()
        self.kill(broker_id)
        self.settle()
        return member.memory

    def hang(self, broker_id: int) -> None:
        """It gets no turn, as after SIGSTOP: its connections stay, and what comes for it waits."""
        self._hung[BrokerId(broker_id)] = []
        self._unread[BrokerId(broker_id)] = []

    def wake(self, broker_id: int) -> None:
        """It has its turn again."""
        self.carry.extend(self._hung.pop(BrokerId(broker_id)))
        for read in self._unread.pop(BrokerId(broker_id)):
            read()
        self.settle()

    def publish(self, subject: str, *values: bytes, reply: str | None = None) -> None:
        """One message after the other, from NATS to whoever has subscribed."""
        for member in self.members.values():
            read = partial(member.publish, subject, *values, reply=reply)
            if member.broker_id in self._hung:
                self._unread[member.broker_id].append(read)
            else:
                read()
        self.settle()

    def cut(self, one: int, other: int) -> None:
        """The two do not reach each other any more."""
        self._cut.add(frozenset((one, other)))
        for pair in [pair for pair in self._up if set(pair) == {one, other}]:
            self._lose(pair)

    def join(self, one: int, *others: int) -> None:
        """They reach each other again."""
        for other in others:
            self._cut.discard(frozenset((one, other)))
            self._connect(BrokerId(one), BrokerId(other))
            self._connect(BrokerId(other), BrokerId(one))

    def _connect(self, sender: BrokerId, to: BrokerId) -> None:
        if sender != to and (sender, to) not in self._up and frozenset((sender, to)) not in self._cut:
            self._era += 1
            self._up[sender, to] = self._era
            cluster_id = self.members[to].cluster_id
            self.members[sender].node.peer_up(to, self.members[sender].clock.now, cluster_id, is_proven=self.prove)

    def _lose(self, pair: tuple[BrokerId, BrokerId]) -> None:
        era = self._up.pop(pair)
        if (asked := self.members.get(pair[1])) is not None:
            asked.node.callers_disconnected([caller for caller in asked.asked if caller.era == era])
        if pair[0] in self.members:
            self.members[pair[0]].node.peer_lost(pair[1], self.members[pair[0]].clock.now)

    def _awake(self) -> list[Member]:
        return [member for member in self.members.values() if member.broker_id not in self._hung]

    def settle(self) -> None:
        """Carry all there is, whatever comes of it."""
        for member in self._awake():
            member.turn()
        for _ in range(100_000):
            if not self.carry:
                return
            sender, item = self.carry.popleft()
            to = item.to if isinstance(item, PeerRequest) else item[0].caller.sender
            if to in self._hung:
                self._hung[to].append((sender, item))
                continue
            if isinstance(item, PeerRequest):
                self._ask(sender, item)
            else:
                self._answer(sender, *item)
            if to in self.members:
                self.members[to].turn()
        raise AssertionError("they never come to an end")

    def _ask(self, sender: BrokerId, request: PeerRequest) -> None:
        assert is_asked_by_brokers(API_OF_REQUEST[type(request.request)].api), request
        era = self._up.get((sender, request.to))
        if era is not None and request.to in self.members:
            caller = Asked(sender, request.token, era)
            to = self.members[request.to]
            to.asked.add(caller)
            self._take(to, caller, request)

    def _take(self, to: Member, caller: Asked, request: PeerRequest) -> None:
        to.node.request(caller, request.request, request.payload, to.clock.now, THE_BROKER)

    def _answer(self, sender: BrokerId, reply: Reply, raw: bytes) -> None:
        caller = reply.caller
        assert isinstance(caller, Asked)
        if caller.token == _JOINS and caller.sender in self.members:
            assert isinstance(reply.response, JoinResponse), reply.response
            self.members[caller.sender].node.joined(reply.response, self.members[caller.sender].clock.now)
            return
        if self._up.get((caller.sender, sender)) == caller.era and caller.sender in self.members:
            node = self.members[caller.sender].node
            node.answered(sender, caller.token, reply.response, raw, self.members[caller.sender].clock.now)

    def run(self, ms: int) -> None:
        """Time passes, in ticks of 50 ms."""
        for _ in range(ms // 50):
            self.clock.advance_ms(50)
            for member in self._awake():
                member.tick_node()
            self.settle()

    @property
    def leader(self) -> Member:
        """The metadata leader."""
        (found,) = [member for member in self.members.values() if member.quorum.is_leader]
        return found

    def partition(self, name: str) -> PartitionState:
        """The first partition of a stream, as the metadata leader has it."""
        return self.leader.image.by_name(name).partitions[0]

    def led(self, name: str) -> Member:
        """Who leads it."""
        leader = self.partition(name).leader
        assert leader is not None
        return self.members[leader]


def formed(**settings: Any) -> Brokers:
    """Three that have become a cluster."""
    brokers = Brokers(1, 2, 3, **settings)
    brokers.run(5_000)
    assert len(brokers.leader.image.live_brokers()) == 3
    return brokers


class Proven(Brokers):
    """They have the secret of their cluster."""

    prove = True
