"""Types of a contract in Python: annotations, and the specs that Apache thrift's C code reads.

A key of a map and an element of a set must have a hash. Structs have one (`penstock.frugal.structs`); lists, sets and
maps in such a place are other types, which the third part of their spec asks the decoder for.

| type                      | annotation    | as key or element | spec: ttype, arguments                           |
|---------------------------|---------------|-------------------|--------------------------------------------------|
| `bool`                    | `bool`        |                   | 2, None                                          |
| `i8`, `i16`, `i32`, `i64` | `int`         |                   | 3, 6, 8 or 10, None                              |
| `double`                  | `float`       |                   | 4, None                                          |
| `string`                  | `str`         |                   | 11, "UTF8"                                       |
| `binary`                  | `bytes`       |                   | 11, "BINARY"                                     |
| `uuid`                    | `UUID`        |                   | 16, None                                         |
| enum                      | `Color | int` |                   | 8, None                                          |
| struct, union, exception  | "Order"       |                   | 12, [Order, spec of Order]                       |
| `list<T>`                 | `list[T]`     | `tuple[T, ...]`   | 15, (ttype, arguments, as key)                   |
| `set<T>`                  | `set[T]`      | `frozenset[T]`    | 14, (ttype, arguments, as key)                   |
| `map<K, V>`               | `dict[K, V]`  | `FrozenMap[K, V]` | 13, (ttype, arguments, ttype, arguments, as key) |

An enum's value that this version of the contract does not know stays a number, so its type is `Color | int`.
"""

from __future__ import annotations

from typing import Final

from penstock.idl.model import Enum, Found, ListOf, MapOf, Program, Reference, Scalar, ScalarKind, SetOf, Struct, Type
from penstock.idl.python.module import Module

RUNTIME: Final = "penstock.frugal.structs"
"""The module of the base classes."""

_SCALARS: Final = {
    ScalarKind.BOOL: ("bool", 2, "False"),
    ScalarKind.I8: ("int", 3, "0"),
    ScalarKind.I16: ("int", 6, "0"),
    ScalarKind.I32: ("int", 8, "0"),
    ScalarKind.I64: ("int", 10, "0"),
    ScalarKind.DOUBLE: ("float", 4, "0.0"),
    ScalarKind.STRING: ("str", 11, '""'),
    ScalarKind.BINARY: ("bytes", 11, 'b""'),
    ScalarKind.UUID: ("UUID", 16, None),
}
_ARGUMENTS: Final = {ScalarKind.STRING: '"UTF8"', ScalarKind.BINARY: '"BINARY"'}
_STRUCT, _MAP, _SET, _LIST, _ENUM = 12, 13, 14, 15, 8


def annotation(module: Module, program: Program, type_: Type, *, as_key: bool = False) -> str:
    """Return the annotation of a type that is written in a file (`program`)."""
    if isinstance(type_, Reference):
        key = "annotation", program.document.file, type_.name, as_key
        return module.run.spend(module.once(key, lambda: _annotation(module, program, type_, as_key=as_key)))
    return _annotation(module, program, type_, as_key=as_key)


def _annotation(module: Module, program: Program, type_: Type, *, as_key: bool) -> str:
    owner, kind = program.resolve(type_)
    if isinstance(kind, Scalar):
        name = _SCALARS[kind.kind][0] if kind.kind in _SCALARS else "int"
        return module.use("uuid", name) if kind.kind is ScalarKind.UUID else module.builtin(name)
    if isinstance(kind, Enum):
        return f"{module.definition(Found(owner, kind))} | {module.builtin('int')}"
    if isinstance(kind, Struct):
        return module.definition(Found(owner, kind))
    if isinstance(kind, MapOf):
        name = module.use(RUNTIME, "FrozenMap") if as_key else module.builtin("dict")
        key = annotation(module, owner, kind.key, as_key=True)
        return f"{name}[{key}, {annotation(module, owner, kind.value, as_key=as_key)}]"
    if isinstance(kind, SetOf):
        name = module.builtin("frozenset" if as_key else "set")
        return f"{name}[{annotation(module, owner, kind.element, as_key=True)}]"
    element = annotation(module, owner, kind.element, as_key=as_key)
    return f"{module.builtin('tuple')}[{element}, ...]" if as_key else f"{module.builtin('list')}[{element}]"


def zero(module: Module, program: Program, type_: Type) -> tuple[str, str] | None:
    """Return the default of a field without one, and how it is made: `("0", "")`, or `("", "list")`; None: None."""
    _, kind = program.resolve(type_)
    if isinstance(kind, Scalar):
        value = _SCALARS[kind.kind][2] if kind.kind in _SCALARS else "0"
        return None if value is None else (value, "")
    if isinstance(kind, Enum | Struct):
        return None
    return "", module.builtin("dict" if isinstance(kind, MapOf) else "set" if isinstance(kind, SetOf) else "list")


