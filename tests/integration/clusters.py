"""Several real brokers on one NATS, and publishers that keep them busy while they are killed."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import nats.errors
from nats.js import JetStreamContext
from nats.js.errors import NoStreamResponseError

from penstock import Credentials, aio
from penstock.base.errors import PenstockError
from penstock.messages import MetadataRequest, PartitionInfo, StatusResponse
from tests.broker_process import DEADLINE_S, BrokerProcess, NatsProcess, eventually, running_nats
from tests.integration.publishers import connected_to
from tests.ports import free_ports

_ACK_TIMEOUT_S = 0.2
_PAUSE_S = 0.005


class Observers:
    """A client for each broker, which stays connected while a test waits.

    A login takes 0.2 s of CPU (PASSWORD_ITERATIONS). A new one for each look keeps a core busy, and the brokers from
    what the test waits for.
    """

    def __init__(self, brokers: dict[int, BrokerProcess]) -> None:
        self._brokers = brokers
        self._clients: dict[int, aio.Client] = {}

    async def __aenter__(self) -> Observers:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients.values():
            await client.close()

    async def status(self, number: int) -> StatusResponse | None:
        """Return the status of that broker; None if it does not answer."""
        with suppress(PenstockError, OSError):
            client = await self._client(number)
            return await client.status(server=self._brokers[number].client_address, timeout=2.0)
        return None

    async def partition(self, stream: str, asked: int) -> PartitionInfo | None:
        """Return the metadata of a stream's first partition as exactly that broker knows it; None if it does not."""
        with suppress(PenstockError, OSError):
            client = await self._client(asked)
            address = self._brokers[asked].client_address
            answer = await client._link.ask_at(address, MetadataRequest(names=(stream,)), 2.0)
            if answer is not None and answer.streams:
                return answer.streams[0].partitions[0]
        return None

    async def _client(self, number: int) -> aio.Client:
        if (client := self._clients.get(number)) is None:
            client = self._clients[number] = await self._brokers[number].client()
        return client


class ClusterProcesses:
    """Brokers 1 to `count`, the initial voters; more can join."""

    def __init__(self, folder: Path, server: NatsProcess, count: int, *arguments: str) -> None:
        self._arguments = arguments
        self.credentials: Credentials | None = None
        self.nats = server
        self._folder = folder
        self.brokers: dict[int, BrokerProcess] = {}
        self.place(count)

    def place(self, count: int) -> None:
        """Give brokers 1 to `count` new addresses for their next start; they keep their disks."""
        assert not any(broker.is_running for broker in self.brokers.values())
        for broker in self.brokers.values():
            broker.end()
        ports = free_ports(count)
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports, 1))
        self.brokers = {number: self._broker(number, port, "--cluster", voters) for number, port in enumerate(ports, 1)}

    def _broker(self, number: int, port: int, *arguments: str) -> BrokerProcess:
        folder = self._folder / f"broker-{number}"
        broker = BrokerProcess(folder, "--id", str(number), *arguments, *self._arguments, nats=self.nats.url)
        broker.credentials = self.credentials
        broker.listen = broker.client_address = f"127.0.0.1:{port}"
        return broker

    def log_in(self, credentials: Credentials) -> None:
        """Set the credentials for all clients."""
        self.credentials = credentials
        for broker in self.brokers.values():
            broker.credentials = credentials

    def start(self) -> None:
        """Start all brokers; do not wait until they are ready."""
        for broker in self.brokers.values():
            broker.launch()

    def launch_joining(self, number: int, member: int) -> None:
        """Start a new broker that joins through `member`."""
        broker = self._broker(number, free_ports(1)[0], "--join", self.brokers[member].client_address)
        self.brokers[number] = broker
        broker.launch()

    def move(self, number: int, *, join: int | None = None) -> None:
        """Start a stopped broker at another address, with its disk; with `join`, with an empty disk."""
        self.brokers[number].end()
        arguments: tuple[str, ...] = ()
        if join is not None:
            self.empty_disk(number)
            arguments = ("--join", self.brokers[join].client_address)
        self.brokers[number] = self._broker(number, free_ports(1)[0], *arguments)
        self.brokers[number].launch()

    def empty_disk(self, number: int) -> None:
        """Delete the data directory of a stopped broker."""
        assert not self.brokers[number].is_running
        shutil.rmtree(self.brokers[number].data_dir)

    @property
    def said(self) -> str:
        """Logs of all brokers."""
        return "\n".join(f"--- broker {number}\n{broker.said}" for number, broker in self.brokers.items())

    def end(self) -> None:
        """Kill all brokers and close their pipes."""
        for broker in self.brokers.values():
            broker.kill()
        for broker in self.brokers.values():
            broker.end()

    # Queries

    @asynccontextmanager
    async def client(self, number: int) -> AsyncIterator[aio.Client]:
        """Connect a client to that broker; it discovers the others."""
        async with await self.brokers[number].client() as client:
            yield client

    async def status(self, number: int) -> StatusResponse | None:
        """Return the status of that broker; None if it does not answer."""
        async with Observers(self.brokers) as observers:
            return await observers.status(number)

    async def all_live(self) -> StatusResponse:
        """Wait until all running brokers report each other as live, and the same metadata leader."""
        running = {number for number, broker in self.brokers.items() if broker.is_running}

        async def are_ready() -> bool:
            return all(self.brokers[number].is_ready for number in running)

        async def look() -> StatusResponse | None:
            states = [await observers.status(number) for number in sorted(running)]
            leaders = {None if state is None else state.metadata_leader for state in states}
            if len(leaders) != 1 or None in leaders:
                return None
            live = [{one.broker_id for one in state.brokers if one.is_live} for state in states if state is not None]
            return states[0] if all(one == running for one in live) else None

        await eventually(are_ready, f"brokers {running} are ready")
        async with Observers(self.brokers) as observers:
            return await eventually(look, f"brokers {running} are live")

    async def all_vote(self) -> None:
        """Wait until all running brokers report each other as voters."""
        running = {number for number, broker in self.brokers.items() if broker.is_running}

        async def look() -> bool:
            states = [await observers.status(number) for number in sorted(running)]
            return all(
                state is not None and {one.broker_id for one in state.brokers if one.votes} == running
                for state in states
            )

        async with Observers(self.brokers) as observers:
            await eventually(look, f"brokers {running} vote")

    async def metadata_leader(self) -> int:
        """Return the id of the metadata leader."""
        leader = (await self.all_live()).metadata_leader
        assert leader is not None
        return int(leader)

    async def partition(self, stream: str, asked: int) -> PartitionInfo | None:
        """Return a stream's first partition as that broker reports it; None if it does not answer."""
        with suppress(PenstockError, OSError):
            async with self.client(asked) as client:
                return (await client.stream(stream, timeout=2.0)).partitions[0]
        return None

    async def leader_of(self, stream: str, asked: int = 1) -> int:
        """Return the leader of the stream's first partition."""
        part = await self.partition(stream, asked)
        assert part is not None
        assert part.leader_id is not None
        return int(part.leader_id)

    async def in_sync(self, stream: str, members: set[int], asked: int, timeout_s: float = DEADLINE_S) -> PartitionInfo:
        """Wait until that broker reports `members` as the ISR."""

        async def look() -> PartitionInfo | None:
            part = await observers.partition(stream, asked)
            return part if part is not None and set(part.isr) == members else None

        async with Observers(self.brokers) as observers:
            return await eventually(look, f"the ISR of {stream} is {members}", timeout_s)


