"""Constants of a contract as Python expressions.

Rules: a linked program's constants fit their types, so each has an expression of that type; names of other constants
are written out as their values. In a key or element, containers are those of `types`. A number that cannot be written
(infinity) becomes `float("inf")`.
"""

from __future__ import annotations

import math

from penstock.idl.constants import Resolved, find_constant
from penstock.idl.model import (
    Constant,
    ConstantList,
    ConstantMap,
    ConstantName,
    ConstantValue,
    Enum,
    Found,
    FoundValue,
    ListOf,
    Literal,
    MapOf,
    Program,
    Scalar,
    ScalarKind,
    SetOf,
    Struct,
)
from penstock.idl.python import text
from penstock.idl.python.module import Module
from penstock.idl.python.types import RUNTIME


def expression(module: Module, program: Program, value: ConstantValue, type_: Resolved, *, as_key: bool = False) -> str:
    """Return the expression for a constant that is written in a file (`program`), and that has this type."""
    if isinstance(value, ConstantName):
        return _named(module, program, value, type_, as_key=as_key)
    owner, kind = type_
    if isinstance(kind, Scalar):
        return _scalar(module, _literal(value), kind.kind)
    if isinstance(kind, Enum):
        return _member(module, owner, kind, _literal(value))
    if isinstance(kind, Struct):
        return _struct(module, program, value, (owner, kind))
    if isinstance(kind, MapOf):
        assert isinstance(value, ConstantMap)
        key_type, value_type = owner.resolve(kind.key), owner.resolve(kind.value)
        entries = [
            f"{expression(module, program, key, key_type, as_key=True)}: "
            f"{expression(module, program, item, value_type, as_key=as_key)}"
            for key, item in value.entries
        ]
        made = f"{{{', '.join(entries)}}}"
        return f"{module.use(RUNTIME, 'FrozenMap')}({made})" if as_key else made
    items = value.items if isinstance(value, ConstantList) else ()  # `{}` is an empty list, too
    is_set, element = isinstance(kind, SetOf), owner.resolve(kind.element)
    inner = [expression(module, program, each, element, as_key=as_key or is_set) for each in items]
    return _container(module, inner, is_list=isinstance(kind, ListOf), as_key=as_key)


def _container(module: Module, items: list[str], *, is_list: bool, as_key: bool) -> str:
    joined = ", ".join(items)
    if is_list and as_key:
        return f"({joined},)" if len(items) == 1 else f"({joined})"
    if is_list:
        return f"[{joined}]"
    if as_key:
        return f"{module.builtin('frozenset')}({f'({joined},)' if items else ''})"
    return f"{{{joined}}}" if items else f"{module.builtin('set')}()"


def _named(module: Module, program: Program, value: ConstantName, type_: Resolved, *, as_key: bool) -> str:
    found = find_constant(program, value.name, type_)
    assert found is not None, f"{value.name} is not linked"
    if isinstance(found, FoundValue):
        return _value_of_enum(module, found, type_)
    constant = found.definition
    assert isinstance(constant, Constant)
    declared = found.program.resolve(constant.type)
    if isinstance(declared[1], Enum) and isinstance(type_[1], Scalar):
        return _scalar(module, _number(found.program, constant.value, declared), type_[1].kind)
    return expression(module, found.program, constant.value, type_, as_key=as_key)


def _value_of_enum(module: Module, found: FoundValue, type_: Resolved) -> str:
    if isinstance(type_[1], Scalar):
        return _scalar(module, found.value.number, type_[1].kind)
    return _member(module, found.program, found.enum, found.value.number, found.value.name)


def _number(program: Program, value: ConstantValue, enum: Resolved) -> bool | int | float | str:
    """Return the number of a constant of an enum's type."""
    while isinstance(value, ConstantName):
        found = find_constant(program, value.name, enum)
        if isinstance(found, FoundValue):
            return found.value.number
        assert found is not None
        assert isinstance(found.definition, Constant)
        program, value = found.program, found.definition.value
    return _literal(value)


def _literal(value: ConstantValue) -> bool | int | float | str:
    assert isinstance(value, Literal), f"{value} is no literal"
    return value.value


def _scalar(module: Module, value: bool | int | float | str, kind: ScalarKind) -> str:
    if kind is ScalarKind.BOOL:
        return str(bool(value))
    if kind in (ScalarKind.DOUBLE, ScalarKind.FLOAT):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf if isinstance(value, int) and value > 0 else -math.inf
        return repr(number) if math.isfinite(number) else f'{module.builtin("float")}("{number}")'
    if kind in (ScalarKind.STRING, ScalarKind.BINARY, ScalarKind.UUID):
        content = module.run.spend(str(value))
        if kind is ScalarKind.BINARY:
            return text.quoted_bytes(content.encode("utf-8", "surrogatepass"))
        return (
            f"{module.use('uuid', 'UUID')}({text.quoted(content)})" if kind is ScalarKind.UUID else text.quoted(content)
        )
    return str(int(value))


def _member(module: Module, owner: Program, enum: Enum, number: bool | int | float | str, name: str = "") -> str:
    """Return a member of an enum, by its name or as the first with a number."""
    found = name or next((each.name for each in enum.values if each.number == number), "")
    if not found:
        return str(int(number))
    return f"{module.definition(Found(owner, enum))}.{module.run.naming(owner).members(enum)[found]}"


def _struct(module: Module, program: Program, value: ConstantValue, struct: tuple[Program, Struct]) -> str:
    assert isinstance(value, ConstantMap)
    owner, kind = struct
    types = {each.name: each.type for each in kind.fields}
    attributes = module.run.naming(owner).attributes(kind)
    fields = []
    for key, item in value.entries:
        name = key.name if isinstance(key, ConstantName) else str(_literal(key))
        fields.append(f"{attributes[name]}={expression(module, program, item, owner.resolve(types[name]))}")
    return f"{module.definition(Found(owner, kind))}({', '.join(fields)})"
