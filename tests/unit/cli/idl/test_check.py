"""`penstock idl check`: which files it compares, its exit codes, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli_app import app
from tests.protobuf_contracts import descriptor_set

OLD = "struct Order {\n  1: i64 total\n}\n"
WIDER = "struct Order {\n  1: i32 total\n}\n"
REQUIRED = "struct Order {\n  1: i64 total\n  2: required string id\n}\n"
RENAMED = "struct Order {\n  1: i64 sum\n}\n"
MORE = "struct Order {\n  1: i64 total\n  2: optional string note\n}\n"
BAD = "struct Order {\n  1: i64 total\n  1: i64 other\n}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["idl", "check", *arguments], env={"COLUMNS": "200"})


def rows(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]


@pytest.mark.parametrize(
    ("new", "options", "code", "said"),
    [
        (OLD, (), 0, "Compatible (full): 0 changes in 1 contract."),
        (MORE, (), 0, "Compatible (full): 1 change in 1 contract, none breaks anything."),
        (WIDER, (), 1, "Incompatible (full): 1 of 1 change in 1 contract breaks something."),
        (REQUIRED, (), 1, "Incompatible (full): 1 of 1 change in 1 contract breaks something."),
        (REQUIRED, ("--mode", "backward"), 1, "Incompatible (backward): 1 of 1 change"),
        (REQUIRED, ("--mode", "forward"), 0, "Compatible (forward): 1 change in 1 contract, none breaks anything."),
        (RENAMED, (), 0, "Compatible (full): 1 change in 1 contract, none breaks anything."),
        (RENAMED, ("--source",), 1, "Incompatible (full): 1 of 1 change in 1 contract breaks something."),
    ],
)
def test_the_exit_code_says_whether_something_breaks(
    folder: Path, new: str, options: tuple[str, ...], code: int, said: str
) -> None:
    done = run(write("old.frugal", OLD), write("new.frugal", new), *options)
    assert (done.exit_code, done.stderr) == (code, "")
    assert said in done.stdout


def test_a_person_sees_a_table_and_what_to_do(folder: Path) -> None:
    shown = run(write("old/orders.frugal", OLD), write("new/orders.frugal", WIDER)).stdout.splitlines()
    assert shown[0].split() == ["breaks", "where", "what", "change", "rule"]
    words = "backward forward new/orders.frugal:2:3 Order.total field 1: i64 is i32 now type-changed"
    assert " ".join(shown[2].split()) == words
    assert shown[4].startswith("type-changed: readers of the other version skip the value")
    assert shown[5].startswith("  keep the type, and add a field with a new id")


def test_a_program_gets_an_object_for_each_change(folder: Path) -> None:
    (row,) = rows(write("old.frugal", OLD), write("new.frugal", WIDER))
    assert row.pop("why")
    assert row.pop("advice")
    assert row == {
        "rule": "type-changed",
        "refused": True,
        "breaks": ["backward", "forward"],
        "subject": "Order.total",
        "change": "field 1: i64 is i32 now",
        "against": "old.frugal",
        "old": "old.frugal:2:3",
        "new": "new.frugal:2:3",
    }


def test_what_is_gone_has_no_place_in_the_new_file(folder: Path) -> None:
    (row,) = rows(write("old.frugal", OLD), write("new.frugal", "// nothing\n"))
    assert (row["old"], row["new"]) == ("old.frugal:1:8", None)


def test_what_is_refused_comes_first(folder: Path) -> None:
    old = "struct A { 1: i32 a }\nstruct B { 1: i32 b }\n"
    new = "struct A { 1: i32 renamed }\nstruct B { 1: i64 b }\n"
    found = rows(write("old.frugal", old), write("new.frugal", new))
    assert [each["refused"] for each in found] == [True, False]


@pytest.mark.parametrize(
    ("allowed", "code"),
    [
        (("type-changed",), 0),
        (("type-changed:Order.total",), 0),
        (("type-changed:Order.other",), 1),
        (("field-removed",), 1),
        (("field-removed", "type-changed"), 0),
    ],
)
def test_a_change_can_be_allowed_on_purpose(folder: Path, allowed: tuple[str, ...], code: int) -> None:
    options = [word for each in allowed for word in ("--allow", each)]
    names = write("old.frugal", OLD), write("new.frugal", WIDER)
    assert run(*names, *options).exit_code == code
    assert [row["refused"] for row in rows(*names, *options)] == [code == 1]


# Folders


def test_files_of_folders_are_compared_by_their_paths(folder: Path) -> None:
    for version, text in (("old", OLD), ("new", WIDER)):
        write(f"{version}/orders.frugal", text)
        write(f"{version}/deep/more/same.thrift", OLD)
        write(f"{version}/notes.txt", text)
    done = run("old", "new")
    assert done.exit_code == 1
    assert "1 of 1 change in 2 contracts" in done.stdout
    assert "new/orders.frugal:2:3" in done.stdout


def test_a_file_that_is_gone_loses_all_and_one_that_is_new_breaks_nothing(folder: Path) -> None:
    write("old/gone.frugal", OLD)
    write("old/kept.frugal", "struct K { 1: i32 a }")
    write("new/kept.frugal", "struct K { 1: i32 a }")
    write("new/added.frugal", "struct New { 1: required i32 a }")
    (row,) = rows("old", "new")
    assert (row["rule"], row["old"]) == ("struct-removed", "old/gone.frugal:1:8")


def test_what_several_files_include_is_told_once(folder: Path) -> None:
    for version, text in (("old", OLD), ("new", WIDER)):
        write(f"{version}/base.frugal", text)
        for name in ("a", "b"):
            write(
                f"{version}/{name}/{name}.frugal", f'include "base.frugal"\nstruct {name.upper()} {{ 1: base.Order o }}'
            )
    assert [row["subject"] for row in rows("old", "new")] == ["Order.total"]


def test_files_of_other_folders_are_included_if_they_are_named(folder: Path) -> None:
    write("shared/base.frugal", OLD)
    text = 'include "base.frugal"\nstruct S { 1: base.Order o }'
    names = write("old/s.frugal", text), write("new/s.frugal", text)
    assert run(*names).exit_code == 2
    assert run(*names, "--include", "shared").exit_code == 0
    assert run("old", "new", "-I", "shared").exit_code == 0


def test_a_link_out_of_a_folder_is_not_followed(folder: Path) -> None:
    write("secret/base.frugal", OLD)
    text = 'include "base.frugal"\nstruct S { 1: base.Order o }'
    write("old/s.frugal", text)
    Path("old/base.frugal").symlink_to(folder / "secret/base.frugal")
    done = run("old", "old")
    assert done.exit_code == 2
    assert "outside of the folders that are given" in done.stderr


# Several versions


def test_an_id_of_an_early_version_is_found(folder: Path) -> None:
    write("1/orders.frugal", MORE)
    write("2/orders.frugal", OLD)
    write("3/orders.frugal", OLD.replace("}", "  2: optional i32 other\n}"))
    assert run("2", "3").exit_code == 0
    assert [(row["rule"], row["against"], row["old"]) for row in rows("1", "2", "3")] == [
        ("field-id-reused", "1/orders.frugal", "1/orders.frugal:3:3"),
        ("field-added", "2/orders.frugal", "2/orders.frugal:1:8"),
    ]


# Wrong input


def test_all_mistakes_are_told_as_compilers_do_each_once(folder: Path) -> None:
    write("old/a.frugal", BAD)
    write("old/b.frugal", 'include "a.frugal"\nstruct B { 1: Nothing x }')
    write("new/a.frugal", OLD)
    write("new/b.frugal", "struct B { 1: Nothing x }")
    done = run("old", "new")
    assert (done.exit_code, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == len({*lines}) == 4
    assert lines[0].startswith("old/a.frugal:3:3: the id 1 of ")
    assert lines[1].startswith("new/b.frugal:1:15: ")
    assert [each.partition(" is an older version with mistakes")[0] for each in lines[2:]] == [
        "old/a.frugal",
        "old/b.frugal",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a.frugal",), "Missing argument"),
        (("a.frugal", "nowhere.frugal"), "nowhere.frugal: there is no such file or folder"),
        (("a.frugal", "empty"), "empty is a folder, so the others have to be folders, too"),
        (("empty", "empty"), "no .frugal, .thrift, .binpb or .desc file in empty or empty"),
        (("a.frugal", "a.frugal", "--include", "nowhere"), "nowhere is no folder"),
        (("a.frugal", "a.frugal", "--allow", "type-change"), "no rule 'type-change'; did you mean type-changed"),
        (("a.frugal", "a.frugal", "--mode", "sideways"), "--mode"),
    ],
)
def test_a_wrong_command_line_has_exit_code_2(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    write("a.frugal", OLD)
    Path("empty").mkdir()
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_text_of_a_contract_does_not_control_the_terminal(folder: Path) -> None:
    done = run(write("a.frugal", "struct \x1b[31mS {}"), "a.frugal")
    assert done.exit_code == 2
    assert "\x1b" not in done.stderr


def test_a_contradiction_is_told_as_by_the_compiler(folder: Path) -> None:
    scope = 'scope Orders {\n  Placed: Order (partition_by = "key")\n  Paid: Order (stream = "s", key = "id")\n}\n'
    old, new = write("old.frugal", OLD), write("new.frugal", OLD + scope)
    done = run(old, new)
    compiled = CliRunner().invoke(app, ["idl", "compile", new, "--out", "code"])
    documented = CliRunner().invoke(app, ["idl", "docs", new, "--out", "page.html"])
    assert done.exit_code == compiled.exit_code == documented.exit_code == 2
    lines = done.stderr.splitlines()
    assert [each.partition(": ")[0] for each in lines] == ["new.frugal:5:3", "new.frugal:6:3"]
    assert done.stderr == compiled.stderr == documented.stderr
    assert not Path("code").exists()


def test_an_old_version_that_contradicts_itself_is_compared(folder: Path) -> None:
    """It is released, so it cannot be mended."""
    scope = 'scope Orders {\n  Paid: Order (stream = "s", key = "id")\n}\n'
    done = run(write("old.frugal", OLD + scope), write("new.frugal", WIDER + scope.replace('"id"', '"total"')))
    assert done.exit_code == 1
    assert [each.split(": ")[0] for each in done.stderr.splitlines()] == ["old.frugal:5:3"]
    assert done.stderr.endswith(" (an older version, so it is compared)\n")
    assert {"type-changed", "key-changed"} <= {*done.stdout.split()}


# Descriptor sets


def test_descriptor_sets_are_compared_by_their_files(folder: Path) -> None:
    pytest.importorskip("google.protobuf")
    first = "message Order { int32 a = 1; string note = 2 } service S { Get Order Order }"
    Path("old.binpb").write_bytes(descriptor_set(first))
    Path("new.binpb").write_bytes(descriptor_set("message Order { int32 a = 1; int64 b = 3 }"))
    found = {each["rule"]: each["subject"] for each in rows("old.binpb", "new.binpb")}
    assert found == {"field-removed-unreserved": "Order.note", "service-removed": "S", "field-added": "Order.b"}
    Path("moved.binpb").write_bytes(descriptor_set(first, name="other.proto"))
    assert {(each["rule"], each["against"], each["old"]) for each in rows("old.binpb", "moved.binpb")} == {
        ("struct-removed", "old.binpb", "shop.proto:1:1"),
        ("service-removed", "old.binpb", "shop.proto:1:1"),
        ("namespace-changed", "old.binpb", "shop.proto:1:1"),
    }
    Path("old").mkdir()
    Path("new").mkdir()
    Path("old.binpb").rename("old/shop.desc")
    Path("new.binpb").rename("new/shop.desc")
    assert run("old", "new").exit_code == 1


def test_a_set_that_is_none_is_told_by_its_path(folder: Path) -> None:
    pytest.importorskip("google.protobuf")
    Path("old.desc").write_bytes(b"\xff")
    Path("new.desc").write_bytes(descriptor_set("message Order { int32 a = 1 }"))
    done = run("old.desc", "new.desc")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("old.desc:1:1: these bytes are no descriptor set: ")
    assert "old.desc is an older version with mistakes" in done.stderr


def test_what_is_added_comes_last(folder: Path) -> None:
    new = "struct Order {\n  1: i32 sum\n  2: optional string note\n}\nstruct New {}\n"
    rules = [each["rule"] for each in rows(write("old.frugal", OLD), write("new.frugal", new), "--mode", "backward")]
    assert (rules[0], sorted(rules[1:])) == ("field-id-reused", ["declaration-added", "field-added"])


def test_an_old_folder_without_contracts_is_a_mistake(folder: Path) -> None:
    """A wrong path in CI would pass for ever."""
    write("new/a.frugal", OLD)
    (folder / "old").mkdir()
    result = run("old", "new")
    assert (result.exit_code, "old has no contracts" in result.output) == (2, True)


def test_mistyped_annotations_of_the_new_version_are_told_once(folder: Path) -> None:
    base = 'scope B { Op: string (%s = "s") }\n'
    write("old/base.frugal", base % "stram")
    write("new/base.frugal", base % "strem")
    for version in ("old", "new"):
        write(f"{version}/a.frugal", 'include "base.frugal"\n')
    done = run("old", "new")
    text = 'new/base.frugal:1:23: warning: the annotation "strem" means nothing to Penstock; did you mean "stream"?'
    assert (done.exit_code, done.stderr.splitlines()) == (0, [text])


def test_an_allowed_change_that_is_not_there_is_noted(folder: Path) -> None:
    """A mistyped subject would let nothing pass, or stay for ever after the change."""
    paths = write("old.frugal", OLD), write("new.frugal", OLD)
    done = run(*paths, "--allow", "type-changed:Nope", "--allow", "field-removed")
    notes = ["--allow type-changed:Nope: there is no such change", "--allow field-removed: there is no such change"]
    assert (done.exit_code, done.stderr.splitlines()) == (0, notes)
