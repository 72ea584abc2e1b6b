"""A clock that was ten years ahead, and was set right: what stands still, and what a restore with other times ends."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pytest

from penstock.base.config import Intake, StreamConfig
from penstock.base.ids import Offset
from penstock.batch import codec
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendAtRequest,
    AppendAtResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    FetchRequest,
    FetchResponse,
    SetIntakeRequest,
    SetIntakeResponse,
)
from penstock.ops.placed_rows import FutureTimes, RowTimes
from tests.unit.node.harness import Ack, Broker
from tests.unit.node.test_expiry import go_on

DAY_MS = 86_400_000
AHEAD_MS = 3_650 * DAY_MS
WINDOW_MS = 60_000
CONFIG = {
    "dedup_window_ms": WINDOW_MS,
    "max_age_ms": DAY_MS,
    "allow_message_ttl": True,
    "segment_bytes": 4_096,
    "segment_age_ms": 60_000,
}


def publish(broker: Broker, number: int, *, ttl: str = "", stream: str = "s") -> Ack:
    headers = f"NATS/1.0\r\nNats-Msg-Id: id-{number}\r\n" + (f"Nats-TTL: {ttl}\r\n" if ttl else "") + "\r\n"
    broker.publish(f"{stream}.x", b"%d" % number + b"." * 500, reply="inbox", headers=headers.encode())
    return broker.acks[-1]


def is_duplicate(ack: Ack) -> bool:
    assert ack.err_code == 0, ack
    return bool(ack.body.get("duplicate"))


def with_a_clock_that_was_ahead() -> Broker:
    """Messages 0 to 9 of before, 10 to 29 of ten years later, of which 10 has a TTL of ten minutes; now it is right."""
    broker = Broker().start()
    broker.create("s", **CONFIG)
    for number in range(10):
        publish(broker, number)
    broker.clock.advance_ms(AHEAD_MS)
    for number in range(10, 30):
        publish(broker, number, ttl="10m" if number == 10 else "")
    broker.clock.set_back_ms(AHEAD_MS)
    return broker


class Source(NamedTuple):
    rows: pa.RecordBatch
    end: int


def all_rows(broker: Broker, stream: str = "s") -> list[Source]:
    """Batch by batch, as a backup has them."""
    info, found = broker.stream(stream), []
    offset = info.partitions[0].log_start
    assert offset is not None
    while offset < (info.partitions[0].committed_end or 0):
        caller = broker.request(FetchRequest(stream_id=info.stream_id, offset=Offset(int(offset)), bytes_max=1))
        response = broker.answer(caller, FetchResponse)
        data = bytes(broker.payloads[caller])
        header = codec.read_header(data)
        found.append(Source(codec.read_rows(data), header.end_offset))
        offset = response.end_offset
    return found


def restored(broker: Broker, choice: FutureTimes) -> Broker:
    """Stream "r" with the rows of "s"; it takes messages."""
    times = RowTimes(choice, broker.clock.wall_us)
    config = StreamConfig(name="r", subject="r.>", **{**CONFIG, "max_age_ms": None})
    broker.ask(CreateStreamRequest(config=config, is_paused=True), CreateStreamResponse)
    base = 0
    for rows, end in times.limited(times.counted(iter(all_rows(broker))), times.latest_us()):
        renamed = rows.set_column(2, rows.schema.field(2), pa.array(["r.x"] * rows.num_rows, rows.schema.field(2).type))
        request = AppendAtRequest(stream_id=broker.stream_id("r"), may_be_ahead=times.is_ahead(renamed))
        broker.ask(request, AppendAtResponse, codec.encode_arrow_at(renamed, base, end))
        base = end
    broker.ask(SetIntakeRequest(name="r", intake=Intake.OPEN), SetIntakeResponse)
    return broker


def times_of(broker: Broker, stream: str) -> list[int]:
    return [
        one for rows, _ in all_rows(broker, stream) for one in rows.column("timestamp").cast(pa.int64()).to_pylist()
    ]


def test_ids_ttls_and_max_age_stand_still_until_the_clock_has_caught_up() -> None:
    broker = with_a_clock_that_was_ahead()
    broker.tick(10 * DAY_MS)
    assert is_duplicate(publish(broker, 15))
    assert not is_duplicate(publish(broker, 30))
    go_on(broker, 700_000)
    kept = broker.values("s")
    assert b"10" + b"." * 500 in kept
    assert is_duplicate(publish(broker, 15))
    broker.tick(AHEAD_MS)
    assert not is_duplicate(publish(broker, 15))


@pytest.mark.parametrize("restarts", [False, True])
def test_a_restore_with_the_time_of_now_has_all_go_on(restarts: bool) -> None:
    broker = restored(with_a_clock_that_was_ahead(), FutureTimes.NOW)
    now_us = broker.clock.wall_us
    assert broker.values("r") == broker.values("s")
    assert times_of(broker, "r")[10:] == [now_us] * 20
    assert is_duplicate(publish(broker, 15, stream="r")), "the window has not passed"
    broker = broker.crash().start() if restarts else broker
    broker.tick(WINDOW_MS + 1_000)
    assert not is_duplicate(publish(broker, 15, stream="r"))
    assert times_of(broker, "r")[-1] == broker.clock.wall_us
    go_on(broker, 700_000)
    assert b"10" + b"." * 500 not in broker.values("r")
    broker.ask(AlterStreamRequest(name="r", changes={"max_age_ms": DAY_MS}), AlterStreamResponse)
    go_on(broker, 5_000)
    assert len(broker.values("r")) >= 20, "but for those of before, all are some minutes old"
    broker.tick(DAY_MS)
    go_on(broker, 70_000)
    assert len(broker.values("r")) <= 1


def test_a_restore_takes_what_is_ten_years_ahead_as_it_is() -> None:
    broker = restored(with_a_clock_that_was_ahead(), FutureTimes.KEEP)
    assert broker.values("r") == broker.values("s")
    assert times_of(broker, "r") == times_of(broker, "s")
    after = broker.crash().start()
    assert times_of(after, "r") == times_of(after, "s")
    assert publish(after, 40, stream="r").err_code == 0
