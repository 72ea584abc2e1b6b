"""A copy of a stream, made as a program would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import UNSET

import penstock
from penstock import ops
from penstock.base.config import StreamConfig
from penstock.base.errors import OperationalError
from penstock.batch.schema import arrow_schema
from penstock.client.bulk.placing import Placer, create_paused
from penstock.client.link.link import Link
from penstock.messages import AlterStreamRequest, AlterStreamResponse
from penstock.ops import copy as copying
from tests.broker_process import running_broker
from tests.extent import needs_time
from tests.unit.ops.cut_short import each_end
from tests.unit.ops.test_backup import Heard

_KILLED_COPY = """
import os, sys, penstock
from penstock import ops
from penstock.ops import copy

copy._Job.copy = lambda *_: os._exit(9)
with penstock.connect(sys.argv[1]) as client:
    ops.copy_stream(client, "orders", "copy")
"""


@needs_time
def test_a_copy_has_the_same_rows_and_is_continued(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.>")
        client.append("orders", [{"subject": f"orders.{n % 2}", "value": str(n)} for n in range(20)])
        assert ops.copy_stream(client, "orders", "copy") == ops.Copied("orders", "copy", 20, False)
        client.append("orders", [{"subject": "orders.1", "value": "new"}])
        assert ops.copy_stream(client, "orders", "copy", timeout=20.0).rows == 1
        assert client.to_table("copy") == client.to_table("orders")
        done = ops.copy_stream(client, "orders", "some", ops.CopyOptions(start=10, subject="orders.1", like="copy"))
        assert [message.offset for message in client.messages("some")] == [11, 13, 15, 17, 19, 20]
        assert (done.rows, client.stream("some").intake) == (6, "paused")
        with pytest.raises(ops.ArgumentError, match="the copy needs another name"):
            ops.copy_stream(client, "orders", "orders")
        with pytest.raises(penstock.StreamNotFound):
            ops.copy_stream(client, "bills", "copy")


@needs_time
def test_copies_and_backups_of_a_stream_with_a_first_offset_keep_its_offsets(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.>", first_offset=1_000)
        client.create_stream("later", "later.>", first_offset=5_000)
        ops.copy_stream(client, "orders", "empty")
        client.append("orders", [{"subject": "orders.eu", "value": str(n)} for n in range(20)])
        client.truncate_stream("orders", 1_003)
        ops.copy_stream(client, "orders", "copy")
        ops.copy_stream(client, "orders", "like", ops.CopyOptions(like="later"))
        with ops.Backup(tmp_path / "backup") as backup:
            backup.add(client, ["orders"])
        ops.Restore(tmp_path / "backup", ops.RestoreOptions("orders", "restored")).plan(client).run()
        for name in ("copy", "like", "restored"):
            assert (name, client.to_table(name)) == (name, client.to_table("orders"))
            assert client.stream(name).config.log_begin == 1_000
        part = client.stream("empty").partitions[0]
        assert (part.log_start, part.committed_end) == (1_000, 1_000)


@needs_time
def test_a_further_run_deletes_no_row_of_the_copy(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:

        def copied(start: int) -> list[int]:
            client.append("orders", [{"subject": "orders.eu", "value": "1"}] * 2)
            assert ops.copy_stream(client, "orders", "copy", ops.CopyOptions(start=start)).rows > 0
            return [message.offset for message in client.messages("copy")]

        client.create_stream("orders", "orders.>")
        client.append("orders", [{"subject": "orders.eu", "value": "1"}] * 3)
        assert copied(1) == [1, 2, 3, 4]
        assert client.stream("copy").partitions[0].log_start == 1
        client.truncate_stream("orders", 3)
        assert copied(3) == [1, 2, 3, 4, 5, 6]
        assert client.stream("copy").partitions[0].log_start == 1
        # Rows that it would lack for ever, as each run goes on at its end.
        with pytest.raises(OperationalError, match="ends at offset 7, and --from begins at 8: it would lack"):
            copied(8)
        ops.copy_stream(client, "orders", "copy")
        assert [message.offset for message in client.messages("copy")] == list(range(1, 9))


@needs_time
def test_a_copy_that_is_killed_leaves_deletion_suspended_for_the_next_run(tmp_path: Path) -> None:
    day_ms = 86_400_000
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:

        def state() -> tuple[object, ...]:
            config = client.stream("copy").config
            return config.max_age_ms, config.max_messages, config.compact, config.suspend_deletion

        def publish() -> None:
            client.append("orders", [{"subject": "orders.eu", "value": "1", "key": "k"}])

        def killed_copy() -> None:
            found = subprocess.run([sys.executable, "-c", _KILLED_COPY, broker.client_address], check=False)
            assert found.returncode == 9

        client.create_stream("orders", "orders.>", max_messages=10**6)
        publish()
        killed_copy()  # the run that creates it
        assert state() == (None, 10**6, False, "copying")
        ops.copy_stream(client, "orders", "copy")
        assert state() == (None, 10**6, False, UNSET)
        client.alter_stream("copy", max_age_ms=day_ms, max_messages=None, compact=True)
        publish()
        assert ops.copy_stream(client, "orders", "copy").rows == 1
        assert state() == (day_ms, None, True, UNSET)
        publish()
        killed_copy()
        assert state() == (day_ms, None, True, "copying")
        client.alter_stream("copy", compact=False, max_messages=10**5)
        assert ops.copy_stream(client, "orders", "copy").rows == 1
        assert state() == (day_ms, 10**5, False, UNSET)
        ops.copy_stream(client, "orders", "copy", ops.CopyOptions(like="orders"))
        assert state() == (None, 10**6, False, UNSET)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[penstock.Client]:
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        yield client


def _append(client: penstock.Client, count: int) -> None:
    client.append("orders", [{"subject": "orders.eu", "value": "1", "key": "k"}] * count)


def _offsets(client: penstock.Client) -> list[int]:
    return [message.offset for message in client.messages("copy")]


def _during_copy(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have the next copy call `act` once, before it puts rows."""
    before, calls = copying._Job.copy, [act]

    def copy(*args: Any) -> int:
        while calls:
            calls.pop()()
        return before(*args)

    monkeypatch.setattr(copying._Job, "copy", copy)


