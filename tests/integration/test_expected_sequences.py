"""Messages that are stored only behind a certain one on their subject: the same answers as of a JetStream beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
from nats.js import JetStreamContext
from nats.js.errors import APIError

from tests.broker_process import eventually, running_broker, running_nats
from tests.integration.publishers import connected_to

SUBJECT, OTHER = "orders.a", "orders.b"
LAST_ON_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
LAST = "Nats-Expected-Last-Sequence"
ID = "Nats-Msg-Id"
ASKED: list[tuple[str, dict[str, str]]] = [
    (SUBJECT, {LAST_ON_SUBJECT: "1"}),
    (SUBJECT, {LAST_ON_SUBJECT: "0"}),
    (SUBJECT, {LAST_ON_SUBJECT: "0"}),
    (OTHER, {LAST_ON_SUBJECT: "1"}),
    (OTHER, {}),
    (OTHER, {LAST_ON_SUBJECT: "2"}),
    (SUBJECT, {LAST_ON_SUBJECT: "001"}),
    (SUBJECT, {LAST_ON_SUBJECT: ""}),
    (SUBJECT, {LAST_ON_SUBJECT: "five"}),
    (SUBJECT, {LAST_ON_SUBJECT: "5", LAST: "4"}),
    (SUBJECT, {LAST_ON_SUBJECT: "4", LAST: "5"}),
    (SUBJECT, {LAST_ON_SUBJECT: "5", LAST: "5", ID: "x"}),
    (SUBJECT, {LAST_ON_SUBJECT: "5", ID: "x"}),
    (SUBJECT, {LAST_ON_SUBJECT: "6", ID: "x"}),
    (SUBJECT, {"nats-expected-last-subject-sequence": "1"}),
]
RACERS = 20


async def answers(js: JetStreamContext) -> list[tuple[object, ...]]:
    """What a publisher hears of each: sequence and whether it was a duplicate, or code and text."""
    found: list[tuple[object, ...]] = []
    for subject, headers in ASKED:
        try:
            ack = await js.publish(subject, b"v", headers=headers)
            found.append((ack.seq, bool(ack.duplicate)))
        except APIError as error:
            found.append((error.code, error.err_code, error.description))
    return found


async def race(js: JetStreamContext, expected: int) -> int:
    """Many publishers expect the same: the sequence of the only one whose message is stored."""

    async def one(number: int) -> int | None:
        try:
            return (await js.publish(SUBJECT, b"%d" % number, headers={LAST_ON_SUBJECT: str(expected)})).seq
        except APIError as error:
            return None if error.err_code == 10071 else -1

    (acked,) = [seq for seq in await asyncio.gather(*map(one, range(RACERS))) if seq is not None]
    return acked


async def test_the_answers_are_those_of_jetstream(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "real", f'jetstream {{ store_dir: "{tmp_path}/real/js" }}') as real,
        running_nats(tmp_path / "nats") as server,
        running_broker(tmp_path / "data", nats=server.url) as broker,
    ):
        async with await broker.client() as client:
            await client.create_stream("orders", "orders.>")
        async with connected_to(real.url) as beside, connected_to(server.url) as connection:
            await beside.jetstream().add_stream(name="orders", subjects=["orders.>"])
            wanted = await answers(beside.jetstream())
            js = connection.jetstream()
            assert await answers(js) == wanted
            assert (1, False) in wanted
            assert (400, 10071, "wrong last sequence: 1") in wanted
            assert await race(js, 7) == await race(beside.jetstream(), 7) == 8
            broker.kill()
            broker.restart()

            async def is_refused_again() -> bool:
                try:
                    await js.publish(SUBJECT, b"v", headers={LAST_ON_SUBJECT: "7"})
                except nats.errors.Error as error:
                    return isinstance(error, APIError) and error.description == "wrong last sequence: 8"
                return False

            await eventually(is_refused_again, "the broker knows again what was last")
            assert await race(js, 8) == 9
