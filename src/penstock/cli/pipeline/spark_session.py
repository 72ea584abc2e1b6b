"""The Spark session of one command: starts quietly, ends with the command, and reports failures in one line.

Rules: Spark starts only when a job needs it, so that usage errors are reported at once. Java's stderr goes into a file,
which is kept and named if Spark fails. With --debug it stays on stderr, and errors keep their tracebacks. SIGTERM and
Ctrl-C raise Interrupted from the start of Spark on; a signal to the whole process group also ends Java at the same
time, which is not an error.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from penstock.base.errors import PenstockError
from penstock.cli.lake.options import options_as_typed
from penstock.cli.terminal.failure import is_debugging, say_note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S = 1.0


@contextmanager
def spark_session(name: str, master: str | None, config: dict[str, str]) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that starts Spark. Raise JobError if Spark fails, OperationalError if it is not installed."""
    from penstock.cli.terminal.interrupts import Interrupts
    from penstock.spark.runtime.sessions import session, without_pandas_warning
    from penstock.spark.runtime.versions import check_versions

    check_versions()
    # Spark's progress bar would overwrite ours. PySpark sets its own default before `session` can set another one.
    settings = {"spark.ui.showConsoleProgress": "false"} | config
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # its errors are raised, too
    logging.getLogger().addFilter(_is_not_of_py4j)
    with without_pandas_warning(), _log() as log, _failing_in_one_line(), ExitStack() as started:

        def start() -> SparkSession:
            Interrupts()
            with nullcontext() if log is None else _stderr_in(log):
                spark = session(master, name=f"penstock {name}", config=settings)
            Interrupts()  # again: Spark has installed its own SIGINT handler, which would stop it in mid-call
            started.callback(_stop, spark)
            return spark

        try:
            yield start
        except KeyboardInterrupt:
            if log is not None:
                _hush()
            raise


@contextmanager
def _log() -> Iterator[Path | None]:
    """Yield the file for Java's stderr; None with --debug. Keep the file only if the job fails."""
    from penstock.spark.jobs.streaming_query import JobError

    if is_debugging():
        yield None
        return
    number, name = tempfile.mkstemp(prefix="penstock-spark-", suffix=".log")
    os.close(number)
    log = Path(name)
    hearing = _Hearing(log)
    hearing.start()
    try:
        yield log
    except JobError as error:
        if log.exists() and log.stat().st_size:
            error.add_note(f"Spark's log is in {log}; --debug prints it to stderr instead")
        raise
    finally:
        hearing.end()
        if not isinstance(sys.exc_info()[1], JobError):
            log.unlink(missing_ok=True)


class _Hearing(threading.Thread):
    """Copies Penstock's warnings from the log to stderr as they arrive; Spark's workers write them there."""

    def __init__(self, log: Path) -> None:
        super().__init__(name="penstock-spark-log", daemon=True)
        self._log = log
        self._over = threading.Event()
        self._begun = b""

    def run(self) -> None:
        with self._log.open("rb") as file:
            while not self._over.wait(_LOOK_S):
                self._look(file)
            self._look(file)

    def _look(self, file: BinaryIO) -> None:
        from penstock.lake.reading.data_loss import WARNING

        *lines, self._begun = (self._begun + file.read()).split(b"\n")
        for line in lines:
            if line.startswith(WARNING.encode()):
                say_note(line.decode("utf-8", "replace"))

    def end(self) -> None:
        """Copy the rest of the log and stop."""
        self._over.set()
        self.join()


@contextmanager
def _stderr_in(file: Path) -> Iterator[None]:
    """Redirect stderr to `file` in the block; a Java process started in it keeps that redirection."""
    sys.stderr.flush()
    ours = os.dup(2)
    with file.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(ours, 2)
        os.close(ours)


@contextmanager
def _failing_in_one_line() -> Iterator[None]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from penstock.spark.jobs.streaming_query import JobError, reason

    try:
        with options_as_typed():
            yield
    except PenstockError:
        raise
    except (PySparkException, Py4JError) as error:
        raise JobError(f"Spark: {reason(str(error))}") from error


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Filter py4j's records out of the root logger: after an interrupt it logs a traceback there."""
    return "/py4j/" not in record.pathname


def _hush() -> None:
    """Redirect stderr to /dev/null: PySpark's threads print tracebacks if the same signal has ended Java."""
    sys.stderr.flush()
    nobody = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nobody, 2)
    os.close(nobody)


def _stop(spark: SparkSession) -> None:
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):  # the same signal may have ended Java
        spark.stop()
