"""Atomic batches of JetStream (Nats-Batch-Id): the same answers as nats-server's, message by message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import nats
from nats.errors import NoRespondersError

from tests.broker_process import eventually, running_broker, running_nats
from tests.extent import each_change
from tests.integration.test_jetstream_streams import api_options

TIMEOUT_S = 20
ADVISORIES = "$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED."
PLAIN: dict[str, Any] = {"allow_atomic": True}


class Sent(NamedTuple):
    """One message to a stream. `batch`: id, sequence and commit; None: it is of no batch."""

    subject: str
    batch: tuple[str, object, str] | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    value: bytes = b"v"


def whole(batch_id: str, *messages: Sent, commit: str = "1") -> list[Sent]:
    """Number the messages of a batch; the last one commits it."""
    numbered = enumerate(messages, 1)
    last = len(messages)
    return [one._replace(batch=(batch_id, number, commit if number == last else "")) for number, one in numbered]


def expecting(last: int) -> dict[str, str]:
    return {"Nats-Expected-Last-Sequence": str(last)}


def expecting_of_subject(last: int, subject: str = "") -> dict[str, str]:
    other = {"Nats-Expected-Last-Subject-Sequence-Subject": subject} if subject else {}
    return {"Nats-Expected-Last-Subject-Sequence": str(last), **other}


STORY: dict[str, tuple[dict[str, Any], list[Sent]]] = {
    "refused": (
        {},
        [
            *whole("b", Sent("a"), Sent("b")),
            Sent("a", ("b", "", "")),
            Sent("a", None, {"Nats-Batch-Sequence": "1"}),
            Sent("a", None, {"Nats-Batch-Id": ""}),
            Sent("a", None, {"Nats-Incr": "1"}, b""),
            Sent("a", None, {"Nats-Incr": "-12"}, b""),
            Sent("a", None, {"Nats-Incr": "x"}, b""),
            Sent("a", None, {"Nats-Incr": "+"}, b""),
            Sent("a", None, {"Nats-Incr": ""}, b""),
        ],
    ),
    "plain": (
        PLAIN,
        [
            *whole("one", Sent("a")),
            *whole("two", Sent("a"), Sent("b")),
            Sent("c"),
            *whole("three", Sent("a"), Sent("b"), Sent("c"), commit="eob"),
            *whole("one", Sent("a"), Sent("a")),
            *whole("only", Sent("a"), commit="eob"),
            *whole("wrong", Sent("a"), Sent("a"), commit="2"),
            *whole("wrong", Sent("a"), Sent("a"), commit="1"),
            *whole("w", Sent("a"), commit="x"),
            Sent("d"),
        ],
    ),
    "sequences": (
        PLAIN,
        [
            Sent("a", ("s", 2, "")),
            Sent("a", ("s", 0, "")),
            Sent("a", ("s", "", "")),
            Sent("a", ("s", "x", "")),
            Sent("a", ("s", "-1", "")),
            Sent("a", ("s", 2**64, "")),
            Sent("a", ("s", 2**64 - 1, "")),
            Sent("a", ("s", 1001, "")),
            Sent("a", ("s", 1001, "eob")),
            Sent("a", ("s", 1002, "eob")),
            Sent("a", ("s", 1, "")),
            Sent("a", ("s", 1, "")),  # again
            Sent("a", ("s", 2, "1")),
            Sent("a", ("s", 1, "")),
            Sent("a", ("s", 3, "1")),  # a gap
            Sent("a", ("s", 2, "1")),
            Sent("a", ("i" * 64, 1, "")),
            Sent("a", ("i" * 65, 1, "")),
            Sent("a", ("i" * 64, 2, "1")),
            Sent("a", ('q"\\', 1, "1")),
        ],
    ),
    "interleaved": (
        PLAIN,
        [
            Sent("a", ("x", 1, "")),
            Sent("b", ("y", 1, "")),
            Sent("c"),
            Sent("a", ("x", 2, "1")),
            Sent("b", ("y", 2, "1"), expecting_of_subject(3)),
            Sent("b", ("z", 1, "")),
            Sent("d"),
            Sent("b", ("z", 2, "eob")),
        ],
    ),
    "expectations": (
        PLAIN,
        [
            *whole("a", Sent("a", None, expecting(0)), Sent("b")),
            *whole("b", Sent("a", None, expecting(1)), Sent("b")),
            *whole("c", Sent("a"), Sent("b", None, expecting(3))),
            *whole("d", Sent("a"), Sent("b", None, expecting(2))),
            *whole("e", Sent("a", None, expecting_of_subject(1)), Sent("b", None, expecting_of_subject(2))),
            *whole("f", Sent("a", None, expecting_of_subject(3)), Sent("b", None, expecting_of_subject(2))),
            *whole("g", Sent("a"), Sent("a", None, expecting_of_subject(5))),
            *whole("h", Sent("a"), Sent("a", None, expecting_of_subject(3))),
            *whole("i", Sent("c"), Sent("d", None, expecting_of_subject(0, "c"))),
            *whole("j", Sent("c", None, expecting_of_subject(4, "b")), Sent("d", None, expecting_of_subject(4, "b"))),
            *whole("k", Sent("c", None, expecting_of_subject(4, "b")), Sent("d", None, expecting_of_subject(3, "b"))),
            *whole("l", Sent("c", None, {"Nats-Expected-Last-Subject-Sequence-Subject": "b"}), Sent("d")),
            *whole("m", Sent("a"), Sent("b", None, {"Nats-Expected-Last-Msg-Id": "x"})),
            *whole("n", Sent("a"), Sent("b", None, {"Nats-Expected-Stream": "S"})),
            Sent("e", None, expecting(8)),
        ],
    ),
    "ids": (
        PLAIN,
        [
            *whole("a", Sent("a", None, {"Nats-Msg-Id": "1"}), Sent("b", None, {"Nats-Msg-Id": "2"})),
            *whole("b", Sent("a", None, {"Nats-Msg-Id": "3"}), Sent("b", None, {"Nats-Msg-Id": "3"})),
            *whole("c", Sent("a", None, {"Nats-Msg-Id": "3"}), Sent("b", None, {"Nats-Msg-Id": "2"})),
            *whole("d", Sent("a", None, {"Nats-Msg-Id": "3"}), Sent("b", None, {"Nats-Msg-Id": "4"})),
            Sent("a", None, {"Nats-Msg-Id": "3"}),
        ],
    ),
    "levels": (
        PLAIN,
        [
            *whole("a", Sent("a", None, {"Nats-Required-Api-Level": "2"}), Sent("b")),
            *whole("b", Sent("a"), Sent("b", None, {"Nats-Required-Api-Level": "99"})),
            Sent("b", ("b", 2, "1")),
            *whole("c", Sent("a", None, {"Nats-Required-Api-Level": "x"})),
        ],
    ),
    "rollups": (
        {**PLAIN, "allow_rollup_hdrs": True},
        [
            *whole("a", Sent("a"), Sent("b"), Sent("a", None, {"Nats-Rollup": "sub"})),
            *whole("b", Sent("a"), Sent("b", None, {"Nats-Rollup": "sub"})),
            *whole("c", Sent("a"), Sent("b", None, {"Nats-Rollup": "all"})),
            *whole("d", Sent("a", None, {"Nats-Rollup": "all"}), Sent("b")),
            *whole("e", Sent("a"), Sent("b", None, {"Nats-Rollup": "x"})),
        ],
    ),
    "no rollups": (PLAIN, [*whole("a", Sent("a"), Sent("b", None, {"Nats-Rollup": "sub"})), Sent("a")]),
    "lives": (PLAIN, [*whole("a", Sent("a"), Sent("b", None, {"Nats-TTL": "5s"})), Sent("a")]),
    "allowed lives": (
        {**PLAIN, "allow_msg_ttl": True},
        [
            *whole("a", Sent("a"), Sent("b", None, {"Nats-TTL": "1h"})),
            *whole("b", Sent("a"), Sent("b", None, {"Nats-TTL": "x"})),
        ],
    ),
    "sizes": (
        {**PLAIN, "max_msg_size": 200},
        [
            *whole("a", Sent("a"), Sent("b", value=b"x" * 300)),
            Sent("b", ("a", 2, "1")),
            *whole("b", Sent("a", value=b"x" * 300), Sent("b")),
        ],
    ),
    "full": (
        {**PLAIN, "max_msgs": 3, "discard": "new"},
        [
            *whole("a", Sent("a"), Sent("b")),
            *whole("b", Sent("a"), Sent("b")),
            *whole("c", Sent("a")),
            *whole("d", Sent("a")),
        ],
    ),
    "full subjects": (
        {**PLAIN, "max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True},
        [
            *whole("a", Sent("a"), Sent("b")),
            *whole("b", Sent("c"), Sent("b")),
            *whole("c", Sent("c"), Sent("d")),
            *whole("d", Sent("e"), Sent("e")),
        ],
    ),
}


async def told_by(connection: Any, name: str, config: dict[str, Any], messages: list[Sent]) -> list[object]:
    """Create a stream, send it the messages one after the other, and return all that is told, and what it has then."""
    subjects = [f"{name}.>"]
    created = await call(connection, f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects, **config})
    assert "error" not in created, created
    advisories: list[object] = []

    async def heard(message: Any) -> None:
        told = json.loads(message.data)
        advisories.append([told["type"], told["stream"], told["batch"], told["reason"]])

    await connection.subscribe(ADVISORIES + name, cb=heard)
    told: list[object] = [created["config"].get("allow_atomic"), created["config"]["metadata"]["_nats.req.level"]]
    for one in messages:
        headers = dict(one.headers)
        if headers.get("Nats-Expected-Stream") == "S":
            headers["Nats-Expected-Stream"] = name
        if (other := headers.get("Nats-Expected-Last-Subject-Sequence-Subject")) is not None:
            headers["Nats-Expected-Last-Subject-Sequence-Subject"] = f"{name}.{other}"
        if one.batch is not None:
            batch_id, sequence, commit = one.batch
            headers["Nats-Batch-Id"] = batch_id
            headers |= {"Nats-Batch-Sequence": str(sequence)} if sequence != "" else {}
            headers |= {"Nats-Batch-Commit": commit} if commit else {}
        told.append(brief(await asked(connection, f"{name}.{one.subject}", one.value, headers)))
    seq = 0
    while "error" not in (found := await call(connection, f"STREAM.MSG.GET.{name}", {"seq": seq, "next_by_subj": ">"})):
        message = found["message"]
        seq = message["seq"] + 1
        told.append([message["seq"], message["subject"], message.get("hdrs"), message.get("data")])
    await connection.flush()
    return [*told, advisories]


async def asked(connection: Any, subject: str, value: bytes, headers: dict[str, str]) -> bytes:
    return bytes((await connection.request(subject, value, timeout=TIMEOUT_S, headers=headers or None)).data)


def brief(data: bytes) -> object:
    """What both tell in an answer; of errors the code only, where our text says more."""
    if not data:
        return "received"
    told = json.loads(data)
    if "error" in told:
        return [told["error"]["code"], told["error"]["err_code"]]
    return {name: told.get(name) for name in ("seq", "batch", "count", "duplicate")}


async def call(connection: Any, operation: str, request: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        await asked(connection, f"$JS.API.{operation}", json.dumps(request).encode(), {})
    )
    return found


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Any]:
    """Run a broker; yield a connection to its NATS once JetStream's API is answered."""
    with running_broker(folder / "data", *api_options()) as broker:
        connection = await nats.connect(broker.nats_url)
        try:

            async def answers() -> bool:
                try:
                    return "error" not in await call(connection, "INFO", {})
                except NoRespondersError:
                    return False

            await eventually(answers, "the API is answered")
            yield connection
        finally:
            await connection.close()


