"""Messages that are skipped because the log no longer holds them: an error, or a warning if the user allows it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.base.errors import PenstockError
from penstock.lake.reading.positions import Key

_log = logging.getLogger(__name__)

GO_ON = "Set failOnDataLoss to false to go on all the same"
PARAMETER_GO_ON = "Set fail_on_data_loss to False to go on all the same"
WARNING = "Penstock warns: "
"""Prefix of warnings on stderr, to find them among the output of Spark's processes."""


class DataLossError(PenstockError):
    """Messages that were to be read are no longer in the log."""


def check_there(key: Key, start: int, log_start: int, *, fail: bool) -> int:
    """Return the first offset to read, at least `log_start`. If that skips messages and `fail`, raise DataLossError."""
    if start >= log_start:
        return start
    text = f"messages {start} to {log_start - 1} of stream {key.stream}, partition {key.partition}, are not in the log"
    passed_over(f"{text} any more: retention, or a truncation, was quicker than this query", fail=fail)
    return log_start


def passed_over(text: str, *, fail: bool, hint: str = "") -> None:
    """Report messages that are skipped: raise DataLossError if `fail`, else log a warning."""
    if fail:
        raise DataLossError(f"{text}. {GO_ON}{hint}")
    warn(text)


def warn(text: str) -> None:
    """Log a warning with the prefix WARNING, so that it is found among the output of Spark's processes."""
    _log.warning("%s%s", WARNING, text)


@contextmanager
def loss_named(go_on: str = PARAMETER_GO_ON) -> Iterator[None]:
    """Re-raise a DataLossError with `go_on` instead of the advice that names the source's option."""
    try:
        yield
    except DataLossError as error:
        raise DataLossError(str(error).replace(GO_ON, go_on)) from error
