"""Work queues and interest through JetStream's API: nats-server's answers, and what a killed leader leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig

from tests.broker_process import running_broker, running_nats
from tests.extent import each_change
from tests.integration.clusters import ClusterProcesses
from tests.integration.test_jetstream_acks import Worker, difference, drained, durable, told
from tests.integration.test_jetstream_readers import S, create, delivering, published
from tests.integration.test_jetstream_streams import api_options, connected, said, serving
from tests.ports import free_ports

TIMEOUT_S = 20
CALLS = (
    ("STREAM.CREATE.S", '{"name":"S","subjects":["a.>"],"retention":"workqueue"}'),
    create("x"),
    create("x", ack_policy="none"),
    create("x", ack_policy="all"),
    create("x", ack_policy="none", deliver_subject="nobody"),
    create("x", ack_policy="all", deliver_subject="nobody"),
    create("x", ack_policy="none", deliver_subject="nobody", mem_storage=True, flow_control=True, idle_heartbeat=5 * S),
    durable("x", deliver_policy="new"),
    durable("x", deliver_policy="last"),
    durable("x", deliver_policy="by_start_sequence", opt_start_seq=3),
    durable("x", deliver_policy="last_per_subject", filter_subject="a.1"),
    durable("x"),
    durable("x", description="the same"),
    durable("y"),
    durable("y", filter_subject="a.1"),
    ("CONSUMER.DELETE.S.x", ""),
    durable("x", filter_subject="a.*"),
    durable("y", filter_subject="a.1"),
    durable("y", filter_subject="b.1"),
    durable("y", filter_subjects=["a.1.2", "a.1.*.4"]),
    durable("z", filter_subjects=["a.1.3", "a.1.2"]),
    durable("z", filter_subjects=["a.2.3", "a.3.3"]),
    durable("z", filter_subjects=["a.2.3", "a.*"]),
    durable("z", filter_subject=">"),
    durable("w"),
    ("CONSUMER.NAMES.S", ""),
    ("STREAM.UPDATE.S", '{"name":"S","subjects":["a.>"],"retention":"limits"}'),
    ("STREAM.UPDATE.S", '{"name":"S","subjects":["a.>"],"retention":"interest"}'),
    ("STREAM.CREATE.I", '{"name":"I","subjects":["i.>"],"retention":"interest"}'),
    ("STREAM.UPDATE.I", '{"name":"I","subjects":["i.>"],"retention":"workqueue"}'),
    ("STREAM.UPDATE.I", '{"name":"I","subjects":["i.>"],"retention":"limits"}'),
    ("STREAM.UPDATE.I", '{"name":"I","subjects":["i.>"],"retention":"interest"}'),
    ("STREAM.DELETE.S", ""),
)
"""Calls whose answers are nats-server's, but for times, and versions."""
STEPS: tuple[tuple[Any, ...], ...] = (
    ("state",), ("publish", 6), ("state",), ("pull", 3), ("state",), ("ack", 1, b""), ("state",), ("ack", 0, b"+ACK"),
    ("state",), ("ack", 0, b""), ("state",), ("ack", 2, b"-NAK"), ("state",), ("pull", 1), ("ack", 0, b"+WPI"),
    ("state",), ("ack", 0, b"+TERM why"), ("state",), ("get", 3), ("get", 4), ("pull", 2), ("ack", 1, b"+NXT"),
    ("state",), ("info",), ("drop",), ("state",), ("make",), ("publish", 2), ("pull", 9), ("state",),
    ("ack", 0, b""), ("ack", 1, b""), ("state",), ("drop",), ("publish", 2), ("state",),
)  # fmt: skip


