"""A stream as files and as tables of SQL, from a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock.broker.supervision.child import ReadyLine, serving
from penstock.ops.progress import Progress
from penstock.ops.reading.tailing import Tail, TailOptions
from tests.cli_app import app
from tests.extent import each_change

pytestmark = each_change

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadyLine]:
    with serving(tmp_path_factory.mktemp("data"), "--listen", "127.0.0.1:0", "--nats-port", "0") as ready:
        with penstock.connect(ready.client) as client:
            client.create_stream("orders", "orders.>")
            client.create_stream("web-orders", "web.>", partitions=2, partition_by="key")
            rows = [
                {"subject": f"orders.{one % 2}", "value": json.dumps({"n": one, "key": "x"})} for one in range(1000)
            ]
            client.append("orders", [*rows, {"subject": "orders.bad", "value": b"\xff"}])
            for one in range(10):
                client.publish("web.a", b"{}", key=f"key-{one}")
        yield ready


@pytest.fixture
def run(broker: ReadyLine) -> Run:
    def invoke(*args: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, args, env={"PENSTOCK_SERVER": broker.client})
        assert result.exit_code == code, (args, result.output, result.exception)
        return result

    return invoke


def test_a_file_of_a_stream(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "orders.parquet")
    assert run("read", "orders", "--output", path).stderr.startswith(f"{path}: 1,001 messages, ")
    assert pq.read_table(path).column_names == ["offset", "timestamp", "subject", "key", "value", "headers"]
    assert "--force replaces it" in run("read", "orders", "--output", path, code=1).stderr
    decoded = run("read", "orders", "--output", path, "--force", "--decode", "json").stderr
    assert decoded.startswith("1 of 1,001 values is not a JSON object (first: offset 1000)")
    table = pq.read_table(path)
    assert table.column_names[-2:] == ["n", "data_key"]
    assert table["n"].to_pylist() == [*range(1000), None]
    csv = run("read", "orders", "-o", "csv", "--from", "-1").stdout
    assert csv.splitlines()[1].endswith(',"orders.bad",,"base64:/w==",')
    for wrong in (
        ("--output", str(tmp_path / "orders.xyz")),
        ("--output", path, "--force", "--follow"),
        ("--output", path, "--force", "--group", "g"),
        ("--format", "raw", "--decode", "json"),
        ("--force",),
    ):
        run("read", "orders", *wrong, code=2)
    assert [one.name for one in tmp_path.iterdir()] == ["orders.parquet"]


def test_json_values_stay_json(run: Run) -> None:
    done = run("read", "orders", "--decode", "json", "--from", "998")
    assert [json.loads(line).get("value") for line in done.stdout.splitlines()] == [
        {"n": 998, "key": "x"},
        {"n": 999, "key": "x"},
        None,
    ]
    assert done.stderr == "1 value not JSON: left as text\n"


def test_tail(run: Run, broker: ReadyLine) -> None:
    def found(*arguments: str) -> list[dict]:
        return [json.loads(line) for line in run("tail", *arguments, "--no-follow").stdout.splitlines()]

    assert [row["offset"] for row in found("orders")] == [*range(991, 1001)]
    assert [row["offset"] for row in found("orders", "-n", "2", "--subject", "*.1")] == [997, 999]
    rows = found("web-orders", "-n", "4")
    assert [row["key"] for row in rows] == [f"key-{one}" for one in range(6, 10)], "of all partitions, by time"
    assert [row["key"] for row in found("web-orders", "-n", "100", "--key", "key-1")] == ["key-1"]
    assert found("web-orders", "-n", "0") == []
    with penstock.connect(broker.client) as client:
        client.create_stream("tailed", "tailed.>", partitions=2, partition_by="key")
        client.publish("tailed.a", b"0", key="first")
        tail = Tail(
            client,
            client.stream("tailed"),
            TailOptions(),
            for_ever=False,
            timeout_s=10,
            progress=Progress(),
        )
        values = (value for batch in tail.batches for value in batch.column("value").to_pylist())
        assert next(values) == b"0"
        for one in range(1, 5):
            client.publish("tailed.a", b"%d" % one, key=f"key-{one}")
            assert next(values) == b"%d" % one
        values.close()
        tail.batches.close()


def test_sql(run: Run, tmp_path: Path) -> None:
    def rows(query: str, *options: str) -> list[dict]:
        return [json.loads(line) for line in run("sql", query, "-o", "json", *options).stdout.splitlines()]

    assert rows("SELECT subject, count(*) c FROM orders GROUP BY 1 ORDER BY 2, 1") == [
        {"subject": "orders.bad", "c": 1},
        {"subject": "orders.0", "c": 500},
        {"subject": "orders.1", "c": 500},
    ]
    assert rows('SELECT sum(n) s, max("offset") m FROM orders WHERE "offset" < 10', "--decode", "json") == [
        {"s": 45, "m": 9}
    ]
    assert rows("SELECT n FROM orders", "--decode", "json", "--from", "3", "--to", "5", "--subject", "*.1") == [
        {"n": 3}
    ]
    found = rows('SELECT partition, count(*) c FROM "web-orders" WHERE partition < 2 GROUP BY 1 ORDER BY 1')
    assert sum(one["c"] for one in found) == 10
    assert rows("SELECT a.n FROM orders a JOIN orders b USING (n) WHERE b.n = 7", "--decode", "json") == [{"n": 7}]
    path = tmp_path / "result.csv"
    run("sql", "SELECT 1 AS a, 'x' AS b WHERE false", "--output", str(path))
    assert path.read_text() == '"a","b"\n'
    assert "did you mean orders" in run("sql", "SELECT * FROM orderz", code=1).stderr
    assert "syntax error" in run("sql", "SELECT FROM WHERE", code=2).stderr
    assert "nope" in run("sql", "SELECT nope FROM orders", code=2).stderr
    assert "the query is empty" in run("sql", "", code=2).stderr
    assert "each with offsets of its own" in run("sql", 'SELECT 1 FROM "web-orders"', "--to", "3", code=2).stderr
    assert "each with offsets of its own" in run("sql", 'SELECT 1 FROM "web-orders"', "--from", "-2", code=2).stderr
    outside = "SELECT * FROM read_text('/etc/hostname')"
    assert "disabled by configuration" in run("sql", outside, code=1).stderr
    assert "only read here" in run("sql", "COPY (SELECT 1) TO '/tmp/x.csv'", code=2).stderr


def test_sql_of_fields_with_any_name(run: Run, broker: ReadyLine) -> None:
    def rows(query: str, *options: str) -> list[dict]:
        return [json.loads(line) for line in run("sql", query, *options).stdout.splitlines()]

    forged = "a and offset >= 5 and b"
    with penstock.connect(broker.client) as client:
        client.create_stream("names", "names.>")
        for one in range(10):
            value = {"id": one, "ID": -one, forged: 3, 'a"b': one, "s": {forged: 3}, "t": 'é"q', "c0": "x", "a\0b": 1}
            headers = {"Colour": "red"} if one else None
            client.publish("names.a", json.dumps(value | {"a\0c": 2}).encode(), headers=headers)
    decoded = ("--decode", "json")
    for where in (
        f'"{forged}" = 3',
        f"""s['{forged}'] = 3""",
        """t in ('x")) and (offset >= 5) and (("y', 'é"q')""",
        """"a\N{SYMBOL FOR NULL}b" = 1 AND "a\N{SYMBOL FOR NULL}c" = 2""",
    ):
        assert rows(f"SELECT count(*) n FROM names WHERE {where}", *decoded) == [{"n": 10}], where
    assert rows('SELECT id, "ID_1", "a""b" FROM names WHERE id = 3', *decoded) == [{"id": 3, "ID_1": -3, 'a"b': 3}]
    assert "'ID' is ID_1" in run("sql", "SELECT id FROM names", *decoded).stderr
    columns = """a."offset", b."offset", '\\xff'::BLOB AS key"""
    query = f'SELECT {columns} FROM names a JOIN names b ON a."offset" = b."offset" + 1 LIMIT 1'
    assert set(rows(query)[0]) == {"offset", "offset_1", "key_base64"}
    assert rows("SELECT headers FROM names LIMIT 2") == [{"headers": None}, {"headers": {"Colour": ["red"]}}]
    assert rows("SELECT count(*) n FROM names WHERE headers['Colour'][1] = 'red'") == [{"n": 9}]
