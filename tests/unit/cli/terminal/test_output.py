"""Tables for people."""

from __future__ import annotations

import pytest

from penstock.cli.terminal import output

ROWS = [{"name": "orders", "size": "1 GiB", "last": "today"}, {"name": "a", "size": "", "last": "never"}]


def test_a_table_leaves_out_columns_that_do_not_fit() -> None:
    fits = {width: output.fitting(ROWS, width, left_out_first=("last", "size")) for width in (20, 19, 13, 12)}
    assert fits == {20: ["name", "size", "last"], 19: ["name", "size"], 13: ["name", "size"], 12: ["name"]}


@pytest.mark.parametrize("columns", [None, "40"])
def test_a_table_is_wrapped_only_where_a_width_is_known(
    columns: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that reads it finds each place in one piece."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    table = output.table("where", "what")
    place = f"{'contracts/' * 15}shop.frugal:12:3"
    table.add_row(output.cell(place), output.cell("field 3 is gone"))
    output.console().print(table)
    lines = capsys.readouterr().out.splitlines()
    if columns is None:
        assert lines[2] == f"{place}  field 3 is gone"
    else:
        assert len(lines) > 3
        assert max(map(len, lines)) <= 40
