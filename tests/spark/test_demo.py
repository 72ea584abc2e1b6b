"""`penstock demo --spark` as people run it, on a small stand-in for its data."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark.sql import SparkSession

import penstock
from penstock.base.errors import OperationalError
from penstock.cli.demo.spark import LAKE, flights_min, of_arrow, of_spark, remove_earlier
from tests.extent import needs_time
from tests.flights_package import flight, write_flights_package

TIMEOUT_S = 560.0
ROWS = 5_000
DESTINATIONS = ("LAX", "SFO", "ATL", "BOS", "ORD", "MIA", "MCO", "CLT", "DCA", "SEA", "PHX", "DEN")


@needs_time
def test_spark_and_arrow_agree_and_nothing_but_the_lake_is_left(tmp_path: Path) -> None:
    lines = [flight(row, hour=row % 18, dest=DESTINATIONS[row * row % 37 % 12]) for row in range(ROWS)]
    write_flights_package(tmp_path / "site", lines)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    path = os.pathsep.join((str(tmp_path / "site"), str(Path(penstock.__file__).parents[1])))
    finished = subprocess.run(
        [sys.executable, "-m", "penstock", "demo", "--spark", "--rows", str(ROWS)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "PWD": str(tmp_path), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    out = finished.stdout
    assert (finished.returncode, finished.stderr) == (0, ""), out + finished.stderr
    assert re.search(r"Archived +5,000 messages in ", out)
    assert "Equal       Spark and Arrow have the same routes" in out
    counted = re.findall(r"^JFK +([A-Z]{3}) +([\d,]+) +([\d,]+)$", out, flags=re.MULTILINE)
    delays = re.findall(r"^JFK +([A-Z]{3}) +(\+[\d.]+ min) +(\+[\d.]+ min)$", out, flags=re.MULTILINE)
    expected: dict[str, int] = {}
    for row in range(ROWS):
        name = DESTINATIONS[row * row % 37 % 12]
        expected[name] = expected.get(name, 0) + 1
    busiest = sorted(expected.items(), key=lambda one: (-one[1], one[0]))[:10]
    assert counted == [(name, f"{count:,}", f"{count:,}") for name, count in busiest]
    assert len(delays) == len(busiest)
    assert all(spark == arrow for _, spark, arrow in delays)
    assert " pipeline archive flights --to penstock-demo/lake" in out
    assert {one.name for one in tmp_path.iterdir()} == {"penstock-demo", "site", "tmp"}
    assert list(temporary.glob("penstock-demo-*")) == []


@needs_time
def test_both_answers_are_equal_where_delays_are_missing_and_routes_are_level(
    spark: SparkSession, tmp_path: Path
) -> None:
    routes = (("JFK", "LAX", 7), ("JFK", "LAX", None), ("EWR", "SFO", None), ("LGA", "ATL", -2), ("LGA", "ATL", 5))
    found = [{"origin": origin, "dest": dest, "arr_delay": delay} for origin, dest, delay in routes * 3]
    kind = pa.struct([("origin", pa.string()), ("dest", pa.string()), ("arr_delay", pa.int32())])
    pq.write_table(pa.table({"data": pa.array(found, kind)}), tmp_path / "flights.parquet")
    batch = pa.record_batch({"value": pa.array([json.dumps(one).encode() for one in found], pa.binary())})
    answers = of_spark(spark, tmp_path, len(found))
    assert answers == of_arrow([batch], len(found))
    assert answers.busiest == [("JFK", "LAX", 6, 7.0), ("LGA", "ATL", 6, 1.5), ("EWR", "SFO", 3, None)]
    assert answers.most_delayed == [("JFK", "LAX", 6, 7.0), ("LGA", "ATL", 6, 1.5)]


def test_what_is_no_lake_is_left_alone(tmp_path: Path) -> None:
    lake = tmp_path / LAKE
    remove_earlier(lake)
    (lake / "date=2026-01-01").mkdir(parents=True)
    with pytest.raises(OperationalError, match="not an archive of Penstock's"):
        remove_earlier(lake)
    (lake / "_penstock").mkdir()
    (lake / "_penstock" / "archive.json").touch()
    remove_earlier(lake)
    assert not lake.exists()


@pytest.mark.parametrize(("count", "least"), [(1, 1), (5_000, 10), (336_776, 100)])
def test_a_route_needs_some_flights(count: int, least: int) -> None:
    assert flights_min(count) == least
