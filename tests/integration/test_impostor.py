"""Who stands where a broker should be, or between two of them, is taken for none and learns what checks no secret."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from penstock import Credentials, aio
from penstock.client.users import rule, token_credential
from penstock.messages import Api
from tests.broker_process import eventually, running_nats
from tests.certificates import Authority
from tests.extent import needs_time
from tests.impostor import Impostor, challenge, done_at_once, wrong_signature
from tests.integration.between import Between
from tests.integration.clusters import ClusterProcesses, running_cluster
from tests.integration.guarded import PASSWORD, in_cluster
from tests.ports import free_ports

LOGIN = {Api.HELLO, Api.AUTHENTICATE}


async def made(admin: aio.Client) -> tuple[bytes, ...]:
    """A new user, once all live brokers know him: what checks his secret."""
    shown = token_credential("bob")
    await admin.users.create("bob", shown, rules=[rule("read", stream="orders")])
    keys = shown.credential
    return keys.salt, keys.stored_key, keys.server_key


@needs_time
async def test_who_sits_at_the_address_of_a_dead_broker_gets_nothing(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3, *in_cluster(tmp_path)) as cluster:
        cluster.log_in(Credentials.password("admin", PASSWORD))
        leader = await cluster.metadata_leader()
        dead = next(number for number in cluster.brokers if number != leader)
        cluster.brokers[dead].kill()
        await cluster.all_live()
        others = [broker for number, broker in cluster.brokers.items() if number != dead]
        port = int(cluster.brokers[dead].listen.rpartition(":")[2])
        said = [broker.said.count(f"connected to broker {dead}") for broker in others]
        async with Impostor(port, dead, done_at_once, challenge, wrong_signature) as impostor:
            await impostor.has_logins(12)  # so that both brokers have heard each of its lies
            async with cluster.client(leader) as admin:
                secrets = await made(admin)
            await impostor.has_logins(impostor.logins + 8)
            assert impostor.heard == LOGIN
            assert not [one for one in secrets if one in impostor.bytes]
        assert [broker.said.count(f"connected to broker {dead}") for broker in others] == said
        for broker in others:
            broker.logged(f"broker {dead}: .*it does not know the secret of this cluster")
        cluster.brokers[dead].launch()
        await cluster.all_live()


class Wire(Between):
    """Keeps what passes."""

    def __init__(self, to_port: int, port: int) -> None:
        super().__init__(to_port, port)
        self.said: list[bytearray] = []  # on each connection

    async def there(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = bytearray()
        self.said.append(said)
        while data := await reader.read(self.piece_bytes):
            said += data
            writer.write(data)
            await writer.drain()


class Tapped(ClusterProcesses):
    """Brokers that reach each other through wires; clients reach them directly."""

    def place(self, count: int) -> None:
        super().place(count)
        self.wires = []
        for broker, port in zip(self.brokers.values(), free_ports(count), strict=True):
            told = int(broker.listen.rpartition(":")[2])
            self.wires.append(Wire(port, told))
            broker.listen = broker.client_address = f"127.0.0.1:{port}"
            broker.arguments += ["--advertise", f"127.0.0.1:{told}"]

    def passed(self, text: bytes) -> bool:
        """Whether that was said between brokers: clients that go on to another broker find it at its wire, too."""
        return any(text in said for wire in self.wires for said in wire.said if b"n=admin" not in said)


@needs_time
async def test_who_reads_what_brokers_say_learns_what_checks_no_secret(tmp_path: Path) -> None:
    """He passes their logins on, too. Messages he may read: brokers encrypt only what they send from memory."""
    with running_nats(tmp_path / "nats") as server:
        cluster = Tapped(tmp_path, server, 3, *in_cluster(tmp_path))
        cluster.log_in(Credentials.password("admin", PASSWORD))
        async with AsyncExitStack() as stack:
            for wire in cluster.wires:
                await stack.enter_async_context(wire)
            try:
                cluster.start()
                leader = await cluster.metadata_leader()
                other = next(number for number in cluster.brokers if number != leader)
                async with cluster.client(other) as admin:  # which passes on what it is asked
                    await admin.create_stream("orders", "orders.>", replicas=3)
                    leads = await cluster.leader_of("orders")
                    async with cluster.client(next(number for number in cluster.brokers if number != leads)) as user:
                        # The client reaches the leader at its advertised address, so through a wire.
                        await user.append("orders", [{"subject": "orders.eu", "value": b"a message in clear"}])
                    secrets = await made(admin)
                    await cluster.in_sync("orders", {1, 2, 3}, leader)

                async def is_read() -> bool:
                    return any(b"a message in clear" in said for wire in cluster.wires for said in wire.said)

                await eventually(is_read, "it sees what it can see")
                assert not [one for one in (*secrets, b"bob", b"orders.eu.>") if cluster.passed(one)]
                # A broker that has missed it all gets a snapshot, or the log.
                cluster.brokers[other].kill()
                cluster.empty_disk(other)
                seen = sum(len(said) for wire in cluster.wires for said in wire.said)
                cluster.brokers[other].launch()

                async def has_heard() -> bool:
                    return sum(len(said) for wire in cluster.wires for said in wire.said) > seen

                await eventually(has_heard, "they speak again")
                assert not [one for one in secrets if cluster.passed(one)]
            finally:
                print(cluster.said)
                cluster.end()


@needs_time
async def test_with_tls_who_has_no_certificate_of_a_broker_does_not_even_hear_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, another = Authority(tmp_path / "tls"), Authority(tmp_path / "another", "another-ca")
    monkeypatch.setenv("PENSTOCK_TLS_CA", str(authority.ca))
    with running_nats(tmp_path / "nats") as server:
        cluster = ClusterProcesses(tmp_path, server, 3, *in_cluster(tmp_path))
        cluster.log_in(Credentials.password("admin", PASSWORD))
        for number, broker in cluster.brokers.items():
            pair = authority.issue(f"broker-{number}")
            files = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-ca", str(authority.ca))
            broker.arguments += files
        try:
            cluster.start()
            leader = await cluster.metadata_leader()
            dead = next(number for number in cluster.brokers if number != leader)
            cluster.brokers[dead].kill()
            await cluster.all_live()
            port = int(cluster.brokers[dead].listen.rpartition(":")[2])
            others = [broker for number, broker in cluster.brokers.items() if number != dead]
            for pair_of in (None, another):  # without TLS, and with a certificate of somebody else
                since = [len(broker.said) for broker in others]
                async with AsyncExitStack() as stack:
                    impostor = await stack.enter_async_context(Impostor(port, dead, done_at_once))
                    if pair_of is not None:
                        impostor.speak_tls(pair_of.issue("broker-9"))
                    await impostor.has_come(4)
                    async with cluster.client(leader) as admin:
                        if pair_of is None:
                            secrets = await made(admin)
                    await impostor.has_come(impostor.came + 4)
                    assert impostor.heard == set()
                    assert not [one for one in secrets if one in impostor.bytes]
                assert all(
                    f"connected to broker {dead}" not in broker.said[at:]
                    for broker, at in zip(others, since, strict=True)
                )
        finally:
            print(cluster.said)
            cluster.end()
