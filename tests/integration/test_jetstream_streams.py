"""Streams through JetStream's API: the same answers as nats-server's, call by call; and through nats-py."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import NoRespondersError
from nats.js.api import StreamConfig
from nats.js.errors import BadRequestError, NotFoundError

from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.clusters import running_cluster

TIMEOUT_S = 20
KV = (
    '{"name":"KV_b","subjects":["$KV.b.>"],"retention":"limits","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,'
    '"discard":"new","max_age":0,"max_msgs_per_subject":5,"max_msg_size":-1,"storage":"file","num_replicas":1,'
    '"duplicate_window":120000000000,"compression":"none","allow_direct":true,"mirror_direct":false,'
    '"sealed":false,"deny_delete":true,"deny_purge":false,"allow_rollup_hdrs":true,"consumer_limits":{}}'
)
SAME = '"subjects":["f.>","g.*"],"allow_msg_ttl":true,"storage":"memory","compression":"s2"'
CALLS = (
    # operation, request; PUBLISH stores a message
    ("INFO", ""),
    ("STREAM.NAMES", ""),
    ("STREAM.LIST", ""),
    ("STREAM.INFO.none", ""),
    ("STREAM.DELETE.none", ""),
    ("STREAM.PURGE.none", ""),
    ("STREAM.UPDATE.none", '{"name":"none"}'),
    ("STREAM.MSG.DELETE.none", '{"seq":1}'),
    ("STREAM.CREATE.a", ""),
    ("STREAM.CREATE.a", "{"),
    ("STREAM.CREATE.a", "[]"),
    ("STREAM.CREATE.a", "null"),
    ("STREAM.CREATE.a", '{"name":"b"}'),
    ("STREAM.CREATE.a", "{}"),
    ("STREAM.CREATE.a", '{"name":"a","max_msgs":"x"}'),
    ("STREAM.CREATE.a", '{"name":"a","max_msg_size":3000000000}'),
    ("STREAM.CREATE.a", '{"name":"a","max_msgs":true}'),
    ("STREAM.CREATE.a", '{"name":7}'),
    ("STREAM.CREATE.a", '{"name":"a","subjects":[7]}'),
    ("STREAM.CREATE.a", '{"name":"a","metadata":{"x":7}}'),
    ("STREAM.CREATE.a", '{"name":"a","unheard_of":1}'),
    ("STREAM.CREATE.a", '{"name":"a","subjects":["b"]}'),
    ("STREAM.CREATE.c", '{"name":"c","subjects":["b"]}'),
    ("STREAM.CREATE.c", '{"name":"c","subjects":["*"]}'),
    ("STREAM.CREATE.c", '{"name":"c","subjects":["c..d"]}'),
    ("STREAM.CREATE.c", '{"name":"c","subjects":["c","c"]}'),
    ("STREAM.CREATE.c", '{"name":"c","subjects":["c.>","c.d"]}'),
    ("STREAM.CREATE.c", '{"name":"c","subjects":[">"]}'),
    ("STREAM.CREATE.c", '{"name":"c","subjects":["$JS.API.>"]}'),
    ("STREAM.CREATE.c", '{"name":"c","subjects":["$SYS.foo"]}'),
    ("STREAM.CREATE.c", '{"name":"c","num_replicas":3}'),
    ("STREAM.CREATE.c", '{"name":"c","num_replicas":6}'),
    ("STREAM.CREATE.c", '{"name":"c","num_replicas":-1}'),
    ("STREAM.CREATE.c", '{"name":"c","duplicate_window":1}'),
    ("STREAM.CREATE.c", '{"name":"c","duplicate_window":-1}'),
    ("STREAM.CREATE.c", '{"name":"c","max_age":50}'),
    ("STREAM.CREATE.c", '{"name":"c","max_age":-1}'),
    ("STREAM.CREATE.c", '{"name":"c","max_age":60000000000,"duplicate_window":120000000000}'),
    ("STREAM.CREATE.c", '{"name":"c","retention":"foo"}'),
    ("STREAM.CREATE.c", '{"name":"c","storage":"foo"}'),
    ("STREAM.CREATE.c", '{"name":"c","discard_new_per_subject":true}'),
    ("STREAM.CREATE.c", '{"name":"c","discard":"new","discard_new_per_subject":true}'),
    ("STREAM.CREATE.c", '{"name":"c","deny_purge":true,"allow_rollup_hdrs":true}'),
    ("STREAM.CREATE.c", '{"name":"c","mirror_direct":true}'),
    ("STREAM.CREATE.c", '{"name":"c","sealed":true}'),
    ("STREAM.CREATE.c", json.dumps({"name": "c", "description": "x" * 5_000})),
    (
        "STREAM.CREATE.c",
        '{"name":"c","max_msgs":0,"max_bytes":0,"max_msgs_per_subject":0,"max_msg_size":0,"max_consumers":0,'
        '"metadata":{"x":"y"},"description":"d"}',
    ),
    (
        "STREAM.CREATE.d",
        '{"name":"d","max_msgs":-5,"max_bytes":-5,"max_msgs_per_subject":-5,"max_msg_size":-5,"max_consumers":-5}',
    ),
    ("STREAM.CREATE.e", '{"name":"e","max_msgs":-5,"pedantic":true}'),
    ("STREAM.CREATE.e", '{"name":"e","max_age":60000000000,"pedantic":true}'),
    ("STREAM.CREATE.e", '{"name":"e","max_age":60000000000,"max_msgs":7,"max_bytes":1000000,"max_msg_size":5000}'),
    ("STREAM.CREATE.f", f'{{"name":"f",{SAME},"allow_rollup_hdrs":true,"deny_delete":true}}'),
    ("STREAM.CREATE.f", f'{{"name":"f",{SAME},"allow_rollup_hdrs":true,"deny_delete":true}}'),
    ("STREAM.CREATE.f", f'{{"name":"f",{SAME}}}'),
    ("STREAM.UPDATE.f", '{"name":"f","subjects":["f.>","g.*"]}'),
    ("STREAM.UPDATE.f", '{"name":"f","subjects":["f.>","g.*"],"storage":"memory"}'),
    ("STREAM.UPDATE.f", '{"name":"f","subjects":["f.>"],"storage":"memory","deny_delete":true}'),
    ("STREAM.UPDATE.f", '{"name":"g","subjects":["f.>"]}'),
    ("STREAM.UPDATE.f", f'{{"name":"f",{SAME},"deny_delete":true,"num_replicas":3}}'),
    ("STREAM.UPDATE.f", ""),
    ("STREAM.UPDATE.f", "{"),
    ("STREAM.UPDATE.f", f'{{"name":"f",{SAME},"deny_delete":true,"description":"new","max_msgs":100}}'),
    (
        "STREAM.UPDATE.f",
        '{"name":"f","subjects":["f.>","b"],"allow_msg_ttl":true,"storage":"memory","deny_delete":true}',
    ),
    (
        "STREAM.UPDATE.f",
        '{"name":"f","subjects":["f.>","h"],"allow_msg_ttl":true,"storage":"memory","deny_delete":true}',
    ),
    *(("PUBLISH", subject) for subject in ("f.x", "f.x", "f.y", "f.z")),
    (
        "STREAM.CREATE.n",
        '{"name":"n","max_msgs_per_subject":2,"discard":"new","discard_new_per_subject":true,"republish":null,'
        '"subject_transform":null,"mirror":null,"sources":null,"consumer_limits":{"max_ack_pending":0}}',
    ),
    *(("PUBLISH", "n") for _ in range(3)),
    ("STREAM.DELETE.n", ""),
    ("STREAM.CREATE.small", '{"name":"small","max_bytes":1024,"discard":"new"}'),
    ("STREAM.CREATE.small", '{"name":"small","max_bytes":1024,"discard":"new"}'),
    *(("PUBLISH", "small") for _ in range(3)),
    ("STREAM.UPDATE.small", '{"name":"small","max_bytes":2048,"discard":"new"}'),
    ("STREAM.UPDATE.small", '{"name":"small","max_bytes":200000,"discard":"new"}'),
    ("STREAM.UPDATE.small", '{"name":"small","max_bytes":200000,"discard":"new","mirror_direct":true}'),
    ("STREAM.INFO.small", ""),
    ("STREAM.UPDATE.small", '{"name":"small","max_bytes":200000,"discard":"new","mirror_direct":false}'),
    ("STREAM.DELETE.small", ""),
    ("STREAM.INFO.f", ""),
    ("STREAM.INFO.f", '{"subjects_filter":">"}'),
    ("STREAM.INFO.f", '{"subjects_filter":"f.x"}'),
    ("STREAM.INFO.f", '{"subjects_filter":"f.x","offset":5}'),
    ("STREAM.INFO.f", '{"subjects_filter":"none"}'),
    ("STREAM.INFO.f", '{"subjects_filter":"f..x"}'),
    ("STREAM.INFO.f", '{"deleted_details":true}'),
    ("STREAM.INFO.f", "{"),
    ("STREAM.INFO.f", "x"),
    ("STREAM.INFO.f", '{"subjects_filter":">","offset":1}'),
    ("STREAM.MSG.DELETE.f", '{"seq":2}'),
    ("STREAM.CREATE.k", '{"name":"k","subjects":["k.>"],"max_msgs_per_subject":3}'),
    *(("PUBLISH", subject) for subject in ("k.x", "k.x", "k.y", "k.z", "k.z", "k.x")),
    ("STREAM.MSG.DELETE.k", '{"seq":3}'),
    ("STREAM.MSG.DELETE.k", '{"seq":3}'),
    ("STREAM.MSG.DELETE.k", '{"seq":99}'),
    ("STREAM.MSG.DELETE.k", '{"seq":0}'),
    ("STREAM.MSG.DELETE.k", ""),
    ("STREAM.MSG.DELETE.k", "{"),
    ("STREAM.MSG.DELETE.k", '{"seq":4,"no_erase":true}'),
    ("STREAM.INFO.k", '{"deleted_details":true,"subjects_filter":">"}'),
    ("STREAM.PURGE.k", '{"filter":"k.x","keep":1,"seq":3}'),
    ("STREAM.PURGE.k", '{"filter":"k.x","keep":1}'),
    ("STREAM.PURGE.k", '{"filter":"none"}'),
    ("STREAM.PURGE.k", '{"filter":"k..x"}'),
    ("STREAM.PURGE.k", "{"),
    ("STREAM.INFO.k", '{"deleted_details":true}'),
    ("STREAM.PURGE.k", '{"seq":6}'),
    ("STREAM.INFO.k", ""),
    ("PUBLISH", "k.q"),
    ("PUBLISH", "k.q"),
    ("STREAM.PURGE.k", '{"keep":1}'),
    ("STREAM.INFO.k", ""),
    ("STREAM.PURGE.k", ""),
    ("STREAM.PURGE.k", ""),
    ("PUBLISH", "k.r"),
    ("STREAM.PURGE.k", '{"filter":"k.>"}'),
    ("PUBLISH", "k.r"),
    ("STREAM.INFO.k", ""),
    ("STREAM.CREATE.n", '{"name":"n","first_seq":1000}'),
    ("STREAM.CREATE.n", '{"name":"n","first_seq":1000}'),
    ("STREAM.CREATE.n", '{"name":"n"}'),
    ("STREAM.INFO.n", ""),
    ("STREAM.PURGE.n", ""),
    ("PUBLISH", "n"),
    ("PUBLISH", "n"),
    ("PUBLISH", "n"),
    ("STREAM.MSG.DELETE.n", '{"seq":1}'),
    ("STREAM.MSG.DELETE.n", '{"seq":1001}'),
    ("STREAM.INFO.n", '{"deleted_details":true,"subjects_filter":">"}'),
    ("STREAM.PURGE.n", '{"seq":1001}'),
    ("STREAM.INFO.n", ""),
    ("STREAM.PURGE.n", ""),
    ("STREAM.INFO.n", ""),
    ("STREAM.CREATE.p", '{"name":"p","deny_purge":true,"deny_delete":true}'),
    ("PUBLISH", "p"),
    ("STREAM.PURGE.p", ""),
    ("STREAM.MSG.DELETE.p", '{"seq":1}'),
    ("STREAM.UPDATE.p", '{"name":"p","deny_purge":true,"deny_delete":true,"sealed":true}'),
    ("STREAM.UPDATE.p", '{"name":"p","deny_purge":true,"deny_delete":true,"sealed":true,"description":"x"}'),
    ("STREAM.UPDATE.p", '{"name":"p","deny_purge":true,"deny_delete":true}'),
    ("STREAM.PURGE.p", ""),
    ("STREAM.MSG.DELETE.p", '{"seq":1}'),
    ("STREAM.INFO.p", ""),
    ("STREAM.CREATE.t", '{"name":"t","metadata":{"_nats.level":"9","_nats.foo":"x"}}'),
    ("STREAM.CREATE.t", '{"name":"t","metadata":{"_nats.level":"9","_nats.foo":"x"}}'),
    ("STREAM.UPDATE.t", '{"name":"t","metadata":{"a":"b"}}'),
    ("STREAM.UPDATE.t", '{"name":"t","storage":"memory"}'),
    ("STREAM.UPDATE.t", '{"name":"t","max_msgs":3,"subjects":[]}'),
    ("STREAM.UPDATE.t", '{"name":"t","no_ack":true,"allow_direct":true}'),
    ("STREAM.UPDATE.t", '{"name":"t","persist_mode":"async"}'),
    ("STREAM.CREATE.u", '{"name":"u"}'),
    ("STREAM.CREATE.v", '{"name":"v","subjects":["u.*"]}'),
    ("STREAM.CREATE.w", '{"name":"w","subjects":["u.x"]}'),
    ("STREAM.DELETE.v", ""),
    ("STREAM.CREATE.m", '{"name":"m","persist_mode":"async","storage":"memory"}'),
    ("STREAM.CREATE.m", '{"name":"m","persist_mode":"async","num_replicas":3}'),
    ("STREAM.CREATE.m", '{"name":"m","persist_mode":"async","allow_atomic":true}'),
    ("STREAM.CREATE.m", '{"name":"m","persist_mode":"async"}'),
    ("STREAM.CREATE.m", '{"name":"m","persist_mode":"async"}'),
    ("STREAM.CREATE.m", '{"name":"m"}'),
    ("PUBLISH", "m"),
    ("STREAM.UPDATE.m", '{"name":"m","persist_mode":"async","max_consumers":7}'),
    ("STREAM.UPDATE.m", '{"name":"m","persist_mode":"default"}'),
    ("STREAM.INFO.m", ""),
    ("STREAM.CREATE.KV_b", KV),
    ("STREAM.CREATE.KV_b", KV),
    ("PUBLISH", "$KV.b.key"),
    ("STREAM.INFO.KV_b", '{"subjects_filter":"$KV.b.>"}'),
    ("STREAM.PURGE.KV_b", '{"filter":"$KV.b.key","keep":1}'),
    ("STREAM.NAMES", ""),
    ("STREAM.NAMES", '{"subject":"f.x"}'),
    ("STREAM.NAMES", '{"subject":">"}'),
    ("STREAM.NAMES", '{"offset":1}'),
    ("STREAM.NAMES", '{"offset":100}'),
    ("STREAM.NAMES", '{"offset":-1}'),
    ("STREAM.NAMES", '{"subject":"zzz"}'),
    ("STREAM.NAMES", '{"subject":"a..b"}'),
    ("STREAM.NAMES", "{"),
    ("STREAM.NAMES", "x"),
    ("STREAM.LIST", ""),
    ("STREAM.LIST", '{"subject":"k.x"}'),
    ("STREAM.LIST", '{"offset":100}'),
    ("STREAM.LIST", '{"subject":"zzz"}'),
    ("STREAM.LIST", "{"),
    ("STREAM.DELETE.k", "x"),
    ("STREAM.DELETE.k", ""),
    ("STREAM.INFO.k", ""),
    ("INFO", ""),
)
"""Calls whose answers are nats-server's, but for VARYING."""
VARYING = {
    "api", "domain", "memory", "storage", "reserved_memory", "reserved_storage",  # of the account
    "created", "ts", "first_ts", "last_ts", "bytes", "cluster",
    "_nats.ver", "_nats.level", "_nats.req.level",
}  # fmt: skip
MANAGE = ("--jetstream-rights", "manage")
SILENT = ("STREAM.CREATE.a.b", "STREAM.CREATE", "STREAM.INFO.a.b", "STREAM.NAMES.a", "UNHEARD_OF", "STREAM.PURGE.a.b")


