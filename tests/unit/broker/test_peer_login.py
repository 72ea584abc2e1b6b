"""The login of a broker that dials another one: an impostor at the address of a broker gets nothing."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.access import User
from penstock.access.scram import ScramServer
from penstock.base.ids import BrokerId
from penstock.broker.peers.peer_connection import PeerConnection, PeerState
from penstock.broker.security.authentication import BrokerAuthenticator, ClusterSecret
from penstock.messages import (
    Api,
    AuthenticateRequest,
    AuthenticateResponse,
    HelloRequest,
    HelloResponse,
    PeerHelloRequest,
    PeerHelloResponse,
    RaftRequest,
    Response,
    api_versions,
)
from penstock.metadata.image import ClusterImage
from penstock.node.step import PeerRequest
from penstock.wire import Frame, decode_request, encode_answer
from penstock.wire.bodies import answer_body
from penstock.wire.encryption import FrameCipher
from tests.unit.broker.peers.test_peer_connection import Transport
from tests.unit.node.contexts import access_of, context_of

SECRET = "a secret of the cluster that is long enough"
OURS = PeerHelloRequest(cluster_id="c", broker_id=1, data_dir_id="disk-1", broker_version="1")
THEIRS = PeerHelloResponse(cluster_id="c", broker_id=2, data_dir_id="disk-2", broker_version="1")


class Doorway:
    """Whether brokers have to prove something; it may begin while they are connected."""

    def __init__(self) -> None:
        self.context = context_of()
        self.brokers_prove = True

    @property
    def brokers_prove(self) -> bool:
        return self.context.image.is_guarded

    @brokers_prove.setter
    def brokers_prove(self, must: bool) -> None:
        users = ClusterImage().users.with_item("admin", User("admin", 1)) if must else ClusterImage().users
        self.context.image = replace(ClusterImage(), users=users)

    def guarding(self, broker_id: int, secret: str) -> BrokerAuthenticator:
        return BrokerAuthenticator(
            access_of(self.context),
            ClusterSecret(secret, b"salt" * 4),
            lambda: f"nonce-of-broker-{broker_id}-" + "x" * 16,
            broker_id=BrokerId(broker_id),
            cluster_id=lambda: "c",
            nats_urls=(),
            nats_urls_of_rulers=(),
        )


class Dialling:
    """Broker 1, connected to whatever is at the address of broker 2; and what it is told."""

    def __init__(self, sock: socket.socket) -> None:
        self.now_us = 1_000_000
        self.doorway = Doorway()
        self.ups = 0
        self.ends = 0
        self.answers = 0
        guarding = self.doorway.guarding(1, SECRET)
        self.connection = PeerConnection(BrokerId(2), OURS, self, lambda: self.now_us, guarding)
        self.transport = Transport(sock)
        self.connection.connection_made(self.transport)

    def up(self, cluster_id: str) -> None:
        self.ups += 1

    def answered(self, token: int, response: object, raw: object) -> None:
        self.answers += 1

    def receiving(self, size_bytes: int) -> None:
        raise AssertionError(size_bytes)

    def ended(self) -> None:
        self.ends += 1

    def asked(self) -> Frame | None:
        """The one request that it has sent since; None: none."""
        frames = self.transport.frames()
        assert len(frames) <= 1
        return frames[0] if frames else None

    def answer(self, frame: Frame | None, response: Response, cipher: FrameCipher | None = None) -> None:
        assert frame is not None
        data = encode_answer(frame, response)
        if cipher is not None:
            body = answer_body(response)
            data = b"".join(cipher.encrypted(frame.api, frame.version, frame.correlation_id, body, ()))
        buffer = self.connection.get_buffer(-1)
        buffer[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def is_greeted(self) -> Frame:
        """It has said hello, and begins a login."""
        hello = self.asked()
        assert hello is not None
        assert isinstance(decode_request(hello), HelloRequest)
        self.answer(
            hello,
            HelloResponse(
                broker_id=2,
                broker_version="1",
                cluster_id="c",
                format_version=1,
                api_versions=api_versions(),
                proves_brokers=True,
            ),
        )
        begun = self.asked()
        assert begun is not None
        return begun

    def is_logged_in(self) -> tuple[Frame, FrameCipher]:
        """It has logged in to broker 2: what it says next, and what encrypts there."""
        frame = self.is_greeted()
        login = self.doorway.guarding(2, SECRET).begin_login()
        for is_done in (False, True):
            request = decode_request(frame)
            assert isinstance(request, AuthenticateRequest)
            data = login.take(request.mechanism, request.data)
            self.answer(frame, AuthenticateResponse(data=data, is_done=is_done))
            following = self.asked()
            assert following is not None
            frame = following
        return frame, FrameCipher(login.session_key, is_dialler=False)


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours


@pytest.mark.parametrize("data", [b"v=", b"v=" + base64.b64encode(bytes(32)), b"", b"v"])
async def test_a_peer_that_calls_the_login_done_at_once_is_no_broker(sock: socket.socket, data: bytes) -> None:
    one = Dialling(sock)
    one.answer(one.is_greeted(), AuthenticateResponse(data=data, is_done=True))
    assert one.connection.state is PeerState.ENDED
    assert not one.connection.is_proven
    assert "does not know the secret of this cluster" in one.connection.end_reason
    assert (one.ups, one.ends, one.asked()) == (0, 1, None)


async def test_a_peer_that_challenges_twice_is_no_broker_and_costs_one_derivation(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Dialling(sock)
    begun = one.is_greeted()
    request = decode_request(begun)
    assert isinstance(request, AuthenticateRequest)
    # With salts of their own, so that nothing that is remembered helps.
    for number, verifier in enumerate([ClusterSecret("guessed", salt * 16).verifier for salt in (b"1", b"2")]):
        challenge = ScramServer("m" * 20).challenge(request.data, verifier)
        one.answer(begun, AuthenticateResponse(data=challenge))
        if number == 0:
            final = one.asked()
            assert final is not None
            begun = final
            monkeypatch.setattr("hashlib.pbkdf2_hmac", None)  # one more would be seen
    assert one.connection.state is PeerState.ENDED
    assert (one.ups, one.asked()) == (0, None)


async def test_a_broker_that_knows_the_secret_is_taken(sock: socket.socket) -> None:
    one = Dialling(sock)
    frame, cipher = one.is_logged_in()
    assert frame.api == Api.PEER_HELLO
    assert OURS.data_dir_id.encode() not in frame.body
    assert decode_request(cipher.decrypted(frame)) == OURS
    assert one.connection.is_proven
    one.answer(frame, THEIRS, cipher)
    assert one.connection.state is PeerState.UP
    one.connection.send(PeerRequest(BrokerId(2), 1, RaftRequest(data_dir_id="disk-1"), b"a user and his keys"))
    sent = one.asked()
    assert sent is not None
    assert b"keys" not in sent.raw
    assert cipher.decrypted(sent).raw == b"a user and his keys"


async def test_who_passes_a_login_on_is_heard_no_further(sock: socket.socket) -> None:
    """Both proofs are right, and he has read all of it; he does not know the secret."""
    one = Dialling(sock)
    frame, _ = one.is_logged_in()
    one.answer(frame, THEIRS)
    assert one.connection.state is PeerState.ENDED
    assert "does not decrypt" in one.connection.end_reason
    assert one.connection.is_damaged
    assert (one.ups, one.asked()) == (0, None)


async def test_who_was_taken_for_a_broker_before_any_had_to_prove_it_is_sent_nothing_from_then_on(
    sock: socket.socket,
) -> None:
    """At once: what is sent before the next look at all connections may be the first user."""
    one = Dialling(sock)
    one.doorway.brokers_prove = False
    hello = one.asked()
    one.answer(
        hello,
        HelloResponse(broker_id=2, broker_version="1", cluster_id="c", format_version=1, api_versions=api_versions()),
    )
    one.answer(one.asked(), THEIRS)
    assert one.connection.state is PeerState.UP
    one.doorway.brokers_prove = True
    one.connection.send(PeerRequest(BrokerId(2), 1, RaftRequest(data_dir_id="disk-1"), b"the first user"))
    assert one.asked() is None
    assert one.connection.state is PeerState.ENDED
