"""Arguments that are names: every command says of one that can be none what is wrong with it, and asks no broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from penstock.base import limits
from penstock.cli.terminal.names import jetstream_name
from tests.cli_app import app, root_command

_NAMES = re.compile(r"(USER|GROUP|STREAM|NAME|ARCHIVE|TARGET)\b")


def named(command: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Every argument of every command that is a name."""
    if hasattr(command, "commands"):
        for name, sub in command.commands.items():
            yield from named(sub, f"{path} {name}")
        return
    for one in command.params:
        if one.param_type_name == "argument" and _NAMES.match((one.metavar or "").lstrip("[")):
            yield f"{path} {one.metavar}", command, one


ARGUMENTS = list(named(root_command(), "penstock"))


def test_the_arguments_are_found() -> None:
    paths = {path for path, _, _ in ARGUMENTS}
    assert {"penstock user delete USER", "penstock stream show STREAM", "penstock group show GROUP"} <= paths
    assert len(paths) > 30


@pytest.mark.parametrize(("path", "command", "argument"), ARGUMENTS, ids=[path for path, _, _ in ARGUMENTS])
def test_an_empty_name_is_told(path: str, command: Any, argument: Any) -> None:
    empty = ("",) if argument.nargs == -1 else ""
    with pytest.raises(typer.BadParameter, match=r"needs a name|has a name"):
        argument.process_value(typer.Context(command), empty)


@pytest.mark.parametrize("name", ["", "a b", "x" * (limits.USER_NAME_CHARS_MAX + 1), "\udcff", "*"])
def test_what_no_user_can_be_called_is_told_before_anything_is_asked(name: str) -> None:
    result = CliRunner().invoke(app, ["user", "delete", name])
    assert result.exit_code == 2
    said = " ".join(result.stderr.replace("│", " ").split())
    assert "Invalid value" in said
    assert re.search("a user needs a name|may hold only letters|characters long; the limit is", said), said


@pytest.mark.parametrize(("name", "is_subject"), [(">", True), ("a.*", True), ("a b", False), ("bad/2", False)])
def test_what_no_stream_can_be_called_is_told_before_anything_is_asked(name: str, is_subject: bool) -> None:
    result = CliRunner().invoke(app, ["stream", "count", name, "big1", "--server", "127.0.0.1:1"])
    assert result.exit_code == 2
    said = " ".join(result.stderr.replace("│", " ").split())
    assert f"the name {name!r} may hold only letters" in said
    assert ("the stream comes first" in said) == is_subject


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a>", "a/b", "a\\b", "a\n"])
def test_what_no_stream_of_jetstream_can_be_called_is_told_before_nats_is_asked(name: str) -> None:
    result = CliRunner().invoke(app, ["import", "--from-jetstream", name])
    assert result.exit_code == 2
    said = " ".join(result.stderr.replace("│", " ").split())
    assert "a JetStream stream needs a name" in said or "is not a JetStream stream name" in said
    assert jetstream_name("ORDERS-é_1") == "ORDERS-é_1"


def test_everybody_is_a_name_for_rules() -> None:
    ((_, command, argument),) = [one for one in ARGUMENTS if one[0] == "penstock acl add USER"]
    assert argument.process_value(typer.Context(command), "*") == "*"
