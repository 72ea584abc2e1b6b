"""The leaf link against real nats-servers: deliveries, interest, logins, restarts, slow subscribers."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import nats
import nkeys
import pytest

from penstock.base import limits
from penstock.broker.nats.leaf_link import LEAF_GROUP, LeafDown, LeafEvent, LeafLink, LeafUp, LeafWritable
from penstock.broker.nats.server import EmbeddedNats
from penstock.broker.security.nats_credentials import NatsAccess, NatsCredentials, NatsServer, TlsFiles, parse_nats_urls
from penstock.ingest.nats import InterestLost
from tests.broker_process import eventually
from tests.extent import each_change
from tests.integration.test_nats_auth import Certificates, _key_pair, _seed, operator_mode
from tests.nats_servers import QUICK, TIMEOUT_S, Listener, RunningNats, running_nats
from tests.ports import free_ports

Event = TypeVar("Event")
LEAFNODES = 'leafnodes { listen: "127.0.0.1:-1" }\n'


@dataclass
class Deliverer:
    """A leaf link that records its events."""

    link: LeafLink = field(init=False)
    events: list[LeafEvent] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def leaf_event(self, event: LeafEvent) -> None:
        self.events.append(event)
        self.changed.set()

    async def event(self, kind: type[Event], after: int = 0) -> Event:
        """Wait for the first event of this kind from number `after` on."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for event in self.events[after:]:
                    if isinstance(event, kind):
                        return event
                self.changed.clear()
                await self.changed.wait()


class _Trials(Listener):
    """A client link that gives trial deliveries to the leaf, as the driver does."""

    deliverer: Deliverer

    def groups_received(self, groups: dict[int, Any]) -> None:
        if (trial := groups.pop(LEAF_GROUP, None)) is not None:
            self.deliverer.link.trial_received(trial)
        super().groups_received(groups)


@asynccontextmanager
async def delivering(
    client_url: str,
    leaf: str | NatsServer,
    *,
    wait_up: bool = True,
    name: str = "penstock-c-1",
    **access: Any,
) -> AsyncIterator[tuple[Deliverer, Listener]]:
    """Run a client link and a leaf link within the block."""
    client, deliverer = _Trials(client_url, **access), Deliverer()
    client.deliverer = deliverer
    servers = parse_nats_urls(leaf) if isinstance(leaf, str) else (leaf,)
    deliverer.link = LeafLink(
        deliverer,
        NatsAccess(servers, **access),
        client.link,
        name=lambda: name,
        random=random.Random(1).random,
        timing=QUICK,
        trial_timeout_ms=1_000,
    )
    tasks = [asyncio.create_task(client.link.run()), asyncio.create_task(deliverer.link.run())]
    try:
        if wait_up:
            await deliverer.event(LeafUp)
        yield deliverer, client
    finally:
        deliverer.link.stop()
        await client.link.stop(2_000)
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*tasks)


def frame(inbox: str, seq: int = 42, value: bytes = b"hello", queue: str = "") -> bytes:
    ack = f"$JS.ACK.S.C.1.{seq}.7.1690000000000000000.3@orders.eu.{seq}"
    where = f"{inbox} + {ack} {queue}" if queue else f"{inbox} {ack}"
    return b"LMSG %b %d\r\n%b\r\n" % (where.encode(), len(value), value)


async def _gets(url: str, deliverer: Deliverer, **options: Any) -> None:
    """An unmodified client gets what is delivered to its inbox, with the visible subject."""
    connection = await nats.connect(url, allow_reconnect=False, **options)
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox)
    await connection.flush()
    await _interested(deliverer, inbox)
    block = b"NATS/1.0\r\nfoo: bar\r\n\r\n"
    headed = b"HMSG %b $JS.ACK.S.C.1.43.8.1690000000000000000.2@orders.us %d %d\r\n%bhi\r\n"
    deliverer.link.deliver([frame(inbox), headed % (inbox.encode(), len(block), len(block) + 2, block)])
    first, second = await subscription.next_msg(TIMEOUT_S), await subscription.next_msg(TIMEOUT_S)
    assert (first.subject, first.data) == ("orders.eu.42", b"hello")
    assert first.metadata.sequence.stream == 42
    assert (second.subject, second.data, second.headers) == ("orders.us", b"hi", {"foo": "bar"})
    await connection.close()


