"""What a client makes of brokers that verify their replicas, and of one whose answers lead nowhere."""

from __future__ import annotations

from penstock import aio
from penstock.base.ids import Offset, PartitionId
from penstock.client.bulk.verifying import PartitionCheck
from penstock.messages import Request, VerifyRequest, VerifyResponse
from tests.fake_broker import Answer, FakeBroker
from tests.unit.client.read.test_reading import batch, stream_of


async def test_a_broker_that_verifies_nothing_is_not_asked_for_ever() -> None:
    async with FakeBroker() as broker:
        stream_of(broker, batch(0, 10))
        asked = []

        async def stuck(request: Request) -> Answer | None:
            if not isinstance(request, VerifyRequest):
                return None
            asked.append(request.offset)
            end = Offset(4 if request.offset == 0 else min(4, request.offset or 0))
            return VerifyResponse(log_start=Offset(0), committed_end=Offset(10), end_offset=end, rows=4), b""

        broker.intercept = stuck
        async with await aio.connect(broker.address) as client:
            info = await client.stream("a")
            check = PartitionCheck(client._link, info, PartitionId(0), rate=2**40, timeout_s=10)
            assert await check.measure() == 10
            told: list[int] = []
            await check.verify(told.append)
        (replica,) = check.replicas
        assert replica.failure.startswith(f"{broker.address} has verified up to offset 4, and was asked from 4 on")
        assert (replica.rows, told, asked) == (4, [4], [None, 0, 4])