@contextmanager
def running_cluster(folder: Path, count: int = 3, *arguments: str, started: bool = True) -> Iterator[ClusterProcesses]:
    """Run a cluster within the block; with `started` false, the test starts the brokers."""
    with running_nats(folder / "nats") as server:
        cluster = ClusterProcesses(folder, server, count, *arguments)
        try:
            if started:
                cluster.start()
            yield cluster
        finally:
            print(cluster.said)  # pytest shows it if a test fails
            cluster.end()


class Load:
    """Publishes numbered messages with an unmodified nats-py client, `width` at a time, without retries."""

    def __init__(self, jetstream: JetStreamContext, subject: str, width: int = 8) -> None:
        self.acked: dict[int, int] = {}  # number → offset
        self.ack_times_s: list[float] = []
        self.failed: Counter[str] = Counter()
        self._jetstream = jetstream
        self._subject = subject
        self._next = 0
        self._stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._publish()) for _ in range(width)]

    async def _publish(self) -> None:
        while not self._stop.is_set():
            number, self._next = self._next, self._next + 1
            try:
                ack = await self._jetstream.publish(self._subject, b"%d" % number, timeout=_ACK_TIMEOUT_S)
            except (NoStreamResponseError, nats.errors.Error, TimeoutError) as error:
                self.failed[type(error).__name__] += 1
                await asyncio.sleep(_PAUSE_S)  # no leader is subscribed
            except nats.js.errors.APIError as error:
                self.failed[str(error.description)] += 1
                await asyncio.sleep(_PAUSE_S)
            else:
                self.acked[number] = ack.seq - 1
                self.ack_times_s.append(time.monotonic())

    async def acks(self, count: int, timeout_s: float = DEADLINE_S) -> None:
        """Wait for `count` more acks."""
        wanted = len(self.acked) + count

        async def look() -> bool:
            return len(self.acked) >= wanted

        await eventually(look, f"{count} acks; failed: {self.failed}", timeout_s)

    def longest_silence_s(self, since_s: float) -> float:
        """Return the longest time without an ack since `since_s`."""
        times = [since_s, *(at for at in self.ack_times_s if at > since_s)]
        return max(after - before for before, after in pairwise(times))

    async def stop(self) -> None:
        """Stop publishing."""
        self._stop.set()
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def load(url: str, subject: str, width: int = 8) -> AsyncIterator[Load]:
    """Run a Load within the block."""
    async with connected_to(url) as connection:
        made = Load(connection.jetstream(), subject, width)
        try:
            yield made
        finally:
            await made.stop()


async def check(client: aio.Client, stream: str, sent: Load) -> int:
    """Check that every acked message is at its offset and that offsets are dense; return the number of messages."""
    found: dict[int, int] = {}
    next_offset = 0
    async for batch in client.read(stream):
        offsets, values = (batch.column(name).to_pylist() for name in ("offset", "value"))
        for offset, value in zip(offsets, values, strict=True):
            assert offset == next_offset, f"offset {offset} follows {next_offset - 1}"
            next_offset += 1
            assert int(value) not in found, f"{value!r} is there twice"
            found[int(value)] = offset
    lost = {number: offset for number, offset in sent.acked.items() if found.get(number) != offset}
    assert not lost, f"acked, and not where the ack said: {lost}"
    return next_offset
