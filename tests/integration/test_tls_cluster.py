"""Three real brokers that reach each other through TLS, each with a certificate that the others check."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

import penstock
from penstock import aio
from penstock.client.link.tls import TlsOptions
from penstock.messages import HelloRequest, PeerHelloRequest
from penstock.wire import FrameDecoder, decode_response, encode_checked_request
from tests.broker_process import running_broker, running_nats
from tests.certificates import Authority, Pair
from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses, check, load

_CLIENT_ONLY = (ExtendedKeyUsageOID.CLIENT_AUTH,)


def speaks_tls(cluster: ClusterProcesses, number: int, pair: Pair, ca: Path, *more: str) -> None:
    """Have a broker that does not run use that certificate."""
    files = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-ca", str(ca))
    cluster.brokers[number].arguments += [*files, *more]


@contextmanager
def encrypted_cluster(folder: Path, authority: Authority, *more: str) -> Iterator[ClusterProcesses]:
    with running_nats(folder / "nats") as server:
        cluster = ClusterProcesses(folder, server, 3)
        for number in cluster.brokers:
            speaks_tls(cluster, number, authority.issue(f"broker-{number}"), authority.ca, *more)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.end()


@needs_time
async def test_replicas_follow_and_take_over_through_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, of_clients = Authority(tmp_path / "tls"), Authority(tmp_path / "clients", "client-ca")
    client_pair = of_clients.issue("client", (), usages=_CLIENT_ONLY)
    monkeypatch.setenv("PENSTOCK_TLS_CA", str(authority.ca))
    monkeypatch.setenv("PENSTOCK_TLS_CERT", str(client_pair.cert))
    monkeypatch.setenv("PENSTOCK_TLS_KEY", str(client_pair.key))
    # What a broker has to say before it says who it is is said without a certificate of a client.
    options = ("--tls-client-ca", str(of_clients.ca), "--cluster-secret", "known to brokers alone " * 2)
    with encrypted_cluster(tmp_path, authority, *options) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders.>", replicas=3)
            rows = pa.table({"subject": ["bulk.a"] * 512, "value": pa.array([b"x" * 65_536] * 512, pa.binary())})
            await client.create_stream("bulk", "bulk.>", replicas=3)
            async with load(cluster.nats.url, "orders.a") as sent:
                await sent.acks(200)
                await client.append("bulk", rows, timeout=60)  # 32 MiB, which followers fetch meanwhile
                leader = await cluster.leader_of("orders")
                cluster.brokers[leader].kill()
                await sent.acks(200)
                cluster.brokers[leader].launch()
                await sent.acks(200)
            await cluster.in_sync("orders", {1, 2, 3}, leader)
            await cluster.in_sync("bulk", {1, 2, 3}, leader)
            assert await check(client, "orders", sent) >= 600
            read = [batch.num_rows async for batch in client.read("bulk")]
            assert sum(read) == 512
            # Every replica itself has it, whoever leads.
            for read_from in ("leader", "followers"):
                async with await aio.connect(client.server, read_from=read_from) as another:
                    assert sum([batch.num_rows async for batch in another.read("bulk")]) == 512


@needs_time
async def test_who_is_no_broker_is_not_taken_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, of_clients = Authority(tmp_path / "tls"), Authority(tmp_path / "clients", "client-ca")
    monkeypatch.setenv("PENSTOCK_TLS_CA", str(authority.ca))
    client = of_clients.issue("client", (), usages=_CLIENT_ONLY)
    monkeypatch.setenv("PENSTOCK_TLS_CERT", str(client.cert))
    monkeypatch.setenv("PENSTOCK_TLS_KEY", str(client.key))
    options = ("--tls-client-ca", str(of_clients.ca), "--tls-peer-names", "localhost")
    with encrypted_cluster(tmp_path, authority, *options) as cluster:
        await cluster.all_live()
        nameless = authority.issue("nameless", ("127.0.0.1",))
        for pair, said in (
            (client, "is not of the authority of brokers (tls_ca) [certificate_refused]"),
            (nameless, "has none of the names in tls_peer_names, but 127.0.0.1 [certificate_refused]"),
            (authority.issue("broker-9"), ""),
        ):
            refusal = await refusal_of_peer(cluster.brokers[1].client_address, authority, pair)
            assert refusal.endswith(said)
            assert bool(refusal) is bool(said), refusal


async def refusal_of_peer(address: str, authority: Authority, pair: Pair) -> str:
    """What a broker says to whoever says that he is broker 9, with that certificate; empty: it takes him."""
    from penstock.base.errors import RemoteError
    from penstock.client.link.tls import ClientTls

    host, _, port = address.rpartition(":")
    dialling = ClientTls(TlsOptions(authority.ca, pair.cert, pair.key)).dialling(host)
    reader, writer = await asyncio.open_connection(host, int(port), **dialling)
    try:
        peer = PeerHelloRequest(cluster_id="", broker_id=9, data_dir_id="d", broker_version="0", address="127.0.0.1:9")
        hello = HelloRequest(client_name="penstock broker 9", client_version="0")
        decoder = FrameDecoder(1 << 20)
        async with asyncio.timeout(60):
            for number, request in enumerate((hello, peer), 1):
                writer.write(encode_checked_request(request, number))
                while (frame := decoder.next_frame()) is None:
                    data = await reader.read(1 << 16)
                    assert data
                    decoder.receive(data)
                try:
                    decode_response(frame, type(request))
                except RemoteError as error:
                    return str(error)
        return ""
    finally:
        writer.transport.abort()


@needs_time
async def test_a_broker_of_another_authority_stays_alone_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, another = Authority(tmp_path / "tls"), Authority(tmp_path / "another", "another-ca")
    monkeypatch.setenv("PENSTOCK_TLS_CA", str(authority.ca))
    with running_nats(tmp_path / "nats") as server:
        cluster = ClusterProcesses(tmp_path, server, 3)
        try:
            speaks_tls(cluster, 1, authority.issue("broker-1"), authority.ca)
            # It has a certificate that others do not take; and it takes theirs, so it is they who refuse it.
            speaks_tls(cluster, 2, another.issue("broker-2"), authority.ca)
            speaks_tls(cluster, 3, authority.issue("broker-3", ("elsewhere.example",)), authority.ca)
            one, two, three = cluster.brokers.values()
            for broker in (two, three):  # first: what is wrong first is told at once, the next only after a minute
                broker.launch()
                broker.logged("broker of a cluster")
            one.launch()
            one.logged(r"broker 2: \S+: no connection: its certificate is of no authority that is trusted here.*tls_ca")
            one.logged(r"broker 3: \S+: no connection: its certificate is for another name.*tls_ignore_hosts")
            two.kill()
            two.launch()
            two.logged(r"broker 1: \S+: the connection broke: it refuses our certificate: its authority is not trusted")
            # Broker 3 has another name, which brokers may be told not to look at.
            one.kill()
            one.arguments.append("--tls-ignore-hosts")
            one.launch()
            one.logged("connected to broker 3")
        finally:
            cluster.end()


@needs_time
async def test_a_plain_broker_and_one_with_tls_say_what_is_wrong(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    with running_nats(tmp_path / "nats") as server:
        cluster = ClusterProcesses(tmp_path, server, 3)
        try:
            speaks_tls(cluster, 1, authority.issue("broker-1"), authority.ca)
            one, two, _ = cluster.brokers.values()
            two.launch()
            two.logged("broker of a cluster")
            one.launch()
            one.logged(r"broker 2: \S+: no connection: what answers there speaks no TLS; give it a certificate")
            two.kill()
            two.launch()
            two.logged(r"broker 1: \S+: this broker speaks TLS")
        finally:
            cluster.end()


@needs_time
def test_a_supervisor_passes_on_that_certificates_are_new(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    pair = authority.issue("machine")
    files = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-ca", str(authority.ca))
    with running_broker(tmp_path / "data", "--brokers", "2", *files) as machine:
        seen = 0 if machine.stderr is None else len(machine.stderr)
        machine.signal(signal.SIGHUP)
        for number in (1, 2):
            machine.logged(rf"broker-{number} \| .*new certificates are in use", after=seen)
        with penstock.connect(machine.client_address, tls=TlsOptions(ca=authority.ca)) as client:
            assert len(client.status().brokers) == 2
        assert machine.stop() == 0
