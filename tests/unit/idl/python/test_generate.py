"""Packages, limits and refusals of generated code."""

from __future__ import annotations

import pytest

from penstock.idl.files import texts
from penstock.idl.linker import link
from penstock.idl.mistakes import IdlError
from penstock.idl.model import (
    Document,
    Enum,
    EnumValue,
    Field,
    Namespace,
    Position,
    Program,
    Scalar,
    ScalarKind,
    Struct,
    StructKind,
)
from penstock.idl.python import module, structs
from penstock.idl.python.generate import MARK, generate, packages_of


def _packages(files: dict[str, str], first: str = "a.frugal", prefix: str = "") -> dict[str, str]:
    return packages_of(link(first, texts(files)), prefix=prefix)


def _mistakes(program: Program) -> list[str]:
    with pytest.raises(IdlError) as caught:
        generate(program)
    return [str(each) for each in caught.value.mistakes]


def _struct(*fields: Field) -> Program:
    return Program(Document("a.frugal", definitions=(Struct("S", StructKind.STRUCT, fields),)), {})


def _field(number: int, name: str = "x", kind: ScalarKind = ScalarKind.I32) -> Field:
    return Field(number, name, Scalar(kind), position=Position("a.frugal", 2, 3))


# Packages


def test_a_file_without_namespace_has_its_own_name() -> None:
    assert _packages({"dir/my-shop.frugal": ""}, "dir/my-shop.frugal") == {"dir/my-shop.frugal": "my_shop"}


def test_the_namespace_for_python_comes_before_that_for_any_language() -> None:
    assert _packages({"a.frugal": "namespace * b\nnamespace py c.d\nnamespace go e"}) == {"a.frugal": "c.d"}
    assert _packages({"a.frugal": "namespace * b"}) == {"a.frugal": "b"}


def test_files_of_one_namespace_become_packages_in_it() -> None:
    files = {"a.frugal": 'namespace * shop\ninclude "b.frugal"', "b.frugal": "namespace * shop"}
    assert _packages(files) == {"a.frugal": "shop.a", "b.frugal": "shop.b"}
    assert sorted(generate(link("a.frugal", texts(files)))) == [
        "shop/__init__.py",
        "shop/a/__init__.py",
        "shop/b/__init__.py",
    ]


def test_two_files_of_one_name() -> None:
    files = {"a.frugal": 'include "one/x.frugal"\ninclude "y.frugal"', "y.frugal": 'include "two/x.frugal"'}
    files |= {"one/x.frugal": "", "two/x.frugal": "namespace py X.x"}
    assert _packages(files)["one/x.frugal"] == "x"
    files["two/x.frugal"] = ""
    with pytest.raises(
        IdlError, match=r"one/x.frugal:1:1: the package x.x is that of two/x.frugal|two/x.frugal:1:1: .* one"
    ):
        _packages(files)


def test_packages_that_differ_by_case_only() -> None:
    files = {"a.frugal": 'namespace py Shop\ninclude "b.frugal"', "b.frugal": "namespace py shop"}
    with pytest.raises(IdlError, match=r"a\.frugal:1:11: the package Shop is that of b\.frugal already"):
        _packages(files)


def test_a_package_that_would_be_imported_by_what_it_imports() -> None:
    files = {
        "a.frugal": 'namespace py shop\ninclude "b.frugal"',
        "b.frugal": 'namespace py other\ninclude "c.frugal"',
        "c.frugal": "namespace py shop.c",
    }
    with pytest.raises(IdlError, match="the package other would be imported by one that it imports"):
        _packages(files)
    files["b.frugal"] = 'namespace py shop.b\ninclude "c.frugal"'
    assert _packages(files)["b.frugal"] == "shop.b"


def test_a_package_may_lie_in_one_that_it_uses_or_that_uses_it() -> None:
    for inner, outer in (("a.frugal", "b.frugal"), ("b.frugal", "a.frugal")):
        files = {"a.frugal": 'include "b.frugal"\n', "b.frugal": ""}
        files[inner] += "namespace py shop.orders"
        files[outer] += "namespace py shop"
        assert _packages(files) == {inner: "shop.orders", outer: "shop"}


@pytest.mark.parametrize("namespace", ["..", "a..b", "/etc", "a/b", "a.b\n", "a b", "é", "", "a\0"])
def test_namespaces_that_are_no_packages(namespace: str) -> None:
    position = Position("a.frugal", 4, 1)
    program = Program(Document("a.frugal", (Namespace("py", namespace, position=position),)), {})
    assert _mistakes(program) == [
        f"a.frugal:4:1: {namespace!r} cannot be a package of Python; give names with dots between"
    ]


