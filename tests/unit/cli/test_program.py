"""The program has each command, and imports no more than the one that is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.program import COMMANDS, program
from tests.cli_app import app, root_command
from tests.extent import each_change

MODULES = {
    name: "penstock_bench.cli.command" if name == "bench" else f"penstock.cli.{place.module}"  # type: ignore[union-attr]
    for name, place in COMMANDS.items()
}


@each_change
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_alone_is_as_it_is_among_all(name: str) -> None:
    alone = typer.main.get_command(program([name])).commands[name]  # type: ignore[attr-defined]
    among = root_command().commands[name]
    assert alone.name == among.name == name
    assert alone.help == among.help
    assert [one.name for one in alone.params] == [one.name for one in among.params]


def imported(*arguments: str) -> set[str]:
    script = (
        "import sys\n"
        "from penstock.cli import main\n"
        f"sys.argv[1:] = {list(arguments)}\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('\\n'.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return {MODULES[name] for name in COMMANDS} & {*done.stdout.splitlines()}


def test_only_the_command_that_is_asked_for_is_imported() -> None:
    assert imported("health", "--help") == {"penstock.cli.broker.health"}
    assert imported("stream", "list", "--help") == {"penstock.cli.stream.streams"}


@each_change
@pytest.mark.parametrize("arguments", [("--help",), (), ("--server", "health", "status", "--help"), ("heath",)])
def test_where_no_command_comes_first_there_are_all(arguments: tuple[str, ...]) -> None:
    assert len(imported(*arguments)) == len(COMMANDS)


@pytest.mark.parametrize("arguments", [(), ("reach", "--short"), ("latency", "--rate", "5")])
def test_without_its_distribution_a_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr("penstock.cli.program.entry_points", lambda **_: ())
    app = program()
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: `penstock bench` is not installed: `pip install '.[bench]' ./bench` in ")
    assert len(done.stderr.splitlines()) == 1
    assert "bench " in CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).stdout
    helped = CliRunner().invoke(app, ["bench", "--help"], env={"COLUMNS": "200"})
    assert helped.exit_code == 0
    assert "Not installed: `pip install '.[bench]' ./bench`" in helped.stdout
    assert "Examples" not in helped.stdout


def test_what_is_said_of_a_missing_distribution_is_what_it_says_itself() -> None:
    there = typer.main.get_command(program(["bench"])).commands["bench"]  # type: ignore[attr-defined]
    assert there.help.startswith(COMMANDS["bench"].summary)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["read", "a", "--json"], "No such option: --json. Write --format json"),
        (["stream", "create", "a", "--subject", "b"], "No such option: --subject. Give SUBJECT as an argument"),
        (["consumer", "create", "a", "c", "--filter", "b"], "No such option: --filter. Write --subject PATTERN"),
        (["stream", "count", "a", "--subject", "b"], "No such option: --subject. Give SUBJECT as an argument"),
        (["read", "a", "--timeout", "0"], "'--timeout': 0 must be more than 0"),
        (["read", "a", "--from", "x"], "'--from': 'x' is no place in the log"),
        (["stream", "purge", "a", "--before", "x"], "'--before': 'x' is no place in the log"),
        (["stream", "create", "a", "a.>", "--max-bytes", "-1"], "; write none for no limit"),
        (["stream", "create", "a", "a.>", "--max-age", "-1"], "; write none for no limit"),
        (["read", "a", "--max-staleness", "0"], "--max-staleness 0 must be more than 0; write none for no limit"),
    ],
)
def test_what_other_programs_say_is_told_how_it_is_said_here(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "is_here"),
    [
        ("ls", "stream list"),
        ("info", "status"),
        ("sub a", "read a"),
        ("pub a b", "publish a b"),
        ("stream ls", "stream list"),
        ("stream rm a", "stream delete a"),
        ("stream info a", "stream show a"),
        ("stream describe a", "stream show a"),
        ("stream add a a.>", "stream create a a.>"),
        ("group ls", "group list"),
        ("group info a", "group show a"),
        ("user create a", "user add a"),
        ("acl rm a read", "acl delete a read"),
        ("keys create", "keys new"),
    ],
)
def test_the_names_of_other_programs_are_aliases(arguments: str, is_here: str) -> None:
    """The usage error of an unknown option shows which command took it."""
    run = CliRunner()
    given = run.invoke(app, [*arguments.split(), "--no-such"], env={"COLUMNS": "200"})
    named = run.invoke(app, [*is_here.split(), "--no-such"], env={"COLUMNS": "200"})
    assert (given.exit_code, given.stderr) == (named.exit_code, named.stderr)
    assert given.exit_code == 2
    assert "No such option: --no-such" in given.stderr


def test_neither_help_nor_completion_lists_an_alias() -> None:
    root = typer.main.get_command(program())
    assert not {"ls", "rm", "info"} & {*root.commands["stream"].commands}  # type: ignore[attr-defined]
    assert root.commands["version"].hidden  # type: ignore[attr-defined]


def test_the_version_is_a_command_too() -> None:
    said = {CliRunner().invoke(app, [one]).stdout for one in ("version", "--version")}
    assert len(said) == 1
    assert said.pop().startswith("penstock ")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["list"], ["stream", "list"]),
        (["streams"], ["stream", "list"]),
        (["groups", "--json"], ["group", "list", "--json"]),
        (["info"], ["status"]),
        (["info", "--json"], ["status", "--json"]),
        (["info", "orders"], ["stream", "show", "orders"]),
    ],
)
def test_what_others_call_a_command_is_understood(given: list[str], meant: list[str]) -> None:
    from penstock.cli.terminal.help import called_here

    assert called_here(given, {"status", "stream", "group"}) == meant