async def _interested(deliverer: Deliverer, inbox: str, queue: bytes = b"") -> None:
    async def known() -> bool:
        return deliverer.link.interest.has_interest(inbox.encode(), queue) is True

    await eventually(known, f"interest in {inbox}")


async def test_an_unmodified_client_gets_deliveries(tmp_path: Path) -> None:
    async with running_nats(tmp_path, LEAFNODES) as server:
        async with delivering(server.url, f"127.0.0.1:{server.leaf_port}") as (deliverer, client):
            await _gets(server.url, deliverer)
            assert deliverer.link.pending_bytes == 0
            assert client.rows == {}
            assert deliverer.link.interest.is_complete
        assert [type(event) for event in deliverer.events] == [LeafUp]


async def test_the_embedded_server_has_a_leaf_port_with_the_same_login(tmp_path: Path) -> None:
    server = await EmbeddedNats.start(data_dir=tmp_path, port=0, password="a-password")
    try:
        async with delivering(server.server.url_with_login, server.leaf_server) as (deliverer, _):
            await _gets(server.server.url_with_login, deliverer)
            assert server.process_id is not None
            os.kill(server.process_id, signal.SIGKILL)
            await deliverer.event(LeafDown)
            before = len(deliverer.events)
            await deliverer.event(LeafUp, after=before - 1)
            await _gets(server.server.url_with_login, deliverer)
        async with delivering(server.server.url_with_login, server.leaf_server.without_login, wait_up=False) as (
            deliverer,
            _,
        ):
            assert "refuses the leaf's credentials" in (await deliverer.event(LeafDown)).reason
    finally:
        await server.stop()


async def test_a_watched_inbox_that_ends_is_told(tmp_path: Path) -> None:
    async with running_nats(tmp_path, LEAFNODES) as server:
        async with delivering(server.url, f"127.0.0.1:{server.leaf_port}") as (deliverer, _):
            interest = deliverer.link.interest
            connection = await nats.connect(server.url)
            for inbox, subject in ((b"_INBOX.a.b", "_INBOX.a.*"), (b"_INBOX.c", "_INBOX.c")):
                await connection.subscribe(subject)
                await connection.flush()
                await _interested(deliverer, inbox.decode())
                assert interest.watch(inbox, 0)
            assert interest.has_interest(b"_INBOX.d") is False
            await connection.close()
            lost = set((await deliverer.event(InterestLost)).subjects)
            if len(lost) < 2:
                lost |= set(deliverer.events[-1].subjects)  # type: ignore[union-attr]
            assert lost == {b"_INBOX.a.b", b"_INBOX.c"}


async def test_a_queue_group_shares_what_is_delivered_to_it(tmp_path: Path) -> None:
    async with running_nats(tmp_path, LEAFNODES) as server:
        async with delivering(server.url, f"127.0.0.1:{server.leaf_port}") as (deliverer, _):
            got: list[str] = []
            done = asyncio.Event()

            async def take(message: Any) -> None:
                got.append(message.subject)
                if len(got) == 20:
                    done.set()

            connections = [await nats.connect(server.url) for _ in range(2)]
            for connection in connections:
                await connection.subscribe("push.here", queue="workers", cb=take)
                await connection.flush()
            await _interested(deliverer, "push.here", b"workers")
            assert deliverer.link.interest.has_interest(b"push.here") is False
            deliverer.link.deliver([frame("push.here", seq, queue="workers") for seq in range(20)])
            async with asyncio.timeout(TIMEOUT_S):
                await done.wait()
            assert sorted(got) == sorted(f"orders.eu.{seq}" for seq in range(20))
            for connection in connections:
                await connection.close()


