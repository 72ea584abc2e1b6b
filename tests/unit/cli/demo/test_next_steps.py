"""What the demo says to try next can be pasted as it stands."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from penstock.broker.supervision.child import ReadyLine
from penstock.cli.demo.next_steps import next_steps


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a .venv, as dev.py makes it, and a demo's data."""
    home = tmp_path / "home with space"
    (home / ".venv" / "bin").mkdir(parents=True)
    for name in ("python", "penstock"):
        (home / ".venv" / "bin" / name).touch(mode=0o755)
    data = home / "penstock-demo" / "streams" / "00000001-flights" / "0"
    data.mkdir(parents=True)
    (data / "00000000000000000000.arrows").touch()
    monkeypatch.chdir(home)
    return home


def commands(
    folder: Path, *, client: str = "127.0.0.1:7422", lake: Path | None = None, **environment: str
) -> list[str]:
    ready = ReadyLine(client, "nats://127.0.0.1:4222", str(folder / "penstock-demo"))
    python = str(folder / ".venv/bin/python")
    default = "127.0.0.1:7422"
    lines = next_steps(ready, "flights", default_client=default, lake=lake, python=python, environment=environment)
    return [line for line in lines if not line.startswith("#")]


def test_in_the_shells_folder_paths_are_short_and_the_program_is_the_venvs(folder: Path) -> None:
    serve, read, publish, status, dump, python = commands(folder, PWD=str(folder), PATH="/bin")
    assert serve == ".venv/bin/penstock serve --data-dir penstock-demo"
    assert read == ".venv/bin/penstock read flights --from -10 --follow"
    assert shlex.split(publish)[:4] == [".venv/bin/penstock", "publish", "flights.JFK.DL", '{"dest": "ATL"}']
    assert status == ".venv/bin/penstock status"
    segment = "penstock-demo/streams/00000001-flights/0/00000000000000000000.arrows"
    assert dump == f".venv/bin/penstock dump {segment} --limit 5"
    assert shlex.split(python)[:2] == [".venv/bin/python", "-c"]
    assert segment in shlex.split(python)[2]


def test_from_elsewhere_paths_are_whole_and_quoted(folder: Path) -> None:
    serve, *_, python = commands(folder, PWD="/", PATH="/bin")
    program, data_dir = str(folder / ".venv/bin/penstock"), str(folder / "penstock-demo")
    assert shlex.split(serve) == [program, "serve", "--data-dir", data_dir]
    assert shlex.split(python)[0] == str(folder / ".venv/bin/python")
    assert str(folder) in shlex.split(python)[2]


def test_the_name_is_enough_where_the_shell_finds_it(folder: Path) -> None:
    assert commands(folder, PWD=str(folder), PATH=str(folder / ".venv/bin"))[3] == "penstock status"
    # Another one of that name is not this one.
    (folder / "bin").mkdir()
    (folder / "bin" / "penstock").touch(mode=0o755)
    assert commands(folder, PWD=str(folder), PATH=str(folder / "bin"))[3] == ".venv/bin/penstock status"


def test_without_a_script_the_interpreter_runs_the_package(folder: Path) -> None:
    (folder / ".venv/bin/penstock").unlink()
    assert commands(folder, PWD=str(folder), PATH="/bin")[3] == ".venv/bin/python -m penstock status"


def test_a_moved_port_is_said_to_the_broker_and_to_its_clients(folder: Path) -> None:
    serve, read, publish, status, *_ = commands(folder, client="127.0.0.1:4711", PWD=str(folder), PATH="/bin")
    assert serve.endswith(" --listen 127.0.0.1:4711")
    for command in (read, publish, status):
        assert command.endswith(" --server 127.0.0.1:4711")


def test_a_lake_has_steps_of_its_own(folder: Path) -> None:
    found = commands(folder, lake=Path("penstock-demo", "lake"), client="127.0.0.1:7423", PWD=str(folder), PATH="/bin")
    server = "--server 127.0.0.1:7423"
    assert found[4:7] == [
        f".venv/bin/penstock pipeline archive flights --to penstock-demo/lake {server}",
        f".venv/bin/penstock pipeline audit flights --against penstock-demo/lake {server}",
        f".venv/bin/penstock pipeline table flights --to penstock-demo/lake-latest {server}",
    ]