def api_options(*more: str) -> tuple[str, ...]:
    return ("--jetstream-api", "auto", *more)


@pytest.fixture(scope="module")
def api_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run a broker that serves JetStream's API; after the tests it must stop without errors."""
    with running_broker(tmp_path_factory.mktemp("broker") / "data", *api_options()) as broker:
        yield broker
        assert broker.is_running, broker.said
        assert broker.stop() == 0, broker.said
        assert "Traceback" not in broker.said, broker.said


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await nats.connect(url, allow_reconnect=False)
    try:
        yield connection
    finally:
        await connection.close()


async def said(connection: Any, operation: str, request: str = "") -> Any:
    subject, payload = (request, b"hello") if operation == "PUBLISH" else (f"$JS.API.{operation}", request.encode())
    answer = await connection.request(subject, payload, timeout=TIMEOUT_S)
    return json.loads(answer.data)


async def serving(connection: Any) -> None:
    """Wait until a broker serves the API."""

    async def is_answered() -> bool:
        try:
            return "error" not in await said(connection, "STREAM.NAMES")
        except NoRespondersError:
            return False

    await eventually(is_answered, "the API is served")


def steady(answer: Any) -> Any:
    """Return an answer without what differs from run to run, and the details of JSON errors."""
    if isinstance(answer, list):
        return [steady(one) for one in answer]
    if not isinstance(answer, dict):
        return answer
    found = {name: steady(value) for name, value in answer.items() if name not in VARYING}
    if "description" in found and str(found["description"]).startswith("invalid JSON"):
        found["description"] = "invalid JSON"
    if "seq" in found and "stream" in found:  # an ack: Penstock's says more
        found = {name: found[name] for name in ("seq", "stream", "error") if name in found}
    if "state" in found and "config" in found and "type" not in found:  # an entry of a list
        found["state"].pop("num_subjects", None)
    return found