OF_LEAFNODES = """
accounts { APP { users: [ { user: app, password: p } ] } }
leafnodes { listen: "127.0.0.1:-1", authorization { user: leaf, password: p, account: APP } }
"""


async def test_a_login_of_the_leaf_port_itself(tmp_path: Path) -> None:
    async with running_nats(tmp_path, OF_LEAFNODES) as server:
        app = f"nats://app:p@127.0.0.1:{server.port}"
        async with delivering(app, f"leaf:p@127.0.0.1:{server.leaf_port}") as (deliverer, _):
            await _gets(app, deliverer)
            assert deliverer.link.allowed == (">",)


RESTRICTED = """
accounts { APP { users: [
  { user: broker, password: p, permissions: { subscribe: ["orders.>", "_INBOX.penstock-leaf.>"], publish: "_INBOX.>" } }
  { user: leaf, password: p, permissions: { publish: ["_INBOX.>", "deliver.>"], subscribe: { deny: ">" } } }
  { user: leafless, password: p, permissions: { publish: "other.>", subscribe: { deny: ">" } } }
  { user: deaf, password: p, permissions: { subscribe: "orders.>", publish: "_INBOX.>" } }
  { user: app, password: p }
] }
  OTHER { users: [ { user: stranger, password: p } ] }
}
leafnodes { listen: "127.0.0.1:-1" }
"""


async def test_a_leaf_user_with_the_least_permissions(tmp_path: Path) -> None:
    async with running_nats(tmp_path, RESTRICTED) as server:
        client, leaf = f"broker:p@127.0.0.1:{server.port}", f"leaf:p@127.0.0.1:{server.leaf_port}"
        async with delivering(client, leaf) as (deliverer, _):
            await _gets(f"nats://app:p@127.0.0.1:{server.port}", deliverer)
            link = deliverer.link
            assert link.mistake(b"_INBOX.x.y") is None
            assert link.mistake(b"deliver.x") is None
            assert link.mistake(b"$JS.ACK.x") is None
            assert "may not publish on 'secret.x'" in (link.mistake(b"secret.x") or "")
            assert "max_payload" in (link.mistake(b"_INBOX.x", 8 * limits.MIB) or "")
            connection = await nats.connect(f"nats://app:p@127.0.0.1:{server.port}")
            for subject in ("secret.x", "_INBOX.last"):
                await connection.subscribe(subject)
            await connection.flush()
            await _interested(deliverer, "_INBOX.last")
            assert link.interest.has_interest(b"secret.x") is False  # nats-server tells what the leaf may publish on
            await connection.close()


@pytest.mark.parametrize(
    ("client", "leaf", "told"),
    [
        ("broker", "leafless", "may not publish on '_INBOX.penstock-leaf.penstock-c-1': allow it"),
        ("broker", "stranger", "both users belong to the same account"),
        ("deaf", "leaf", "user subscribe on _INBOX.penstock-leaf.>"),
        ("broker", "nobody", "refuses the leaf's credentials"),
    ],
)
async def test_what_is_wrong_is_told(tmp_path: Path, client: str, leaf: str, told: str) -> None:
    async with running_nats(tmp_path, RESTRICTED) as server:
        urls = f"{client}:p@127.0.0.1:{server.port}", f"{leaf}:p@127.0.0.1:{server.leaf_port}"
        async with delivering(*urls, wait_up=False) as (deliverer, _):
            assert told in (await deliverer.event(LeafDown)).reason
            assert not deliverer.link.is_up
            deliverer.link.deliver([frame("_INBOX.x")])
            assert deliverer.link.undelivered == 1


