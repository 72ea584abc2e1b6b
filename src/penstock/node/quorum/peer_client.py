"""This node's requests to other brokers, and the callbacks for their answers.

Rules: a request goes only to a connected peer, and each `done` is called exactly once: with the answer, the peer's
refusal, or `broker_unavailable` when the connection is lost. A late answer to a lost request is ignored: tokens are
never reused. At most PEER_REQUESTS_MAX are open per peer; beyond that, and for a peer that is not connected, `done`
gets the error before `send` returns, so it must not send again at once. Without `done` a message that cannot be sent is
dropped: the sender repeats such messages.

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
"""Gets the answer and its raw part, which is a view if it is large."""


class PeerClient:
    """All peers of one broker."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._open: dict[BrokerId, dict[int, Done | None]] = {}  # of each connected peer, by token
        self._proven: set[BrokerId] = set()  # peers that know the cluster's secret or have a certificate
        self._last_token = 0

    @property
    def up_ids(self) -> list[BrokerId]:
        return list(self._open)

    def is_up(self, broker_id: BrokerId) -> bool:
        """True if it is connected."""
        return broker_id in self._open

    def is_proven(self, broker_id: BrokerId) -> bool:
        """True if it is connected and has proved to be a broker of this cluster."""
        return broker_id in self._proven

    def open_count(self, broker_id: BrokerId) -> int:
        """Number of requests it has not answered yet."""
        return len(self._open.get(broker_id, ()))

    def send(self, to: BrokerId, request: Request, payload: bytes = b"", done: Done | None = None) -> None:
        """Send a request to a peer and its answer or error to `done`; see the module's rules."""
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
        """Note a connection to a peer whose id was checked."""
        assert broker_id not in self._open, broker_id
        self._open[broker_id] = {}
        if is_proven:
            self._proven.add(broker_id)

    def lost(self, broker_id: BrokerId) -> None:
        """Fail its open requests: the connection is lost."""
        self._proven.discard(broker_id)
        for done in self._open.pop(broker_id, {}).values():
            _end(done, _unavailable(broker_id))

    def answered(
        self, broker_id: BrokerId, token: int, response: Response | RemoteError, raw: bytes | memoryview
    ) -> None:
        """Pass on the answer to the request with that token."""
        done = self._open.get(broker_id, {}).pop(token, None)
        if done is not None:
            done(response, raw)


def introduced(hello: PeerHelloRequest, ours: PeerHelloResponse) -> PeerHelloResponse:
    """Return the answer to a peer's hello. Raise RemoteError (cluster_mismatch) if it is no peer of this broker."""
    if are_different_clusters(hello.cluster_id, ours.cluster_id):
        text = f"broker {ours.broker_id} here belongs to cluster {ours.cluster_id}, not to {hello.cluster_id}"
        raise RemoteError(ErrorCode.CLUSTER_MISMATCH, text, cluster_id=ours.cluster_id)
    if hello.data_dir_id == ours.data_dir_id:  # also if this broker has connected to itself
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