@each_change
async def test_answers_are_those_of_nats_server(api_broker: BrokerProcess, tmp_path: Path) -> None:
    config = f"jetstream {{ store_dir: {json.dumps(str(tmp_path / 'js'))} }}"
    with running_nats(tmp_path / "nats", config) as server:
        async with connected(server.url) as theirs, connected(api_broker.nats_url) as ours:
            different = []
            for operation, request in CALLS:
                expected, found = await said(theirs, operation, request), await said(ours, operation, request)
                if steady(found) != steady(expected):
                    different.append((operation, request, "theirs:", steady(expected), "ours:", steady(found)))
                for name in ("created", "ts"):
                    if name in expected and name in found:
                        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", found[name])
            assert different == []


@each_change
async def test_what_is_no_request_gets_no_answer(api_broker: BrokerProcess) -> None:
    async with connected(api_broker.nats_url) as connection:
        for operation in SILENT:
            with pytest.raises(TimeoutError):
                await connection.request(f"$JS.API.{operation}", b"{}", timeout=0.3)


REFUSED = (
    ("placement", {"tags": ["eu"]}),
    ("mirror", {"name": "other"}),
    ("sources", [{"name": "other"}]),
    ("first_seq", 2**63 - 1),
    ("subject_transform", {"src": "a", "dest": "b"}),
    ("republish", {"src": "a", "dest": "b"}),
    ("consumer_limits", {"max_ack_pending": -3}),
    ("allow_msg_counter", True),
    ("allow_batched", True),
    ("max_age", 3_600_000_000_001),
    ("max_msg_size", 1_000_000_000),
)


