"""The demo's lake: Spark archives the flights, and the same query runs in Spark SQL and in Arrow.

Rules: the two share only the log. Spark reads the Parquet files, whose values its own JSON reader has decoded; Arrow
reads the batches that the client got from the broker. Counts and means must be equal to the last bit: delays are whole
minutes, so that the order of additions does not matter. Spark leaves no files except the lake.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base.errors import OperationalError
from penstock.base.units import format_bytes
from penstock.cli.demo import flights
from penstock.cli.demo import run as demo_run
from penstock.cli.demo.check import (
    Disagreement,
    FlightRoute,
    FlightRoutes,
    busiest_of,
    check_equal,
    most_delayed_of,
    routes_of,
)
from penstock.cli.demo.next_steps import LATEST
from penstock.cli.demo.run import ROUTES_SHOWN, say, shown_delay, timed
from penstock.cli.pipeline.spark_session import spark_session
from penstock.cli.terminal import output
from penstock.lake.tables.manifest import about_file
from penstock.spark.runtime import java
from penstock.spark.runtime.sessions import LOCAL
from penstock.spark.runtime.versions import check_versions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from rich.console import Console
    from rich.table import Table

    from penstock.broker.supervision.child import ReadyLine
    from penstock.lake.progress import BatchDone

LAKE = "lake"
_BATCH_ROWS = 50_000  # small, so that the progress bar moves; each batch makes a file
_ROUTE_SHARE = 500  # see `flights_min`
_ROUTE_FLIGHTS_MAX = 100

_ROUTES = """
    SELECT data.origin AS origin, data.dest AS dest, count(*) AS flights, avg(data.arr_delay) AS delay,
        count(data.arr_delay) AS delays
    FROM {lake} GROUP BY data.origin, data.dest
"""
_BUSIEST = """
    SELECT origin, dest, flights, delay FROM {routes} ORDER BY flights DESC, origin, dest LIMIT {count}
"""
_MOST_DELAYED = """
    SELECT origin, dest, flights, delay FROM {routes} WHERE delays >= {flights_min}
    ORDER BY delay DESC, origin, dest LIMIT {count}
"""


def run(data_dir: Path, rows: int | None) -> None:
    """Run the plain demo, then the lake. Raise Disagreement if the results of Spark and Arrow differ."""
    check_versions()
    used = java.use()  # fails before anything is published
    demo_run.run(data_dir, rows, SparkDemo(data_dir, used))


class SparkDemo:
    """The demo's steps after the flights are in the log; implements `demo_run.Further`."""

    def __init__(self, data_dir: Path, used: java.Java) -> None:
        self._lake = data_dir / LAKE
        self._java = used

    def lake(self) -> Path:
        return self._lake

    def show(self, console: Console, ready: ReadyLine, batches: list[pa.RecordBatch]) -> None:
        count = sum(batch.num_rows for batch in batches)
        remove_earlier(self._lake)
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
            with _started(console, Path(folder), self._java) as spark:
                self._archive(console, spark, ready, count)
                spark_s, theirs = timed(lambda: of_spark(spark, self._lake, count))
            arrow_s, ours = timed(lambda: of_arrow(batches, count))
        say(console, "Spark SQL", f"asked the files twice in {spark_s:.2f} s: {2 * count / spark_s:,.0f} rows/s")
        say(console, "Arrow", f"asked the log's batches once in {arrow_s:.2f} s: {count / arrow_s:,.0f} rows/s")
        _show(console, theirs, ours, count)

    def _archive(self, console: Console, spark: SparkSession, ready: ReadyLine, count: int) -> None:
        from penstock.spark import archive

        say(console, "Archiving", f"{count:,} messages as Parquet, in batches of {_BATCH_ROWS:,}")
        rows = size = 0
        with output.progress("Archiving", count) as advance:

            def report(done: BatchDone) -> None:
                nonlocal rows, size
                rows, size = rows + done.rows, size + done.size_bytes
                advance(rows)

            seconds, done = timed(
                lambda: archive(
                    flights.STREAM, self._lake, spark=spark, servers=ready.client, max_batch=_BATCH_ROWS, decode="json",
                    schema=flights.SCHEMA, report=report,
                )
            )  # fmt: skip
        if done.rows != count:
            raise Disagreement(f"{count:,} messages are in the log, but {done.rows:,} were archived")
        files = f"{output.counted(done.files, 'Parquet file')} of {format_bytes(size)}"
        say(console, "Archived", f"{count:,} messages in {seconds:.1f} s: {count / seconds:,.0f} messages/s")
        say(console, "", f"each once, with its JSON as typed columns: {files} in {self._lake}")