def test_limits_of_packages() -> None:
    for namespace in (".".join("a" * 17), "a" * 201):
        assert (
            "a package has 16 parts at most" in _mistakes(Program(Document("a", (Namespace("py", namespace),)), {}))[0]
        )


@pytest.mark.parametrize("prefix", ["a..b", "..", "os", "class", "a/b", "penstock.x"])
def test_prefixes_that_are_none(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix is"):
        generate(link("a.frugal", texts({"a.frugal": ""})), prefix=prefix)


def test_each_file_begins_with_the_mark() -> None:
    files = {"a\n'.frugal": "namespace py x.y"}
    for text in generate(link("a\n'.frugal", texts(files)), prefix="p").values():
        assert text.startswith(MARK)


def test_the_same_contract_gives_the_same_text() -> None:
    files = {"a.frugal": 'include "b.frugal" struct A { 1: b.B b }', "b.frugal": "struct B {}"}
    one, other = (generate(link("a.frugal", texts(files))) for _ in range(2))
    assert list(one.items()) == list(other.items())
    alone = generate(link("b.frugal", texts(files)))
    assert alone["b/__init__.py"] == one["b/__init__.py"]


# What cannot be in Python


@pytest.mark.parametrize("number", [-1, 32768])
def test_ids(number: int) -> None:
    assert _mistakes(_struct(_field(number))) == [f'a.frugal:2:3: "x" has the id {number}; give one from 1 to 32,767']
    assert "*(None,) * 32767," in generate(_struct(_field(32767)))["a/__init__.py"]


def test_types_of_protobuf_alone() -> None:
    (mistake,) = _mistakes(_struct(_field(1, kind=ScalarKind.U64)))
    assert mistake == "a.frugal:2:3: u64 is a type of Protobuf, which Thrift has no form for"


@pytest.mark.parametrize("name", ["a b", "a\nimport os", "", "1", "é", "a.b", "x;y"])
def test_names_of_another_alphabet(name: str) -> None:
    assert _mistakes(_struct(_field(1, name)))[0].startswith(f"a.frugal:2:3: {name!r} cannot be a name in Python")
    for each in (Struct(name, StructKind.STRUCT, ()), Enum("E", (EnumValue(name, 1),))):
        assert "cannot be a name" in _mistakes(Program(Document("a.frugal", definitions=(each,)), {}))[0]


def test_specs_have_a_limit() -> None:
    many = structs.SPEC_ENTRIES_MAX // (structs.FIELD_ID_MAX + 1) + 1
    text = "".join(f"struct S{number} {{ {structs.FIELD_ID_MAX}: i32 x }}\n" for number in range(many))
    (mistake,) = _mistakes(link("a.frugal", texts({"a.frugal": text})))
    assert mistake == (
        f"a.frugal:{many}:8: the largest ids of the file's structs add up to more than 4,194,304; give small ids"
    )


@pytest.mark.parametrize("sort", ["typedefs", "texts"])
def test_the_text_has_a_limit(sort: str) -> None:
    """Short contracts whose code would have gigabytes end with a mistake."""
    if sort == "typedefs":
        tower = "".join(f"typedef map<T{number}, T{number}> T{number + 1}\n" for number in range(7))
        fields = "".join(f"{number}: T7 f{number}\n" for number in range(1, 30_000))
        text = f"typedef i32 T0\n{tower}struct S {{ {fields} }}"
    else:
        items = ", ".join(["LONG"] * 40_000)
        text = f'const string LONG = "{"x" * 100_000}"\nconst list<string> ALL = [{items}]'
    program = link("a.frugal", texts({"a.frugal": text}))
    (mistake,) = [each for each in _mistakes(program) if "keys" not in each]
    assert mistake == f"a.frugal:1:1: the code of the program would have more than {module.TEXT_CHARS_MAX:,} characters"


@pytest.mark.parametrize(
    ("text", "place", "method", "found"),
    [
        ("service S { void del_(), void del() }", "1:31", "del", "del_"),
        ("service S { void X(), void x_() }", "1:18", "X", "x_"),
        ("service S { void x_() } service T extends S { void X() }", "1:52", "X", "x_"),
        ("service S { void __x() }", "1:18", "__x", ""),
    ],
)
def test_methods_that_a_server_would_not_find(text: str, place: str, method: str, found: str) -> None:
    mistakes = _mistakes(link("a.frugal", texts({"a.frugal": text})))
    expected = f'a.frugal:{place}: a server would not find the method "{method}" of a handler'
    expected += f", but {found}" if found else ""
    assert f"{expected}; give it another name" in mistakes
