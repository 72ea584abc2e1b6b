"""The client's view of the cluster: brokers, their addresses, partition leaders. No IO.

Rules: answers of brokers are trusted only within limits. A leader epoch never decreases, so a stale answer of a slow
broker changes nothing. A broker of another cluster is refused, because its stream ids mean other streams (one without a
cluster id yet is not refused). An invalid address is ignored. Everything stored is bounded.
Theory: a broker is known by its id and reached at up to two addresses: the advertised one and the last one that worked
(they differ behind a tunnel or a port forwarding). The one that worked is preferred. The caller's servers stay
candidates for ever, because all other information may be out of date.

| what is learnt                      | from                            | what it changes                             |
|-------------------------------------|---------------------------------|---------------------------------------------|
| cluster id, broker id of an address | hello                           | where that broker is reached                |
| brokers, and whether they are live  | metadata                        | the candidates                              |
| in-sync replicas, observers, racks  | metadata                        | replicas to read from beside the leader     |
| leader, leader epoch                | a stream's info in any answer   | the leader, unless its epoch is older       |
| leader, its address, leader epoch   | the details of `not_leader`     | the same                                    |
| leader epoch                        | a leader's answer               | the answering broker leads, if it is newer  |
| a connection that fails             | the driver                      | that address is the last choice for a while |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, LeaderEpoch, PartitionKey, StreamId, are_different_clusters
from penstock.client.link.addresses import is_address
from penstock.messages import BrokerInfo, HelloResponse, PartitionInfo, StreamInfo

AVOID_S = 2.0  # for this long after a failure other brokers are preferred
LEADER_AGE_S = 60.0  # older leader information is refreshed in the background: an isolated leader may be stale


class PartitionLeader(NamedTuple):
    """Leader of a partition; `broker_id` None while it has none."""

    broker_id: BrokerId | None
    leader_epoch: LeaderEpoch
    learned_s: float
    reason: str = ""  # why there is none


class ClusterView:
    """Brokers and leaders known to one client. `chance` returns numbers in [0, 1), for the random order of brokers."""

    def __init__(self, servers: Sequence[str], chance: Callable[[], float]) -> None:
        assert servers
        self.servers = tuple(servers)
        self.cluster_id = ""  # empty: no broker has sent it yet
        self.brokers_learned_s: float | None = None
        self.chance = chance
        self._advertised: dict[BrokerId, str] = {}
        self._is_live: dict[BrokerId, bool] = {}
        self._racks: dict[BrokerId, str | None] = {}
        self._id_at: dict[str, BrokerId] = {}  # from hello
        self._reached: dict[BrokerId, str] = {}
        self._candidates: tuple[str, ...] | None = None  # cached until one of the four above changes
        self._failed_s: dict[str, float] = {}
        self._leaders: dict[PartitionKey, PartitionLeader] = {}
        self._holders: dict[PartitionKey, tuple[BrokerId, ...]] = {}  # the ISR and the observers (read replicas)
        self._names: dict[StreamId, str] = {}

    # State

    @property
    def is_cluster(self) -> bool:
        """True if there is more than one broker to ask."""
        return len(self.candidates()) > 1

    def candidates(self) -> tuple[str, ...]:
        """Return one address for each known broker, and the servers whose broker is unknown."""
        if self._candidates is None:
            broker_ids = dict.fromkeys((*self._advertised, *self._reached))
            found = [address for broker_id in broker_ids if (address := self.address_of(broker_id)) is not None]
            reached_at = set(self._advertised.values()) | set(self._id_at)
            found += [server for server in self.servers if server not in reached_at]
            self._candidates = tuple(dict.fromkeys(found)) or self.servers
        return self._candidates

    def any_broker(self, now_s: float, *, home: str | None = None, avoid: Collection[str] = ()) -> str:
        """Return the broker for a request that any broker can answer: `home` if it seems healthy, else a random one."""

        def rank(address: str) -> tuple[bool, bool, bool, bool, float]:
            broker_id = self._id_at.get(address)
            is_dead = broker_id is not None and not self._is_live.get(broker_id, True)
            return address in avoid, self.is_avoided(address, now_s), is_dead, address != home, self.chance()

        return min(self.candidates(), key=rank)

    def is_avoided(self, address: str, now_s: float) -> bool:
        """True if this address failed within AVOID_S and has not answered since."""
        failed_s = self._failed_s.get(address)
        return failed_s is not None and now_s - failed_s < AVOID_S

    def is_met(self, address: str) -> bool:
        """True if the broker id at this address is known."""
        return address in self._id_at

    def address_of(self, broker_id: BrokerId) -> str | None:
        """Return the broker's address; None if unknown, or if another broker listens there."""
        reached = self._reached.get(broker_id)
        if reached is not None:
            return reached
        advertised = self._advertised.get(broker_id)
        if advertised is None or self._id_at.get(advertised, broker_id) != broker_id:
            return None
        return advertised

    def holders(self, key: PartitionKey) -> tuple[BrokerId, ...]:
        """Return the brokers known to hold a partition's committed messages: the ISR, then the observers."""
        return self._holders.get(key, ())

    def is_live(self, broker_id: BrokerId) -> bool:
        """True unless the metadata list the broker as dead."""
        return self._is_live.get(broker_id, True)

    def rack_of(self, broker_id: BrokerId) -> str | None:
        """The broker's rack; None if unknown."""
        return self._racks.get(broker_id)

    def leader(self, key: PartitionKey) -> PartitionLeader | None:
        """Return what is known about the leader; None if nothing is known of that partition."""
        return self._leaders.get(key)

    def leader_address(self, key: PartitionKey) -> str | None:
        """Return the leader's address; None if it is unknown or there is no leader."""
        leader = self._leaders.get(key)
        return None if leader is None or leader.broker_id is None else self.address_of(leader.broker_id)

    def is_old(self, key: PartitionKey | None, now_s: float) -> bool:
        """True if the list of brokers, or the leader of that partition, should be refreshed."""
        if self.brokers_learned_s is None or now_s - self.brokers_learned_s >= LEADER_AGE_S:
            return True
        leader = None if key is None else self._leaders.get(key)
        return leader is not None and now_s - leader.learned_s >= LEADER_AGE_S

    def name_of(self, stream_id: StreamId) -> str | None:
        """The stream's name, from metadata; None if unknown."""
        return self._names.get(stream_id)

    # Updates

    def greeted(self, address: str, hello: HelloResponse) -> None:
        """Record the hello of the broker at `address`. RemoteError cluster_mismatch: it belongs to another cluster."""
        if are_different_clusters(self.cluster_id, hello.cluster_id):
            text = f"the broker at {address} belongs to another cluster, {hello.cluster_id}, not to {self.cluster_id}"
            raise RemoteError(ErrorCode.CLUSTER_MISMATCH, f"{text}: connect anew to read from it", address=address)
        self.cluster_id = self.cluster_id or hello.cluster_id
        before = self._id_at.get(address)
        if before is not None and before != hello.broker_id and self._reached.get(before) == address:
            del self._reached[before]
        self._candidates = None
        self._id_at[address] = hello.broker_id
        self._reached[hello.broker_id] = address
        _bound(self._id_at, 2 * limits.CLIENT_BROKERS_MAX)
        _bound(self._reached, limits.CLIENT_BROKERS_MAX)

    def works(self, address: str) -> None:
        """Record that the broker at `address` answered a request."""
        self._failed_s.pop(address, None)

    def avoid(self, address: str, now_s: float) -> None:
        """Prefer other brokers for AVOID_S."""
        self._failed_s.pop(address, None)
        self._failed_s[address] = now_s
        _bound(self._failed_s, 2 * limits.CLIENT_BROKERS_MAX)

    def failed(self, address: str, now_s: float) -> None:
        """Record a failed or broken connection; the broker may have moved."""
        self.avoid(address, now_s)
        self._candidates = None
        broker_id = self._id_at.get(address)
        if broker_id is not None and self._reached.get(broker_id) == address:
            if self._advertised.get(broker_id, address) != address:
                del self._reached[broker_id]  # try its other address next
            self._id_at.pop(address)

    def learn_brokers(self, brokers: Iterable[BrokerInfo], now_s: float) -> None:
        """Record the cluster's brokers from metadata; an empty list (a single broker) keeps the known ones."""
        self.brokers_learned_s = now_s
        found = [one for one in brokers if is_address(one.address)][: limits.CLIENT_BROKERS_MAX]
        if found:
            self._candidates = None
            self._advertised = {one.broker_id: one.address for one in found}
            self._is_live = {one.broker_id: one.is_live for one in found}
            self._racks = {one.broker_id: one.rack for one in found}

    def learn_stream(self, stream: StreamInfo, answered_by: str | None, now_s: float) -> None:
        """Record a stream and its leaders. `answered_by`: the broker's address; None: the info is old."""
        self._names.pop(stream.stream_id, None)
        self._names[stream.stream_id] = stream.name
        _bound(self._names, limits.CLIENT_PARTITIONS_MAX)
        for partition in stream.partitions:
            key = PartitionKey(stream.stream_id, partition.partition)
            leader = self._leader_of(partition, answered_by)
            if answered_by is not None or key not in self._holders:
                self._holders.pop(key, None)
                self._holders[key] = (*partition.isr, *partition.observers)
                _bound(self._holders, limits.CLIENT_PARTITIONS_MAX)
            if answered_by is not None:
                self._learn(key, leader, partition.leader_epoch, now_s, partition.state_reason)
            elif leader is not None and key not in self._leaders:
                self._learn(key, leader, partition.leader_epoch, now_s - LEADER_AGE_S)

    def learn_answer(self, key: PartitionKey, answered_by: str, leader_epoch: LeaderEpoch, now_s: float) -> None:
        """Record that a broker answered as the leader of that epoch."""
        known, broker_id = self._leaders.get(key), self._id_at.get(answered_by)
        if broker_id is not None and (known is None or leader_epoch > known.leader_epoch):
            self._learn(key, broker_id, leader_epoch, now_s)

    def learn_hint(self, key: PartitionKey, answered_by: str, details: dict[str, Any], now_s: float) -> bool:
        """Record the details of `not_leader`; return True if another reachable broker is now known to lead."""
        broker_id, address, leader_epoch = (details.get(name) for name in ("leader", "address", "leader_epoch"))
        known = self._leaders.get(key)
        if known is not None and known.broker_id == self._id_at.get(answered_by):
            self._leaders[key] = known._replace(broker_id=None)  # the broker that answered `not_leader` does not lead
        if type(broker_id) is not int or type(leader_epoch) is not int or broker_id < 1 or leader_epoch < 1:
            return False
        if broker_id == self._id_at.get(answered_by):
            return False
        if isinstance(address, str) and is_address(address):
            self._advertise(BrokerId(broker_id), address)
        self._learn(key, BrokerId(broker_id), LeaderEpoch(leader_epoch), now_s)
        leader = self._leaders[key]
        return leader.broker_id == broker_id and self.address_of(BrokerId(broker_id)) is not None

    def _leader_of(self, partition: PartitionInfo, answered_by: str | None) -> BrokerId | None:
        if partition.leader_id is None:
            stands_alone = not partition.replicas and answered_by is not None
            return self._id_at.get(answered_by) if stands_alone and answered_by is not None else None
        if is_address(partition.leader):
            self._advertise(partition.leader_id, partition.leader)
        return partition.leader_id

    def _advertise(self, broker_id: BrokerId, address: str) -> None:
        if broker_id in self._advertised or len(self._advertised) < limits.CLIENT_BROKERS_MAX:
            self._candidates = None
            self._advertised[broker_id] = address

    def _learn(
        self,
        key: PartitionKey,
        broker_id: BrokerId | None,
        leader_epoch: LeaderEpoch,
        now_s: float,
        reason: str = "",
    ) -> None:
        known = self._leaders.get(key)
        if known is not None and leader_epoch < known.leader_epoch:
            return
        self._leaders.pop(key, None)
        self._leaders[key] = PartitionLeader(broker_id, leader_epoch, now_s, reason if broker_id is None else "")
        _bound(self._leaders, limits.CLIENT_PARTITIONS_MAX)


def _bound(kept: dict[Any, Any], count_max: int) -> None:
    while len(kept) > count_max:
        del kept[next(iter(kept))]  # the oldest entry
