"""Tables for people."""

from __future__ import annotations

from penstock.cli.terminal import output

ROWS = [{"name": "orders", "size": "1 GiB", "last": "today"}, {"name": "a", "size": "", "last": "never"}]


def test_a_table_leaves_out_columns_that_do_not_fit() -> None:
    fits = {width: output.fitting(ROWS, width, left_out_first=("last", "size")) for width in (20, 19, 13, 12)}
    assert fits == {20: ["name", "size", "last"], 19: ["name", "size"], 13: ["name", "size"], 12: ["name"]}