class QueueWorker(Worker):
    """A client of a stream whose messages go with acks."""

    async def do(self, kind: str, *of: Any) -> Any:
        match kind:
            case "publish":
                for _ in range(of[0]):
                    await self.connection.request("a.1", b"x", timeout=TIMEOUT_S)
                return None
            case "state":
                await asyncio.sleep(0.5)  # a plain ack has no answer
                state = (await said(self.connection, "STREAM.INFO.S"))["state"]
                return {name: state.get(name, 0) for name in ("messages", "first_seq", "last_seq", "consumer_count")}
            case "get":
                answer = await said(self.connection, "STREAM.MSG.GET.S", json.dumps({"seq": of[0]}))
                return answer.get("error", answer.get("message", {}).get("seq"))
            case "drop":
                return await said(self.connection, f"CONSUMER.DELETE.S.{self.name}")
            case "make":
                return told(await said(self.connection, *durable(self.name)))
        return await super().do(kind, *of)


@each_change
@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_what_acks_remove_is_what_nats_server_removes(tmp_path: Path, retention: str) -> None:
    config = f"jetstream {{ store_dir: {json.dumps(str(tmp_path / 'js'))} }}"
    with (
        running_nats(tmp_path / "nats", config) as server,
        running_broker(tmp_path / "data", *api_options()) as broker,
    ):
        async with connected(server.url) as theirs, connected(broker.nats_url) as ours:
            await delivering(ours)
            different: list[Any] = []
            for operation, request in CALLS if retention == "workqueue" else ():
                expected, found = await said(theirs, operation, request), await said(ours, operation, request)
                if told(found) != told(expected):
                    different.append((operation, request, "theirs:", expected, "ours:", found))
            assert different == []
            create_stream = json.dumps({"name": "S", "subjects": ["a.>"], "retention": retention})
            for connection in (theirs, ours):
                assert "error" not in await said(connection, "STREAM.CREATE.S", create_stream)
                assert "error" not in await said(connection, *durable("w"))
            workers = QueueWorker(theirs, "w"), QueueWorker(ours, "w")
            for number, step in enumerate(STEPS):
                expected, found = await asyncio.gather(*(worker.do(*step) for worker in workers))
                if found != expected:
                    different.append((number, step, difference(expected, found)))
            assert different == [], str(different)


@each_change
@pytest.mark.parametrize("retention", [RetentionPolicy.WORK_QUEUE, RetentionPolicy.INTEREST])
async def test_what_was_acked_is_gone_after_the_leader_was_killed(tmp_path: Path, retention: RetentionPolicy) -> None:
    (port,) = free_ports(1)
    with running_nats(tmp_path / "nats", f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n') as server:
        options = api_options("--jetstream-rights", "manage", "--nats-leaf", f"nats://127.0.0.1:{port}")
        brokers = ClusterProcesses(tmp_path, server, 3, *options)
        try:
            brokers.start()
            await brokers.all_live()
            async with connected(server.url) as connection:
                await serving(connection)
                await delivering(connection)
                js = connection.jetstream()
                await js.add_stream(StreamConfig(name="s", num_replicas=3, retention=retention))
                config = ConsumerConfig(durable_name="d", ack_policy=AckPolicy.EXPLICIT, ack_wait=2)
                await js.add_consumer("s", config)
                for number in range(60):
                    await js.publish("s", b"%d" % number)
                pull = await js.pull_subscribe_bind("d", "s")
                confirmed = {}
                for message in await pull.fetch(40, timeout=TIMEOUT_S):
                    if message.metadata.sequence.stream % 2:
                        await message.ack_sync(timeout=TIMEOUT_S)
                        confirmed[message.metadata.sequence.stream] = message.data
                assert (await js.stream_info("s")).state.messages == 60 - len(confirmed)
                brokers.brokers[await brokers.leader_of("s")].kill()
                for number in range(60, 90):
                    await published(js, b"%d" % number)
                state = (await js.stream_info("s")).state
                assert (state.messages, state.first_seq) == (90 - len(confirmed), 2)
                found = await drained(pull, 90 - len(confirmed))
                assert found.isdisjoint(confirmed.values())
                async with asyncio.timeout(TIMEOUT_S):
                    while (await js.stream_info("s")).state.messages:
                        pass
        finally:
            print(brokers.said)
            brokers.end()