@each_change
@pytest.mark.parametrize(("field", "value"), REFUSED, ids=[field for field, _ in REFUSED])
async def test_what_cannot_be_honoured_is_refused_by_name(api_broker: BrokerProcess, field: str, value: Any) -> None:
    async with connected(api_broker.nats_url) as connection:
        request = json.dumps({"name": "refused", field: value})
        error = (await said(connection, "STREAM.CREATE.refused", request))["error"]
        assert error["err_code"] == 10052
        assert field.replace("max_msg_size", "max_message_bytes") in error["description"]
        assert "refused" not in ((await said(connection, "STREAM.NAMES"))["streams"] or ())


@each_change
async def test_objects_without_a_value_are_none(api_broker: BrokerProcess) -> None:
    async with connected(api_broker.nats_url) as connection:
        for name, empty in (("placement", {"cluster": ""}), ("placement", {"cluster": "", "tags": None})):
            request = json.dumps({"name": "empty", name: empty})
            assert name not in (await said(connection, "STREAM.CREATE.empty", request))["config"]
        assert (await said(connection, "STREAM.DELETE.empty"))["success"]


@each_change
async def test_nats_py_manages_streams(api_broker: BrokerProcess) -> None:
    async with connected(api_broker.nats_url) as connection:
        js = connection.jetstream()
        made = await js.add_stream(StreamConfig(name="py", subjects=["py.>"], max_msgs_per_subject=2))
        assert (made.did_create, made.config.subjects) == (True, ["py.>"])
        for number in range(5):
            assert (await js.publish(f"py.{number % 2}", b"x")).seq == number + 1
        info = await js.stream_info("py", subjects_filter=">")
        assert (info.state.messages, info.state.first_seq, info.state.last_seq) == (4, 2, 5)
        assert info.state.subjects == {"py.0": 2, "py.1": 2}
        assert await js.find_stream_name_by_subject("py.1") == "py"
        assert (await js.update_stream(made.config.evolve(description="d"))).config.description == "d"
        assert await js.delete_msg("py", 3)
        assert await js.purge_stream("py", subject="py.0")
        assert [one.config.name for one in await js.streams_info() if one.config.name == "py"] == ["py"]
        with pytest.raises(BadRequestError) as overlap:
            await js.add_stream(StreamConfig(name="py2", subjects=["py.1"]))
        assert overlap.value.err_code == 10065
        assert await js.delete_stream("py")
        with pytest.raises(NotFoundError):
            await js.stream_info("py")


