"""An import from JetStream and its cut-over, run as a program would."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import pytest

import penstock
from penstock import ops
from penstock.base.errors import OperationalError
from tests.broker_process import running_broker, running_nats
from tests.extent import needs_time
from tests.unit.ops.test_backup import Heard


async def _store(url: str, *values: bytes, subject: str = "orders.eu") -> None:
    connection = await nats.connect(url)
    js = connection.jetstream()
    if subject == "orders.eu":
        await js.add_stream(name="ORDERS", subjects=["orders.>"])
    for value in values:
        await js.publish(subject, value)
    await connection.close()


@needs_time
def test_messages_are_imported_and_the_subject_is_taken_over(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats", f"jetstream {{ store_dir: {tmp_path / 'js'} }}") as server,
        running_broker(tmp_path / "data", nats=server.url) as broker,
        penstock.connect(broker.client_address) as client,
    ):
        asyncio.run(_store(server.url, b"0", b"1"))
        with ops.JetStreamImport(client, "ORDERS", ops.ImportOptions("orders")) as job:
            done = job.run()
            assert done == ops.Imported("orders", "orders.>", 2, 2, 0, 0, (), False)
            assert [one.value for one in client.messages("orders")] == [b"0", b"1"]
            asyncio.run(_store(server.url, b"2"))
            assert job.run().messages == 1
            asyncio.run(_store(server.url, b"3"))
            assert job.check_cut_over().intake == "paused"
            done = job.run(cut_over=True)
            assert (done.messages, done.last_sequence, done.is_cut_over) == (1, 4, True)
            assert job.run(cut_over=True) == done._replace(messages=0)
        assert (job.stream, job.end, job.is_aside) == ("orders", 4, False)
        assert client.publish("orders.eu", b"4").offset == 4
        with ops.JetStreamImport(client, "ORDERS", ops.ImportOptions("orders"), progress=(heard := Heard())) as job:
            assert job.is_cut_over
            with pytest.raises(OperationalError, match="nothing is left to import"):
                job.run()
            assert job.check_cut_over().intake == "open"
            assert job.run(cut_over=True) == ops.Imported("orders", "orders.>", 0, 4, 0, 0, (), True)
            assert heard.notes == ["note: the cut-over of ORDERS was complete before; nothing was changed"]
            # A message that JetStream has stored in the midst is not there.
            asyncio.run(_store(server.url, b"late", subject="_moved_to_penstock.ORDERS"))
            with pytest.raises(OperationalError, match="goes up to sequence 5, which stream orders lacks"):
                job.run(cut_over=True)
        with pytest.raises(OperationalError, match="no such stream"), ops.JetStreamImport(client, "BILLS"):
            pass


@pytest.mark.parametrize("is_deleted", [True, False])
@pytest.mark.parametrize("skips", [True, False])
@needs_time
def test_a_cut_over_that_was_interrupted_and_resumed_by_hand_is_not_complete(
    tmp_path: Path, is_deleted: bool, skips: bool
) -> None:
    async def delete_last(url: str) -> None:
        connection = await nats.connect(url)
        await connection.jetstream().delete_msg("ORDERS", 5)
        await connection.close()

    options = ops.ImportOptions("orders", skip_unstorable=skips)
    with (
        running_nats(tmp_path / "nats", f"jetstream {{ store_dir: {tmp_path / 'js'} }}") as server,
        running_broker(tmp_path / "data", nats=server.url) as broker,
        penstock.connect(broker.client_address) as client,
    ):
        asyncio.run(_store(server.url, b"beat", b"beat"))
        with ops.JetStreamImport(client, "ORDERS", options) as job:
            job.run()
        asyncio.run(_store(server.url, b"paid 1", b"paid 2", b"beat"))
        if is_deleted:
            asyncio.run(delete_last(server.url))
        with ops.JetStreamImport(client, "ORDERS", options) as job:
            job._thread.run(job._js.move_aside(job._info, job.aside))  # a cut-over that is killed here
        client.resume_stream("orders")
        for _ in range(3):
            client.publish("orders.eu", b"beat")
        with ops.JetStreamImport(client, "ORDERS", options) as job:
            missing = f"goes up to sequence {4 if is_deleted else 5}, which stream orders lacks"
            with pytest.raises(OperationalError, match=missing):
                job.run(cut_over=True)
        rest = ops.ImportOptions("rest")
        with ops.JetStreamImport(client, "ORDERS", rest) as job:
            assert job.run().messages == (4 if is_deleted else 5)


@needs_time
def test_a_complete_cut_over_is_recorded(tmp_path: Path) -> None:
    """Whatever the stream has deleted since then."""
    with (
        running_nats(tmp_path / "nats", f"jetstream {{ store_dir: {tmp_path / 'js'} }}") as server,
        running_broker(tmp_path / "data", nats=server.url) as broker,
        penstock.connect(broker.client_address) as client,
    ):
        asyncio.run(_store(server.url, b"0", b"1"))
        with ops.JetStreamImport(client, "ORDERS", ops.ImportOptions("orders")) as job:
            job.run(cut_over=True)
        client.publish("orders.eu", b"2")
        with ops.JetStreamImport(client, "ORDERS", ops.ImportOptions("orders")) as job:
            state = job._thread.run(job._js.info("ORDERS")).state
            assert job._missing(client.stream("orders"), state) == 0  # also without the record
            client.truncate_stream("orders", 3)
            assert job.run(cut_over=True).is_cut_over


@needs_time
def test_a_record_of_a_deleted_stream_says_nothing_of_a_new_one(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats", f"jetstream {{ store_dir: {tmp_path / 'js'} }}") as server,
        running_broker(tmp_path / "data", nats=server.url) as broker,
        penstock.connect(broker.client_address) as client,
    ):
        asyncio.run(_store(server.url, b"0", b"1"))
        with ops.JetStreamImport(client, "ORDERS", ops.ImportOptions("orders")) as job:
            job.run(cut_over=True)
        client.delete_stream("orders")
        client.create_stream("orders", "orders.>")  # as an import that was killed, and resumed by hand
        with (
            ops.JetStreamImport(client, "ORDERS", ops.ImportOptions("orders")) as job,
            pytest.raises(OperationalError, match="goes up to sequence 2, which stream orders lacks"),
        ):
            job.run(cut_over=True)


@needs_time
def test_an_import_that_ended_before_an_empty_log_was_cut_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def purge(url: str) -> None:
        connection = await nats.connect(url)
        await connection.jetstream().purge_stream("ORDERS")
        await connection.close()

    async def interrupted(*_: object) -> None:
        raise OperationalError("the program ends here")

    with (
        running_nats(tmp_path / "nats", f"jetstream {{ store_dir: {tmp_path / 'js'} }}") as server,
        running_broker(tmp_path / "data", nats=server.url) as broker,
        penstock.connect(broker.client_address) as client,
    ):
        asyncio.run(_store(server.url, b"0", b"1"))
        asyncio.run(purge(server.url))
        with ops.JetStreamImport(client, "ORDERS", ops.ImportOptions("orders")) as job:
            with monkeypatch.context() as patch:
                patch.setattr("penstock.client.bulk.placing._Placing.give_up_before", interrupted)
                with pytest.raises(OperationalError, match="ends here"):
                    job.run()
            assert [one.offset for one in client.messages("orders")] == [1]
            assert job.run().messages == 0
            part = client.stream("orders").partitions[0]
            assert (part.log_start, part.committed_end) == (2, 2)
