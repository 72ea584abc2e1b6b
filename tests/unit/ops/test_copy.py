"""A copy of a stream, made as a program would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import penstock
from penstock import ops
from penstock.base.config import StreamConfig, stream_config_mistakes
from penstock.base.errors import OperationalError
from penstock.batch.schema import arrow_schema
from penstock.client.bulk.placing import Placer, create_paused
from penstock.ops import copy as copying
from penstock.ops import placed_rows
from tests.broker_process import running_broker
from tests.extent import needs_time
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


def test_suspended_limits_are_found_again() -> None:
    limited = StreamConfig(name="a", subject="a", max_age_ms=1, max_messages=2, max_bytes=3, compact=True)
    huge = StreamConfig(name="a", subject="a", max_age_ms=2**52 + 3, max_messages=2**53, compaction_lag_ms=2**52)
    assert placed_rows.suspended(huge) == placed_rows.resumed(huge) == huge  # they delete nothing
    lagging = StreamConfig(name="a", subject="a", max_messages=5, compaction_lag_ms=2**53)
    assert placed_rows.resumed(placed_rows.suspended(lagging), lagging) == lagging
    altered = msgspec.structs.replace(placed_rows.suspended(limited), max_messages=7, max_bytes=None)
    assert placed_rows.resumed(altered) == msgspec.structs.replace(limited, max_messages=7, max_bytes=None)
    mixed = StreamConfig(name="a", subject="a", max_age_ms=5, max_messages=2**52 + 1, compaction_lag_ms=8)
    for config in (limited, mixed, StreamConfig(name="a", subject="a", compaction_lag_ms=7)):
        suspended = placed_rows.suspended(config)
        assert stream_config_mistakes(suspended) == []
        assert placed_rows.suspended(suspended) == suspended
        assert placed_rows.resumed(suspended) == config
        assert placed_rows.resumed(config) == config
    suspended = placed_rows.suspended(limited)
    assert not suspended.compact
    assert min(suspended.max_age_ms or 0, suspended.max_messages or 0, suspended.max_bytes or 0) > 2**51
    note = placed_rows.suspended_note(suspended) or ""
    flags = "--max-age 1ms --max-messages 2 --max-bytes 3 --compact yes --compaction-lag 0s`"
    assert note.endswith(f"`penstock stream alter a {flags}")
    odd = placed_rows.suspended(StreamConfig(name="a", subject="a", max_age_ms=86_400_001, compaction_lag_ms=5_400_000))
    assert "--max-age 86400001ms --compaction-lag 5400000ms`" in (placed_rows.suspended_note(odd) or "")
    assert placed_rows.suspended_note(limited) is None


@needs_time
def test_a_copy_keeps_its_own_limits_also_if_a_run_is_killed(tmp_path: Path) -> None:
    day_ms = 86_400_000
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:

        def limits() -> tuple[object, ...]:
            config = client.stream("copy").config
            return config.max_age_ms, config.max_messages, config.max_bytes, config.compact, config.compaction_lag_ms

        def publish() -> None:
            client.append("orders", [{"subject": "orders.eu", "value": "1", "key": "k"}])

        def killed_copy() -> None:
            found = subprocess.run([sys.executable, "-c", _KILLED_COPY, broker.client_address], check=False)
            assert found.returncode == 9

        client.create_stream("orders", "orders.>", max_messages=10**6)
        publish()
        killed_copy()  # the run that creates it
        assert limits() != (None, 10**6, None, False, 0)
        ops.copy_stream(client, "orders", "copy")
        assert limits() == (None, 10**6, None, False, 0)
        client.alter_stream("copy", max_age_ms=day_ms, max_messages=None, max_bytes=1 << 30, compact=True)
        own = (day_ms, None, 1 << 30, True, 0)
        publish()
        assert ops.copy_stream(client, "orders", "copy").rows == 1
        assert limits() == own
        publish()
        killed_copy()
        assert limits() != own
        assert ops.copy_stream(client, "orders", "copy").rows == 1
        assert limits() == own
        ops.copy_stream(client, "orders", "copy", ops.CopyOptions(like="orders"))
        assert limits() == (None, 10**6, None, False, 0)


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
def test_limits_from_2_52_on_and_a_long_lag_survive_a_copy(client: penstock.Client) -> None:
    huge = (1 << 52) + 3
    client.create_stream("orders", "orders.>", max_messages=huge, max_bytes=1 << 30, compaction_lag_ms=1 << 52)
    _append(client, 10)
    for more in range(2):
        _append(client, more)
        ops.copy_stream(client, "orders", "copy")
        config = client.stream("copy").config
        assert (config.max_messages, config.max_bytes) == (huge, 1 << 30)
        assert (config.compact, config.compaction_lag_ms) == (False, 1 << 52)


@needs_time
def test_what_a_user_alters_meanwhile_stays(client: penstock.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.create_stream("orders", "orders.>")
    _append(client, 10)
    ops.copy_stream(client, "orders", "copy")
    client.alter_stream("copy", max_messages=30, max_bytes=1 << 30)
    for error in (None, KeyboardInterrupt()):

        def alter(error: BaseException | None = error) -> None:
            config = client.stream("copy").config
            assert min(config.max_messages or 0, config.max_bytes or 0) > 1 << 52
            client.alter_stream("copy", max_messages=1000)
            if error is not None:
                raise error

        _append(client, 10)
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            _during_copy(patch, alter)
            ops.copy_stream(client, "orders", "copy")
        config = client.stream("copy").config
        assert (config.max_messages, config.max_bytes, config.compaction_lag_ms) == (1000, 1 << 30, 0)
        client.alter_stream("copy", max_messages=30)

    def replace() -> None:
        client.delete_stream("copy")
        client.create_stream("copy", "copy.>")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        _during_copy(patch, replace)
        with pytest.raises(KeyboardInterrupt):
            ops.copy_stream(client, "orders", "copy")
    assert client.stream("copy").config.max_messages is None


@needs_time
def test_a_copy_into_one_under_way_says_that(client: penstock.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    client.create_stream("orders", "orders.>", max_messages=100)
    _append(client, 10)
    _during_copy(monkeypatch, lambda: ops.copy_stream(client, "orders", "copy", progress=heard))
    with pytest.raises(penstock.RemoteError, match="nothing was stored"):
        ops.copy_stream(client, "orders", "copy")
    assert [note for note in heard.notes if "or another one is under way: this one turns its limits on" in note]
    assert client.stream("copy").config.max_messages == 100
    assert _offsets(client) == list(range(10))


@needs_time
def test_limits_that_stay_off_are_said(client: penstock.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    advice = "run that again, or `penstock stream alter copy --max-messages 5 --compaction-lag 0s`"

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
    with monkeypatch.context() as patch:
        patch.setattr(type(client), "alter_stream", refused)
        with pytest.raises(penstock.TimedOut):
            ops.copy_stream(client, "orders", "copy", progress=(heard := Heard()))
    assert heard.notes[-1].endswith(advice)
    ops.copy_stream(client, "orders", "copy", progress=(heard := Heard()))
    assert (client.stream("copy").config.max_messages, client.stream("copy").config.compaction_lag_ms) == (5, 0)


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
def test_limits_are_found_again_without_their_mark(client: penstock.Client) -> None:
    """A user has altered the field that has it, after a copy that was killed."""
    client.create_stream("orders", "orders.>", max_age_ms=86_400_000, max_messages=100)
    _append(client, 5)
    config = msgspec.structs.replace(client.stream("orders").config, name="copy")
    create_paused(client, placed_rows.suspended(config))
    client.alter_stream("copy", compaction_lag_ms=0)
    ops.copy_stream(client, "orders", "copy")
    config = client.stream("copy").config
    assert (config.max_age_ms, config.max_messages) == (86_400_000, 100)


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
