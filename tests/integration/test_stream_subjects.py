"""Subjects of a stream on a real broker: lists, counts, last messages, and reads of some, by client and by command."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

import penstock
from penstock import Filter, aio
from tests.broker_process import BrokerProcess
from tests.cli_app import app

ROWS = 3_000


async def fill(client: aio.Client, name: str, **config: object) -> None:
    """Rows on `events.<n>.often`, and a few on `events.<n>.rare`, in several segments."""
    await client.create_stream(name, "events.>", segment_bytes=100_000, **config)
    rows = [
        {"subject": f"events.{number % 7}.{'rare' if number % 500 == 3 else 'often'}", "value": b"%d" % number * 20}
        for number in range(ROWS)
    ]
    for first in range(0, ROWS, 100):
        await client.append(name, rows[first : first + 100])


async def test_lists_counts_and_last_messages(client: aio.Client) -> None:
    await fill(client, "s")
    found = await client.subjects("s")
    subjects = [message.subject async for message in client.messages("s")]
    offsets = {one: [at for at, subject in enumerate(subjects) if subject == one] for one in set(subjects)}
    wanted = [
        penstock.SubjectState(one, len(these), these[0], these[-1])
        for one, these in sorted(offsets.items(), key=lambda item: item[0].encode())
    ]
    assert found == wanted
    assert await client.subjects("s", "events.*.rare", limit=2) == [one for one in wanted if "rare" in one.subject][:2]
    assert await client.subjects("s", after=wanted[4].subject) == wanted[5:]
    assert await client.count("s", subject="events.*.rare") == 6
    assert await client.count("s", subject=["events.1.>", "events.2.often"]) == sum(
        one.messages for one in wanted if one.subject.startswith(("events.1.", "events.2.often"))
    )
    lasts = await client.last_by_subjects("s", "events.*.rare")
    assert [(one.subject, one.offset) for one in lasts] == [
        (one.subject, one.last) for one in wanted if "rare" in one.subject
    ]
    rare = [one for one in wanted if "rare" in one.subject]
    assert [(one.subject, one.offset) for one in lasts] == [(one.subject, one.last) for one in rare]
    await client.delete("s", rare[0].last)
    await client.purge_subject("s", "events.3.>")
    assert await client.count("s", subject="events.3.>") == 0
    left = [one for one in await client.subjects("s", "events.*.rare") if one.subject == rare[0].subject]
    assert [one.messages for one in left] == ([rare[0].messages - 1] if rare[0].messages > 1 else [])
    assert all(one.offset != rare[0].last for one in await client.last_by_subjects("s", "events.*.rare"))
    for pattern in ("events.*.rare", "events.5.>"):
        read = client.read("s", where=Filter(subject=pattern), columns=["offset"])
        assert sum([batch.num_rows async for batch in read]) == await client.count("s", subject=pattern)
    await client.delete_stream("s")


async def test_several_partitions(client: aio.Client) -> None:
    await client.create_stream("parts", "parts.>", partitions=3, partition_by="token:2")
    for _ in range(2):
        await client.append("parts", [{"subject": f"parts.{number}", "value": b"v"} for number in range(12)])
    places = {message.subject: message.partition async for message in client.messages("parts")}
    assert len(set(places.values())) == 3
    found = await client.subjects("parts")
    assert [one.subject for one in found] == sorted(places)
    assert {one.subject: one.partition for one in found} == places
    assert await client.subjects("parts", limit=2) == found[:2]
    assert await client.subjects("parts", limit=3, after=found[1].subject) == found[2:5]
    assert await client.subjects("parts", partition=1) == [one for one in found if one.partition == 1]
    assert await client.count("parts", subject="parts.*") == 24
    assert await client.count("parts", subject="parts.*", partition=2) == 2 * [*places.values()].count(2)
    lasts = await client.last_by_subjects("parts", "parts.*")
    assert [(one.subject, one.partition, one.offset) for one in lasts] == [
        (one.subject, one.partition, one.last) for one in found
    ]
    await client.delete_stream("parts")


async def test_what_cannot_be_asked_for(client: aio.Client) -> None:
    await client.create_stream("empty", "empty.>")
    assert await client.subjects("empty") == await client.last_by_subjects("empty", ">") == []
    assert await client.count("empty", subject=">") == 0
    for wrong in ("a..b", [], ["x"] * 65):
        with pytest.raises(ValueError, match=r"subject|token"):
            await client.count("empty", subject=wrong)
    with pytest.raises(ValueError, match="limit 0"):
        await client.subjects("empty", limit=0)
    with pytest.raises(penstock.StreamNotFound):
        await client.subjects("nothing")
    await client.delete_stream("empty")


async def test_the_commands(client: aio.Client, broker: BrokerProcess) -> None:
    await fill(client, "c")

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["stream", *words, "--server", broker.client_address])
        return done.exit_code, done.stdout

    code, shown = await asyncio.to_thread(run, "subjects", "c", "events.*.rare", "--limit", "2")
    assert code == 0
    assert shown.split()[:4] == ["subject", "messages", "first", "last"]
    assert [line.split()[0] for line in shown.splitlines()[-2:]] == ["events.1.rare", "events.2.rare"]
    code, shown = await asyncio.to_thread(run, "subjects", "c", "--json", "--after", "events.6.often")
    assert [json.loads(line) for line in shown.splitlines()] == [
        one._asdict() for one in await client.subjects("c", "events.6.rare")
    ]
    assert await asyncio.to_thread(run, "count", "c", "events.*.rare") == (0, "6\n")
    code, shown = await asyncio.to_thread(run, "count", "c", "events.*.rare", "--json")
    assert json.loads(shown) == {"stream": "c", "subjects": ["events.*.rare"], "messages": 6}
    code, shown = await asyncio.to_thread(run, "last", "c", "events.0.often", "--json")
    last = await client.last("c", subject="events.0.often")
    assert (json.loads(shown)["offset"], json.loads(shown)["value"].encode()) == (last.offset, last.value)
    code, shown = await asyncio.to_thread(run, "last", "c", "events.*.often")
    assert (code, shown.count("events.")) == (0, 7)
    for words in (["last", "c", "events.none"], ["last", "c", "events.no.*"], ["subjects", "c", "events.none"]):
        for options in ([], ["--json"]):
            assert await asyncio.to_thread(run, *words, *options) == (1, "")
    assert (await asyncio.to_thread(run, "find", "events.none.here", "--json"))[0] == 0
    assert await asyncio.to_thread(run, "find", "nothing.of.it", "--json") == (1, "")
    assert await asyncio.to_thread(run, "count", "c", "events.none") == (0, "0\n")
    await client.delete_stream("c")
