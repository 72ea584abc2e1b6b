"""Messages that expire and leave delete markers, through JetStream's API: as nats-server does it, and with nats-py."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

from nats.js.api import KeyValueConfig

from tests.broker_process import eventually, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.test_jetstream_readers import delivering
from tests.integration.test_jetstream_streams import MANAGE, api_options, connected, said, serving, steady

S = 1_000_000_000  # ns
LATE_S = 2.0  # a slow machine is late
BUCKET = {
    "name": "KV_b",
    "subjects": ["$KV.b.>"],
    "max_msgs_per_subject": 1,
    "discard": "new",
    "deny_delete": True,
    "allow_direct": True,
    "allow_rollup_hdrs": True,
    "allow_msg_ttl": True,
    "subject_delete_marker_ttl": 2 * S,
}
HISTORY = {**BUCKET, "name": "KV_h", "subjects": ["$KV.h.>"], "max_msgs_per_subject": 5}
AGED = {**BUCKET, "name": "KV_a", "subjects": ["$KV.a.>"], "max_age": 2 * S, "duplicate_window": 2 * S}
CONFIGS = (
    BUCKET,
    HISTORY,
    AGED,
    {"name": "m1", "subject_delete_marker_ttl": S // 2},
    {"name": "m2", "subject_delete_marker_ttl": -S},
    {"name": "m3", "subject_delete_marker_ttl": S},
    {"name": "m3", "subject_delete_marker_ttl": S},
    {"name": "m4", "subject_delete_marker_ttl": S, "deny_purge": True},
    {"name": "m5", "subject_delete_marker_ttl": S, "pedantic": True},
    {"name": "m6", "subject_delete_marker_ttl": S, "allow_msg_ttl": True, "pedantic": True},
    {"name": "m7", "subject_delete_marker_ttl": S, "allow_rollup_hdrs": True, "deny_purge": True},
)
UPDATES = (
    {"name": "m3", "subject_delete_marker_ttl": 90 * S},
    {"name": "m3", "subject_delete_marker_ttl": 0},
    {"name": "m3", "subject_delete_marker_ttl": 0, "allow_msg_ttl": True},
)
PUBLISHED: tuple[tuple[str, dict[str, str]], ...] = (
    ("$KV.b.gone", {"Nats-TTL": "1"}),
    ("$KV.b.kept", {}),
    ("$KV.b.purged", {"Nats-TTL": "1", "KV-Operation": "PURGE", "Nats-Rollup": "sub"}),
    ("$KV.b.deleted", {"Nats-TTL": "1", "KV-Operation": "DEL"}),
    ("$KV.h.short", {"Nats-TTL": "1"}),
    ("$KV.h.two", {"Nats-TTL": "2s"}),
    ("$KV.h.two", {"Nats-TTL": "2s"}),
    ("$KV.h.older", {}),
    ("$KV.h.older", {"Nats-TTL": "2"}),
    ("$KV.a.aged", {}),
    ("$KV.a.ever", {"Nats-TTL": "never"}),
    ("$KV.a.long", {"Nats-TTL": "1h"}),
)


async def left(connection: Any, stream: str) -> dict[str, tuple[str, str]]:
    """What a stream has of each subject: headers and value."""
    info = await said(connection, f"STREAM.INFO.{stream}", '{"subjects_filter":">"}')
    found = {}
    for subject in info["state"].get("subjects") or ():
        answer = await said(connection, f"STREAM.MSG.GET.{stream}", json.dumps({"last_by_subj": subject}))
        if "message" in answer:
            message = answer["message"]
            headers = base64.b64decode(message.get("hdrs", "")).decode()
            found[subject] = headers, message.get("data", "")
    return found


@needs_time
async def test_configs_markers_and_what_is_left_are_those_of_nats_server(tmp_path: Path) -> None:
    config = f"jetstream {{ store_dir: {json.dumps(str(tmp_path / 'js'))} }}"
    with (
        running_nats(tmp_path / "nats", config) as server,
        running_broker(tmp_path / "data", *api_options()) as broker,
    ):
        async with connected(server.url) as theirs, connected(broker.nats_url) as ours:
            await serving(ours)
            different = []
            calls = [(f"STREAM.CREATE.{one['name']}", json.dumps(one)) for one in CONFIGS]
            calls += [(f"STREAM.UPDATE.{one['name']}", json.dumps(one)) for one in UPDATES]
            for operation, request in calls:
                expected, found = await said(theirs, operation, request), await said(ours, operation, request)
                if steady(found) != steady(expected):
                    different.append((operation, request, "theirs:", expected, "ours:", found))
            assert different == []
            for connection in (theirs, ours):
                for subject, headers in PUBLISHED:
                    answer = await connection.request(subject, b"value", headers=headers or None, timeout=10)
                    assert "error" not in json.loads(answer.data), answer.data

            seen: dict[str, dict[str, tuple[str, str]]] = {}  # the markers of a slow machine go meanwhile

            async def is_marked(stream: str, subject: str) -> bool:
                expected, found = await left(theirs, stream), await left(ours, stream)
                seen[stream] = found
                return "MaxAge" in expected.get(subject, ("",))[0] and expected == found

            for stream, subject in (("KV_b", "$KV.b.gone"), ("KV_h", "$KV.h.two"), ("KV_a", "$KV.a.long")):
                await eventually(lambda: is_marked(stream, subject), f"both have the same in {stream}")  # noqa: B023
            assert seen["KV_b"]["$KV.b.gone"] == (
                "NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 2s\r\nNats-Rollup: sub\r\n\r\n",
                "",
            )
            # What was purged with a time to live goes in the same second, perhaps a moment later.
            assert set(seen["KV_b"]) - {"$KV.b.purged"} == {"$KV.b.gone", "$KV.b.kept", "$KV.b.deleted"}

            async def is_over() -> bool:
                rest = [sorted(await left(connection, one)) for one in ("KV_b", "KV_h", "KV_a") for connection in both]
                return rest == [["$KV.b.kept"]] * 2 + [["$KV.h.older"]] * 2 + [["$KV.a.ever"]] * 2

            both = theirs, ours
            await eventually(is_over, "the markers are gone, too")
            states = [(await said(one, "STREAM.INFO.KV_b"))["state"] for one in both]
            names = ("messages", "num_subjects", "last_seq")
            assert [states[1][name] for name in names] == [states[0][name] for name in names]


@each_change
async def test_a_watcher_of_nats_py_hears_of_what_expires_within_a_second(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", *api_options(), *MANAGE) as broker:
        async with connected(broker.nats_url) as connection:
            await serving(connection)
            await delivering(connection)
            js = connection.jetstream()
            bucket = await js.create_key_value(KeyValueConfig(bucket="t", limit_marker_ttl=1.0))
            watcher = await bucket.watchall()
            assert await watcher.updates(timeout=5) is None
            await bucket.create("a", b"v", msg_ttl=2.0)
            begun_s = time.monotonic()
            entry = await watcher.updates(timeout=5)
            assert (entry.key, entry.value, entry.operation) == ("a", b"v", None)
            entry = await watcher.updates(timeout=10)
            assert 2.0 - 0.1 < time.monotonic() - begun_s < 2.0 + LATE_S
            assert (entry.key, entry.operation) == ("a", "PURGE")

            async def is_empty() -> bool:
                return (await js.stream_info("KV_t")).state.messages == 0

            await eventually(is_empty, "the marker has gone")
            await bucket.create("a", b"again")
            assert (await bucket.get("a")).value == b"again"
            await asyncio.wait_for(watcher.stop(), 5)
