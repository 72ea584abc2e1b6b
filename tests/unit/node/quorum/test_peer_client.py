"""What is asked of peers, and that each question ends exactly once."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import (
    PeerHelloRequest,
    PeerHelloResponse,
    RaftRequest,
    RaftResponse,
    Response,
)
from penstock.node.quorum.peer_client import Done, PeerClient, introduced
from penstock.node.step import Outbox

ANNA, BERT = BrokerId(2), BrokerId(3)
ASKED = RaftRequest(data_dir_id="disk")
ANSWER = RaftResponse()


class Heard(list[tuple[str, bytes]]):
    """What a `done` was told, in short."""

    def done(self) -> Done:
        def done(response: Response | RemoteError, raw: bytes | memoryview) -> None:
            self.append((response.code if isinstance(response, RemoteError) else "answered", bytes(raw)))

        return done


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def peers(outbox: Outbox) -> PeerClient:
    return PeerClient(outbox)


def test_an_answer_goes_to_whoever_asked_with_its_raw_part(outbox: Outbox, peers: PeerClient) -> None:
    heard, other = Heard(), Heard()
    peers.up(ANNA)
    peers.send(ANNA, ASKED, b"one", heard.done())
    peers.send(ANNA, ASKED, b"two", other.done())
    first, second = outbox.take().peers
    assert (first.to, first.request, first.payload) == (ANNA, ASKED, b"one")
    peers.answered(ANNA, second.token, ANSWER, memoryview(b"raw"))
    peers.answered(ANNA, first.token, RemoteError(ErrorCode.FENCED_EPOCH, "no"), b"")
    assert (heard, other) == ([("fenced_epoch", b"")], [("answered", b"raw")])


def test_a_lost_connection_ends_all_that_was_asked_there_and_nothing_else(outbox: Outbox, peers: PeerClient) -> None:
    heard, other = Heard(), Heard()
    peers.up(ANNA)
    peers.up(BERT)
    peers.send(ANNA, ASKED, done=heard.done())
    peers.send(ANNA, ASKED)
    peers.send(BERT, ASKED, done=other.done())
    to_anna, _, to_bert = outbox.take().peers
    peers.lost(ANNA)
    assert (heard, other, peers.up_ids) == ([("broker_unavailable", b"")], [], [BERT])
    peers.up(ANNA)
    peers.answered(ANNA, to_anna.token, ANSWER, b"")  # late
    peers.answered(ANNA, to_bert.token, ANSWER, b"")  # not its own
    assert (len(heard), other) == (1, [])
    peers.answered(BERT, to_bert.token, ANSWER, b"")
    peers.answered(BERT, to_bert.token, ANSWER, b"")
    assert other == [("answered", b"")]


def test_who_is_not_up_is_not_asked(outbox: Outbox, peers: PeerClient) -> None:
    heard = Heard()
    peers.send(ANNA, ASKED, done=heard.done())
    peers.send(ANNA, ASKED)
    assert heard == [("broker_unavailable", b"")]
    assert not outbox.step
    peers.lost(ANNA)  # nothing was there to lose


def test_so_many_are_open_at_one_peer_and_an_answer_makes_room(outbox: Outbox, peers: PeerClient) -> None:
    heard = Heard()
    peers.up(ANNA)
    peers.up(BERT)
    for _ in range(limits.PEER_REQUESTS_MAX):
        peers.send(ANNA, ASKED)  # Raft's messages count as well
    sent = outbox.take().peers
    peers.send(ANNA, ASKED, done=heard.done())
    peers.send(ANNA, ASKED)
    assert heard == [("overloaded", b"")]
    assert not outbox.step
    peers.send(BERT, ASKED)
    assert peers.open_count(BERT) == 1
    peers.answered(ANNA, sent[0].token, ANSWER, b"")
    peers.send(ANNA, ASKED)
    assert [request.to for request in outbox.take().peers] == [BERT, ANNA]


def test_whoever_is_told_of_a_loss_may_ask_somebody_else(outbox: Outbox, peers: PeerClient) -> None:
    heard = Heard()
    peers.up(ANNA)
    peers.up(BERT)
    peers.send(ANNA, ASKED, done=lambda response, raw: peers.send(BERT, ASKED, done=heard.done()))
    peers.send(ANNA, ASKED, done=lambda response, raw: peers.send(ANNA, ASKED, done=heard.done()))
    outbox.take()
    peers.lost(ANNA)
    assert [request.to for request in outbox.take().peers] == [BERT]
    assert heard == [("broker_unavailable", b"")]  # of the one that asked the lost one again


@pytest.mark.parametrize(
    ("hello", "said"),
    [
        (("c", 1, "disk-1"), None),
        (("", 1, "disk-1"), None),
        (("d", 1, "disk-1"), "belongs to cluster c, not to d"),
        (("c", 2, "disk-1"), "there is a broker 2 already"),
        (("c", 2, "disk-2"), "the data directory disk-2 is in use here"),
        (("c", 1, "disk-2"), "the data directory disk-2 is in use here"),
    ],
)
def test_who_may_be_a_peer(hello: tuple[str, int, str], said: str | None) -> None:
    ours = PeerHelloResponse(cluster_id="c", broker_id=2, data_dir_id="disk-2", broker_version="1")
    cluster_id, broker_id, data_dir_id = hello
    request = PeerHelloRequest(cluster_id=cluster_id, broker_id=broker_id, data_dir_id=data_dir_id, broker_version="1")
    if said is None:
        assert introduced(request, ours) is ours
        return
    with pytest.raises(RemoteError, match=said) as caught:
        introduced(request, ours)
    assert caught.value.code == ErrorCode.CLUSTER_MISMATCH


def test_a_cluster_without_a_name_yet_takes_any() -> None:
    ours = PeerHelloResponse(cluster_id="", broker_id=2, data_dir_id="disk-2", broker_version="1")
    request = PeerHelloRequest(cluster_id="c", broker_id=1, data_dir_id="disk-1", broker_version="1")
    assert introduced(request, ours) is ours