def spec(
    module: Module, program: Program, type_: Type, *, as_key: bool = False, is_early: bool = False
) -> tuple[int, str]:
    """Return the ttype of a type and the expression for its arguments. A type of Protobuf alone is a mistake.

    `is_early`: the structs of this file may have no spec yet; `connect_specs` fills in what is None.
    """
    if isinstance(type_, Reference):
        key = "spec", program.document.file, type_.name, as_key, is_early
        made = module.once(key, lambda: _spec(module, program, type_, as_key=as_key, is_early=is_early))
        module.run.spend(made[1])
        return made
    return _spec(module, program, type_, as_key=as_key, is_early=is_early)


def _spec(module: Module, program: Program, type_: Type, *, as_key: bool, is_early: bool) -> tuple[int, str]:
    owner, kind = program.resolve(type_)
    if isinstance(kind, Scalar):
        if kind.kind not in _SCALARS:
            module.mistake(f"{kind.kind} is a type of Protobuf, which Thrift has no form for")
            return 10, "None"
        return _SCALARS[kind.kind][1], _ARGUMENTS.get(kind.kind, "None")
    if isinstance(kind, Enum):
        return _ENUM, "None"
    if isinstance(kind, Struct):
        name = module.definition(Found(owner, kind))
        has_none = is_early and owner.document.file == module.program.document.file
        return _STRUCT, f"[{name}, {'None' if has_none else f'{name}.thrift_spec'}]"
    if isinstance(kind, MapOf):
        if as_key and not _has_order(owner, kind.key):
            module.mistake(
                "a map in a key of a map or in an element of a set has maps as its keys; no order of them is known"
            )
        key = spec(module, owner, kind.key, as_key=True, is_early=is_early)
        value = spec(module, owner, kind.value, as_key=as_key, is_early=is_early)
        return _MAP, f"({key[0]}, {key[1]}, {value[0]}, {value[1]}, {as_key})"
    is_key = as_key or isinstance(kind, SetOf)
    element = spec(module, owner, kind.element, as_key=is_key, is_early=is_early)
    return _LIST if isinstance(kind, ListOf) else _SET, f"({element[0]}, {element[1]}, {as_key})"


def _has_order(program: Program, type_: Type) -> bool:
    """True if values of a type can be sorted: Apache thrift's hash of a map sorts its items. Structs can."""
    owner, kind = program.resolve(type_)
    if isinstance(kind, ListOf):
        return _has_order(owner, kind.element)
    return not isinstance(kind, MapOf)


def _has_enum(module: Module, program: Program, type_: Type) -> bool:
    """True if a type is an enum or a container of some."""
    if isinstance(type_, Reference):
        key = "enum", program.document.file, type_.name
        return module.once(key, lambda: _is_enum(module, *program.resolve(type_)))
    return _is_enum(module, program, type_)


def _is_enum(module: Module, program: Program, kind: Type | Enum | Struct) -> bool:
    if isinstance(kind, MapOf):
        return _has_enum(module, program, kind.key) or _has_enum(module, program, kind.value)
    if isinstance(kind, ListOf | SetOf):
        return _has_enum(module, program, kind.element)
    return isinstance(kind, Enum)


def with_enums(
    module: Module, program: Program, type_: Type, value: str, depth: int = 0, *, as_key: bool = False
) -> str:
    """Return the expression for a value whose numbers of enums are members; the value itself if it holds no enum."""
    if not _has_enum(module, program, type_):
        return module.run.spend(value)
    owner, kind = program.resolve(type_)
    if isinstance(kind, Enum):
        return f"{module.use(RUNTIME, 'known')}({module.definition(Found(owner, kind))}, {value})"
    if isinstance(kind, Scalar | Struct):
        return value
    one, other = f"_{2 * depth}", f"_{2 * depth + 1}"
    if isinstance(kind, MapOf):
        key = with_enums(module, owner, kind.key, one, depth + 1, as_key=True)
        item = with_enums(module, owner, kind.value, other, depth + 1, as_key=as_key)
        if (key, item) == (one, other):
            return value
        made = f"{{{key}: {item} for {one}, {other} in {value}.items()}}"
        return f"{module.use(RUNTIME, 'FrozenMap')}({made})" if as_key else made
    item = with_enums(module, owner, kind.element, one, depth + 1, as_key=as_key or isinstance(kind, SetOf))
    if item == one:
        return value
    loop = f"{item} for {one} in {value}"
    if isinstance(kind, ListOf):
        return f"{module.builtin('tuple')}({loop})" if as_key else f"[{loop}]"
    return f"{module.builtin('frozenset')}({loop})" if as_key else f"{{{loop}}}"
