"""`penstock.spark.audit`: what passed, what is missing, and whether an archive is equal to the log."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.base.errors import ConfigError
from penstock.lake.reading.positions import Key
from penstock.spark import Audit, archive, audit
from tests.broker_process import BrokerProcess, eventually
from tests.extent import needs_time
from tests.integration.test_compaction import CONFIG, KEYS, ROUNDS, Reader, append_rounds
from tests.spark.reading.test_read import fetched_bytes

Audits = Callable[..., Audit]
ROWS = 1_000


@pytest.fixture
def audits(spark: SparkSession, broker: BrokerProcess) -> Audits:
    def run(stream: str = "", **options: Any) -> Audit:
        return audit(stream, spark=spark, servers=broker.client_address, range_rows=100, **options)

    return run


@pytest.fixture(scope="module")
def archived(spark: SparkSession, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a stream `audited` of two partitions; both are there for all tests of this module."""
    folder = tmp_path_factory.mktemp("lake")
    with penstock.connect(broker.client_address) as client:
        client.create_stream("audited", "audited.in", partitions=2)
        for partition in range(2):
            data = [{"key": b"k%d" % (number % 3), "value": b"v%d" % number} for number in range(ROWS)]
            client.append("audited", data, partition=partition)
    archive("audited", folder, spark=spark, servers=broker.client_address)
    return folder


def rewritten(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """The only file of an archive, after a change."""
    (file,) = folder.glob("date=*/topic=*/*.parquet")
    table = change(pq.ParquetFile(file).read())
    pq.write_table(table, file)


@pytest.fixture
def copied(archived: Path, tmp_path: Path) -> Path:
    shutil.copytree(archived, tmp_path / "lake")
    return tmp_path / "lake"


def is_row(partition: int, offset: int) -> Any:
    return (pc.field("partition") == partition) & (pc.field("offset") == offset)


@needs_time
def test_it_tells_what_passed_and_that_an_archive_is_equal(archived: Path, audits: Audits) -> None:
    found = audits("audited", by="key", against=archived)
    assert found.messages == 2 * ROWS
    assert [(one.name, one.messages) for one in found.groups] == [
        (b"k0", 668),
        (b"k1", 666),
        (b"k2", 666),
    ]
    assert sum(one.bytes for one in found.groups) == 2 * sum(len(b"v%d" % number) for number in range(ROWS))
    assert found.gaps == found.repeated == found.differences == ()
    assert found.is_equal
    assert found.is_good
    assert len(found.sums) == 20
    assert len({one.checksum for one in found.sums}) == 20
    none = audits("audited", end="2000-01-01T00:00:00Z")
    assert (none.messages, none.groups, none.is_equal) == (0, (), None)
    assert sorted(str(one.name) for one in audits("audited").groups) == ["audited.in", "audited.in.1"]


@needs_time
def test_the_log_is_read_once(
    spark: SparkSession, broker: BrokerProcess, client: penstock.Client, tmp_path: Path
) -> None:
    """Also with holes, message ids that come again, and an archive that ends before the log does, and differs."""
    client.create_stream("heavy", "heavy", partitions=2)
    ids = [f"Nats-Msg-Id: {number % 400}" for number in range(500)]
    rows = {"value": [b"x" * 2_000] * 500, "headers": [f"NATS/1.0\r\n{one}\r\n\r\n".encode() for one in ids]}
    for partition in range(2):
        client.append("heavy", pa.table(rows), partition=partition)
    archive("heavy", tmp_path, spark=spark, servers=broker.client_address)
    rewritten(tmp_path, lambda table: table.filter(~is_row(1, 333)))
    client.append("heavy", pa.table(rows))

    def fetched(run: Callable[[], Any]) -> tuple[Any, int]:
        before = fetched_bytes(broker)
        return run(), fetched_bytes(broker) - before

    _, whole = fetched(lambda: sum(len(message.value or b"") for message in client.messages("heavy")))
    assert whole > 1_000_000
    options = {"spark": spark, "servers": broker.client_address, "range_rows": 100}
    for against in (None, tmp_path):
        found, size = fetched(partial(audit, "heavy", against=against, **options))
        assert found.messages == 1_500
        assert len(found.repeated) == 20
        assert [one[1:6] for one in found.differences] == ([(1, 300, 400, 1, 0)] if against else [])
        assert size < 1.2 * whole


@needs_time
@pytest.mark.parametrize("what", ["missing", "changed", "twice", "swapped"])
def test_it_finds_a_row_that_is_not_as_in_the_log(copied: Path, audits: Audits, what: str) -> None:
    def change(table: pa.Table) -> pa.Table:
        if what == "missing":
            return table.filter(~is_row(1, 555))
        row = table.filter(is_row(1, 555))
        if what == "twice":
            return pa.concat_tables([table, row])
        values = table["value"].to_pylist()
        at = table.select(["partition", "offset"]).to_pylist().index({"partition": 1, "offset": 555})
        if what == "changed":
            values[at] = None  # a tombstone
        else:
            values[at], values[at + 1] = values[at + 1], values[at]
        return table.set_column(table.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))

    rewritten(copied, change)
    found = audits("audited", against=copied)
    assert found.is_equal is False
    assert not found.is_good
    (one,) = found.differences
    assert one[:4] == ("audited", 1, 500, 600)
    counts = {"missing": (1, 0, 0, 0), "changed": (0, 1, 0, 0), "twice": (0, 0, 1, 0), "swapped": (0, 2, 0, 0)}
    assert one[4:8] == counts[what]


