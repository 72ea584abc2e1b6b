"""Nothing of a contract becomes code, whatever its names, comments, annotations and constants are."""

from __future__ import annotations

import ast
import dataclasses
import math
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from penstock.idl.mistakes import IdlError
from penstock.idl.model import Enum, ListOf, MapOf, Program, Requiredness, Scope, Service, SetOf, Struct, StructKind
from penstock.idl.python import names
from penstock.idl.python.generate import generate, packages_of
from penstock.idl.python.load import load_program
from penstock.idl.python.module import Naming
from tests.extent import HAS_TIME, examples
from tests.unit.idl.python.models import (
    WORST_NAMES,
    WORST_TEXTS,
    Made,
    check_annotations,
    named_everywhere,
    programs,
    said_everywhere,
)

_MODULES = {
    "__future__", "builtins", "collections.abc", "dataclasses", "enum", "typing", "uuid", "penstock.frugal.client",
    "penstock.frugal.context", "penstock.frugal.contracts", "penstock.frugal.scopes", "penstock.frugal.structs",
}  # fmt: skip
_CALLED = {
    "FrozenMap",
    "MethodType",
    "OperationType",
    "ScopeType",
    "ServiceType",
    "UUID",
    "connect_specs",
    "dataclass",
    "dict",
    "field",
    "float",
    "frozenset",
    "known",
    "list",
    "set",
    "tuple",
}
_REFUSED = (
    "a server would not find",
    "by one that it imports",
    "is that of",
    "cannot be a key",
    "is marked as the key",
)
_METHODS = {"_call", "_publish", "_subscribe", "items", "__post_init__", "__setattr__"}


def check_code(text: str, own: set[str], packages: set[str]) -> None:
    """Fail if a module has a statement, import, name or call that the generator does not write."""
    tree = ast.parse(text)
    imported: dict[str, str] = {}  # local names by what they are
    for each in ast.walk(tree):
        if isinstance(each, ast.ImportFrom):
            assert each.module in _MODULES, each.module
            imported.update({one.asname or one.name: one.name for one in each.names})
        elif isinstance(each, ast.Import):
            assert [one.name in packages for one in each.names] == [True], ast.unparse(each)
    classes = {each.name for each in tree.body if isinstance(each, ast.ClassDef)}
    private: set[str] = set()
    for each in tree.body:
        match each:
            case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant(str())):
                pass
            case ast.Expr(ast.Call(ast.Name(name))):
                assert imported.get(name) == "connect_specs", ast.unparse(each)
            case ast.FunctionDef(name=name, body=[ast.Return()], args=ast.arguments(args=[])):
                private |= {name}
            case ast.ClassDef(name=name):
                private |= {name} - own
            case ast.Assign([ast.Attribute(ast.Name(name), "thrift_spec" | "thrift_required")]):
                assert name in classes, name
            case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
                private |= {name} - own - {"__all__"}
            case _:
                pytest.fail(f"a statement that is none of the generator's: {ast.unparse(each)}")
    assert all(name.startswith("_") for name in private), private
    for each in ast.walk(tree):
        if isinstance(each, ast.Call):
            match each.func:
                case ast.Name(name):
                    called = imported.get(name, name)
                    assert called in _CALLED or name in classes or name in private, ast.unparse(each)
                case ast.Attribute(ast.Name(name), attribute):
                    is_other = name in _aliases(tree, packages)
                    assert is_other or attribute in _METHODS, ast.unparse(each)
                case ast.Attribute(_, attribute):
                    assert attribute in _METHODS, ast.unparse(each)
                case _:
                    pytest.fail(f"a call that is none of the generator's: {ast.unparse(each)}")


