"""`penstock idl compile`: which files it writes, what it never writes over, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock
from tests.cli_app import app

ORDERS = """namespace py shop.orders
include "money.frugal"
struct Order { 1: required string id; 2: money.Amount amount }
service Orders { void place(1: Order order) }
scope Events prefix shop.{region} { Placed: Order }
"""
MONEY = "namespace py shop.money\nstruct Amount { 1: i64 cents }\n"
WRITTEN = ["src/shop/__init__.py", "src/shop/money/__init__.py", "src/shop/orders/__init__.py"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("orders.frugal").write_text(ORDERS)
    Path("money.frugal").write_text(MONEY)
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["idl", "compile", *arguments], env={"COLUMNS": "200"})


def files(where: str = "src") -> list[str]:
    return sorted(map(str, Path(where).rglob("*.py")))


def test_the_code_of_a_contract_and_its_includes_is_written() -> None:
    done = run("orders.frugal", "--out", "src")
    assert (done.exit_code, done.stdout.splitlines()) == (0, WRITTEN)
    assert done.stderr == "3 files, of which 3 changed\n"
    assert files() == WRITTEN
    script = "from shop import money, orders; print(orders.Order(id='a', amount=money.Amount(cents=7)))"
    path = os.pathsep.join((str(Path(penstock.__file__).parents[1]), "src"))
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert ran.stdout == "Order(id='a', amount=Amount(cents=7))\n"


def test_the_same_contract_changes_nothing() -> None:
    run("orders.frugal", "--out", "src")
    before = {name: Path(name).stat().st_mtime_ns for name in files()}
    done = run("orders.frugal", "--out", "src")
    assert done.stderr == "3 files, of which 0 changed\n"
    assert {name: Path(name).stat().st_mtime_ns for name in files()} == before


def test_a_dry_run_writes_nothing() -> None:
    done = run("orders.frugal", "--out", "src", "--dry-run")
    assert (done.exit_code, done.stdout.splitlines()) == (0, WRITTEN)
    assert done.stderr == "3 files would be written\n"
    assert not Path("src").exists()


def test_all_of_it_goes_into_a_package_of_the_users() -> None:
    assert run("orders.frugal", "--out", "src", "--package", "acme.contracts").exit_code == 0
    assert "src/acme/contracts/shop/orders/__init__.py" in files()


def test_a_file_that_was_not_generated_is_never_replaced() -> None:
    Path("src/shop/orders").mkdir(parents=True)
    Path(WRITTEN[-1]).write_text("mine = 1\n")
    done = run("orders.frugal", "--out", "src")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"not generated, so not written over: {WRITTEN[-1]}" in done.stderr
    assert files() == WRITTEN[-1:]
    assert Path(WRITTEN[-1]).read_text() == "mine = 1\n"


def test_files_of_other_folders_are_included_if_they_are_named() -> None:
    Path("other").mkdir()
    Path("money.frugal").rename("other/money.frugal")
    assert run("orders.frugal", "--out", "src").exit_code == 2
    assert run("orders.frugal", "--out", "src", "--include", "other").exit_code == 0


def test_mistakes_are_told_as_compilers_do() -> None:
    Path("bad.frugal").write_text("struct S { 1: i32 a, 1: i32 b }\nenum E { A = 0, A = 1 }\n")
    done = run("bad.frugal", "--out", "src")
    assert (done.exit_code, done.stdout) == (2, "")
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == ["bad.frugal:1:22", "bad.frugal:2:17"]
    assert not Path("src").exists()


def test_folders_and_files_are_compiled_together_in_any_order() -> None:
    """Files of one namespace become packages within it: that needs all of them."""
    Path("contracts/sub").mkdir(parents=True)
    Path("contracts/a.frugal").write_text('namespace py acme\ninclude "sub/b.thrift"\nstruct A { 1: b.B b }\n')
    Path("contracts/sub/b.thrift").write_text("namespace py acme\nstruct B { 1: i32 x }\n")
    expected = ["acme/__init__.py", "acme/a/__init__.py", "acme/b/__init__.py", "shop/__init__.py"]
    expected += ["shop/money/__init__.py", "shop/orders/__init__.py"]
    for out, given in (
        ("src", ("contracts", "orders.frugal")),
        ("other", ("orders.frugal", "contracts/sub", "contracts")),
    ):
        done = run(*given, "--out", out)
        assert (done.exit_code, done.stdout.splitlines()) == (0, [f"{out}/{name}" for name in expected])
    for name in expected:
        assert Path("src", name).read_bytes() == Path("other", name).read_bytes()


def test_the_mistakes_of_all_files_are_one_list_and_nothing_is_written() -> None:
    Path("bad").mkdir()
    Path("bad/a.frugal").write_text("struct S { 1: Nothing a }\n")
    Path("bad/b.frugal").write_text('include "a.frugal"\nstruct T { 1: Nothing a }\n')
    done = run("orders.frugal", "bad", "--out", "src")
    assert (done.exit_code, done.stdout) == (2, "")
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == ["bad/a.frugal:1:15", "bad/b.frugal:2:15"]
    assert not Path("src").exists()


def test_two_files_that_would_be_one_package_are_a_mistake() -> None:
    Path("x").mkdir()
    Path("x/orders.frugal").write_text("namespace py shop.orders\nstruct Other {}\n")
    done = run("orders.frugal", "x", "--out", "src")
    assert done.exit_code == 2
    assert "is that of orders.frugal already; give each file a `namespace py` of its own" in done.stderr
    assert not Path("src").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("empty", "--out", "src"), "no .frugal or .thrift file in empty"),
        (("orders.frugal",), "Missing option '--out'"),
        (("orders.frugal", "--out", "src", "--package", "../up"), "../up"),
        (("nowhere.frugal", "--out", "src"), "nowhere.frugal:1:1: "),
    ],
)
def test_a_wrong_command_line_has_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    Path("empty").mkdir()
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert not Path("src").exists()


def test_a_mistyped_annotation_is_told_and_the_code_is_written() -> None:
    """The event would be live, and lost while nothing subscribes."""
    Path("orders.frugal").write_text('scope S { Op: string (strem = "s") }')
    done = run("orders.frugal", "--out", "src")
    text = 'orders.frugal:1:23: warning: the annotation "strem" means nothing to Penstock; did you mean "stream"?'
    assert (done.exit_code, done.stderr.splitlines()) == (0, [text, "1 file, of which 1 changed"])


def test_a_descriptor_set_is_told_which_commands_take_it() -> None:
    Path("shop.binpb").write_bytes(b"\x0a")
    done = run("shop.binpb", "--out", "src")
    assert done.exit_code == 2
    assert "shop.binpb is a descriptor set of Protobuf, for `penstock idl check`" in " ".join(done.stderr.split())


def test_a_package_that_is_none_is_told_by_its_option() -> None:
    done = run("orders.frugal", "--out", "src", "--package", "a-b")
    assert done.exit_code == 2
    text = "Invalid value for '--package': 'a-b' is no package of Python; give names with dots between"
    assert text in " ".join(done.stderr.split())
