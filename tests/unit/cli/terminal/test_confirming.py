"""A question before something goes for good."""

from __future__ import annotations

import io

import pytest
import typer

from penstock.cli.terminal.confirming import confirm


def test_what_others_have_named_does_not_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    with pytest.raises(typer.Exit):
        confirm("Forget where group a\x1b[2J\u202eb is?\nIt stays \x9b2Kso.", "group a stays")
    said = capsys.readouterr().err
    assert said.startswith("Forget where group a\\x1b[2J\\u202eb is?\nIt stays \\x9b2Kso. [y/N]: ")