@contextmanager
def _started(console: Console, folder: Path, used: java.Java) -> Iterator[SparkSession]:
    """Start Spark on all cores of this machine, with its work files in `folder`."""
    say(console, "Spark", f"starting PySpark {version('pyspark')} on Java {used.version}, {used.origin}")
    config = {
        "spark.sql.warehouse.dir": f"{folder}/warehouse",  # the default is the current directory
        "spark.local.dir": str(folder),
    }
    started_s = time.perf_counter()
    with spark_session("demo", LOCAL, config) as start:
        spark = start()
        say(console, "", f"on all cores of this machine, {time.perf_counter() - started_s:.1f} s later")
        yield spark


def of_spark(spark: SparkSession, lake: Path, count: int) -> FlightRoutes:
    """Compute the routes with Spark SQL from the files of a lake of `count` flights."""
    routes = spark.sql(_ROUTES, lake=spark.read.parquet(str(lake)))
    busiest = spark.sql(_BUSIEST, routes=routes, count=ROUTES_SHOWN)
    most_delayed = spark.sql(_MOST_DELAYED, routes=routes, count=ROUTES_SHOWN, flights_min=flights_min(count))
    return FlightRoutes(*([FlightRoute(*row) for row in found.collect()] for found in (busiest, most_delayed)))


def of_arrow(batches: list[pa.RecordBatch], count: int) -> FlightRoutes:
    """Compute the routes with Arrow from the messages that were read from the log."""
    routes = routes_of(batches)
    return FlightRoutes(busiest_of(routes, ROUTES_SHOWN), most_delayed_of(routes, ROUTES_SHOWN, flights_min(count)))


def flights_min(count: int) -> int:
    """Return how many flights a route needs to rank as delayed: 1 in 500 of `count`, at most 100."""
    return max(1, min(_ROUTE_FLIGHTS_MAX, count // _ROUTE_SHARE))


def _show(console: Console, theirs: FlightRoutes, ours: FlightRoutes, count: int) -> None:
    """Print both tables. Raise Disagreement before a table whose columns differ."""
    spark, arrow = "Spark SQL", "Arrow"
    console.print()
    say(console, "Busiest", "routes, by flights: as Spark and as Arrow have counted them")
    check_equal("busiest routes", (spark, theirs.busiest), (arrow, ours.busiest))
    console.print(_table("flights", theirs.busiest, ours.busiest, lambda route: f"{route.flights:,}"))
    console.print()
    least = output.counted(flights_min(count), "flight")
    say(console, "Delayed", f"most: routes of {least} or more, by mean delay on arrival")
    check_equal("most delayed routes", (spark, theirs.most_delayed), (arrow, ours.most_delayed))
    console.print(_table("delay", theirs.most_delayed, ours.most_delayed, shown_delay))
    console.print()
    say(console, "Equal", "Spark and Arrow have the same routes, flights and delays, to the last bit")


def _table(what: str, theirs: list[FlightRoute], ours: list[FlightRoute], shown: Callable[[FlightRoute], str]) -> Table:
    names = (f"{what}: Spark SQL", f"{what}: Arrow")
    table = output.table("from", "to", *names, right=names)
    for one, other in zip(theirs, ours, strict=True):
        values = (one.origin, one.destination, shown(one), shown(other))
        table.add_row(*(output.cell(value) for value in values))
    return table


def remove_earlier(lake: Path) -> None:
    """Delete an earlier demo's lake, whose stream was deleted, and the table that the demo suggests to create.

    Raise OperationalError if the folder is not an archive.
    """
    latest = lake.with_name(f"{lake.name}{LATEST}")
    if (latest / "_delta_log").is_dir():
        shutil.rmtree(latest)
    if about_file(lake).is_file():
        shutil.rmtree(lake)
    elif lake.exists():
        raise OperationalError(f"{lake} exists, and is not an archive of Penstock's: move it away")
