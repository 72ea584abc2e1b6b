"""What this node has asked of other brokers, and who waits for the answers.

Rules: a request goes only to a peer that is up, and each `done` is called exactly once: with the answer, with the
peer's refusal, or with `broker_unavailable` when the connection is lost. The answer to a request that was lost with its
connection is nobody's: a token is never used again. At most PEER_REQUESTS_MAX are open at one peer; over it, as for a
peer that is not up, `done` hears so before `send` returns, so it must not send again at once. Without `done` a message
that cannot go out is dropped: whoever sends such messages repeats them.

| event             | open requests of that peer                            |
|-------------------|-------------------------------------------------------|
| `up`              | none yet                                              |
| `send`            | one more, in the step                                 |
| `answered`        | one less                                              |
| `lost`            | all end with `broker_unavailable`                     |
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, are_different_clusters
from penstock.messages import API_OF_REQUEST, PeerHelloRequest, PeerHelloResponse, Request, Response
from penstock.node.step import Outbox, PeerRequest

Done = Callable[[Response | RemoteError, bytes | memoryview], None]
"""Hears the answer and its raw part, which is a view where it is large."""


class Peers:
    """All peers of one broker."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._open: dict[BrokerId, dict[int, Done | None]] = {}  # of each peer that is up, by token
        self._proven: set[BrokerId] = (
            set()
        )  # who of them has shown that it knows the cluster's secret, or has a certificate
        self._last_token = 0

    @property
    def up_ids(self) -> list[BrokerId]:
        """The peers that can be asked now."""
        return list(self._open)

    def is_up(self, broker_id: BrokerId) -> bool:
        """Whether it can be asked now."""
        return broker_id in self._open

    def is_proven(self, broker_id: BrokerId) -> bool:
        """Whether it can be asked now, and has proved to be a broker of this cluster."""
        return broker_id in self._proven

    def open_count(self, broker_id: BrokerId) -> int:
        """How many requests it has not answered yet."""
        return len(self._open.get(broker_id, ()))

    def send(self, to: BrokerId, request: Request, payload: bytes = b"", done: Done | None = None) -> None:
        """Ask a peer; what comes of it goes to `done`. See the module for when it cannot be asked."""
        open_requests = self._open.get(to)
        if open_requests is None:
            _end(done, _unavailable(to))
            return
        if len(open_requests) >= limits.PEER_REQUESTS_MAX:
            name = API_OF_REQUEST[type(request)].api.name.lower()
            text = f"broker {to} has {len(open_requests)} requests to answer already: the {name} was not sent"
            _end(done, RemoteError(ErrorCode.OVERLOADED, text))
            return
        self._last_token += 1
        open_requests[self._last_token] = done
        self._outbox.step.peers.append(PeerRequest(to, self._last_token, request, payload))

    def up(self, broker_id: BrokerId, *, is_proven: bool = False) -> None:
        """There is a connection to it, and it is who it should be, as it says, or has proved."""
        assert broker_id not in self._open, broker_id
        self._open[broker_id] = {}
        if is_proven:
            self._proven.add(broker_id)

    def lost(self, broker_id: BrokerId) -> None:
        """That connection is gone."""
        self._proven.discard(broker_id)
        for done in self._open.pop(broker_id, {}).values():
            _end(done, _unavailable(broker_id))

    def answered(
        self, broker_id: BrokerId, token: int, response: Response | RemoteError, raw: bytes | memoryview
    ) -> None:
        """A peer has answered the request with that token, or refused it."""
        done = self._open.get(broker_id, {}).pop(token, None)
        if done is not None:
            done(response, raw)


def introduced(hello: PeerHelloRequest, ours: PeerHelloResponse) -> PeerHelloResponse:
    """The answer to a broker that says who it is. RemoteError cluster_mismatch if it cannot be a peer of ours."""
    if are_different_clusters(hello.cluster_id, ours.cluster_id):
        text = f"broker {ours.broker_id} here belongs to cluster {ours.cluster_id}, not to {hello.cluster_id}"
        raise RemoteError(ErrorCode.CLUSTER_MISMATCH, text, cluster_id=ours.cluster_id)
    if hello.data_dir_id == ours.data_dir_id:  # or it has reached itself
        text = f"the data directory {hello.data_dir_id} is in use here, by broker {ours.broker_id}"
        raise RemoteError(ErrorCode.CLUSTER_MISMATCH, text)
    if hello.broker_id == ours.broker_id:
        text = f"there is a broker {ours.broker_id} already: every broker of a cluster has an id of its own"
        raise RemoteError(ErrorCode.CLUSTER_MISMATCH, text, taken=True)
    return ours


def _unavailable(broker_id: BrokerId) -> RemoteError:
    return RemoteError(ErrorCode.BROKER_UNAVAILABLE, f"there is no connection to broker {broker_id}")


def _end(done: Done | None, error: RemoteError) -> None:
    if done is not None:
        done(error, b"")
