"""A failed write says whether a task failed or the driver: the sink's own stack frames tell."""

from __future__ import annotations

import traceback

import pytest

from penstock.base.errors import OperationalError
from penstock.spark.options.options import sink_options
from penstock.spark.writing.sink import BatchWriter, has_failed_in_task


def test_a_trace_shows_whether_a_task_has_failed() -> None:
    with pytest.raises(OperationalError) as raised:
        BatchWriter(sink_options({"stream": "orders"})).write(iter(()))
    trace = "".join(traceback.format_exception(raised.value))

    assert has_failed_in_task(trace)
    assert not has_failed_in_task(trace + trace.replace("in write", "in commit"))
    assert not has_failed_in_task(trace.replace("in write", "in _publish"))
    assert not has_failed_in_task("Job aborted")
