"""Messages that are skipped because the log no longer holds them: an error, or a warning if the user allows it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.base.errors import PenstockError
from penstock.lake.reading.positions import Key

_log = logging.getLogger(__name__)

PARAMETER_ADVICE = "Set fail_on_data_loss to False to go on all the same"
"""Advice of operations with the parameter `fail_on_data_loss`."""
WARNING = "Penstock warns: "
"""Prefix of warnings on stderr, to find them among the output of Spark's processes."""


class DataLossError(PenstockError):
    """Messages that were to be read are no longer in the log. `advice`: how to go on without them, if that can be."""

    def __init__(self, text: str, *, advice: str = "") -> None:
        super().__init__(f"{text}. {advice}" if advice else text)
        self.text = text
        self.advice = advice


def check_there(key: Key, start: int, log_start: int, *, fail: bool, advice: str = PARAMETER_ADVICE) -> int:
    """Return the first offset to read, at least `log_start`. If that skips messages and `fail`, raise DataLossError."""
    if start >= log_start:
        return start
    text = f"messages {start} to {log_start - 1} of stream {key.stream}, partition {key.partition}, are not in the log"
    passed_over(f"{text} any more: retention, a purge or a truncation has deleted them", fail=fail, advice=advice)
    return log_start


def passed_over(text: str, *, fail: bool, advice: str = PARAMETER_ADVICE) -> None:
    """Report messages that are skipped: raise DataLossError if `fail`, else log a warning."""
    if fail:
        raise DataLossError(text, advice=advice)
    warn(text)


def warn(text: str) -> None:
    """Log a warning with the prefix WARNING, so that it is found among the output of Spark's processes."""
    _log.warning("%s%s", WARNING, text)


@contextmanager
def advising(advice: str, instead_of: str = PARAMETER_ADVICE) -> Iterator[None]:
    """Re-raise a DataLossError that has the advice `instead_of` with another one."""
    try:
        yield
    except DataLossError as error:
        if error.advice != instead_of:
            raise
        raise DataLossError(error.text, advice=advice) from error
