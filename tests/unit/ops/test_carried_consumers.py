"""Consumers carried over to another stream: what is restored, the notes in place of failures, runs that are ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import penstock
from penstock import ops
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, StreamId
from penstock.client.blocking.client import Client
from penstock.client.errors import NotAuthorized, Unavailable
from penstock.messages import ExportedConsumer, StreamInfo
from penstock.ops.carried_consumers import CarriedConsumer, read_consumers, restore_consumers
from tests.broker_process import running_broker
from tests.extent import needs_time
from tests.integration.test_jetstream_readers import delivering
from tests.integration.test_jetstream_streams import api_options, connected
from tests.unit.ops.cut_short import each_end

INFO = StreamInfo(stream_id=StreamId(7), config=StreamConfig(name="orders", subject="orders.>"))
TIMEOUT_S = 3.0
DURABLE = {"durable_name": "d", "ack_policy": "explicit", "num_replicas": 3}


def exported(name: str, **config: Any) -> ExportedConsumer:
    return ExportedConsumer(name=name, config={**DURABLE, **config}, next_offset=Offset(3), state=b"state")


class Consumers:
    """`client.consumers` of one stream, of which two calls are used. `errors`: of restore, by name."""

    def __init__(self, *held: ExportedConsumer, errors: Mapping[str, Exception] | None = None) -> None:
        self.held = {one.name: one for one in held}
        self.errors = errors or {}
        self.hidden: Exception | None = None
        self.restored: list[tuple[int, ExportedConsumer]] = []

    def export_all(self, stream: StreamInfo, *, partition: int, timeout: float) -> list[ExportedConsumer]:
        assert (stream, partition, timeout) == (INFO, 0, TIMEOUT_S)
        if self.hidden is not None:
            raise self.hidden
        return list(self.held.values())

    def restore(self, stream: StreamInfo, one: ExportedConsumer, *, partition: int, timeout: float) -> None:
        assert (stream, timeout) == (INFO, TIMEOUT_S)
        if one.name in self.errors:
            raise self.errors[one.name]
        self.restored.append((partition, one))


def read(consumers: Consumers) -> tuple[list[str], list[str]]:
    notes: list[str] = []
    client = cast(Client, SimpleNamespace(consumers=consumers))
    found = read_consumers(client, INFO, TIMEOUT_S, notes.append)
    assert all(one.partition == 0 for one in found)
    return [one.exported.name for one in found], notes


def restore(consumers: Consumers, *names: str) -> tuple[int, list[str]]:
    notes: list[str] = []
    client = cast(Client, SimpleNamespace(consumers=consumers))
    carried = [CarriedConsumer(1, exported(name)) for name in names]
    return restore_consumers(client, INFO, carried, TIMEOUT_S, notes.append), notes


def test_a_consumer_that_ends_with_its_clients_is_named() -> None:
    short = ExportedConsumer(name="short", config={"ack_policy": "none"}, next_offset=Offset(0))
    kept = [exported("d"), exported("e", durable_name=""), exported("f", ack_policy="none")]
    found, notes = read(Consumers(short, *kept))
    assert found == ["d", "e", "f"]
    text = "it is not durable and has no acks, so it ends with its clients"
    assert notes == [f"note: consumer short of stream orders is left out: {text}"]


def test_brokers_without_the_api_have_none_unless_some_are_stored() -> None:
    consumers = Consumers()
    for has_consumers, said in ((False, []), (True, ["note: the consumers of stream orders are left out: off"])):
        consumers.hidden = RemoteError(ErrorCode.JETSTREAM_OFF, "off", has_consumers=has_consumers)
        assert read(consumers) == ([], said)


@pytest.mark.parametrize(
    "error",
    [
        NotAuthorized(ErrorCode.NOT_AUTHORIZED, "no rule allows it"),
        RemoteError(ErrorCode.UNSUPPORTED_VERSION, "broker 2 has version 0.3"),
        RemoteError(ErrorCode.CONSUMER_EXISTS, "consumer already exists"),
        RemoteError(ErrorCode.BAD_REQUEST, "direct: this is not supported"),
        RemoteError(ErrorCode.OVERLOADED, "maximum consumers limit reached"),
    ],
    ids=lambda error: error.code,
)
def test_each_one_that_is_refused_is_named_and_the_others_come(error: RemoteError) -> None:
    consumers = Consumers(errors=dict.fromkeys("abcde", error))
    count, notes = restore(consumers, *"abcdef")
    assert (count, [one.name for _, one in consumers.restored]) == (1, ["f"])
    assert notes == [
        *(f"note: consumer {name} of stream orders is left out: {error.message}" for name in "abc"),
        "note: 2 more consumers of stream orders left out: d, e",
    ]


def test_what_is_no_refusal_ends_the_run() -> None:
    for error in (Unavailable("no broker"), RemoteError(ErrorCode.NOT_YET, "ask again")):
        with pytest.raises(type(error)):
            restore(Consumers(errors={"a": error}), "a")
        consumers = Consumers(exported("a"))
        consumers.hidden = error
        with pytest.raises(type(error)):
            read(consumers)


def test_a_consumer_has_as_many_replicas_as_its_new_stream() -> None:
    consumers = Consumers()
    restore(consumers, "d")
    ((partition, one),) = consumers.restored
    assert (partition, one.config["num_replicas"], one.state) == (1, 0, b"state")


async def _delivering(url: str) -> None:
    async with connected(url) as connection:
        await delivering(connection)


@needs_time
def test_a_restore_that_is_ended_anywhere_is_continued(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with (
        running_broker(tmp_path / "data", *api_options()) as broker,
        penstock.connect(broker.client_address) as client,
    ):
        asyncio.run(_delivering(broker.nats_url))
        client.create_stream("orders", "orders.>")
        client.append("orders", [{"subject": "orders.eu", "value": str(n)} for n in range(9)])
        for name, start in (("a", 2), ("b", 5)):
            client.consumers.create("orders", name, start=start)
        client.alter_stream("orders", retention="interest")
        with ops.Backup(folder) as backup:
            backup.add(client)
        client.delete_stream("orders")

        def run() -> None:
            ops.Restore(folder).plan(client).run()

        ended_at = []
        for where in each_end(run):
            ended_at.append(where)
            with suppress(penstock.StreamNotFound):
                if client.stream("orders").intake == "open":
                    assert len(client.consumers.all("orders")) == 2, where
                run()
                found = [(one.name, one.next_offset) for one in client.consumers.all("orders")]
                assert found == [("a", 2), ("b", 5)], where
                info = client.stream("orders")
                assert (info.intake, info.config.retention_policy) == ("open", "interest"), where
                client.delete_stream("orders")
        assert {"before AskConsumersRequest", "after AskConsumersRequest"} < set(ended_at)
        assert ended_at[-1] == "after SetIntakeRequest"
