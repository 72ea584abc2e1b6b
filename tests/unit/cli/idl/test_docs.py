"""`penstock idl docs`: where the page goes, its form, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli_app import app

ORDERS = "/** One order. */\nstruct Order { 1: i64 total }\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("orders.frugal").write_text(ORDERS)
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["idl", "docs", *arguments], env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("out", "options", "start"),
    [
        ("page.html", (), "<!DOCTYPE html>"),
        ("page.HTM", (), "<!DOCTYPE html>"),
        ("page.md", (), '<a id="page:top"></a>'),
        ("page.txt", ("--format", "markdown"), '<a id="page:top"></a>'),
        ("page.md", ("--format", "html"), "<!DOCTYPE html>"),
    ],
)
def test_the_form_follows_the_suffix_or_the_option(out: str, options: tuple[str, ...], start: str) -> None:
    Path(out).write_text("an older page")
    done = run("orders.frugal", "--out", out, *options)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"wrote {out}\n")
    assert Path(out).read_text(encoding="utf-8").startswith(start)


def test_without_a_file_it_goes_to_stdout() -> None:
    done = run("orders.frugal", "--title", "All orders")
    assert done.exit_code == 0
    assert "<title>All orders</title>" in done.stdout
    assert done.stdout.endswith("</html>\n")


def test_a_page_never_takes_the_place_of_a_contract() -> None:
    done = run("orders.frugal", "--out", "orders.frugal", "--format", "html")
    assert done.exit_code == 2
    assert "orders.frugal is a contract of this page" in done.stderr
    assert Path("orders.frugal").read_text() == ORDERS


def test_an_unknown_suffix_asks_for_the_form() -> None:
    done = run("orders.frugal", "--out", "page.txt")
    assert done.exit_code == 2
    assert "page.txt ends neither in .html nor in .md: give --format, too" in done.stderr


def test_mistakes_are_told_as_compilers_do() -> None:
    Path("bad.frugal").write_text("struct S { 1: Nothing a }\nstruct T { 1: i32 a, 1: i32 b }\n")
    done = run("bad.frugal", "--out", "page.html")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0].startswith("bad.frugal:")
    assert not Path("page.html").exists()


def test_a_file_that_is_not_there_is_wrong_input() -> None:
    done = run("nowhere.frugal")
    assert done.exit_code == 2
    assert done.stderr.startswith("nowhere.frugal:1:1: ")


def test_a_page_that_cannot_be_written_fails() -> None:
    done = run("orders.frugal", "--out", "no/folder/page.html")
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: ")
