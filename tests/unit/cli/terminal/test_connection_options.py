"""`--tls-ca` and its neighbours say how the server is reached, wherever that was named; `--credentials` who asks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import Globals, Server
from tests.cli_app import root_command

HERE = Path.cwd()


def reached(arguments: list[str], monkeypatch: pytest.MonkeyPatch, **environment: str) -> Any:
    """What a command gets as its server."""
    return asked(arguments, monkeypatch, **environment)[0]


def asked(arguments: list[str], monkeypatch: pytest.MonkeyPatch, **environment: str) -> tuple[Any, str | None]:
    """The same, and which file of credentials counts."""
    got: list[Any] = []
    program = typer.Typer()

    @program.callback()
    @clearly
    def before(ctx: typer.Context, server: Server = None) -> None:
        ctx.obj = Globals(server)

    @program.command()
    @clearly
    def ask(ctx: typer.Context, name: str, server: Server = None) -> None:
        found = ctx.find_object(Globals)
        got.append((server or (found.server if found else None), os.environ.get("PENSTOCK_CREDENTIALS")))

    monkeypatch.delenv("PENSTOCK_SERVER", raising=False)
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", "/environment")  # what a command sets goes with the test
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    result = CliRunner().invoke(program, arguments)
    assert result.exit_code == 0, result.output
    return got[0]


CASES = {
    "ask x": None,
    "ask x --server a:1": "a:1",
    "ask x --server a:1 --tls-ca /ca": "tls://a:1?ca=/ca",
    "ask x --server a:1,tls://b:2 --tls-ca /ca": "tls://a:1?ca=/ca,tls://b:2?ca=/ca",
    "ask x --server tls://a:1?cert=/c --tls-key /k": "tls://a:1?cert=/c&key=/k",
    "--server a:1 ask x --tls-ca /ca": "tls://a:1?ca=/ca",
    "--server a:1 --tls-ca /ca ask x": "tls://a:1?ca=/ca",
    "--tls-ca /ca ask x": "tls://127.0.0.1:7422?ca=/ca",
    "ask x --tls-ca ca": f"tls://127.0.0.1:7422?ca={HERE}/ca",
}


@pytest.mark.parametrize(("line", "server"), CASES.items(), ids=list(CASES))
def test_they_go_with_the_server(line: str, server: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reached(line.split(), monkeypatch) == server


def test_they_go_with_the_server_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["ask", "x", "--tls-ca", "/ca"]
    assert reached(arguments, monkeypatch, PENSTOCK_SERVER="a:1,b:2") == "tls://a:1?ca=/ca,tls://b:2?ca=/ca"


@pytest.mark.parametrize(
    ("line", "file"),
    {
        "ask x": "/environment",
        "--credentials /before ask x": "/before",
        "ask x --credentials /behind": "/behind",
        "--credentials /before ask x --credentials /behind --server a:1": "/behind",
        "ask x --credentials behind": f"{HERE}/behind",
    }.items(),
)
def test_credentials_before_a_command_and_behind_it(line: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(line.split(), monkeypatch)[1] == file


def test_every_command_that_takes_a_server_takes_them() -> None:
    stack: list[Any] = [root_command()]
    count = 0
    while stack:
        command = stack.pop()
        names = {name for one in command.params for name in one.opts}
        if "--server" in names:
            count += 1
            assert {"--credentials", "--tls-ca", "--tls-cert", "--tls-key"} <= names, command.name
        stack += getattr(command, "commands", {}).values()
    assert count > 20
