"""Who may ask what on a connection, from what was said on it first."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.access.handshake import Principal, ServerHandshake
from penstock.access.users import BROKER
from penstock.base.errors import ErrorCode, RemoteError
from penstock.broker.greeting import Greeting, Unguarded
from penstock.messages import Api, AuthenticateResponse, HelloRequest, PeerHelloRequest
from penstock.wire.session import PEER_NAME

HELLO = HelloRequest(client_name=f"{PEER_NAME} 2", client_version="1")


@dataclass
class Unsure(Unguarded):
    """A broker that knows the secret of a cluster, and does not know yet whether anybody has to log in there."""

    brokers_prove: bool = True

    def begin_login(self) -> ServerHandshake:
        raise AssertionError

    def logged_in(self, who: Principal, data: bytes) -> AuthenticateResponse:
        raise AssertionError


def peer_hello(broker_id: int = 2) -> PeerHelloRequest:
    return PeerHelloRequest(
        cluster_id="", broker_id=broker_id, data_dir_id="d", address="127.0.0.1:1", broker_version="1"
    )


def met(guard: Unguarded) -> Greeting:
    greeting = Greeting(guard, None)
    greeting.is_checked = True
    assert greeting.take(HELLO) is None
    return greeting


def test_on_the_connection_of_a_broker_nothing_is_asked_that_clients_ask() -> None:
    greeting = met(Unguarded())
    greeting.check_allowed(Api.CREATE_USER)
    greeting.take(peer_hello())
    greeting.broker_id, greeting.is_peer = 2, True
    for api in Api:
        if Api.HELLO < api < Api.PEER_HELLO:
            with pytest.raises(RemoteError, match="that is asked by clients"):
                greeting.check_allowed(api)
        else:
            greeting.check_allowed(api)


def test_who_does_not_know_yet_whether_there_are_users_takes_nobody_for_a_broker_without_a_proof() -> None:
    greeting = met(Unsure())
    with pytest.raises(RemoteError) as caught:
        greeting.take(peer_hello())
    assert caught.value.code == ErrorCode.UNAUTHENTICATED
    proven = met(Unsure())
    proven.who = Principal(BROKER, 2)
    assert proven.take(peer_hello()) is None
    with pytest.raises(RemoteError, match="this connection is that of broker 2"):
        proven.take(peer_hello(3))
