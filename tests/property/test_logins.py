"""Logins, whatever is said in whatever order: nobody is let in, or believed, without the exchange that proves it.

Each side is driven with messages of a true other side, of one that does not know the secret, and with nonsense: early,
twice, or not at all. What it does is held against the few orders in which it may end well.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from contextlib import suppress
from functools import cache

import nkeys
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.access import scram
from penstock.access.credentials import Credentials, token_text
from penstock.access.handshake import ClientHandshake, Principal, ServerHandshake
from penstock.access.nkeys import NkeyClient
from penstock.access.scram import ScramServer, ScramVerifier, verifier_of
from penstock.access.users import BROKER
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.broker.peers.peer_connection import PeerState
from penstock.broker.security.authentication import BrokerAuthenticator
from penstock.broker.socket_api.connection_handshake import ConnectionHandshake
from penstock.messages import (
    Api,
    AuthenticateRequest,
    AuthenticateResponse,
    HelloRequest,
    HelloResponse,
    MetadataRequest,
    PeerHelloRequest,
    RaftRequest,
    Response,
    api_versions,
)
from penstock.node.step import PeerRequest
from penstock.wire import Frame, decode_request, encode_answer
from penstock.wire.bodies import answer_body
from penstock.wire.encryption import FrameCipher
from penstock.wire.session import PEER_NAME
from tests.extent import each_change, examples
from tests.unit.broker.test_peer_login import SECRET, THEIRS, Dialling, Doorway

SALT = b"salt" * 4
SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"  # made for nothing else
SHOWN = {"SCRAM-SHA-256": Credentials.token(token_text("ann", "t1", "s3cret")), "NKEY": Credentials.nkey(SEED)}
WRONG = {
    "SCRAM-SHA-256": Credentials.token(token_text("ann", "t1", "guessed")),
    "NKEY": Credentials.nkey(nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER).decode()),
}
NONSENSE = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([b"v=", b"v=" + base64.b64encode(bytes(32)), b"", b"r=" + b"x" * 40, b"c=biws,r=,p="]),
)


class Directory:
    """Ann has an nkey, and a token with that secret."""

    decoy_key = b"decoy"

    def __init__(self, secret: str = "s3cret") -> None:
        self._keys = verifier_of(secret, SALT, 1)

    def verifier(self, name: str) -> tuple[ScramVerifier, Principal] | None:
        return (self._keys, Principal("ann", 3, "t1")) if name == "ann/t1" else None

    def holder(self, public_key: str) -> Principal | None:
        return Principal("ann", 3, "k1") if public_key == NkeyClient(SEED, "").public_key else None

    def expired(self, who: Principal) -> str | None:
        return None


TRUE, IMPOSTOR = Directory(), Directory("guessed")


@pytest.mark.parametrize("mechanism", SHOWN)
@settings(max_examples=examples(400))
@given(
    moves=st.lists(
        st.tuples(st.one_of(st.sampled_from(["true", "true", "impostor", "first", "last"]), NONSENSE), st.booleans()),
        max_size=6,
    )
)
def test_a_client_is_logged_in_only_where_a_broker_has_challenged_it_and_proved_itself(
    mechanism: str, moves: list[tuple[str | bytes, bool]]
) -> None:
    login = SHOWN[mechanism].proof(lambda: "n" * 24)
    sides = {"true": ServerHandshake(TRUE, "t" * 24), "impostor": ServerHandshake(IMPOSTOR, "i" * 24)}
    said, answered = login.first(), [b""]
    proofs, has_failed, may_be_done = 0, False, False
    for move, is_done in moves:
        if isinstance(move, bytes):
            data = move
        elif move in sides:
            data = b"refused"
            with suppress(RemoteError):
                data = sides[move].take(mechanism, said)
        else:
            data = answered[0 if move == "first" else -1]
        answered.append(data)
        try:
            following = login.take(data, is_done=is_done)
        except RemoteError:
            has_failed = True
        else:
            assert not has_failed, "it went on after a failure"
            assert (following is None) == is_done
            if following is not None:
                proofs, said = proofs + 1, following
            else:
                # An nkey proves the client alone: whoever has challenged it may end the login.
                may_be_done = proofs == 1 and (mechanism == "NKEY" or sides["true"].is_done)
        assert proofs <= 1
        assert login.is_done == (may_be_done and not has_failed)
    if login.is_done and mechanism != "NKEY":
        assert login.session_key == sides["true"].session_key
        assert len(login.session_key) == 32


@pytest.mark.parametrize("mechanism", SHOWN)
@settings(max_examples=examples(400))
@given(
    moves=st.lists(
        st.one_of(st.sampled_from(["first", "first", "final", "wrong first", "wrong final", "last"]), NONSENSE),
        max_size=6,
    ),
    others=st.sets(st.integers(0, 5), max_size=1),
)
def test_a_broker_knows_who_is_there_only_after_the_two_messages_that_prove_it(
    mechanism: str, moves: list[str | bytes], others: set[int]
) -> None:
    server = ServerHandshake(TRUE, "m" * 24)
    clients: dict[str, ClientHandshake] = {
        "": SHOWN[mechanism].proof(lambda: "n" * 24),
        "wrong ": WRONG[mechanism].proof(lambda: "w" * 24),
    }
    firsts = {name: client.first() for name, client in clients.items()}
    finals: dict[str, bytes] = {}
    challenge = last = b""
    sound: list[str] = []  # what was taken, as it is called
    for number, move in enumerate(moves):
        data, name = (move, "") if isinstance(move, bytes) else (last, move.rpartition("first")[0])
        if isinstance(move, str) and move.endswith("first"):
            data = firsts[name]
        elif isinstance(move, str) and move.endswith("final"):
            name = move.removesuffix("final")
            if name not in finals:
                finals[name] = b"none"
                with suppress(RemoteError):
                    finals[name] = clients[name].take(challenge, is_done=False) or b""
            data = finals[name]
        last = data
        spoken = ("NKEY" if mechanism != "NKEY" else "SCRAM-SHA-256") if number in others else mechanism
        try:
            challenge = server.take(spoken, data)
        except RemoteError:
            sound.append("failed")
        else:
            assert "failed" not in sound, "it went on after a failure"
            assert len(sound) < 2, "it went on after the end"
            sound.append("taken")
            if len(sound) == 2:
                assert data == finals.get("")
                assert server.who is not None
                assert server.who.name == "ann"
        assert server.is_done == (sound == ["taken", "taken"])
        assert (server.who is not None) == (sound[:2] == ["taken", "taken"])


# A broker that dials


@cache
def _true_side() -> BrokerAuthenticator:
    return Doorway().guarding(2, SECRET)


_GUESSED = verifier_of("guessed", b"pepper" * 3, limits.CLUSTER_SECRET_ITERATIONS)
PEER_MOVES = (
    "hello",
    "hello",
    "hello without a secret",
    "true login",
    "true login",
    "true login",
    "done at once",
    "a guessed challenge",
    "a challenge that is none",
    "peer hello",
    "peer hello",
    "peer hello in clear",
    "another broker",
    "refusal",
    "again",
    "unasked",
    "nonsense",
    "sweep",
    "send",
    "send",
    "send",
    "all prove from now on",
)


BEGINS: tuple[list[str], ...] = (
    [],
    ["hello", "true login"],
    ["hello", "true login", "true login", "peer hello"],
    ["hello without a secret", "peer hello"],
    ["hello without a secret", "peer hello", "all prove from now on"],
)


class Conversation:
    """A broker that dials, and what is at the other end."""

    def __init__(self, sock: socket.socket, *, all_prove: bool) -> None:
        self.dialling = Dialling(sock)
        self.dialling.doorway.brokers_prove = all_prove
        self.login = _true_side().begin_login()
        self.cipher: FrameCipher | None = None
        self.asked: list[Frame] = []
        self._last = b""
        self.hear()

    def hear(self) -> None:
        for frame in self.dialling.transport.frames():
            if self.login.is_done and self.cipher is None:
                self.cipher = FrameCipher(self.login.session_key, is_dialler=False)
            connection = self.dialling.connection
            if connection.is_proven:
                assert self.cipher is not None
                frame = self.cipher.decrypted(frame)
                assert frame.api in (Api.PEER_HELLO, Api.RAFT)
            elif self.dialling.doorway.brokers_prove:
                assert frame.api in (Api.HELLO, Api.AUTHENTICATE)
            self.asked.append(frame)

    def feed(self, data: bytes) -> None:
        if not data or self.dialling.connection.state is PeerState.ENDED:
            return
        self._last = data
        buffer = self.dialling.connection.get_buffer(-1)
        buffer[: len(data)] = data
        self.dialling.connection.buffer_updated(len(data))

    def move(self, name: str) -> None:
        frame = self.asked[-1]
        match name:
            case "again":
                self.feed(self._last)
            case "unasked":
                self.feed(encode_answer(frame._replace(correlation_id=4_000), THEIRS))
            case "nonsense":
                self.feed(b"\xff" * 24)
            case "sweep":
                self.dialling.now_us += 1_000_000
                self.dialling.connection.sweep()
            case "send":
                self.dialling.connection.send(PeerRequest(BrokerId(2), 1, RaftRequest(data_dir_id="d"), b"user"))
            case "all prove from now on":
                self.dialling.doorway.brokers_prove = True
            case "refusal":
                self.feed(self._encoded(frame, RemoteError(ErrorCode.UNAUTHENTICATED, "no")))
            case _:
                answer = self._answer(name, frame)
                if answer is not None:
                    in_clear = name == "peer hello in clear"
                    self.feed(encode_answer(frame, answer) if in_clear else self._encoded(frame, answer))
        self.hear()

    def _encoded(self, frame: Frame, answer: Response | RemoteError) -> bytes:
        if self.cipher is None:
            return encode_answer(frame, answer)
        body = answer_body(answer)
        return b"".join(self.cipher.encrypted(frame.api, frame.version, frame.correlation_id, body, ()))

    def _answer(self, name: str, frame: Frame) -> Response | None:
        if name.startswith("hello"):
            return HelloResponse(
                broker_id=BrokerId(2),
                broker_version="1",
                cluster_id="c",
                format_version=1,
                api_versions=api_versions(),
                proves_brokers=name == "hello",
            )
        if name.startswith("peer hello"):
            return THEIRS
        if name == "another broker":
            return type(THEIRS)(cluster_id="c", broker_id=BrokerId(3), data_dir_id="disk-3", broker_version="1")
        if name == "done at once":
            return AuthenticateResponse(data=b"v=", is_done=True)
        request = decode_request(frame) if frame.api == Api.AUTHENTICATE else None
        data = request.data if isinstance(request, AuthenticateRequest) else b""
        try:
            if name == "true login":
                if not isinstance(request, AuthenticateRequest):
                    return None
                data = self.login.take(request.mechanism, request.data)
                return AuthenticateResponse(data=data, is_done=self.login.is_done)
            if name == "a guessed challenge":
                return AuthenticateResponse(data=ScramServer("m" * 24).challenge(data, _GUESSED))
        except RemoteError:
            pass
        return AuthenticateResponse(data=b"r=,s=,i=10000")


@each_change
@settings(max_examples=examples(200))
@given(
    begin=st.sampled_from(BEGINS),
    moves=st.lists(st.sampled_from(PEER_MOVES), max_size=9),
    all_prove=st.booleans(),
)
def test_a_broker_that_dials_asks_only_who_has_proved_to_know_the_secret(
    begin: list[str], moves: list[str], all_prove: bool
) -> None:
    may_prove_nothing = "hello without a secret" in begin
    asyncio.run(_dial(begin + moves, all_prove=all_prove and not may_prove_nothing))


async def _dial(moves: list[str], *, all_prove: bool) -> None:
    derived: list[int] = []
    salted = scram.salted

    def counted(secret: str, salt: bytes, iterations: int) -> bytes:
        derived.append(iterations)
        return salted(secret, salt, iterations)

    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.MonkeyPatch.context() as patch:
        talk = Conversation(ours, all_prove=all_prove)
        patch.setattr(scram, "salted", counted)
        connection, dialling = talk.dialling.connection, talk.dialling
        sent_before = 0
        for move in moves:
            was, ups = connection.state, dialling.ups
            talk.move(move)
            assert len(derived) <= 1, "more than one derivation in a login"
            if connection.is_proven:
                assert talk.login.is_done
            if connection.state is PeerState.UP:
                assert dialling.ups == 1
            if dialling.ups > ups:
                assert connection.is_proven or not dialling.doorway.brokers_prove
            assert dialling.ups <= 1
            assert not dialling.answers or dialling.ups
            assert dialling.ends == (connection.state is PeerState.ENDED)
            assert was is not PeerState.ENDED or connection.state is PeerState.ENDED
            sent = sum(frame.api == Api.RAFT for frame in talk.asked)
            if sent != sent_before:
                assert was is PeerState.UP
                assert move == "send"
                assert connection.is_proven or not dialling.doorway.brokers_prove
            sent_before = sent


# A broker that is dialled


class Doors:
    """A cluster with users, whose brokers prove who they are: the guard of the true side."""

    is_current = True

    def __init__(self, *, is_guarded: bool) -> None:
        self.is_guarded = is_guarded
        self.brokers_prove = True

    def begin_login(self) -> ServerHandshake:
        return ServerHandshake(_Both(), "m" * 24)

    def logged_in(self, who: Principal, data: bytes, *, is_here: bool) -> AuthenticateResponse:
        return AuthenticateResponse(data=data, is_done=True)

    def counts(self, who: Principal) -> bool:
        return True


class _Both(Directory):
    def verifier(self, name: str) -> tuple[ScramVerifier, Principal] | None:
        return super().verifier(name) or _true_side().verifier(name)

    def expired(self, who: Principal) -> str | None:
        return None


@cache
def _brokers_secret() -> Credentials:
    guarding = Doorway().guarding(1, SECRET)
    assert guarding.secret is not None
    return guarding.secret.credentials(BrokerId(1), BrokerId(2))


GREETING_MOVES = (
    "hello",
    "hello",
    "user",
    "user",
    "broker",
    "broker",
    "broker",
    "nonsense",
    "peer hello",
    "peer hello",
    "other peer hello",
    "client asks",
    "broker asks",
)


@settings(max_examples=examples(400))
@given(moves=st.lists(st.sampled_from(GREETING_MOVES), max_size=9), is_guarded=st.booleans(), goes_on=st.booleans())
def test_a_broker_that_is_dialled_serves_only_who_has_proved_who_he_is(
    moves: list[str], is_guarded: bool, goes_on: bool
) -> None:
    greeting = ConnectionHandshake(Doors(is_guarded=is_guarded), None)
    greeting.is_checked = True
    logins = {
        "user": SHOWN["SCRAM-SHA-256"].proof(lambda: "n" * 24),
        "broker": _brokers_secret().proof(lambda: "b" * 24),
    }
    says = {name: login.first() for name, login in logins.items()}
    taken: list[str] = []
    for move in (["hello", "broker", "broker"] if goes_on else []) + moves:
        try:
            answer = None
            match move:
                case "hello":
                    greeting.take(HelloRequest(client_name=f"{PEER_NAME} 1", client_version="1"))
                case "user" | "broker" | "nonsense":
                    data = says.get(move, b"nonsense")
                    answer = greeting.take(AuthenticateRequest(mechanism="SCRAM-SHA-256", data=data))
                    if answer is not None and move in logins and not logins[move].is_done:
                        with suppress(RemoteError):
                            says[move] = logins[move].take(answer.data, is_done=answer.is_done) or b"twice"
                case "peer hello" | "other peer hello":
                    number = BrokerId(1 if move == "peer hello" else 7)
                    hello = PeerHelloRequest(
                        cluster_id="", broker_id=number, data_dir_id="d", broker_version="1", address="a:1"
                    )
                    greeting.take(hello)
                    if not greeting.is_peer:
                        greeting.introduced(number)
                        greeting.accepted()
                case "client asks":
                    greeting.take(MetadataRequest())
                    greeting.check_allowed(Api.METADATA)
                case "broker asks":
                    greeting.take(RaftRequest(data_dir_id="d"))
                    greeting.check_allowed(Api.RAFT)
        except RemoteError:
            if not move.endswith("asks") or not greeting.is_open:
                return  # it is told, and closed
            continue
        taken.append(move)
        assert taken[0] == "hello"
        proved = [name for name, login in logins.items() if login.is_done]
        if greeting.who is not None:
            assert proved == ["broker" if greeting.who.name == BROKER else greeting.who.name.replace("ann", "user")]
        if move == "client asks":
            assert proved == ["user"] or (not is_guarded and not proved)
        if move in ("peer hello", "broker asks"):
            assert proved == ["broker"]
        assert move != "other peer hello"
        assert greeting.is_open == (bool(proved) or not (is_guarded or greeting.is_logging_in))
        assert (greeting.cipher is not None) == (proved == ["broker"])
