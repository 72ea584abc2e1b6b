"""`format("penstock-faulty")`: the sink with a client that fails once, before or after one of its calls.

A folder holds the point of failure: the file `point` contains, for example, `stage 2 before` or `publish 1 after`;
calls are counted in the file `counts`, over all processes of a run. A failure happens once. It fails the query, in a
task as on the driver, because Spark runs one attempt of each here. A restart of the query replays the batch.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

from penstock.spark.source import DefaultSource
from penstock.spark.writing.sink import StreamWriter


class Fault(Exception):  # noqa: N818
    """A failure that a test has requested."""


class Points:
    """The point of failure, in a folder that all processes share."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    @classmethod
    def at(cls, folder: Path, point: str) -> None:
        """Set the point of failure, and reset the counts."""
        folder.mkdir(exist_ok=True)
        (folder / "point").write_text(point)
        (folder / "counts").write_text("")

    @staticmethod
    def has_failed(folder: Path) -> bool:
        """True if the failure has happened."""
        return not (folder / "point").exists()

    def count(self, what: str) -> int:
        """Count a call; return its number, from 1."""
        with (self._folder / "counts").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            number = file.read().splitlines().count(what) + 1
            file.write(what + "\n")
        return number

    def pass_by(self, point: str) -> None:
        """Raise Fault if this is the point of failure."""
        file = self._folder / "point"
        # Calls run side by side: another thread's failure may take the file between two looks at it.
        with contextlib.suppress(FileNotFoundError):
            if file.read_text() == point:
                file.unlink()
                raise Fault(f"the test has this fail: {point}")


class FaultyStaging:
    """`client.staging` that fails at the point of failure."""

    def __init__(self, real: Any, points: Points) -> None:
        self._real = real
        self._points = points

    def stage(self, *arguments: Any, **options: Any) -> Any:
        return self._call("stage", self._real.stage, *arguments, **options)

    def publish(self, *arguments: Any, **options: Any) -> Any:
        return self._call("publish", self._real.publish, *arguments, **options)

    def _call(self, what: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        number = self._points.count(what)
        self._points.pass_by(f"{what} {number} before")
        done = call(*arguments, **options)
        self._points.pass_by(f"{what} {number} after")
        return done


class FaultyClient:
    """A client whose staging may fail."""

    def __init__(self, real: Any, points: Points) -> None:
        self._real = real
        self.staging = FaultyStaging(real.staging, points)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class FaultyWriter(StreamWriter):
    """The sink with a FaultyClient."""

    faults = ""

    def _client(self) -> Any:
        return FaultyClient(super()._client(), Points(self.faults))

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 (Spark's name)
        super().commit(messages, batchId)
        Points(self.faults).pass_by("commit after")


class FaultySource(DefaultSource):
    """The data source; its option `faults` is the folder."""

    @classmethod
    def name(cls) -> str:
        return "penstock-faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        faults = self.options.pop("faults")
        made = FaultyWriter(self._sink_options(schema, overwrite, "append"))
        made.faults = faults
        return made