@each_change
async def test_streams_of_the_command_line_are_shown(api_broker: BrokerProcess) -> None:
    async with await api_broker.client() as client, connected(api_broker.nats_url) as connection:
        await client.create_stream("cli", "cli.>", max_messages=10, max_age_ms=60_000)
        await client.create_stream("parts", "parts", partitions=2)
        info = await said(connection, "STREAM.INFO.cli")
        assert (info["config"]["max_msgs"], info["config"]["max_age"]) == (10, 60_000_000_000)
        assert info["config"]["allow_direct"]
        same = {name: value for name, value in info["config"].items() if name != "subjects"}
        again = await said(connection, "STREAM.UPDATE.cli", json.dumps({**same, "subjects": ["cli.>", "more"]}))
        assert again["config"]["subjects"] == ["cli.>", "more"]
        assert (await client.stream("cli")).config.max_messages == 10
        listed = await said(connection, "STREAM.LIST")
        assert {"cli", "parts"} <= {one["config"]["name"] for one in listed["streams"]}
        assert "offline" not in listed
        assert "parts" in (await said(connection, "STREAM.NAMES"))["streams"]
        for operation, request in (("MSG.GET", '{"seq":1}'), ("PURGE", '{"keep":1}'), ("MSG.DELETE", '{"seq":1}')):
            assert (
                "2 partitions" in (await said(connection, f"STREAM.{operation}.parts", request))["error"]["description"]
            )
        for name in ("cli", "parts"):
            assert (await said(connection, f"STREAM.DELETE.{name}"))["success"]


