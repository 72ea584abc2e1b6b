"""Spark for one command: it starts quietly, ends with the command, and fails in one line.

Rules: what Java says on stderr is of no use to most people, so it goes into a file, which is named and kept if Spark
fails. With --debug it stays on stderr, and errors keep their traces. SIGTERM and Ctrl-C raise Interrupted from the
start of Spark on; a signal to the whole process group ends Java, too, at the same moment, and that is no error.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base.errors import PenstockError
from penstock.cli.failure import is_debugging
from penstock.cli.interrupts import Interrupts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(name: str, master: str | None, config: dict[str, str]) -> Iterator[SparkSession]:
    """Spark for one command. JobError: it failed; OperationalError: it is not installed."""
    from penstock.spark.jobs import without_pandas_warning
    from penstock.spark.sessions import check_installed, session

    check_installed()
    # Two bars would write over each other. PySpark sets this one before the defaults of `session` can.
    settings = {"spark.ui.showConsoleProgress": "false"} | config
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what it says is raised, too
    logging.getLogger().addFilter(_is_not_of_py4j)
    with without_pandas_warning(), _log() as log, _failing_in_one_line():
        with nullcontext() if log is None else _stderr_in(log):
            spark = session(master, name=f"penstock {name}", config=settings)
        Interrupts()  # once Spark has set its own handler of Ctrl-C, which would end it in the middle of a call
        try:
            yield spark
        except KeyboardInterrupt:
            if log is not None:
                _hush()
            raise
        finally:
            _stop(spark)


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
    try:
        yield log
    except JobError as error:
        if log.stat().st_size:
            error.add_note(f"what Spark said of it is in {log}; --debug shows it as it comes")
        raise
    finally:
        if not isinstance(sys.exc_info()[1], JobError):
            log.unlink(missing_ok=True)


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

    from penstock.spark.queries import JobError, reason

    try:
        yield
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
