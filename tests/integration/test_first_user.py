"""A cluster without users gets its first one, while somebody tries to be one of its brokers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from penstock import Credentials, RemoteError, TimedOut, aio
from penstock.access import Operation, Rule
from penstock.base.errors import ErrorCode
from penstock.client.users import password_credential
from penstock.messages import (
    CreateUserRequest,
    ForwardRequest,
    HelloRequest,
    HelloResponse,
    PeerHelloRequest,
    PeerHelloResponse,
    Response,
)
from penstock.wire import decode_response, encode_checked_request
from penstock.wire.bodies import refusal_in, request_body
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.extent import each_change, needs_time
from tests.integration.clusters import running_cluster
from tests.integration.raw_client import RawClient, raw_client

ADMIN = Rule(Operation.ADMIN)
PASSWORD = "a password that is long"


@pytest.fixture
def secret(tmp_path: Path) -> str:
    file = tmp_path / "cluster.secret"
    file.write_text("a secret of the cluster that is long enough\n")
    file.chmod(0o600)
    return str(file)


async def _said_to_be(raw: RawClient, broker_id: int) -> RemoteError | Response:
    """What somebody is answered who says that it is that broker, and proves nothing."""
    raw.ask_as_broker(HelloRequest(client_name=f"penstock broker {broker_id}", client_version="0"), 1)
    frame = await raw.frame()
    assert frame is not None
    hello = decode_response(frame, HelloRequest)
    assert isinstance(hello, HelloResponse)
    asked = PeerHelloRequest(
        cluster_id=hello.cluster_id,
        broker_id=broker_id,
        data_dir_id="foreign",
        broker_version=hello.broker_version,
        address="127.0.0.1:1",
    )
    raw.ask_as_broker(asked, 2)
    frame = await raw.frame()
    assert frame is not None
    return refusal_in(frame.body) or decode_response(frame, PeerHelloRequest)


@each_change
async def test_where_brokers_share_a_secret_nobody_else_is_one_before_there_are_users(
    tmp_path: Path, secret: str
) -> None:
    with running_broker(tmp_path / "data", "--cluster-secret-file", secret) as broker:
        async with raw_client(broker.client_address) as raw:
            refused = await _said_to_be(raw, 99)
            assert isinstance(refused, RemoteError)
            assert refused.code == ErrorCode.UNAUTHENTICATED
        async with await broker.client() as anybody:
            assert await anybody.streams() == []


@needs_time
async def test_who_was_taken_for_a_broker_makes_no_user_once_there_is_one(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with raw_client(broker.client_address) as raw, await broker.client() as anybody:
            assert isinstance(await _said_to_be(raw, 99), PeerHelloResponse)
            await anybody.users.create("root", password_credential(PASSWORD), rules=[ADMIN])
            mallory = CreateUserRequest(
                name="mallory", credentials=(password_credential(PASSWORD).credential,), rules=(ADMIN,)
            )
            api, version, body = request_body(mallory)
            forward = ForwardRequest(api=api, version=version, user="$broker", user_index=0)
            raw.send(encode_checked_request(forward, 3, raw=body) + body)
            frame = await raw.frame()
            assert frame is None or refusal_in(frame.body) is not None
        async with aio.connect(broker.client_address, credentials=Credentials.password("root", PASSWORD)) as root:
            assert [user.name for user in (await root.users.all()).users] == ["root"]


@needs_time
async def test_no_first_user_is_made_while_a_broker_is_away(tmp_path: Path, secret: str) -> None:
    with running_cluster(tmp_path, 3, "--cluster-secret-file", secret) as cluster:
        await cluster.all_live()
        cluster.brokers[3].stop()
        await cluster.all_live()
        async with cluster.client(1) as anybody:
            with pytest.raises(RemoteError, match="broker 3 is away") as caught:
                await anybody.users.create("root", password_credential(PASSWORD), rules=[ADMIN])
            assert caught.value.code == ErrorCode.CHANGE_REFUSED


@needs_time
async def test_a_broker_that_comes_back_to_silence_serves_nobody_and_takes_nobody_for_a_broker(
    tmp_path: Path, secret: str
) -> None:
    """It has not heard of any user: that is not to say that there is none."""
    with running_cluster(tmp_path, 3, "--cluster-secret-file", secret) as cluster:
        await cluster.all_live()
        back = cluster.brokers[3]
        back.stop()
        await cluster.all_live()
        for number in (1, 2):
            cluster.brokers[number].signal(signal.SIGSTOP)
        back.launch()

        async def listens() -> bool:
            try:
                async with raw_client(back.client_address) as raw:
                    refused = await _said_to_be(raw, 1)
            except OSError:
                return False
            assert isinstance(refused, RemoteError)
            assert refused.code == ErrorCode.UNAUTHENTICATED
            return True

        await eventually(listens, "it listens, and takes nobody for broker 1")
        assert await _is_refused(back)
        for number in (1, 2):
            cluster.brokers[number].signal(signal.SIGCONT)
        await cluster.all_live()
        assert not await _is_refused(back), "nobody has to log in, as it has heard now"


async def _is_refused(broker: BrokerProcess) -> bool:
    try:
        async with aio.connect(broker.client_address, timeout=3) as anybody:
            await anybody.streams()
    except TimedOut as error:
        if "has no contact with the metadata leader" not in str(error):
            raise
        return True
    return False