@asynccontextmanager
async def of_nats(folder: Path) -> AsyncIterator[Any]:
    with running_nats(folder / "nats", f"jetstream {{ store_dir: {json.dumps(str(folder / 'js'))} }}\n") as server:
        connection = await nats.connect(server.url)
        try:
            yield connection
        finally:
            await connection.close()


async def limits_of(connection: Any) -> list[object]:
    """Send batches at nats-server's limits, and messages of fast batches."""
    await call(connection, "STREAM.CREATE.L", {"name": "L", "subjects": ["L.>"], **PLAIN})
    told = []
    for batch_id, sizes in (("most", 1_000), ("more", 1_001)):
        for sequence in range(1, sizes):
            await connection.publish(
                "L.a", b"", headers={"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(sequence)}
            )
        last = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(sizes), "Nats-Batch-Commit": "1"}
        told.append(brief(await asked(connection, "L.a", b"", last)))
    for number in range(52):
        headers = {"Nats-Batch-Id": f"open-{number}", "Nats-Batch-Sequence": "1"}
        told.append(brief(await asked(connection, "L.b", b"", headers)))
    for end in ("x.10.ok.1.0", "x.10.ok.2.1", "x.10.ok.3.2", "x", "x.10.ok.1.9"):
        reply = f"{connection.new_inbox()}.{end}.$FI"
        answers = await connection.subscribe(reply)
        await connection.publish("L.c", b"", reply=reply)
        told.append(brief((await answers.next_msg(TIMEOUT_S)).data))
    info = await call(connection, "STREAM.INFO.L", {})
    return [*told, info["state"]["messages"], info["state"]["last_seq"]]


