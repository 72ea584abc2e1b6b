"""Who may ask what on a connection, from what was said on it first."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.access.credentials import Credentials, token_text
from penstock.access.handshake import Principal, ServerHandshake
from penstock.access.scram import ScramVerifier, verifier_of
from penstock.access.users import BROKER
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.broker.socket_api.connection_handshake import ConnectionHandshake, HandshakeStage, NoAuthentication
from penstock.messages import Api, AuthenticateRequest, AuthenticateResponse, HelloRequest, PeerHelloRequest
from penstock.wire.session import PEER_NAME

HELLO = HelloRequest(client_name=f"{PEER_NAME} 2", client_version="1")


@dataclass
class Unsure(NoAuthentication):
    """A broker of a cluster with a secret."""

    brokers_prove: bool = True

    def begin_login(self) -> ServerHandshake:
        raise AssertionError

    def logged_in(self, who: Principal, data: bytes, *, is_here: bool) -> AuthenticateResponse:
        raise AssertionError


def peer_hello(broker_id: int = 2) -> PeerHelloRequest:
    return PeerHelloRequest(
        cluster_id="", broker_id=broker_id, data_dir_id="d", address="127.0.0.1:1", broker_version="1"
    )


def met(guard: NoAuthentication) -> ConnectionHandshake:
    greeting = ConnectionHandshake(guard, None)
    greeting.is_checked = True
    assert greeting.take(HELLO) is None
    return greeting


def test_on_the_connection_of_a_broker_nothing_is_asked_that_clients_ask() -> None:
    greeting = met(NoAuthentication())
    greeting.check_allowed(Api.CREATE_USER)
    greeting.take(peer_hello())
    greeting.introduced(BrokerId(2))
    greeting.accepted()
    # of a partition that it does not lead
    of_both = {
        Api.LIST_OFFSETS,
        Api.LIST_SUBJECTS,
        Api.TRUNCATE,
        Api.LIST_SCHEMAS,
        Api.GET_SCHEMA_TEXT,
        Api.FETCH_OFFSETS,
    }
    for api in Api:
        if Api.HELLO < api < Api.PEER_HELLO and api not in of_both:
            with pytest.raises(RemoteError, match="this is a request of clients"):
                greeting.check_allowed(api)
        else:
            greeting.check_allowed(api)


def test_where_there_is_a_secret_nobody_is_taken_for_a_broker_without_a_proof() -> None:
    greeting = met(Unsure())
    with pytest.raises(RemoteError) as caught:
        greeting.take(peer_hello())
    assert caught.value.code == ErrorCode.UNAUTHENTICATED
    proven = met(Unsure())
    proven.who = Principal(BROKER, 2)
    assert proven.take(peer_hello()) is None
    with pytest.raises(RemoteError, match="this connection is that of broker 2"):
        proven.take(peer_hello(3))


class Users:
    """A directory with one user, and her token."""

    decoy_key = b"decoy"

    def verifier(self, name: str) -> tuple[ScramVerifier, Principal] | None:
        return (verifier_of("s3cret", b"s" * 16, 1), Principal("ann", 3, "t1")) if name == "ann/t1" else None

    def holder(self, public_key: str) -> Principal | None:
        return None

    def expired(self, who: Principal) -> str | None:
        return None


@dataclass
class Guarded(NoAuthentication):
    """A broker that knows one user, until she is deleted."""

    is_guarded: bool = True
    is_current: bool = True
    is_deleted: bool = False

    def begin_login(self) -> ServerHandshake:
        return ServerHandshake(Users(), "m" * 24)

    def logged_in(self, who: Principal, data: bytes, *, is_here: bool) -> AuthenticateResponse:
        return AuthenticateResponse(data=data, is_done=True)

    def counts(self, who: Principal) -> bool:
        return not self.is_deleted


@pytest.mark.parametrize(
    ("is_deleted", "is_current", "code"),
    [(False, True, None), (True, True, ErrorCode.UNAUTHENTICATED), (True, False, ErrorCode.NOT_YET)],
)
def test_a_user_that_is_deleted_between_the_messages_of_a_login_is_refused(
    *, is_deleted: bool, is_current: bool, code: ErrorCode | None
) -> None:
    guard = Guarded(is_current=is_current)
    greeting = met(guard)
    login = Credentials.token(token_text("ann", "t1", "s3cret")).proof(lambda: "n" * 24)
    challenge = greeting.take(AuthenticateRequest(mechanism=login.mechanism, data=login.first()))
    assert challenge is not None
    final = login.take(challenge.data, is_done=False)
    assert final is not None
    guard.is_deleted = is_deleted
    request = AuthenticateRequest(mechanism=login.mechanism, data=final)
    if code is None:
        answer = greeting.take(request)
        assert answer is not None
        assert answer.is_done
    else:
        with pytest.raises(RemoteError) as caught:
            greeting.take(request)
        assert caught.value.code == code
        assert (greeting.stage, greeting.who) == (HandshakeStage.FAILED, None)


def test_who_was_taken_for_a_broker_before_anybody_had_to_prove_it_asks_nothing_from_then_on() -> None:
    """At once: between the first user and the next look at all connections it could ask as an administrator."""
    guard = Unsure(brokers_prove=False)
    greeting = met(guard)
    assert greeting.take(peer_hello()) is None
    greeting.introduced(BrokerId(2))
    greeting.accepted()
    greeting.check_allowed(Api.FORWARD)
    guard.brokers_prove = True
    for api in (Api.FORWARD, Api.RAFT, Api.CREATE_USER):
        with pytest.raises(RemoteError, match="not proved") as caught:
            greeting.check_allowed(api)
        assert caught.value.code == ErrorCode.UNAUTHENTICATED
