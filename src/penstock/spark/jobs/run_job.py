"""The job `run`: a streaming query with a user's function from DataFrame to DataFrame.

Rules: Spark's checkpoint holds the query's position and the state of its windows. Results in a Delta table or a stream
are written exactly once. Results in plain Parquet are exactly once for readers that use Spark's own list of files.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from penstock.access import Operation
from penstock.base import limits
from penstock.base.errors import ConfigError, PenstockError
from penstock.base.subjects import stream_name_mistake
from penstock.lake.progress import Report, no_report
from penstock.lake.reading import permissions
from penstock.lake.reading.selection import choose
from penstock.spark import brokers
from penstock.spark.jobs.parameter_names import options_named
from penstock.spark.jobs.streaming_query import follow
from penstock.spark.options.options import source_options
from penstock.spark.runtime.sessions import is_connect, session_of
from penstock.spark.writing.delta_sink import DeltaSink
from penstock.spark.writing.rows import check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMATS = ("delta", "parquet")
OUTPUT_MODES = ("append", "complete")
INVALID_HEADERS = ("fail", "drop")
CHECKPOINT = "_penstock/checkpoint"
"""Default path of Spark's checkpoint in the written folder. Readers ignore names that begin with an underscore."""

Function = Callable[["DataFrame"], "DataFrame"]


class Ran(NamedTuple):
    """Result of a run of `run`: number of batches, and of messages read."""

    batches: int
    rows: int


def run(
    function: Function | str,
    stream: str,
    to: str | os.PathLike[str],
    *,
    format: str = "delta",  # noqa: A002 (Spark's word)
    servers: str = "",
    spark: SparkSession | Callable[[], SparkSession] | None = None,
    once: bool = False,
    trigger_s: float = 0.0,
    max_batch: int = limits.RUN_BATCH_ROWS_DEFAULT,
    checkpoint: str | None = None,
    output_mode: str = "append",
    options: Mapping[str, str] | None = None,
    invalid_headers: str = "fail",
    report: Report = no_report,
) -> Ran:
    """Apply `function` to a stream, and write the result to a folder or another stream.

    `function` takes a streaming DataFrame with the columns of `format("penstock")` and returns one; as text it is
    `FILE.py:NAME`. `to` is a stream's name, or a path (it has a `/`). A stream takes the column `value` and optionally
    `key`, `subject`, `headers`, `partition`. `format`: "delta" or "parquet", for a folder. `once`: end when the present
    messages are processed; else run until interrupted, with a batch every `trigger_s` seconds at most, each of
    `max_batch` messages at most. `checkpoint`: folder of Spark's checkpoint; default: inside the written folder; if
    `to` is a stream, it is required. With `output_mode` "complete" each batch replaces the Delta table by the whole
    result. `options`: of the source, which begins with the earliest message by default. `invalid_headers`, for results
    in a stream: "fail", or "drop" to leave out headers that NATS cannot carry, because of their name or because of line
    ends or zero bytes in their value; "drop" also resumes a query that failed at such a header.

    Raise ConfigError if an argument is invalid, the file or function does not exist, or the result cannot be written;
    JobError if the query fails; OperationalError if PySpark or Java is missing; StreamNotFound or NotAuthorized.
    """
    target = _Target.of(to, format, checkpoint, output_mode, invalid_headers)
    given = _source_options(options or {}, stream, servers, max_batch)
    has_own = "maxoffsetspertrigger" in {name.lower() for name in options or {}}
    with options_named({} if has_own else {"maxOffsetsPerTrigger": "max_batch"}):
        source = source_options(given)
    call = loaded(function) if isinstance(function, str) else function
    client = brokers.client(source.servers, source.timeout_s)
    choose(client, source.selection, source.timeout_s, may_lack=not source.fail_on_data_loss)
    if target.stream:
        permissions.there(client, Operation.APPEND, target.stream, source.timeout_s)
    session = session_of(spark, f"run {stream}")
    target.check_session(session)
    rows = session.readStream.format("penstock").options(**given).load()
    made = _called(call, rows)
    writer = target.writer(made, servers).outputMode(target.mode)
    batches, count = follow(writer, once=once, trigger_s=trigger_s, report=report)
    return Ran(batches, count)


def _source_options(options: Mapping[str, str], stream: str, servers: str, max_batch: int) -> dict[str, str]:
    """Return the source's options: the user's, in any case, and the job's defaults."""
    ours = {"stream": stream, "servers": servers}
    given = {name: value for name, value in options.items() if name.lower() not in ours}
    names = {name.lower() for name in given}
    if not names & {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}:
        given["startingOffsets"] = "earliest"
    if "maxoffsetspertrigger" not in names:
        given["maxOffsetsPerTrigger"] = str(max_batch)
    return given | ours