async def test_a_client_port_is_no_leaf_port(tmp_path: Path) -> None:
    async with running_nats(tmp_path, LEAFNODES) as server:
        async with delivering(server.url, f"127.0.0.1:{server.port}", wait_up=False) as (deliverer, _):
            assert "this is no leaf port" in (await deliverer.event(LeafDown)).reason


async def test_the_older_leaf_of_a_name_is_closed(tmp_path: Path) -> None:
    async with running_nats(tmp_path, LEAFNODES) as server:
        leaf = f"127.0.0.1:{server.leaf_port}"
        async with delivering(server.url, leaf) as (old, _):
            async with delivering(server.url, leaf) as (_new, _):
                assert "has the same name, penstock-c-1" in (await old.event(LeafDown)).reason
            async with delivering(server.url, leaf, name="penstock-c-2") as (other, _):
                before = len(old.events)
                await _gets(server.url, other)
                assert not [event for event in old.events[before:] if isinstance(event, LeafDown)]


async def test_comes_back_after_a_restart_of_nats_server(tmp_path: Path) -> None:
    config = LEAFNODES
    async with running_nats(tmp_path, config) as server:
        leaf_port = server.leaf_port
        fixed = RunningNats(tmp_path, f'leafnodes {{ listen: "127.0.0.1:{leaf_port}" }}\n')
        async with delivering(server.url, f"127.0.0.1:{leaf_port}") as (deliverer, _):
            assert deliverer.link.interest.watch(b"_INBOX.kept", 0)
            await server.kill()
            down = await deliverer.event(LeafDown)
            assert deliverer.link.interest.has_interest(b"_INBOX.kept") is None
            fixed.port = server.port
            await fixed.start()
            try:
                await deliverer.event(LeafUp, after=deliverer.events.index(down))
                await _gets(server.url, deliverer)
            finally:
                await fixed.kill()


