"""Who may ask what on a connection, from what was said on it first."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.access.handshake import Principal, ServerHandshake
from penstock.access.users import BROKER
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.broker.socket_api.connection_handshake import ConnectionHandshake, NoAuthentication
from penstock.messages import Api, AuthenticateResponse, HelloRequest, PeerHelloRequest
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
    for api in Api:
        if Api.HELLO < api < Api.PEER_HELLO and api != Api.LIST_OFFSETS:  # of a partition that it does not lead
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