@needs_time
def test_what_a_user_alters_during_a_copy_stays(client: penstock.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_stream("orders", "orders.>")
    _append(client, 10)
    ops.copy_stream(client, "orders", "copy")
    client.alter_stream("copy", max_messages=30, max_bytes=1 << 30, compact=True)

    def alter() -> None:
        config = client.stream("copy").config
        assert (config.max_messages, config.compact, config.suspend_deletion) == (30, True, "copying")
        client.alter_stream("copy", max_messages=1000, compact=False)

    _append(client, 50)
    with monkeypatch.context() as patch:
        _during_copy(patch, alter)
        ops.copy_stream(client, "orders", "copy")
    config = client.stream("copy").config
    assert (config.max_messages, config.max_bytes, config.compact) == (1000, 1 << 30, False)
    assert (config.suspend_deletion, len(_offsets(client))) == (UNSET, 60)

    def replace() -> None:
        client.delete_stream("copy")
        client.create_stream("copy", "copy.>", suspend_deletion="copying")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        _during_copy(patch, replace)
        with pytest.raises(KeyboardInterrupt):
            ops.copy_stream(client, "orders", "copy")
    assert client.stream("copy").config.suspend_deletion == "copying"  # it is another stream


@needs_time
@pytest.mark.parametrize("is_before", [True, False])
def test_what_a_user_has_suspended_stays_suspended(
    client: penstock.Client, monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    client.create_stream("orders", "orders.>", max_messages=5)
    _append(client, 5)
    ops.copy_stream(client, "orders", "copy")

    def suspend() -> None:
        client.alter_stream("copy", suspend_deletion="yes")

    _append(client, 3)
    if is_before:
        suspend()
    else:
        _during_copy(monkeypatch, suspend)
    ops.copy_stream(client, "orders", "copy")
    assert client.stream("copy").config.suspend_deletion == "yes"
    assert _offsets(client) == list(range(8))


@needs_time
def test_a_copy_keeps_what_a_user_keeps_in_its_source_and_says_so(client: penstock.Client) -> None:
    client.create_stream("orders", "orders.>", max_messages=5)
    _append(client, 5)
    client.create_stream("plain", "plain", max_messages=3)
    client.alter_stream("orders", suspend_deletion="yes")
    _append(client, 3)
    for name, options in (("copy", None), ("liked", ops.CopyOptions(like="plain"))):
        ops.copy_stream(client, "orders", name, options, progress=(heard := Heard()))
        assert heard.notes == [
            f"note: deletion stays suspended in stream {name}, as it is in orders: "
            f"`penstock stream alter {name} --suspend-deletion no` resumes it"
        ]
        assert client.stream(name).config.suspend_deletion == "yes"
        assert [message.offset for message in client.messages(name)] == list(range(8))
    client.alter_stream("orders", suspend_deletion="no")
    # That of `--like` is no config of the copied rows.
    ops.copy_stream(client, "orders", "open", ops.CopyOptions(like="liked"), progress=(heard := Heard()))
    assert (client.stream("open").config.suspend_deletion, heard.notes) == (UNSET, [])


@needs_time
@pytest.mark.parametrize("step", ["copying", "no"])
def test_what_a_user_suspends_at_the_same_moment_stays_suspended(
    client: penstock.Client, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Also between the copy's last look at the config and its own change."""
    call, todo = Link.call, [step]

    async def raced(link: Link, request: Any, *args: Any, **options: Any) -> Any:
        if isinstance(request, AlterStreamRequest) and todo == [request.changes.get("suspend_deletion")]:
            todo.clear()
            yes = AlterStreamRequest(name=request.name, changes={"suspend_deletion": "yes"})
            await call(link, yes, AlterStreamResponse, timeout_s=10.0)
        return await call(link, request, *args, **options)

    client.create_stream("orders", "orders.>", max_messages=5)
    _append(client, 5)
    ops.copy_stream(client, "orders", "copy")
    _append(client, 3)
    monkeypatch.setattr(Link, "call", raced)
    ops.copy_stream(client, "orders", "copy")
    assert (todo, client.stream("copy").config.suspend_deletion) == ([], "yes")
    assert _offsets(client) == list(range(8))


@needs_time
@pytest.mark.parametrize("is_new", [True, False])
def test_deletion_is_suspended_until_all_is_copied_wherever_a_run_ends(client: penstock.Client, is_new: bool) -> None:
    if is_new:
        client.create_stream("orders", "orders.*", partitions=2, partition_by="token:2")
    else:
        client.create_stream("orders", "orders.*")
    client.create_stream("limits", "limits", max_messages=3)
    client.append("orders", [{"subject": f"orders.{n}", "value": "1"} for n in range(40)])
    client.truncate_stream("orders", 2, partition=0)
    ends = [part.committed_end for part in client.stream("orders").partitions]

    def run() -> None:
        ops.copy_stream(client, "orders", "copy", ops.CopyOptions(like="limits", resume=True))

    def prepare() -> None:
        with suppress(penstock.StreamNotFound):
            client.delete_stream("copy")
        if not is_new:
            ops.copy_stream(client, "orders", "copy", ops.CopyOptions(end=20))

    ended_at = []
    prepare()
    for where in each_end(run):
        ended_at.append(where)
        with suppress(penstock.StreamNotFound):
            info = client.stream("copy")
            is_complete = [part.committed_end for part in info.partitions] == ends
            is_before = not is_new and len(ended_at) == 1
            assert is_complete or is_before or info.config.suspend_deletion == "copying", where
            assert is_complete or info.intake == "paused", where
            if info.intake == "paused":
                run()
            info = client.stream("copy")
            assert [part.committed_end for part in info.partitions] == ends, where
            assert (info.config.is_deletion_suspended, info.intake) == (False, "open"), where
        prepare()
    assert ended_at[-1] == "after SetIntakeRequest"
    assert {"before AppendAtRequest", "after AlterStreamRequest"} < set(ended_at)


@needs_time
def test_a_copy_into_one_under_way_says_that(client: penstock.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    client.create_stream("orders", "orders.>", max_messages=100)
    _append(client, 10)
    _during_copy(monkeypatch, lambda: ops.copy_stream(client, "orders", "copy", progress=heard))
    with pytest.raises(penstock.RemoteError, match="nothing was stored"):
        ops.copy_stream(client, "orders", "copy")
    assert [note for note in heard.notes if "or another one is under way: this one resumes deletion" in note]
    assert client.stream("copy").config.max_messages == 100
    assert _offsets(client) == list(range(10))


@needs_time
def test_deletion_that_stays_suspended_is_said(client: penstock.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    advice = "run that again, or `penstock stream alter copy --suspend-deletion no`"

    def interrupted() -> None:
        raise KeyboardInterrupt

    def refused(*_: object, **__: object) -> None:
        raise penstock.TimedOut("no metadata leader")

    client.create_stream("orders", "orders.>", max_messages=5)
    _append(client, 3)
    with monkeypatch.context() as patch:
        _during_copy(patch, interrupted)
        with pytest.raises(KeyboardInterrupt):
            ops.copy_stream(client, "orders", "copy", progress=(heard := Heard()))
    assert heard.notes[-1].endswith(advice)
    client.delete_stream("copy")
    with monkeypatch.context() as patch:  # when the copy was just created
        patch.setattr(copying._Job, "span", lambda *_: interrupted())
        with pytest.raises(KeyboardInterrupt):
            ops.copy_stream(client, "orders", "copy", progress=(heard := Heard()))
    assert len(heard.notes) == 1
    assert heard.notes[-1].endswith(advice)
    with monkeypatch.context() as patch:
        patch.setattr("penstock.client.bulk.placing.alter_copied", refused)
        with pytest.raises(penstock.TimedOut):
            ops.copy_stream(client, "orders", "copy", progress=(heard := Heard()))
    assert heard.notes[-1].endswith(advice)
    ops.copy_stream(client, "orders", "copy", progress=(heard := Heard()))
    assert (client.stream("copy").config.max_messages, client.stream("copy").config.suspend_deletion) == (5, UNSET)


@needs_time
def test_rows_deleted_before_they_were_copied_are_said(client: penstock.Client) -> None:
    client.create_stream("orders", "orders.>")
    _append(client, 5)
    ops.copy_stream(client, "orders", "copy", progress=(heard := Heard()))
    assert heard.notes == []
    _append(client, 5)
    client.truncate_stream("orders", 10)
    gone = "were deleted in orders before they were copied"
    ops.copy_stream(client, "orders", "copy", progress=heard)
    assert heard.notes == [f"note: partition 0 of stream copy: offsets 5 to 9 {gone}"]
    assert _offsets(client) == list(range(5))  # it keeps what it has
    _append(client, 1)
    ops.copy_stream(client, "orders", "copy", progress=heard)
    assert _offsets(client) == [0, 1, 2, 3, 4, 10]


@pytest.mark.parametrize(("start", "is_interrupted"), [(5, True), (10, True), (10, False)])
@needs_time
def test_a_copy_begins_and_ends_with_its_source(
    client: penstock.Client, monkeypatch: pytest.MonkeyPatch, start: int, is_interrupted: bool
) -> None:
    """Also after a run that ended before the copy was cut."""

    async def interrupted(*_: object) -> None:
        raise OperationalError("the program ends here")

    client.create_stream("orders", "orders.>")
    _append(client, 10)
    client.truncate_stream("orders", start)
    if is_interrupted:
        with monkeypatch.context() as patch:
            patch.setattr("penstock.client.bulk.placing._Placing.give_up_before", interrupted)
            with pytest.raises(OperationalError, match="ends here"):
                ops.copy_stream(client, "orders", "copy")
    ops.copy_stream(client, "orders", "copy")
    assert _offsets(client) == list(range(start, 10))
    part = client.stream("copy").partitions[0]
    assert (part.log_start, part.committed_end) == (start, 10)
    client.truncate_stream("copy", 10)
    _append(client, 2)
    client.truncate_stream("orders", 12)
    ops.copy_stream(client, "orders", "copy")  # its log is empty, and had later times
    part = client.stream("copy").partitions[0]
    assert (part.log_start, part.committed_end) == (12, 12)


def _row_at(offset: int, timestamp_us: int) -> pa.RecordBatch:
    columns = {"offset": offset, "timestamp": timestamp_us, "subject": "orders.x", "key": None, "value": b""}
    values = {**columns, "headers": None}
    return pa.RecordBatch.from_arrays(
        [pa.array([values[field.name]], field.type) for field in arrow_schema()], schema=arrow_schema()
    )


@needs_time
def test_a_placeholder_without_its_header_is_cut_too(client: penstock.Client) -> None:
    """That of a version before 0.3, which was killed."""
    client.create_stream("orders", "orders.>")
    _append(client, 5)
    client.truncate_stream("orders", 5)
    Placer(client, create_paused(client, StreamConfig(name="copy", subject="orders.>"))).put(_row_at(4, 0), 5)
    _append(client, 1)
    ops.copy_stream(client, "orders", "copy")
    assert _offsets(client) == [5]


@needs_time
def test_a_log_whose_last_row_was_in_the_future_begins_anywhere(client: penstock.Client) -> None:
    placer = Placer(client, create_paused(client, StreamConfig(name="copy", subject="orders.>")))
    now_us = client.status().now_us
    assert now_us is not None
    placer.put(_row_at(0, now_us + 3_600_000_000), 1, may_be_ahead=True)
    placer.give_up_before(1)
    placer.begin_at(10)
    assert (placer.start, placer.end) == (10, 10)
