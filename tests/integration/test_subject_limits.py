"""Streams with a limit by subject on real brokers: the last N of each subject are shown, whoever is killed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import APIError, NotFoundError
from typer.testing import CliRunner

from penstock import aio
from tests.broker_process import running_broker, running_nats
from tests.cli_app import app
from tests.extent import each_change, extent, needs_time
from tests.integration.clusters import running_cluster
from tests.integration.publishers import connected_to

ROUNDS = extent(2, 6)


async def offsets_of(client: aio.Client, stream: str, **options: int) -> list[int]:
    return [message.offset async for message in client.messages(stream, **options)]


def last_of(subjects: str, limit: int) -> list[int]:
    rows: dict[str, list[int]] = {}
    for offset, subject in enumerate(subjects):
        rows.setdefault(subject, []).append(offset)
    return sorted(offset for of in rows.values() for offset in of[-limit:])


@each_change
@pytest.mark.parametrize("limit", [1, 3])
async def test_readers_see_exactly_the_last_messages_of_each_subject(tmp_path: Path, limit: int) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("state", "state.>", segment_bytes=4_096, max_messages_per_subject=limit)
            subjects = ""
            for round_ in range(3):
                subjects += "aabcabaacb" if round_ else "abc"
                for subject in subjects[-10:] if round_ else subjects:
                    await client.publish(f"state.{subject}", b"." * 200)
                    assert (await client.last("state", subject=f"state.{subject}")).subject == f"state.{subject}"
                assert await offsets_of(client, "state") == last_of(subjects, limit)
                assert await client.row_count("state") == len(last_of(subjects, limit))
        broker.restart()
        async with await broker.client() as client:
            assert await offsets_of(client, "state") == last_of(subjects, limit)
            await client.publish("state.c", b"4")
            subjects += "c"
            assert await offsets_of(client, "state") == last_of(subjects, limit)


@each_change
async def test_the_option_of_the_command_line_sets_shows_and_lifts_the_limit(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        run, options = CliRunner(), ["--server", broker.client_address]
        create = ["stream", "create", "state", "state.>", "--max-messages-per-subject", "2", *options]
        done = run.invoke(app, create)
        assert done.exit_code == 0, done.output
        shown = run.invoke(app, ["stream", "show", "state", *options]).output
        assert re.search(r"max-messages-per-subject +2\b", shown), shown
        async with await broker.client() as client:
            for number in range(3):
                await client.publish("state.a", b"%d" % number)
            assert await offsets_of(client, "state") == [1, 2]
            done = run.invoke(app, ["stream", "alter", "state", "--max-messages-per-subject", "none", *options])
            assert done.exit_code == 0, done.output
            await client.publish("state.a", b"3")
            assert await offsets_of(client, "state") == [1, 2, 3]


async def heard(js: JetStreamContext, subject: str, headers: dict[str, str]) -> tuple[object, ...]:
    """What a publisher hears: the sequence, or the error."""
    try:
        ack = await js.publish(subject, b"v" * 100, headers=headers)
    except APIError as error:
        return error.code, error.err_code, error.description
    return ack.seq, bool(ack.duplicate)


async def has(js: JetStreamContext, sequence: int) -> bool:
    try:
        await js.get_msg("state", sequence)
    except NotFoundError:
        return False
    return True


@each_change
@pytest.mark.parametrize("most", [1, 3])
async def test_what_has_a_message_refuses_another_as_jetstream_does(tmp_path: Path, most: int) -> None:
    """Also after messages were deleted and the broker was started anew."""
    headers: tuple[dict[str, str], ...] = (
        {},
        {},
        {"Nats-Msg-Id": "1"},
        {"Nats-Expected-Last-Subject-Sequence": "0"},
        {"Nats-Rollup": "sub"},
        {"Nats-Msg-Id": "2"},
    )
    with (
        running_nats(tmp_path / "real", f'jetstream {{ store_dir: "{tmp_path}/real/js" }}') as real,
        running_broker(tmp_path / "data") as broker,
    ):
        async with connected_to(real.url) as beside:
            js = beside.jetstream()
            made = StreamConfig(name="state", subjects=["state.>"], max_msgs_per_subject=most)
            more = {"discard": "new", "discard_new_per_subject": True, "allow_rollup_hdrs": True}
            await js._api_request(f"{js._prefix}.STREAM.CREATE.state", json.dumps(made.as_dict() | more).encode())
            run, options = CliRunner(), ["--server", broker.client_address]
            create = [
                "stream",
                "create",
                "state",
                "state.>",
                "--max-messages-per-subject",
                f"{most}",
                "--discard",
                "new",
            ]
            create += ["--discard-new-per-subject", "yes", "--allow-rollup", "yes", "--segment-bytes", "4096"]
            done = run.invoke(app, [*create, *options])
            assert done.exit_code == 0, done.output
            shown = run.invoke(app, ["stream", "show", "state", *options]).output
            assert re.search(r"discard-new-per-subject +yes\b", shown), shown
            told = set()
            for round_ in range(3):
                async with await broker.client() as client, connected_to(broker.nats_url) as connection:
                    ours = connection.jetstream()
                    for number in range(40 * most):
                        subject = f"state.{(number * 7 + round_) % (15 + 5 * round_)}"
                        said = headers[(number + round_) % len(headers)]
                        one, other = [await heard(each, subject, said) for each in (js, ours)]
                        assert one == other, (subject, said)
                        told.add(one[1:])
                    left = await offsets_of(client, "state")
                    end = (await js.stream_info("state")).state.last_seq
                    assert left == [one - 1 for one in range(1, end + 1) if await has(js, one)]
                    for offset in left[round_::3]:
                        await client.delete("state", offset)
                        await js.delete_msg("state", offset + 1)
                broker.restart()
            assert {(10077, "maximum messages per subject exceeded"), (True,), (False,)} <= told


@each_change
@pytest.mark.parametrize("most", [1, 3])
async def test_a_full_stream_takes_what_replaces_another(tmp_path: Path, most: int) -> None:
    """And refuses the others, as JetStream does: on new subjects, and on those that are not at their limit."""
    with (
        running_nats(tmp_path / "real", f'jetstream {{ store_dir: "{tmp_path}/real/js" }}') as real,
        running_broker(tmp_path / "data") as broker,
    ):
        async with connected_to(real.url) as beside, await broker.client() as client:
            js = beside.jetstream()
            limits = {"max_msgs_per_subject": most, "max_msgs": 4 * most + 1, "discard": "new"}
            made = StreamConfig(name="state", subjects=["state.>"]).as_dict() | limits | {"allow_rollup_hdrs": True}
            await js._api_request(f"{js._prefix}.STREAM.CREATE.state", json.dumps(made).encode())
            ours = {"max_messages_per_subject": most, "max_messages": 4 * most + 1, "discard": "new"}
            await client.create_stream("state", "state.>", segment_bytes=4_096, allow_rollup=True, **ours)
            told = set()
            for round_ in range(3):
                async with await broker.client() as client, connected_to(broker.nats_url) as connection:
                    for number in range(40 * most):
                        subject = f"state.{number * 7 % (4 + round_)}"
                        said = {"Nats-Rollup": "sub"} if number % 11 == 5 else {}
                        one, other = [await heard(each, subject, said) for each in (js, connection.jetstream())]
                        assert one == other, (subject, said, number)
                        told.add(one[1:])
                    left = await offsets_of(client, "state")
                    end = (await js.stream_info("state")).state.last_seq
                    assert left == [one - 1 for one in range(1, end + 1) if await has(js, one)]
                    for offset in left[round_::4]:
                        await client.delete("state", offset)
                        await js.delete_msg("state", offset + 1)
                broker.restart()
            assert told == {(10077, "maximum messages exceeded"), (False,)}


@needs_time
async def test_the_limit_holds_when_its_leader_is_killed_at_once(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("state", "state.>", replicas=3, segment_bytes=8_192, max_messages_per_subject=2)
        subjects = ""
        for number in range(ROUNDS):
            leader = await cluster.leader_of("state")
            async with cluster.client(leader % 3 + 1) as client:
                more = "abcdabbaacdd"[number:] * 4
                for subject in more:
                    await client.publish(f"state.{subject}", b"." * 300)
                subjects += more
                cluster.brokers[leader].kill()
                last = await client.last("state", subject=f"state.{more[-1]}")
                assert last.offset == len(subjects) - 1
                assert await offsets_of(client, "state") == last_of(subjects, 2)
            cluster.brokers[leader].launch()
            await cluster.in_sync("state", {1, 2, 3}, leader % 3 + 1)
        for broker in cluster.brokers.values():
            broker.kill()
        cluster.start()
        await cluster.all_live()
        for number in cluster.brokers:
            async with cluster.client(number) as client:
                assert await offsets_of(client, "state") == last_of(subjects, 2)