class _Target(NamedTuple):
    """The destination of results: a stream or a folder."""

    stream: str
    folder: Path | None
    format: str
    checkpoint: str
    mode: str
    invalid_headers: str

    @classmethod
    def of(
        cls, to: str | os.PathLike[str], format_: str, checkpoint: str | None, mode: str, invalid_headers: str
    ) -> _Target:
        text = os.fspath(to)
        mistakes = []
        if format_ not in FORMATS:
            mistakes.append(f"format: it is {format_!r}; there are {', '.join(FORMATS)}")
        if "://" in text:
            mistakes.append(
                f"to: {text} is no folder; mount it where the driver and all workers see it by the same path"
            )
        is_folder = isinstance(to, Path) or "/" in text
        if not is_folder:
            if (mistake := stream_name_mistake(text)) is not None:
                mistakes.append(f"to: {mistake}; a folder is written with a slash, as ./{text}")
            if checkpoint is None:
                text = f"it is missing, which a stream needs; or give a folder: with a slash, as ./{text}"
                mistakes.append(f"checkpoint: {text}")
        if mode not in OUTPUT_MODES:
            mistakes.append(f"output_mode: it is {mode!r}; there are {', '.join(OUTPUT_MODES)}")
        elif mode == "complete" and not (is_folder and format_ == "delta"):
            mistakes.append("output_mode: only a Delta table can be replaced as a whole with each batch")
        if invalid_headers not in INVALID_HEADERS:
            mistakes.append(f"invalid_headers: it is {invalid_headers!r}; there are {', '.join(INVALID_HEADERS)}")
        elif is_folder and invalid_headers != INVALID_HEADERS[0]:
            mistakes.append("invalid_headers: only what goes to a stream has headers for NATS; leave it out")
        if mistakes:
            raise ConfigError(mistakes)
        if not is_folder:
            return cls(text, None, format_, str(checkpoint), mode, invalid_headers)
        folder = Path(text).absolute()
        return cls("", folder, format_, checkpoint or str(folder / CHECKPOINT), mode, invalid_headers)

    def check_session(self, spark: SparkSession) -> None:
        """Raise ConfigError if the session is a client of Spark Connect and the format is delta."""
        if self.folder is not None and self.format == "delta" and is_connect(spark):
            text = "Spark Connect cannot write a Delta table: its commits need the driver, which is another process"
            raise ConfigError([f'format: {text}; give "parquet", or a stream as `to`, or run it with spark-submit'])

    def writer(self, rows: DataFrame, servers: str) -> DataStreamWriter:
        """Return a writer of `rows` to this target. Raise ConfigError if a stream cannot store the columns."""
        if self.folder is None:
            types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
            check_columns(types, stream=self.stream)
            told = {"stream": self.stream, "invalidHeaders": self.invalid_headers}
            told |= {"servers": servers} if servers else {}
            writer = rows.writeStream.format("penstock").options(**told)
        elif self.format == "delta":
            writer = rows.writeStream.foreachBatch(DeltaSink(self.folder, is_whole=self.mode == "complete"))
        else:
            writer = rows.writeStream.format("parquet").option("path", str(self.folder))
        return writer.option("checkpointLocation", self.checkpoint)


def loaded(text: str) -> Function:
    """Load the function that `FILE.py:NAME` names. Raise ConfigError if it cannot be loaded."""
    path, sign, name = text.rpartition(":")
    if not (sign and path and name):
        raise ConfigError([f"function: {text!r} is not FILE.py:NAME"])
    file = Path(path).absolute()
    if not file.is_file():
        raise ConfigError([f"function: there is no file {file}"])
    module = _imported(file)
    found = getattr(module, name, None)
    if not callable(found):
        there = [
            one
            for one, what in vars(module).items()
            if callable(what) and getattr(what, "__module__", "") == module.__name__
        ]
        hint = f"; there are {', '.join(there)}" if there else ""
        raise ConfigError([f"function: {file.name} has no function {name!r}{hint}"])
    function: Function = found
    return function


def _imported(file: Path) -> ModuleType:
    from pyspark import cloudpickle

    if not file.stem.isidentifier():
        raise ConfigError([f"function: {file.name} cannot be imported: {file.stem!r} is no name in Python"])
    name = f"penstock_run_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError([f"function: {file} is no Python file"])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError([f"function: {file.name} cannot be imported: {type(error).__name__}: {error}"]) from error
    # Spark's workers do not have the file, so its functions are pickled by value.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def _called(function: Function, rows: DataFrame) -> DataFrame:
    from py4j.protocol import Py4JError
    from pyspark.sql import DataFrame

    try:
        made = function(rows)
    except (PenstockError, OSError, Py4JError):
        raise
    except Exception as error:
        line = error.__traceback__.tb_next.tb_lineno if error.__traceback__ and error.__traceback__.tb_next else 0
        where = f"{getattr(function, '__name__', 'it')}, line {line}"
        text = str(error).strip().splitlines()
        raise ConfigError([f"function: {where}: {type(error).__name__}: {text[0] if text else ''}"]) from error
    if not isinstance(made, DataFrame):
        raise ConfigError([f"function: it returned {type(made).__name__}, not a DataFrame"])
    if not made.isStreaming:
        raise ConfigError(["function: it returned a DataFrame that is not made of its argument"])
    return made
