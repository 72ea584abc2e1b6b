"""The servers that NATS announces, with a real cluster of three: one that is named suffices."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats

from penstock import aio
from penstock.broker.nats.link import ConnectFailed, LinkUp
from penstock.broker.security.nats_credentials import TlsFiles
from penstock.ingest.nats import LameDuck
from penstock.vfs.real import RealVfs
from tests.broker_process import eventually
from tests.certificates import Authority
from tests.integration.in_process import broker_in_process
from tests.nats_servers import Listener, RunningNats, listening, running_nats


@asynccontextmanager
async def _cluster(folder: Path, config: str = "") -> AsyncIterator[list[RunningNats]]:
    """Three nats-servers that know of each other."""
    servers: list[RunningNats] = []
    async with AsyncExitStack() as stack:
        for number in range(3):
            routes = [f"nats://127.0.0.1:{server.route_port}" for server in servers[:1]]
            place = folder / f"nats-{number}"
            place.mkdir()
            cluster = f'cluster {{ name: c, listen: "127.0.0.1:-1", routes: {routes} }}\n'.replace("'", '"')
            servers.append(await stack.enter_async_context(running_nats(place, config + cluster)))
        yield servers


async def _knows_all(listener: Listener, servers: list[RunningNats]) -> None:
    others = {f"127.0.0.1:{server.port}" for server in servers[1:]}
    await listener.until(lambda: {str(one).rpartition("/")[2] for one in listener.link.announced} >= others)


async def test_a_broker_goes_on_with_another_server_of_the_cluster(tmp_path: Path) -> None:
    async with (
        _cluster(tmp_path) as servers,
        broker_in_process(RealVfs(tmp_path / "data"), servers[0].url) as broker,
        await aio.connect(broker.address) as client,
    ):
        others = {server.url for server in servers[1:]}

        async def knows_all() -> bool:
            return set((await client.status()).nats.announced) == others

        await eventually(knows_all, "the others are announced")
        await client.create_stream("orders", "orders")
        await servers[0].kill()

        async def is_with_another() -> bool:
            return (await client.status()).nats.url in others and broker.driver.link.is_up

        await eventually(is_with_another, "the broker is connected to another server")
        for server in servers[1:]:
            connection = await nats.connect(server.url)
            ack = await connection.jetstream().publish("orders", b"x", timeout=30)
            await connection.close()
        assert ack.seq == 2
        status = await client.status()
        assert (status.nats.state, status.nats.reconnects, len(status.nats.gaps)) == ("connected", 1, 1)


async def test_announced_servers_can_be_ignored(tmp_path: Path) -> None:
    async with _cluster(tmp_path) as servers, listening(servers[0].url, uses_announced=False) as listener:
        await listener.link.wait_barrier(5000)
        await servers[0].kill()
        await listener.until(lambda: sum(isinstance(event, ConnectFailed) for event in listener.events) >= 3)
        assert {event.server.port for event in listener.events if isinstance(event, ConnectFailed)} == {servers[0].port}
        assert listener.link.announced == ()


async def test_after_lame_duck_another_server_is_used(tmp_path: Path) -> None:
    config = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "10ms"\n'
    async with _cluster(tmp_path, config) as servers, listening(servers[0].url) as listener:
        await _knows_all(listener, servers)
        assert servers[0].process is not None
        servers[0].process.send_signal(signal.SIGUSR2)
        await listener.event(LameDuck)
        up = await listener.event(LinkUp, after=listener.events.index(await listener.event(LameDuck)))
        assert up.server.port in {server.port for server in servers[1:]}


async def test_credentials_and_tls_are_those_of_the_named_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("nats", ("localhost",))  # and not 127.0.0.1, which is what is announced
    config = f"""
        tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}" }}
        authorization {{ user: ann, password: secret }}
    """
    async with _cluster(tmp_path, config) as servers:
        url = f"tls://ann:secret@localhost:{servers[0].port}"
        async with listening(url, tls=TlsFiles(ca_file=authority.ca)) as listener:
            await _knows_all(listener, servers)
            assert all(server.tls for server in listener.link.announced)
            at = len(listener.events)
            await servers[0].kill()
            up = await listener.event(LinkUp, after=at)
            assert up.server.port in {server.port for server in servers[1:]}
            assert "secret" not in repr(listener.events)