@each_change
async def test_the_limits_are_those_of_nats_server(tmp_path: Path) -> None:
    async with of_nats(tmp_path) as theirs, served(tmp_path) as ours:
        assert await limits_of(ours) == await limits_of(theirs)


@each_change
async def test_a_batch_that_nobody_goes_on_with_is_abandoned(tmp_path: Path) -> None:
    async with served(tmp_path) as connection:
        await call(connection, "STREAM.CREATE.T", {"name": "T", "subjects": ["T.>"], **PLAIN})
        advisories = await connection.subscribe(f"{ADVISORIES}T")
        first = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}
        assert await asked(connection, "T.a", b"", first) == b""
        told = json.loads((await advisories.next_msg(TIMEOUT_S)).data)
        assert (told["batch"], told["reason"]) == ("b", "timeout")
        last = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"}
        assert brief(await asked(connection, "T.a", b"", last)) == [400, 10176]


@each_change
async def test_the_answers_are_those_of_nats_server(tmp_path: Path) -> None:
    async with of_nats(tmp_path) as theirs, served(tmp_path) as ours:
        for number, (title, (config, messages)) in enumerate(STORY.items()):
            name = f"S{number}"
            expected, found = await asyncio.gather(
                told_by(theirs, name, config, messages), told_by(ours, name, config, messages)
            )
            assert found == expected, title