async def test_the_leaf_on_one_server_and_the_subscriber_on_another(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        one, other = await _cluster(tmp_path, stack)
        async with delivering(one.url, f"127.0.0.1:{one.leaf_port}") as (deliverer, _):
            await _gets(other.url, deliverer)
        async with delivering(other.url, f"127.0.0.1:{one.leaf_port}") as (deliverer, _):
            await _gets(one.url, deliverer)
            await _gets(other.url, deliverer)


async def _cluster(folder: Path, stack: AsyncExitStack) -> tuple[RunningNats, RunningNats]:
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    config = LEAFNODES + 'cluster { name: c, listen: "127.0.0.1:-1" }\n'
    one = await stack.enter_async_context(running_nats(folder / "a", config))
    routes = f'routes: ["nats://127.0.0.1:{one.route_port}"]'
    config = LEAFNODES + f'cluster {{ name: c, listen: "127.0.0.1:-1", {routes} }}\n'
    return one, await stack.enter_async_context(running_nats(folder / "b", config))


async def test_tls(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    tls = f'tls {{ cert_file: "{certificates.server}", key_file: "{certificates.server.with_suffix(".key")}" }}'
    config = f'{tls}\nleafnodes {{ listen: "127.0.0.1:-1", {tls} }}\n'
    async with running_nats(tmp_path, config) as server:
        client, leaf = f"tls://127.0.0.1:{server.port}", f"tls://127.0.0.1:{server.leaf_port}"
        async with delivering(client, leaf, tls=TlsFiles(ca_file=certificates.ca)) as (deliverer, _):
            assert deliverer.link.is_up
        async with delivering(client, leaf, wait_up=False) as (deliverer, _):
            assert "not trusted" in (await deliverer.event(LeafDown)).reason


async def test_nkeys(tmp_path: Path) -> None:
    user, user_key = _key_pair(nkeys.PREFIX_BYTE_USER)
    (tmp_path / "user.nk").write_text(_seed(user))
    async with running_nats(tmp_path, f"authorization {{ users: [ {{ nkey: {user_key} }} ] }}\n{LEAFNODES}") as server:
        credentials = NatsCredentials(nkey_file=tmp_path / "user.nk")
        async with delivering(server.url, f"127.0.0.1:{server.leaf_port}", credentials=credentials) as (deliverer, _):
            assert deliverer.link.is_up


@each_change
async def test_a_slow_subscriber_is_cut_off_and_the_leaf_is_not(tmp_path: Path) -> None:
    async with running_nats(tmp_path, LEAFNODES + "max_pending: 4MB\n") as server:
        async with delivering(server.url, f"127.0.0.1:{server.leaf_port}") as (deliverer, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1_024)
            writer.write(b'CONNECT {"verbose":false,"headers":true}\r\nSUB _INBOX.slow 1\r\nPING\r\n')
            await _interested(deliverer, "_INBOX.slow")
            batch = [frame("_INBOX.slow", value=bytes(1_000)) for _ in range(1_000)]
            for _ in range(64):
                deliverer.link.deliver(batch)
                await asyncio.sleep(0)
            assert await _is_cut(reader)
            writer.close()
            await _gets(server.url, deliverer)
            assert not [event for event in deliverer.events if isinstance(event, LeafDown)]


async def _is_cut(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(TIMEOUT_S):
        try:
            while await reader.read(65_536):
                pass
        except ConnectionError:
            pass
    return True


async def test_backpressure_is_told_and_what_is_too_much_is_dropped(tmp_path: Path) -> None:
    async with running_nats(tmp_path, LEAFNODES) as server:
        async with delivering(server.url, f"127.0.0.1:{server.leaf_port}") as (deliverer, _):
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            try:
                batch = [frame("_INBOX.x", value=bytes(1_000_000))]
                while deliverer.link.pending_bytes <= limits.LEAF_PENDING_BYTES_MAX:
                    deliverer.link.deliver(batch)
                assert LeafWritable(False) in deliverer.events
                assert not deliverer.link.is_writable
                deliverer.link.deliver(batch)
                assert deliverer.link.undelivered == 1
            finally:
                server.process.send_signal(signal.SIGCONT)
            assert (await deliverer.event(LeafWritable, after=deliverer.events.index(LeafWritable(False)) + 1)).writable
            await _gets(server.url, deliverer)


async def _gets_by_request(app_url: str, deliverer: Deliverer, client: Listener) -> bool | None:
    """A client's request comes over the client link, and its reply subject gets deliveries. Return the interest."""
    client.link.subscribe(7, "api.next")
    await client.link.wait_barrier(5_000)
    connection = await nats.connect(app_url, allow_reconnect=False)
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox)
    await connection.flush()

    async def asked() -> bool:
        await connection.publish("api.next", b"", reply=inbox)
        await connection.flush()
        return bool(client.rows.get(7))

    await eventually(asked, "a request arrives")
    reply = client.rows[7][-1][1]
    assert reply is not None
    told: bool | None = None

    async def known() -> bool:
        nonlocal told
        told = deliverer.link.interest.has_interest(reply)
        return told is not False  # the interest comes over another connection than the request

    await eventually(known, "the leaf hears of the inbox")
    assert deliverer.link.mistake(reply) is None
    deliverer.link.deliver([frame(reply.decode())])
    while not (message := await subscription.next_msg(TIMEOUT_S)).data:
        pass  # no responders: the request came before the subscription was known there
    assert (message.subject, message.data) == ("orders.eu.42", b"hello")
    await connection.close()
    return told


@each_change
async def test_a_subscriber_behind_another_leaf(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    async with running_nats(tmp_path, LEAFNODES) as server:
        remote = f'leafnodes {{ remotes: [ {{ url: "nats://127.0.0.1:{server.leaf_port}" }} ] }}\n'
        async with running_nats(tmp_path / "far", remote) as far:
            async with delivering(server.url, f"127.0.0.1:{server.leaf_port}") as (deliverer, client):
                assert await _gets_by_request(far.url, deliverer, client) is True
                await _gets(far.url, deliverer)


@each_change
async def test_a_subscriber_behind_a_gateway(tmp_path: Path) -> None:
    near_port, far_port = free_ports(2)
    for folder in ("near", "far"):
        (tmp_path / folder).mkdir()

    def config(name: str, port: int, other: str, other_port: int) -> str:
        there = f'{{ name: {other}, url: "nats://127.0.0.1:{other_port}" }}'
        listen = f'cluster {{ name: {name}, listen: "127.0.0.1:-1" }}\n'
        users = "APP { users: [ { user: app, password: p } ] }, SYS { users: [ { user: s, password: s } ] }"
        listen += f"accounts {{ {users} }}\nsystem_account: SYS\n"  # as nats-server asks for with leafs and gateways
        return f'{listen}{LEAFNODES}gateway {{ name: {name}, listen: "127.0.0.1:{port}", gateways: [ {there} ] }}\n'

    async with (
        running_nats(tmp_path / "near", config("near", near_port, "far", far_port)) as near,
        running_nats(tmp_path / "far", config("far", far_port, "near", near_port)) as far,
        delivering(f"app:p@127.0.0.1:{near.port}", f"app:p@127.0.0.1:{near.leaf_port}") as (deliverer, client),
    ):
        app = f"nats://app:p@127.0.0.1:{far.port}"
        assert await _gets_by_request(app, deliverer, client) is True
        await _gets(app, deliverer)


@each_change
async def test_accounts_of_an_operator(tmp_path: Path) -> None:
    config, creds = operator_mode(tmp_path)
    async with running_nats(tmp_path, config + LEAFNODES) as server:
        leaf = f"127.0.0.1:{server.leaf_port}"
        async with delivering(server.url, leaf, credentials=NatsCredentials(creds_file=creds)) as (deliverer, _):
            await _gets(server.url, deliverer, user_credentials=str(creds))
        async with delivering(server.url, leaf, wait_up=False) as (deliverer, _):
            assert "refuses the leaf's credentials" in (await deliverer.event(LeafDown)).reason


async def test_a_client_that_reads_all_inboxes_does_not_spoil_the_trial(tmp_path: Path) -> None:
    async with running_nats(tmp_path, LEAFNODES) as server:
        connection = await nats.connect(server.url)
        await connection.subscribe("_INBOX.>")
        await connection.flush()
        for number in range(5):
            leaf = f"127.0.0.1:{server.leaf_port}"
            async with delivering(server.url, leaf, name=f"penstock-c-{number}") as (deliverer, _):
                assert [type(event) for event in deliverer.events] == [LeafUp]
        await connection.close()


OTHER_ACCOUNT = """
accounts {
  BROKERS {
    users: [ { user: broker, password: p } ]
    exports: [ { service: "api.>", response_type: Stream }, { stream: "push.>" } ]
  }
  APP {
    users: [ { user: app, password: p } ]
    imports: [
      { service: { account: BROKERS, subject: "api.>" } }
      { stream: { account: BROKERS, subject: "push.>" } }
    ]
  }
}
"""


@each_change
async def test_a_subscriber_of_an_account_that_imports(tmp_path: Path) -> None:
    async with running_nats(tmp_path, OTHER_ACCOUNT + LEAFNODES) as server:
        client, leaf = f"broker:p@127.0.0.1:{server.port}", f"broker:p@127.0.0.1:{server.leaf_port}"
        app = f"nats://app:p@127.0.0.1:{server.port}"
        async with delivering(client, leaf) as (deliverer, listener):
            assert await _gets_by_request(app, deliverer, listener) is True
            connection = await nats.connect(app)
            subscription = await connection.subscribe("push.here")
            await connection.flush()
            await _interested(deliverer, "push.here")
            deliverer.link.deliver([frame("push.here", 7)])
            assert (await subscription.next_msg(TIMEOUT_S)).subject == "orders.eu.7"
            await connection.close()