@needs_time
def test_what_the_log_has_given_up_is_no_difference(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, audits: Audits, tmp_path: Path
) -> None:
    client.create_stream("given", "given", allow_rollup=True)
    client.append("given", [{"value": b"v%d" % number} for number in range(300)])
    archive("given", tmp_path, spark=spark, servers=broker.client_address)
    client.append("given", [{"value": b"later"}])
    client.truncate_stream("given", 150)
    found = audits("given", against=tmp_path)
    (span,) = found.spans
    assert (span.key, span.start, span.end) == (Key("given", 0), 150, 301)
    assert (span.compared_start, span.compared_end) == (150, 300)
    assert found.is_equal


@needs_time
def test_a_deleted_message_is_not_lost(
    client: penstock.Client, audits: Audits, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    client.create_stream("erasing", "erasing.in")
    client.append("erasing", [{"value": b"v%d" % number} for number in range(250)])
    archive("erasing", tmp_path, spark=spark, servers=broker.client_address)
    client.delete("erasing", [3, *range(90, 130), 200, 202])
    found = audits("erasing", against=tmp_path)
    assert found.messages == 250 - 43
    assert found.gaps == ()
    assert sum(one.only_archived for one in found.differences) == 43
    assert found.is_good


@needs_time
def test_a_message_id_that_is_there_twice_is_told(client: penstock.Client, audits: Audits) -> None:
    client.create_stream("ids", "ids", dedup_window_ms=None)
    for one in ("a", "b", "a"):
        client.publish("ids", b"v", headers={"Nats-Msg-Id": one})
    client.publish("ids", b"v", headers={"Other": "a"})
    (found,) = audits("ids").repeated
    assert found == ("ids", "a", 2, ((0, 0), (0, 2)))
    assert audits(subject="ids").messages == 4


@needs_time
async def test_what_compaction_took_is_told_and_is_no_difference(
    spark: SparkSession, broker: BrokerProcess, audits: Audits, tmp_path: Path
) -> None:
    async with await broker.client() as client:
        await client.create_stream("prices", "prices", **(CONFIG | {"compact": False}))
        await append_rounds(client)
        archive("prices", tmp_path, spark=spark, servers=broker.client_address)
        await client.alter_stream("prices", compact=True)
        await eventually(Reader(client).is_compacted, "most of what was overwritten is gone")
        await client.alter_stream("prices", compact=False)
        was_compacted = await asyncio.to_thread(audits, "prices", against=tmp_path)
        await client.alter_stream("prices", compact=True)
    expected = await asyncio.to_thread(audits, "prices", against=tmp_path)
    assert expected.gaps
    assert all(one.is_expected for one in expected.gaps)
    gone = sum(one.end - one.start for one in expected.gaps)
    assert gone == ROUNDS * (KEYS + 1) - expected.messages
    assert sum(one.only_archived for one in expected.differences) == gone
    assert expected.is_equal
    assert expected.is_good
    assert not was_compacted.is_good  # a stream that takes nothing from its middle has no gaps
    assert was_compacted.is_equal is False


@needs_time
def test_what_was_not_compared_is_not_equal(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, audits: Audits, tmp_path: Path
) -> None:
    for name in ("one-there", "one-away"):
        client.create_stream(name, name, partitions=2)
    client.append("one-there", [{"value": b"x"}] * 10, partition=0)
    archive("one-there", tmp_path, spark=spark, servers=broker.client_address)
    assert audits("one-there", against=tmp_path).is_equal  # of its other partition there is nothing to compare
    client.append("one-there", [{"value": b"x"}] * 5, partition=1)
    found = audits("one-there", against=tmp_path)
    assert [one.lacking for one in found.spans] == [(), ((0, 5),)]
    assert (found.is_equal, found.is_good) == (False, False)
    assert audits("one-away", against=tmp_path).is_equal is False  # nothing at all was compared
    client.append("one-away", [{"value": b"x"}], partition=0)
    assert audits("one-away", against=tmp_path).is_equal is False


@needs_time
def test_mistakes_are_told(audits: Audits, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are subject and key"):
        audits("audited", by="value")
    with pytest.raises(ConfigError, match="a comparison with an archive is of whole streams"):
        audits(subject="a", against=tmp_path)
    with pytest.raises(ConfigError, match="archive: not found in"):
        audits("audited", against=tmp_path)
