"""What is said of options and arguments that cannot be: in our words, with what to type."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.messages.publish import _headers
from penstock.cli.program import program
from penstock.cli.terminal.help import Command


def _even(text: str) -> int:
    if int(text) % 2:
        raise ValueError(f"{text} is odd")
    return int(text)


def refused(command: typer.Typer, *arguments: str) -> str:
    done = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(command, arguments)
    assert done.exit_code == 2, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("--whole", "x", "'x' is not a whole number"),
        ("--whole", "1.5", "'1.5' is not a whole number"),
        ("--whole", "0", "0 is below 1, the least"),
        ("--whole", "10", "10 is above 9, the most"),
        ("--broken", "x", "'x' is not a number"),
        ("--even", "3", "3 is odd"),
    ],
)
def test_a_wrong_value_is_told_in_our_words(option: str, given: str, said: str) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command(cls=Command)
    def command(
        whole: Annotated[int, typer.Option(min=1, max=9)] = 1,
        broken: float = 0.5,
        even: Annotated[int, typer.Option(parser=_even)] = 2,
        path: Path | None = None,
    ) -> None:
        """Do nothing."""

    found = refused(app, option, given)
    assert f"Invalid value for '{option}': {said}" in found
    assert "Value error" not in found
    assert "Input should" not in found


@pytest.mark.parametrize("given", ["-5", "-.5", "-f"])
def test_a_value_that_begins_with_a_dash_is_told_where_it_stands(given: str) -> None:
    found = refused(program(["publish"]), "publish", "temps.eu", given)
    assert f"No such option: {given[:2]}" in found
    assert "publish … -- SUBJECT VALUE" in found


def test_an_option_that_is_nearly_one_is_suggested() -> None:
    found = refused(program(["publish"]), "publish", "temps.eu", "1", "--hedder", "a=b")
    assert "--header" in found
    assert "begins with a dash after --" not in found


def test_a_header_is_taken_as_curl_writes_it() -> None:
    assert _headers(["A: 1", "B:2", "C=x:y", "D:\t p=q ", "E=", "F:"]) == {
        "A": "1", "B": "2", "C": "x:y", "D": "p=q ", "E": "", "F": "",
    }  # fmt: skip
    for text in ("no", "=x", ": x", ""):
        with pytest.raises(typer.BadParameter, match="write NAME=VALUE, or 'NAME: VALUE'"):
            _headers([text])
