"""Scheduled messages through JetStream's API: as nats-server sends them, and with nats-py."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.js.errors import APIError

from tests.broker_process import eventually, running_broker, running_nats
from tests.extent import each_change
from tests.integration.test_jetstream_streams import MANAGE, api_options, connected, said, serving, steady

JOBS = {
    "name": "JOBS",
    "subjects": ["jobs.>", "sent.>"],
    "allow_msg_schedules": True,
    "allow_msg_ttl": True,
    "allow_direct": True,
}
CONFIGS = (
    JOBS,
    {"name": "c1", "allow_msg_schedules": True},
    {"name": "c2", "allow_msg_schedules": True, "discard": "new"},
    {"name": "c3", "allow_msg_schedules": True, "pedantic": True},
    {"name": "c4", "allow_msg_schedules": True, "deny_purge": True},
    {"name": "c5", "allow_msg_schedules": True, "allow_rollup_hdrs": True, "deny_purge": True},
    {"name": "PLAIN", "subjects": ["plain.>"], "allow_rollup_hdrs": True},
)
UPDATES = (
    {"name": "c1", "allow_msg_schedules": False},
    {"name": "c1", "subjects": ["c1", "c1.>"], "allow_msg_schedules": True},
)
AT = "@at 2020-01-01T00:00:00Z"
LATER = "@at 2099-01-01T00:00:00+02:00"
_VALID = {"Nats-Schedule": AT, "Nats-Schedule-Target": "sent.r"}
PUBLISHED: tuple[tuple[str, dict[str, str]], ...] = (
    ("jobs.1", {"Nats-Schedule": AT, "Nats-Schedule-Target": "sent.1", "Of-Its-Own": "kept"}),
    ("jobs.2", {"Nats-Schedule": AT, "Nats-Schedule-Target": "sent.2", "Nats-Schedule-TTL": "1h", "Nats-TTL": "5m"}),
    ("jobs.3", {"Nats-Schedule": AT, "Nats-Schedule-Target": "sent.3", "Nats-Schedule-Rollup": "sub"}),
    ("jobs.4", {"Nats-Schedule": LATER, "Nats-Schedule-Target": "sent.4"}),
    ("jobs.5", {"Nats-Schedule": LATER, "Nats-Schedule-Target": "sent.5", "Nats-Rollup": "SUB"}),
    ("jobs.6", {"Nats-Schedule": LATER, "Nats-Schedule-Target": "sent.6"}),
    ("sent.ended", {"Nats-Scheduler": "jobs.6", "Nats-Schedule-Next": "purge"}),
    ("sent.nothing", {"Nats-Scheduler": "jobs.none", "Nats-Schedule-Next": "purge"}),
    ("sent.data", {"Of-The-Source": "kept"}),
    ("jobs.7", {"Nats-Schedule": AT, "Nats-Schedule-Target": "sent.7", "Nats-Schedule-Source": "sent.data"}),
    ("jobs.8", {"Nats-Schedule": AT, "Nats-Schedule-Target": "sent.8", "Nats-Schedule-Source": "sent.nobody"}),
    ("jobs.9", {"Nats-Schedule": ""}),
    ("jobs.10", {"Nats-Schedule-Target": "sent.10"}),
    ("jobs.11", {"Nats-Schedule": "@at 2020-01-01T7:00:00.123456789-23:59", "Nats-Schedule-Target": "sent.11"}),
    # refused
    ("jobs.r", {"Nats-Schedule": AT}),
    ("jobs.r", {"Nats-Schedule": AT, "Nats-Schedule-Target": "jobs.r"}),
    ("jobs.r", {"Nats-Schedule": AT, "Nats-Schedule-Target": "sent.*"}),
    ("jobs.r", {"Nats-Schedule": AT, "Nats-Schedule-Target": "sent..r"}),
    ("jobs.r", {"Nats-Schedule": AT, "Nats-Schedule-Target": "elsewhere"}),
    ("jobs.r", {**_VALID, "Nats-Schedule": "@at"}),
    ("jobs.r", {**_VALID, "Nats-Schedule": "@at 2020-01-01"}),
    ("jobs.r", {**_VALID, "Nats-Schedule": "@at 2020-02-30T00:00:00Z"}),
    ("jobs.r", {**_VALID, "Nats-Schedule": "@at 2020-01-01t00:00:00z"}),
    ("jobs.r", {**_VALID, "Nats-Schedule": "@at 2020-01-01T24:00:00Z"}),
    ("jobs.r", {**_VALID, "Nats-Schedule": "@at 2020-01-01 00:00:00Z"}),
    ("jobs.r", {**_VALID, "Nats-Schedule": "soon"}),
    ("jobs.r", {**_VALID, "Nats-Schedule-TTL": "soon"}),
    ("jobs.r", {**_VALID, "Nats-Schedule-Rollup": "all"}),
    ("jobs.r", {**_VALID, "Nats-Rollup": "all"}),
    ("jobs.r", {**_VALID, "Nats-Schedule-Source": "sent.r"}),
    ("jobs.r", {**_VALID, "Nats-Schedule-Source": "jobs.r"}),
    ("jobs.r", {**_VALID, "Nats-Schedule-Source": "sent.>"}),
    ("jobs.r", {**_VALID, "Nats-Schedule-Source": "elsewhere"}),
    ("jobs.r", {**_VALID, "Nats-Schedule-Time-Zone": "UTC"}),
    ("jobs.r", {**_VALID, "Nats-Schedule-Time-Zone": "+02:00"}),
    ("jobs.r", {"Nats-Scheduler": "jobs.1"}),
    ("jobs.r", {"Nats-Scheduler": "jobs.r", "Nats-Schedule-Next": "purge"}),
    ("jobs.r", {"Nats-Scheduler": "jobs.1", "Nats-Schedule-Next": "later"}),
    ("jobs.r", {"Nats-Schedule-Next": "purge"}),
    ("plain.r", {"Nats-Schedule": AT, "Nats-Schedule-Target": "plain.t"}),
    ("plain.r", {"Nats-Schedule": "soon"}),
)
ONLY_THERE = ("@every 5s", "@hourly", "@midnight", "0 0 5 * * *")
SENT = {"sent.1", "sent.2", "sent.3", "sent.7", "sent.8", "sent.11"}


async def left(connection: Any) -> dict[str, tuple[str, str]]:
    """What the stream has of each subject: headers and value."""
    info = await said(connection, "STREAM.INFO.JOBS", '{"subjects_filter":">"}')
    found = {}
    for subject in info["state"].get("subjects") or ():
        answer = await said(connection, "STREAM.MSG.GET.JOBS", json.dumps({"last_by_subj": subject}))
        if "message" in answer:
            message = answer["message"]
            found[subject] = base64.b64decode(message.get("hdrs", "")).decode(), message.get("data", "")
    return found


@each_change
async def test_configs_answers_and_what_is_sent_are_those_of_nats_server(tmp_path: Path) -> None:
    config = f"jetstream {{ store_dir: {json.dumps(str(tmp_path / 'js'))} }}"
    with (
        running_nats(tmp_path / "nats", config) as server,
        running_broker(tmp_path / "data", *api_options()) as broker,
    ):
        async with connected(server.url) as theirs, connected(broker.nats_url) as ours:
            await serving(ours)
            different: list[Any] = []
            calls = [(f"STREAM.CREATE.{one['name']}", json.dumps(one)) for one in CONFIGS]
            calls += [(f"STREAM.UPDATE.{one['name']}", json.dumps(one)) for one in UPDATES]
            for operation, request in calls:
                expected, found = await said(theirs, operation, request), await said(ours, operation, request)
                if steady(found) != steady(expected):
                    different.append((operation, request, "theirs:", expected, "ours:", found))
            assert different == []
            for subject, headers in PUBLISHED:
                answers = [
                    json.loads((await one.request(subject, b"value", headers=headers, timeout=10)).data).get("error")
                    for one in (theirs, ours)
                ]
                if answers[0] != answers[1]:
                    different.append((subject, headers, "theirs:", answers[0], "ours:", answers[1]))
            assert different == []
            for pattern in ONLY_THERE:
                headers = {**_VALID, "Nats-Schedule": pattern}
                answer = json.loads((await ours.request("jobs.r", b"value", headers=headers, timeout=10)).data)
                assert answer["error"]["err_code"] == 10189
                assert "not supported" in answer["error"]["description"]

            async def both_sent() -> bool:
                return all([set(await left(one)) >= SENT for one in (theirs, ours)])

            await eventually(both_sent, "both have sent what is due")

            async def are_equal() -> bool:
                return await left(theirs) == await left(ours)

            try:
                await eventually(are_equal, "both have the same")
            except AssertionError:
                expected, found = await left(theirs), await left(ours)
                assert found == expected
            states = [(await said(one, "STREAM.INFO.JOBS"))["state"] for one in (theirs, ours)]
            names = ("messages", "num_subjects", "last_seq")
            assert [states[1][name] for name in names] == [states[0][name] for name in names]


@each_change
async def test_nats_py_delays_messages_over_a_kill_of_the_broker(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server:
        with running_broker(tmp_path / "data", *api_options(), *MANAGE, nats=server.url) as broker:
            async with connected(server.url) as connection:
                await serving(connection)
                js = connection.jetstream()
                await said(connection, "STREAM.CREATE.JOBS", json.dumps(JOBS))
                due = datetime.now(UTC) + timedelta(seconds=4)
                for number in range(100):
                    headers = {"Nats-Schedule": f"@at {due.isoformat()}", "Nats-Schedule-Target": "sent.all"}
                    await js.publish(f"jobs.{number}", b"%d" % number, headers=headers)
                headers = {"Nats-Schedule": "@daily", "Nats-Schedule-Target": "sent.x"}
                with pytest.raises(APIError) as refused:
                    await js.publish("jobs.x", b"", headers=headers)
                assert refused.value.err_code == 10189
            broker.kill()
        with running_broker(tmp_path / "data", *api_options(), *MANAGE, nats=server.url):
            async with connected(server.url) as connection:
                await serving(connection)

                async def is_sent() -> bool:
                    state = (await said(connection, "STREAM.INFO.JOBS", '{"subjects_filter":">"}')).get("state", {})
                    return bool(state.get("subjects") == {"sent.all": 100})

                await eventually(is_sent, "all 100 are sent, once")
                assert time.time() >= due.timestamp()
