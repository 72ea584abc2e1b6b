"""A cluster of fake brokers that share their streams; the test elects leaders and stops brokers.

Every broker has the committed messages, and only the leader serves them. `elect` informs all live brokers of the new
leader, unless the test selects some; the others keep their old knowledge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, LeaderEpoch
from penstock.messages import (
    AppendOnceRequest,
    AppendRequest,
    BrokerInfo,
    CreateStreamResponse,
    FetchRequest,
    GetRequest,
    ListOffsetsRequest,
    MetadataResponse,
    Request,
    StreamInfo,
)
from tests.fake_broker import Answer, FakeBroker, FakeStream


class Replica(FakeBroker):
    """One broker of a `FakeCluster`."""

    def __init__(self, cluster: FakeCluster, broker_id: int) -> None:
        super().__init__(broker_id=broker_id)
        self.broker_id = broker_id
        self.is_live = True
        self.leader_id: int | None = 1
        self.leader_epoch = 1
        self.hang = asyncio.Event()  # cleared: the broker receives requests and does not answer
        self.hang.set()
        self._cluster = cluster

    async def handle(self, request: Request, raw: bytes = b"") -> Answer:
        await self.hang.wait()
        if isinstance(request, FetchRequest | GetRequest | ListOffsetsRequest | AppendRequest | AppendOnceRequest):
            self._check_leads()
        response, raw = await super().handle(request, raw)
        if isinstance(request, FetchRequest):
            self._check_leads()  # the leadership may have ended during a long poll
        match response:
            case MetadataResponse(streams=streams):
                told = tuple(self._told(stream) for stream in streams)
                response = msgspec.structs.replace(response, streams=told, brokers=self._cluster.infos())
            case CreateStreamResponse(stream=stream):
                response = msgspec.structs.replace(response, stream=self._told(stream))
        return response, raw

    def _check_leads(self) -> None:
        if self.leader_id == self.broker_id:
            return
        details: dict[str, object] = {"leader_epoch": self.leader_epoch}
        if self.leader_id is not None:
            details |= {"leader": self.leader_id, "address": self._cluster.address_of(self.leader_id)}
        raise RemoteError(ErrorCode.NOT_LEADER, "another one leads", **details)

    def _told(self, stream: StreamInfo) -> StreamInfo:
        (partition,) = stream.partitions
        ids = tuple(BrokerId(broker.broker_id) for broker in self._cluster.brokers)
        told = msgspec.structs.replace(
            partition,
            leader_id=None if self.leader_id is None else BrokerId(self.leader_id),
            leader="" if self.leader_id is None else self._cluster.address_of(self.leader_id),
            leader_epoch=LeaderEpoch(self.leader_epoch),
            replicas=ids,
            isr=ids,
        )
        return msgspec.structs.replace(stream, partitions=(told,))


class FakeCluster:
    """`async with FakeCluster(3) as cluster` runs brokers 1 to 3; broker 1 leads every stream."""

    def __init__(self, count: int) -> None:
        self.brokers = [Replica(self, number + 1) for number in range(count)]
        self.leader_epoch = 1
        for broker in self.brokers:
            broker.streams = self.brokers[0].streams
            broker.appended = self.brokers[0].appended

    async def __aenter__(self) -> FakeCluster:
        for broker in self.brokers:
            await broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers:
            broker.hang.set()
            await broker.stop()

    def __getitem__(self, broker_id: int) -> Replica:
        return self.brokers[broker_id - 1]

    @property
    def servers(self) -> list[str]:
        return [broker.address for broker in self.brokers]

    def address_of(self, broker_id: int) -> str:
        return self[broker_id].address

    def infos(self) -> tuple[BrokerInfo, ...]:
        return tuple(
            BrokerInfo(broker_id=BrokerId(broker.broker_id), address=broker.address, is_live=broker.is_live)
            for broker in self.brokers
        )

    def create(self, name: str) -> FakeStream:
        stream = self.brokers[0].create(name)
        stream.leader_epoch = self.leader_epoch
        return stream

    async def elect(self, broker_id: int | None, heard_by: Collection[int] | None = None) -> None:
        """Begin a leadership in a new leader epoch; inform the live brokers in `heard_by`, or all."""
        self.leader_epoch += 1
        for stream in self.brokers[0].streams.values():
            stream.leader_epoch = self.leader_epoch
        for broker in self.brokers:
            if broker.is_live and (heard_by is None or broker.broker_id in heard_by):
                broker.leader_id, broker.leader_epoch = broker_id, self.leader_epoch
        async with self.brokers[0].appended:
            self.brokers[0].appended.notify_all()

    async def kill(self, broker_id: int) -> None:
        self[broker_id].is_live = False
        await self[broker_id].stop()

    async def start(self, broker_id: int) -> None:
        """Start a stopped broker at its old address, with its old knowledge of the leader."""
        broker = self[broker_id]
        await broker.start(int(broker.address.rpartition(":")[2]))
        broker.is_live = True
