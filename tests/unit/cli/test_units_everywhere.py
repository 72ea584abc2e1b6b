"""One way to read durations and sizes: every option of the command line and of Spark, and every setting in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from penstock.base.errors import ConfigError
from penstock.broker.config import config
from penstock.spark.options.options import seconds
from tests.docs.reference.cli_reference import commands

MONTH = "'1M': m is minutes and M is refused; write 1m for minutes, 30d for months"
VALUES = {
    "DURATION": ("1M", MONTH),
    "TIME": ("1M", MONTH),
    "PLACE": ("1M ago", MONTH),
    "SIZE": ("1Mo", "is not a size"),
}
"""By metavar: what is given, and what is said of it."""
BESIDES = {
    "publish": ["orders.a", "1"],
    "user add": ["ann", "--token"],
    "user rotate": ["ann", "--token"],
    "user limit": ["ann", "--connections", "1"],
    "user delete": ["ann", "--yes"],
    "cluster upgrade": ["--yes"],
    "cluster take-api": ["--yes"],
    "acl add": ["ann", "read", "--stream", "orders"],
    "acl delete": ["ann", "read", "--stream", "orders"],
    "acl test": ["ann", "read", "--stream", "orders"],
    "stream alter": ["orders", "--max-messages", "1"],
    "stream purge": ["orders", "--all", "--yes"],
    "stream delete-message": ["orders", "1", "--yes"],
    "group reset": ["g", "orders", "--to", "earliest"],
}
"""What else a command wants to hear, where its required arguments are not enough."""
LEFT_OUT = {
    "pipeline audit --from",  # takes no age
    "pipeline audit --to",
    "restore --timeout",  # wants a backup first
}


def _cases() -> list[Any]:
    found = {
        f"{' '.join(path[1:])} {option.opts[0]}": (path, command, option, *VALUES[option.metavar])
        for path, command in commands()
        for option in command.params
        if option.metavar in VALUES
    }
    return [pytest.param(*case, id=name) for name, case in found.items() if name not in LEFT_OUT]


@pytest.mark.parametrize(("path", "command", "option", "value", "said"), _cases())
def test_every_option_refuses_a_month(
    path: tuple[str, ...],
    command: Any,
    option: Any,
    value: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("PENSTOCK_SERVER", raising=False)
    others = [one for one in command.params if one.required and one is not option]
    args = BESIDES.get(" ".join(path[1:]))
    if args is None or option.metavar == "PLACE":
        args = ["orders" for one in others if one.param_type_name == "argument"]
        args += [text for one in others if one.param_type_name != "argument" for text in (one.opts[0], "orders")]
    try:
        command.main([*args, option.opts[0], value], " ".join(path), standalone_mode=False)
    except typer.BadParameter as error:
        text = error.message
    except SystemExit:
        text = capsys.readouterr().err
    else:
        text = capsys.readouterr().err
    assert said in text


def test_there_are_options_to_try() -> None:
    assert len(_cases()) > 70


def test_so_does_a_file_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('scrub_interval = "1M"\n')
    with pytest.raises(ConfigError, match=MONTH):
        config.load(file=file, environment={})


@pytest.mark.parametrize("text", ["1M", "1 M"])
def test_so_do_the_options_of_spark(text: str) -> None:
    with pytest.raises(ValueError, match="m is minutes and M is refused; write 1m for minutes, 30d for months"):
        seconds(text)
