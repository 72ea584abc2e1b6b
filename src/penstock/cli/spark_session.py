"""Spark for one command: it starts quietly, ends with the command, and fails in one line.

Rules: it starts when a job asks for it: what can be known without it is said at once. What Java says on stderr is of
no use to most people, so it goes into a file, which is named and kept if Spark fails. With --debug it stays on stderr,
and errors keep their traces. SIGTERM and Ctrl-C raise Interrupted from the start of Spark on; a signal to the whole
process group ends Java, too, at the same moment, and that is no error.
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

from penstock.base.errors import ConfigError, PenstockError
from penstock.cli.failure import is_debugging, say_note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S = 1.0
_SAID_FOR_PROGRAMS = {
    "Set failOnDataLoss to false to go on": "With --option failOnDataLoss=false it goes on",
    "Set fail_on_data_loss to False to go on": "With --allow-data-loss it goes on",
}
_NAMES = (
    *("format", "to", "name", "min_batch", "max_batch", "as_of", "buckets", "history_hours", "decode", "schema", "by"),
    *("rate", "checkpoint", "output_mode", "invalid_headers"),
)
_FLAGS = {name: f"--{name.replace('_', '-')}" for name in _NAMES} | {
    "file_bytes": "--file-size",
    "start": "--from",
    "end": "--to",
}
"""Parameters of the jobs, as the commands have them."""


@contextmanager
def spark_session(name: str, master: str | None, config: dict[str, str]) -> Iterator[Callable[[], SparkSession]]:
    """What starts Spark for one command, once it is needed. JobError: it failed; OperationalError: it is missing."""
    from penstock.cli.interrupts import Interrupts
    from penstock.spark.jobs import without_pandas_warning
    from penstock.spark.sessions import session
    from penstock.spark.versions import check_versions

    check_versions()
    # Two bars would write over each other. PySpark sets this one before the defaults of `session` can.
    settings = {"spark.ui.showConsoleProgress": "false"} | config
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what it says is raised, too
    logging.getLogger().addFilter(_is_not_of_py4j)
    with without_pandas_warning(), _log() as log, _failing_in_one_line(), ExitStack() as started:

        def start() -> SparkSession:
            Interrupts()
            with nullcontext() if log is None else _stderr_in(log):
                spark = session(master, name=f"penstock {name}", config=settings)
            Interrupts()  # again: Spark has set its own handler of Ctrl-C, which would end it in the middle of a call
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
    """The file for what Java says; None: it is wanted on stderr."""
    from penstock.spark.queries import JobError

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
            error.add_note(f"what Spark said of it is in {log}; --debug shows it as it comes")
        raise
    finally:
        hearing.end()
        if not isinstance(sys.exc_info()[1], JobError):
            log.unlink(missing_ok=True)


class _Hearing(threading.Thread):
    """Says on stderr the lines of the log that warn of something, as they come: those of Spark's workers are there."""

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
        from penstock.spark.jobs import WARNING

        *lines, self._begun = (self._begun + file.read()).split(b"\n")
        for line in lines:
            if line.startswith(WARNING.encode()):
                say_note(line.decode("utf-8", "replace"))

    def end(self) -> None:
        """All that is in the log by now is said."""
        self._over.set()
        self.join()


@contextmanager
def _stderr_in(file: Path) -> Iterator[None]:
    """Java, once started, goes on to write there."""
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

    from penstock.spark.planning import DataLossError
    from penstock.spark.queries import JobError, reason

    try:
        yield
    except DataLossError as error:
        text = str(error)
        for said, here in _SAID_FOR_PROGRAMS.items():
            text = text.replace(said, here)
        raise DataLossError(text) from error
    except ConfigError as error:
        raise ConfigError([_as_typed(one) for one in error.mistakes]) from error
    except PenstockError:
        raise
    except (PySparkException, Py4JError) as error:
        raise JobError(f"Spark: {reason(str(error))}") from error


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """It says with the root logger that it was interrupted, with a trace."""
    return "/py4j/" not in record.pathname


def _hush() -> None:
    """Nothing is said any more: threads of PySpark show the trace of losing Java, which the same signal may end."""
    sys.stderr.flush()
    nobody = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nobody, 2)
    os.close(nobody)


def _stop(spark: SparkSession) -> None:
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):  # Java may have been ended, as this process was told to
        spark.stop()


def _as_typed(mistake: str) -> str:
    name, sign, text = mistake.partition(": ")
    return f"{_FLAGS[name]}: {text}" if sign and name in _FLAGS else mistake
