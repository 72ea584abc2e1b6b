"""Time as the broker sees it: set back by an hour, and run out for clients that do not keep their side."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import pytest

from penstock import aio
from penstock.base import limits
from penstock.base.ids import Offset
from penstock.messages import FetchRequest, StatusRequest
from penstock.wire import encode_request
from tests.broker_process import eventually, running_nats
from tests.extent import each_change, needs_time
from tests.integration.in_process import MovedClock, broker_with_clock
from tests.integration.publishers import connected_to
from tests.integration.raw_client import HELLO, raw_client

HOUR_US = 3_600_000_000


@each_change
async def test_the_clock_is_set_back_by_an_hour(tmp_path: Path) -> None:
    clock = MovedClock()
    with running_nats(tmp_path / "nats") as nats_server:
        async with connected_to(nats_server.url) as connection:
            js = connection.jetstream()
            times: list[int] = []
            for restart in range(2):
                async with broker_with_clock(tmp_path / "data", nats_server.url, clock) as address:
                    async with await aio.connect(address) as client:
                        await client.create_stream("clock", "clock", segment_bytes=4_096)
                        for move_us in (0, -HOUR_US, HOUR_US // 2, -2 * HOUR_US, 3 * HOUR_US):
                            clock.wall_us += move_us
                            for number in range(5):
                                await js.publish("clock", b"%d" % number)
                            await client.append("clock", [{"value": b"appended"}])
                        found = [message async for message in client.messages("clock")]
                        times = [message.timestamp_us for message in found]
                        assert len(times) == 30 * (restart + 1)
                        assert times == sorted(times), "timestamps never decrease"
                        for place in range(0, len(times), 7):
                            offset = (await client.offsets("clock", found[place].timestamp)).offset
                            assert offset == times.index(times[place]), "the first message of that time"
                            before = found[place].timestamp - datetime.timedelta(microseconds=1)
                            assert (await client.offsets("clock", before)).offset <= offset
                        late = found[-1].timestamp + datetime.timedelta(microseconds=1)
                        assert (await client.offsets("clock", late)).offset == len(times)
                        info = (await client.stream("clock")).partitions[0]
                        assert all(gap.end_us is None or gap.end_us >= gap.start_us for gap in info.gaps)
            assert times[-1] > times[0] + HOUR_US // 2


@needs_time
async def test_whoever_is_silent_in_the_middle_of_something_is_closed(tmp_path: Path) -> None:
    clock = MovedClock()
    with running_nats(tmp_path / "nats") as nats_server:
        async with (
            broker_with_clock(tmp_path / "data", nats_server.url, clock) as address,
            await aio.connect(address) as client,
            raw_client(address) as mute,
            raw_client(address) as half_hello,
            raw_client(address) as half_request,
            raw_client(address) as idle,
            raw_client(address) as greedy,
        ):
            info = await client.create_stream("silence", "silence")
            await client.append(info, [{"value": bytes(1_000_000)}] * 30)
            half_hello.send(HELLO[:-3])
            for one in (half_request, idle, greedy):
                await one.hello()
            half_request.send(encode_request(StatusRequest(), 2)[:-1])
            for number in range(10):
                greedy.ask(FetchRequest(stream_id=info.stream_id, offset=Offset(0), bytes_max=60_000_000), 2 + number)
            assert (await client.status()).connections == 6

            clock.elapsed_us += (limits.HELLO_TIMEOUT_MS + 1_000) * 1_000
            await mute.is_closed()
            await half_hello.is_closed()
            assert (await client.status()).connections == 4
            clock.elapsed_us += (limits.WRITE_STALL_MS_MAX + 1_000) * 1_000
            await half_request.is_closed()

            async def is_gone() -> bool:
                return (await client.status()).connections == 2

            await eventually(is_gone, "the one who takes nothing is closed")
            # Whoever has only nothing to say may stay.
            idle.ask(StatusRequest(), 9)
            frame = await idle.frame()
            assert frame is not None
            assert frame.correlation_id == 9


async def test_a_long_poll_ends_in_its_time(tmp_path: Path) -> None:
    clock = MovedClock()
    with running_nats(tmp_path / "nats") as nats_server:
        async with (
            broker_with_clock(tmp_path / "data", nats_server.url, clock) as address,
            await aio.connect(address) as client,
            raw_client(address) as one,
        ):
            info = await client.create_stream("ends", "ends")
            await one.hello()
            for number, wait_ms in enumerate((60_000, 20_000, 10**12)):
                request = FetchRequest(stream_id=info.stream_id, offset=Offset(0), wait_ms_max=wait_ms)
                one.ask(request, 2 + number)
            await client.status()
            clock.elapsed_us += 21_000_000
            await client.status()  # an event, after which the timer is set anew
            frame = await one.frame()
            assert frame is not None
            assert frame.correlation_id == 3
            clock.elapsed_us += 40_000_000
            await client.status()
            rest = {frame.correlation_id for _ in range(2) if (frame := await one.frame()) is not None}
            assert rest == {2, 4}  # the last one wanted to wait for longer than the limit


@pytest.mark.parametrize("minimum", [1, 2_000_000])
async def test_a_fetch_waits_for_as_much_as_it_wants(tmp_path: Path, minimum: int) -> None:
    clock = MovedClock()
    with running_nats(tmp_path / "nats") as nats_server:
        async with (
            broker_with_clock(tmp_path / "data", nats_server.url, clock) as address,
            await aio.connect(address) as client,
            raw_client(address) as one,
        ):
            info = await client.create_stream("wants", "wants")
            await one.hello()
            one.ask(FetchRequest(stream_id=info.stream_id, offset=Offset(0), bytes_min=minimum, wait_ms_max=60_000), 2)
            answer = asyncio.ensure_future(one.frame())
            appended = 0
            while not answer.done():
                await client.append(info, [{"value": bytes(300_000)}])
                appended += 1
                await client.status()
                assert appended < 20
            frame = await answer
            assert frame is not None
            assert len(frame.raw) >= minimum
            assert appended >= minimum // 300_100