@each_change
async def test_persist_mode_async_is_durability_os(api_broker: BrokerProcess) -> None:
    async with await api_broker.client() as client, connected(api_broker.nats_url) as connection:
        made = await said(connection, "STREAM.CREATE.lazy", '{"name":"lazy","persist_mode":"async"}')
        assert made["config"]["persist_mode"] == "async"
        assert (await client.stream("lazy")).config.durability == "os"
        await client.alter_stream("lazy", durability="auto")
        assert "persist_mode" not in (await said(connection, "STREAM.INFO.lazy"))["config"]
        assert (await said(connection, "STREAM.DELETE.lazy"))["success"]


@each_change
async def test_penstocks_own_streams_are_not_there(api_broker: BrokerProcess) -> None:
    async with await api_broker.client() as client, connected(api_broker.nats_url) as connection:
        await client.create_stream("own", "own.>")
        async with client.consumer("own", "g") as consumer:  # makes __offsets
            await consumer.commit()
        for operation in ("INFO", "DELETE", "PURGE", "UPDATE", "MSG.DELETE"):
            request = {"UPDATE": '{"name":"__offsets"}', "MSG.DELETE": '{"seq":1}'}.get(operation, "")
            error = (await said(connection, f"STREAM.{operation}.__offsets", request))["error"]
            assert error["err_code"] == 10059
        names = [*(await said(connection, "STREAM.NAMES"))["streams"]]
        assert not [name for name in names if name.startswith("__")]
        made = await said(connection, "STREAM.CREATE.__mine", '{"name":"__mine"}')
        assert made["error"]["err_code"] == 10052
        overlapping = await said(connection, "STREAM.CREATE.mine", '{"name":"mine","subjects":["$PENSTOCK.>"]}')
        assert overlapping["error"]["err_code"] == 10052
        await client.delete_stream("own")


