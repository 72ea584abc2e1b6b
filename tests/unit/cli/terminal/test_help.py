"""What `--help` shows first, and what it leaves to `penstock --help`."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tests.cli_app import app


def help_of(words: str) -> str:
    return CliRunner().invoke(app, [*words.split(), "--help"], env={"COLUMNS": "80"}).stdout


@pytest.mark.parametrize("words", ["", "stream", "group show", "serve"])
def test_examples_follow_what_the_command_does(words: str) -> None:
    shown = help_of(words)
    assert shown.index("Usage:") < shown.index("Examples") < shown.index("╭─ Options")
    assert f"$ penstock {words}".strip() in shown
    assert shown.count("$ penstock") == shown[: shown.index("╭─ Options")].count("$ penstock")


def test_the_options_of_every_command_take_one_line_except_at_the_root() -> None:
    shown = help_of("stream delete")
    assert "│ --server" not in shown
    line = " ".join(shown.split()).partition("Connection options")[2]
    assert line == (
        ", explained by `penstock --help`: --server, --credentials, --tls-ca, --tls-cert, --tls-key, "
        "--timeout (default 10s), --debug"
    )
    assert "│ --server" in help_of("")
    assert "│ --nats " in help_of("publish")
    assert "│ --server" not in help_of("publish")
