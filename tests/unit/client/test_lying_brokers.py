"""Something listens where a broker was that knows no user, and lies in the login: a client asks the other brokers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from functools import partial

import pytest

import penstock
from penstock import Credentials, aio
from penstock.access import scram
from penstock.access.credentials import token_text
from penstock.access.handshake import MECHANISMS
from penstock.base.errors import ErrorCode
from tests.extent import each_change
from tests.fake_broker import columns
from tests.fake_cluster import FakeCluster
from tests.impostor import (
    Impostor,
    Lie,
    challenge,
    done_at_once,
    malformed,
    never_heard_of,
    wrong_signature,
)

PASSWORD = Credentials.password("ann", "pencil")
TOKEN = Credentials.token(token_text("ann", "t1", "s3cret"))
LIES: dict[str, tuple[Lie, Credentials, str]] = {
    "done": (done_at_once, TOKEN, "without a challenge"),
    "twice": (partial(challenge, iterations=1), TOKEN, "does not belong to a login"),
    "few": (partial(challenge, iterations=599_999), PASSWORD, "599999 iterations"),
    "many": (partial(challenge, iterations=600_001), PASSWORD, "600001 iterations"),
    "signature": (partial(wrong_signature, iterations=1), TOKEN, "does not prove that it knows this user"),
    "malformed": (malformed, TOKEN, "must have the parts r, s, i"),
}


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(3) as cluster, asyncio.timeout(60):
        cluster.create("a").append(columns(b"0", b"1"))
        yield cluster


async def in_the_place_of(cluster: FakeCluster, broker_id: int, lie: Lie) -> Impostor:
    port = int(cluster[broker_id].address.rpartition(":")[2])
    await cluster.kill(broker_id)
    return Impostor(port, broker_id, lie, mechanisms=MECHANISMS)


@pytest.mark.parametrize("name", LIES)
async def test_who_lies_in_the_login_is_left_for_another_broker(
    cluster: FakeCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie, credentials, _ = LIES[name]
    hashed: list[int] = []
    salted = scram.salted

    def counted(secret: str, salt: bytes, iterations: int) -> bytes:
        hashed.append(iterations)
        return salted(secret, salt, iterations)

    monkeypatch.setattr(scram, "salted", counted)
    async with await in_the_place_of(cluster, 1, lie) as impostor:
        for seed in range(6):  # some begin with it
            connecting = aio.connect(cluster.servers, credentials=credentials)
            connecting._link._rng.seed(seed)
            async with connecting as client:
                assert (await client.stream("a")).name == "a"
        assert impostor.logins > 0
        assert len(hashed) <= impostor.came, "more than one proof in a login"
        assert set(hashed) <= {credentials.iterations}


@each_change
@pytest.mark.parametrize("name", LIES)
async def test_who_lies_where_the_leader_should_be_is_named_at_the_end_and_not_asked_again_and_again(
    cluster: FakeCluster, name: str
) -> None:
    lie, credentials, said = LIES[name]
    async with aio.connect(cluster[2].address, credentials=credentials) as client:
        await client.stream("a")
        async with await in_the_place_of(cluster, 1, lie) as impostor:
            with pytest.raises(penstock.TimedOut, match=re.escape(impostor.address)) as caught:
                await client.get("a", 0, timeout=1.0)
            assert said in str(caught.value)
            with pytest.raises(penstock.TimedOut, match=re.escape(impostor.address)):
                await client.get("a", 1, timeout=0.2)
            assert impostor.came == 1
            await cluster.elect(3)
            message = await client.get("a", 1, timeout=10.0)
            assert message.value == b"1"


@pytest.mark.parametrize("name", LIES)
async def test_where_there_is_no_other_broker_it_is_told_at_once(name: str) -> None:
    lie, credentials, said = LIES[name]
    async with Impostor(0, 1, lie, mechanisms=MECHANISMS) as impostor:
        with pytest.raises(penstock.Unavailable, match=f"{re.escape(impostor.address)} fails in its login") as caught:
            await aio.connect(impostor.address, credentials=credentials)
        assert said in str(caught.value)
        assert impostor.came == 1


async def test_one_broker_that_has_never_heard_of_a_user_is_not_believed(cluster: FakeCluster) -> None:
    async with aio.connect(cluster[2].address, credentials=TOKEN) as client:
        await client.stream("a")
        async with await in_the_place_of(cluster, 3, never_heard_of):
            await cluster.kill(2)
            client._link.view.failed(cluster[2].address, asyncio.get_running_loop().time())
            for _ in range(10):
                assert [one.name for one in await client.streams()] == ["a"]


async def test_two_are(cluster: FakeCluster) -> None:
    async with aio.connect(cluster[2].address, credentials=TOKEN) as client:
        await client.stream("a")
        async with await in_the_place_of(cluster, 1, never_heard_of), await in_the_place_of(cluster, 3, never_heard_of):
            await cluster.kill(2)
            with pytest.raises(penstock.Unauthenticated) as caught:
                await client.streams(timeout=10.0)
            assert caught.value.code == ErrorCode.UNAUTHENTICATED