def _aliases(tree: ast.Module, packages: set[str]) -> set[str]:
    found = [one for each in tree.body if isinstance(each, ast.Import) for one in each.names]
    return {one.asname or one.name for one in found if one.name in packages}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        return type(other) is float and (one == other and math.copysign(1, one) == math.copysign(1, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(_same, one, other)) and all(map(_same, one.values(), other.values()))
    return bool(one == other)


def _class(module: ModuleType, base: ModuleType, program: Program, name: str) -> Any:
    found = program.find(name)
    assert found is not None
    return getattr(base if found.program is not program else module, Naming(found.program).of(found.definition))


def _check_struct(made: Any, struct: Struct) -> None:
    """Check that annotations mean types where they stand, and that a constructor's defaults are there."""
    check_annotations(made)
    if struct.kind is StructKind.UNION:
        return
    required = [each.name for each in dataclasses.fields(made) if _has_no_default(each)]
    value = made(**dict.fromkeys(required))
    if struct.kind is StructKind.EXCEPTION:
        value.add_note("raised")
        assert (value.with_traceback(None), value.__notes__, type(value.args)) == (value, ["raised"], tuple)
    for each, attribute in names.attributes(struct).items():
        kind = next(one.type for one in struct.fields if one.name == each)
        expected = {ListOf: list, SetOf: set, MapOf: dict}.get(type(kind))  # type: ignore[call-overload]
        found = getattr(value, attribute)
        assert found is None or expected is None or type(found) is expected


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _check_handler(protocol: type, methods: dict[str, str]) -> None:
    """Check that a handler keeps the methods that it defines, whatever `typing` sets in classes of a protocol."""
    made = {attribute: lambda self, ctx: None for attribute in methods.values()}
    handler = type("Handler", (protocol,), made)
    assert {attribute: vars(handler)[attribute] for attribute in made} == made


def _check_definitions(module: ModuleType, program: Program) -> None:
    """Check that what a contract declares is there, by its names on the wire."""
    naming = Naming(program)
    for each in program.document.definitions:
        made = getattr(module, naming.of(each))
        if isinstance(each, Enum):
            assert [made[naming.members(each)[one.name]] for one in each.values] == [one.number for one in each.values]
        elif isinstance(each, Struct):
            assert [one[0] for one in made.thrift_spec if one] == sorted(one.id for one in each.fields)
            assert len(made.__slots__) == len(each.fields)
            needed = [one.name for one in each.fields if one.requiredness is Requiredness.REQUIRED]
            attributes = names.attributes(each)
            assert list(made.thrift_required) == (
                [] if each.kind is StructKind.UNION else [*map(attributes.get, needed)]
            )
            _check_struct(made, each)
        elif isinstance(each, Service):
            assert made.name == each.name
            _check_handler(getattr(module, naming.of_class(each, "Handler")), names.handler_methods(each))
            assert set(made.methods) == {one.name[:1].lower() + one.name[1:] for one in each.methods}
            for one, method in zip(each.methods, made.methods.values(), strict=True):
                assert len(method.arguments.__slots__) == len(one.arguments)
                assert dict(method.annotations) == {mark.name: mark.value for mark in one.annotations}
        elif isinstance(each, Scope):
            assert (made.name, made.prefix, made.variables) == (each.name, each.prefix, each.variables)
            assert list(made.operations) == [one.name for one in each.operations]


# Without shrinking: it takes minutes with models as large as these.
@settings(
    max_examples=examples(60),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(made=programs())
def test_any_contract(made: Made) -> None:
    check(made)


@pytest.mark.parametrize("turn", range(4 if HAS_TIME else 1))
def test_each_of_the_worst_names_for_everything(turn: int) -> None:
    for name in WORST_NAMES:
        assert check(named_everywhere(name, turn)), name


def test_each_of_the_worst_texts_everywhere() -> None:
    for text in WORST_TEXTS:
        assert check(said_everywhere(text)), text


def _generated(program: Program) -> dict[str, str] | None:
    """Return the code of a program; None: it is refused for a reason that it may be refused for."""
    try:
        return generate(program, prefix="p")
    except IdlError as error:
        mistakes = [each.text for each in error.mistakes]
    assert all(any(reason in text for reason in _REFUSED) for text in mistakes), mistakes
    return None


def check(made: Made) -> bool:
    """Fail if the code of a program is not as it should be. False: the program is refused, and has none."""
    files = _generated(made.program)
    if files is None:
        return False
    packages = {path.removesuffix("/__init__.py").replace("/", ".") for path in files}
    public = {
        name for each in made.program.closure() for name in Naming(each).public()
    }  # of the two files: which has which is checked below
    for text in files.values():
        check_code(text, public, packages)
        assert all(character.isprintable() or character == "\n" for character in text)
    module = load_program(made.program)
    base = _included(module, made.program)
    for program, one in ((made.program, module), (made.program.includes["base"], base)):
        assert sorted(one.__all__) == Naming(program).public()
        _check_definitions(one, program)
    naming = Naming(made.program)
    for constant in made.program.document.constants:
        expected = made.values[constant.name].make(lambda name: _class(module, base, made.program, name))
        found = getattr(module, naming.of(constant))
        assert _same(expected, found), (expected, found)
    return True


def _included(module: ModuleType, program: Program) -> ModuleType:
    """Return the included module: another attribute may have its name, and both files may share a package."""
    packages = packages_of(program, prefix=module.__name__.partition(".")[0])
    return sys.modules[packages[program.includes["base"].document.file]]


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "x = 1",
        "print()",
        "del known",
        "class x: pass",
        "from os import path",
        "_a = eval('1')",
        "for _ in (): pass",
    ],
)
def test_the_check_finds_code(line: str) -> None:
    good = "from dataclasses import dataclass\n\n\n@dataclass()\nclass A:\n    pass\n"
    check_code(good, {"A"}, set())
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_code(f"{good}\n{line}\n", {"A"}, set())
