"""A broker of which nobody has heard finds its cluster, and whoever leads the metadata there."""

from __future__ import annotations

import random
from types import MappingProxyType

from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation
from penstock.hot.crc import crc32c
from penstock.messages import (
    ClusterMember,
    JoinResponse,
    PeerHelloRequest,
    PeerHelloResponse,
    RaftRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
)
from penstock.node.node import Node
from penstock.node.settings import Settings
from penstock.node.step import PeerRequest, Step
from penstock.raft import RaftMembership, decode_message, encode_message
from penstock.raft.messages import AppendEntriesResponse, SnapshotChunk
from penstock.raft.terms import next_term
from penstock.vfs.memory import MemoryVfs

ANNA, BERT, CARL, DORA = (BrokerId(number) for number in (1, 2, 3, 4))
MEMBERS = tuple(ClusterMember(broker_id=number, address=f"h:{number}", is_voter=True) for number in (1, 2, 3, 4))
TERM = next_term(1, ANNA, 0)
CLUSTER = JoinResponse(cluster_id="c", members=MEMBERS)


def now(ms: int) -> Now:
    return Now(ms * 1_000, ms * 1_000)


def newcomer(**settings: object) -> tuple[Node, Step]:
    """Dora, who knows one address, and the first step."""
    more = {"join": ("h:1",), "cluster_id": "", **settings}
    node = Node(
        MemoryVfs(),
        Settings(broker_id=DORA, broker_version="1", data_dir_id="disk-4", address="h:4", **more),  # type: ignore[arg-type]
        random.Random(1),
    )
    return node, node.start(now(0))


def taken(node: Node) -> Step:
    """All that the node wants done now, in one step."""
    whole = Step()
    while (step := node.take()) is not None:
        whole.peers += step.peers
        whole.peer_addresses += step.peer_addresses
        whole.cluster_id = step.cluster_id or whole.cluster_id
        whole.join = step.join or whole.join
    return whole


def registrations(node: Node, at_ms: int) -> list[PeerRequest]:
    node.tick(now(at_ms))
    return [one for one in taken(node).peers if isinstance(one.request, RegisterBrokerRequest)]


def not_leader(leader: int | None) -> RemoteError:
    return RemoteError(ErrorCode.NOT_METADATA_LEADER, "not me", leader=leader)


def test_a_newcomer_asks_to_join_and_remembers_the_cluster() -> None:
    node, step = newcomer()
    assert step.join is not None
    assert (step.join.request.broker_id, step.join.request.address, step.join.addresses) == (DORA, "h:4", ("h:1",))
    node.joined(CLUSTER, now(10))
    step = taken(node)
    assert (step.cluster_id, step.peer_addresses) == ("c", [(ANNA, "h:1"), (BERT, "h:2"), (CARL, "h:3")])
    node.request("anna", PeerHelloRequest(cluster_id="c", broker_id=1, data_dir_id="disk-1", broker_version="1"), b"",
                 now(20))  # fmt: skip
    (reply,) = node.take().replies  # type: ignore[union-attr]
    assert isinstance(reply.response, PeerHelloResponse)
    assert reply.response.cluster_id == "c"


def test_a_peer_that_has_moved_is_looked_for_where_it_says_that_it_is() -> None:
    node, _ = newcomer()
    node.joined(CLUSTER, now(10))
    taken(node)

    def hello(number: int, address: str) -> list[tuple[BrokerId, str]]:
        who = PeerHelloRequest(
            cluster_id="c", broker_id=number, data_dir_id=f"disk-{number}", broker_version="1", address=address
        )
        node.request(f"{number}", who, b"", now(20))
        return taken(node).peer_addresses

    assert hello(2, "h:22") == [(BERT, "h:2,h:22")]
    assert hello(2, "h:22") == []
    assert hello(2, "h:23") == [(BERT, "h:2,h:23")]  # it has moved again
    assert hello(1, "h:1") == []  # as was known
    assert hello(7, "h:7") == []  # nobody knows that one
    for nonsense in ("", "h", "h:", "h:0", "h:99999", "h:x", ":5", "h:1,h:2"):
        assert hello(3, nonsense) == []


def test_a_first_voter_does_not_ask_to_join() -> None:
    voters = MappingProxyType({ANNA: "h:1", DORA: "h:4"})
    assert newcomer(join=(), voters=voters)[1].join is None


def test_a_newcomer_asks_one_after_the_other_until_one_names_the_metadata_leader() -> None:
    node, _ = newcomer()
    node.joined(CLUSTER, now(0))
    assert registrations(node, 1) == []  # nobody can be asked yet
    for peer in (ANNA, BERT, CARL):
        node.peer_up(peer, now(2))
    (asked,) = registrations(node, 600)
    assert asked.to == ANNA
    assert registrations(node, 1_200) == []  # she has not answered
    node.answered(ANNA, asked.token, not_leader(None), b"", now(1_300))
    (asked,) = registrations(node, 1_800)
    assert asked.to == BERT
    node.answered(BERT, asked.token, not_leader(3), b"", now(1_900))
    (asked,) = registrations(node, 2_400)
    assert asked.to == CARL
    node.peer_lost(CARL, now(2_500))  # he leads no more, most likely
    (asked,) = registrations(node, 3_000)
    assert asked.to == ANNA
    node.answered(ANNA, asked.token, RegisterBrokerResponse(incarnation=Incarnation(9)), b"", now(3_100))


def test_who_names_the_asker_as_leader_is_not_believed() -> None:
    node, _ = newcomer()
    node.joined(CLUSTER, now(0))
    node.peer_up(ANNA, now(1))
    node.peer_up(BERT, now(1))
    (asked,) = registrations(node, 600)
    node.answered(ANNA, asked.token, not_leader(4), b"", now(700))
    (asked,) = registrations(node, 1_200)
    assert asked.to == BERT


def test_a_newcomer_takes_the_members_that_a_cluster_was_formed_with() -> None:
    node, _ = newcomer()
    node.joined(CLUSTER, now(0))
    node.peer_up(ANNA, now(1))
    chunk = SnapshotChunk(ANNA, DORA, TERM, 0, 0, RaftMembership((ANNA, BERT, CARL)), 0, crc32c(b""), 0, b"")
    node.request("anna", RaftRequest(data_dir_id="disk-1", to_data_dir_id="disk-4"), encode_message(chunk), now(2))
    step = node.take()
    assert step is not None
    for work in step.disk:
        work.run()
        node.complete(work, None, now(3))
    answers = [one for one in taken(node).peers if isinstance(one.request, RaftRequest)]
    assert [decode_message(one.payload) for one in answers] == [
        AppendEntriesResponse(DORA, ANNA, TERM, 0, False, 0, False)
    ]
