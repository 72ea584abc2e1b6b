"""Errors of jobs name parameters as whoever calls has them, and say what he can do there."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import ConfigError
from penstock.cli.lake.options import options_as_typed
from penstock.lake.reading.data_loss import DataLossError, advising, passed_over
from penstock.spark import audit, replay, run, table
from penstock.spark.options.options import LOSS_ADVICE
from penstock.spark.writing.rows import check_columns


def test_a_mistake_is_told_of_the_parameter_that_has_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^start: 'yesterday' is neither"):
        audit("orders", start="yesterday")
    with pytest.raises(ConfigError, match=r"^end: 'tomorrow' is neither"):
        audit("orders", end="tomorrow")
    with pytest.raises(ConfigError, match=r"^as_of: 'tomorrow' is neither"):
        table("orders", tmp_path, as_of="tomorrow")
    with pytest.raises(ConfigError, match=r"^to: "):
        replay(tmp_path, "no name")
    with pytest.raises(ConfigError, match=r"^max_batch: it is '0'"):
        run(lambda rows: rows, "orders", tmp_path, max_batch=0)
    with pytest.raises(ConfigError, match=r"^maxOffsetsPerTrigger: it is '0'"):
        run(lambda rows: rows, "orders", tmp_path, options={"maxOffsetsPerTrigger": "0"})


def test_whoever_may_lose_messages_is_told_his_own_switch() -> None:
    with pytest.raises(DataLossError, match=r"^gone\. Set fail_on_data_loss to False to go on all the same$"):
        passed_over("gone", fail=True)
    with pytest.raises(DataLossError, match=r"^gone\. Set failOnDataLoss to false to go on all the same$"):
        passed_over("gone", fail=True, advice=LOSS_ADVICE)
    with pytest.raises(DataLossError, match=r"^gone\. With --allow-data-loss it goes on all the same$"):
        with options_as_typed():
            passed_over("gone", fail=True)
    with pytest.raises(DataLossError, match=r"^gone\. Audit again$"), advising("Audit again", LOSS_ADVICE):
        passed_over("gone", fail=True, advice=LOSS_ADVICE)
    with pytest.raises(DataLossError, match=r"^gone$"), advising("Audit again"):
        raise DataLossError("gone")


def test_insert_into_is_told_that_tables_are_for_reading() -> None:
    with pytest.raises(
        ConfigError, match="offset: the log gives it to each message; drop it; INSERT INTO cannot write"
    ):
        check_columns({"value": "binary", "offset": "bigint"}, stream="orders")