@each_change
async def test_an_answer_beyond_max_payload_is_paged_and_the_connection_stays(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats", "max_payload: 4096\n") as server,
        running_broker(tmp_path / "data", *api_options(*MANAGE), nats=server.url) as broker,
    ):
        async with connected(server.url) as connection:
            await serving(connection)
            js = connection.jetstream()
            await js.add_stream(StreamConfig(name="many", subjects=["many.>"]))
            for number in range(300):
                await connection.publish(f"many.{number:03}.{'x' * 20}", b"")
            await js.publish("many.last", b"")
            found: dict[str, int] = {}
            while True:
                options = json.dumps({"subjects_filter": ">", "offset": len(found)})
                info = await said(connection, "STREAM.INFO.many", options)
                assert "error" not in info, info
                assert info["total"] == 301
                found |= info["state"].get("subjects", {})
                if len(found) >= info["total"]:
                    break
            assert len(found) == 301
            long = json.dumps({"name": "many", "subjects": ["many.>"], "description": "d" * 3_900})
            assert (await said(connection, "STREAM.UPDATE.many", long))["error"]["err_code"] == 10008
            assert (await said(connection, "STREAM.NAMES"))["streams"] == ["many"]
        assert "Maximum Payload" not in broker.said


@needs_time
async def test_requests_at_any_broker_know_every_answered_change(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3, *api_options(*MANAGE)) as brokers:
        await brokers.all_live()
        async with connected(brokers.nats.url) as connection:
            await serving(connection)
            js = connection.jetstream()
            for number in range(4):
                name = f"s{number}"
                config = json.dumps({"name": name, "num_replicas": 3, "first_seq": number * 1_000})
                made = await said(connection, f"STREAM.CREATE.{name}", config)
                assert len(made["cluster"]["replicas"]) == 2, made
                assert (await js.publish(name, b"x")).seq == max(1, number * 1_000)
            for number in range(12):  # the queue group chooses a broker for each
                name = f"s{number % 4}"
                seq = (await js.publish(name, b"x")).seq
                info = await said(connection, f"STREAM.INFO.{name}")
                assert "error" not in info, str(info)
                assert info["state"]["last_seq"] == seq
                config = json.dumps({"name": name, "num_replicas": 3, "description": str(number)})
                assert "error" not in await said(connection, f"STREAM.UPDATE.{name}", config)
                assert (await said(connection, f"STREAM.INFO.{name}"))["config"]["description"] == str(number)
                states = [one["state"]["messages"] for one in (await said(connection, "STREAM.LIST"))["streams"]]
                assert sum(states) == number + 5
            for number in range(4):
                assert (await said(connection, f"STREAM.PURGE.s{number}"))["success"]
                assert (await said(connection, f"STREAM.DELETE.s{number}"))["success"]
                left = (await said(connection, "STREAM.NAMES"))["streams"]
                assert left == ([f"s{later}" for later in range(number + 1, 4)] or None)
                with pytest.raises(NotFoundError):
                    await js.stream_info(f"s{number}")
