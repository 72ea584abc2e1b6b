"""Python's names for the names of a contract.

Rules: a name stays as the contract spells it if Python allows it and the generated code does not need it for something
else; the wire and the descriptions keep the contract's spelling always. A name depends on the names in front of it in
the same class or file only, so other modules can compute it.

| name of the contract                                      | in Python                                      |
|-----------------------------------------------------------|------------------------------------------------|
| a keyword: `from`, `None`, `async`                        | with an underscore behind it: `from_`          |
| a type, constant, service, scope named as a builtin       | the same: `list_`, "Exception_"                |
| with two underscores in front: `__init__`, `__x`          | with one: `_init__`, `_x`                      |
| an enum's value or client's method with one: `_call`      | with one behind it instead: `call_`            |
| what the class has already: `thrift_spec`, `which`, `self`| with an underscore behind it                   |
| one that another has become already                       | with further underscores behind it             |
| a part of a namespace that is a module of Python: `os`    | with an underscore behind it                   |
"""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from penstock.idl.model import Enum, Field, Program, Scope, Service, Struct, StructKind

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Pattern of a name; the parser lets no other through."""

KEYWORDS = frozenset((*keyword.kwlist, "_"))  # of `_` as a name of a field or parameter readers expect no value
BUILTINS = frozenset({*dir(builtins), "PythonFinalizationError"})  # of a newer Python, too: one contract, one text

# `dataclass` makes constructors with names of its own, which the parameters must not hide.
_OF_DATACLASS = re.compile(r"_(?:dflt_|type_|HAS_DEFAULT_FACTORY$|return_type$)")

OF_STRUCT: Final = frozenset({"self", "thrift_is_union", "thrift_required", "thrift_spec", "MISSING"})
OF_UNION: Final = OF_STRUCT | {"which"}
OF_EXCEPTION: Final = OF_STRUCT | {"args", "add_note", "with_traceback"}
OF_ENUM: Final = frozenset({*dir(IntEnum), *dir(int), "mro", "name", "value", "is_integer"})
OF_METHOD: Final = frozenset({"self", "ctx"})
"""Parameters that each method has."""
PUBLISH_OPTIONS: Final = frozenset({"headers", "key", "message_id", "nowait", "stream", "timeout"})
SUBSCRIBE_OPTIONS: Final = frozenset(
    {"dead_letters", "group", "handlers", "pending", "retry", "session", "start", "stream", "timeout"}
)
"""Keyword arguments of both; a variable of a scope that had such a name would hide one, so it gets an underscore."""
OF_SCOPE: Final = OF_METHOD | {"message", "handler", "queue", "options"} | PUBLISH_OPTIONS | SUBSCRIBE_OPTIONS
"""Parameters of publishers and subscribers: a variable has one name in both."""
OF_PROTOCOL: Final = frozenset({"_abc_impl", "_is_protocol", "_is_runtime_protocol"})
OF_CLIENT: Final = frozenset({"close", "codec", "framing", "middleware", "service", "subject", "transport"})
"""Names that base classes of clients have, or may get; methods of services are named otherwise."""

_PACKAGES = frozenset({*sys.stdlib_module_names, "penstock", "thrift", "nats"})
"""Top-level packages whose place a generated one must not take."""


class Taken:
    """The names of one file, class or list of parameters."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken = set(reserved)

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def take(self, name: str) -> str:
        """Return a name for one of the contract, and take it."""
        if name.startswith("__"):
            name = "_" + name.lstrip("_")
        while name in self._taken or name in KEYWORDS:
            name += "_"
        self._taken.add(name)
        return name

    def take_private(self, name: str) -> str:
        """Return a name for something that the generated code needs, and take it: `name`, or one with `_` before it.

        It does not begin with two underscores: in a class, Python would read another name.
        """
        if name not in self._taken and not name.startswith("__"):
            self._taken.add(name)
            return name
        plain = name.strip("_") or "x"
        made, number = f"_{plain}", 2
        while made in self._taken:
            made, number = f"_{plain}_{number}", number + 1
        self._taken.add(made)
        return made


def attributes(struct: Struct) -> dict[str, str]:
    """Return the attributes of a struct, union or exception by the names of its fields."""
    reserved = {StructKind.UNION: OF_UNION, StructKind.EXCEPTION: OF_EXCEPTION}.get(struct.kind, OF_STRUCT)
    return attributes_of(struct.fields, reserved)


def attributes_of(fields: Iterable[Field], reserved: frozenset[str] = OF_STRUCT) -> dict[str, str]:
    """Return attributes by the names of fields."""
    taken = Taken(reserved)
    return {each.name: taken.take(attribute(each.name)) for each in fields}


def attribute(name: str) -> str:
    """Return a name that is none of those which `dataclass` uses, also once `Taken` has left it one underscore."""
    taken = f"_{name.lstrip('_')}" if name.startswith("__") else name
    return _without_underscore(taken) if _OF_DATACLASS.match(taken) else name


def members(enum: Enum) -> dict[str, str]:
    """Return the members of an enum's class by the names of its values."""
    taken = Taken(OF_ENUM)
    return {each.name: taken.take(_without_underscore(each.name)) for each in enum.values}


def _without_underscore(name: str) -> str:
    """Return a name that does not begin with an underscore, with one behind it instead."""
    if not name.startswith("_"):
        return name
    plain = name.strip("_")
    return f"{plain if NAME.fullmatch(plain) else f'x{plain}'}_"


def parameters(names: Iterable[str], reserved: frozenset[str]) -> list[str]:
    """Return the parameters of a method."""
    taken = Taken(reserved)
    return [taken.take(name) for name in names]


def client_methods(program: Program, service: Service) -> dict[str, str]:
    """Return the methods of clients by the names of a service's own methods."""
    taken = Taken((*OF_CLIENT, "self", *_inherited(program, service)))
    return {each.name: taken.take(_without_underscore(each.name)) for each in service.methods}


def _inherited(program: Program, service: Service) -> list[str]:
    """Return the methods of clients that a service inherits."""
    found = None if service.extends is None else program.find(service.extends.name)
    if found is None or not isinstance(found.definition, Service):
        return []
    own = client_methods(found.program, found.definition)
    return [*own.values(), *_inherited(found.program, found.definition)]


def inherited_handler_methods(program: Program, service: Service) -> list[str]:
    """Return the methods of a handler that a service inherits."""
    found = None if service.extends is None else program.find(service.extends.name)
    if found is None or not isinstance(found.definition, Service):
        return []
    own = handler_methods(found.definition)
    return [*own.values(), *inherited_handler_methods(found.program, found.definition)]


def handler_methods(service: Service) -> dict[str, str]:
    """Return the methods of a handler by the names of a service's own methods. The server finds them by these rules."""
    return {each.name: Taken(OF_PROTOCOL).take(each.name) for each in service.methods}


def operation_names(scope: Scope, verb: str) -> dict[str, str]:
    """Return the methods of a publisher ("publish") or subscriber ("subscribe") by the names of operations."""
    taken = Taken()
    return {each.name: taken.take(f"{verb}_{snake_case(each.name)}") for each in scope.operations}


def snake_case(name: str) -> str:
    """Return `order_placed` of "OrderPlaced", `http_error` of `HTTPError`."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return split.lower()


def package_parts(namespace: str) -> tuple[str, ...] | None:
    """Return the packages of a namespace; None: a part of it is no name."""
    parts = namespace.split(".")
    if not all(NAME.fullmatch(each) for each in parts):
        return None
    taken = [Taken(_PACKAGES if place == 0 else ()).take(part) for place, part in enumerate(parts)]
    return tuple(taken)


def prefix_parts(prefix: str) -> tuple[str, ...] | None:
    """Return the packages of a prefix, which stay as they are; None: they cannot."""
    parts = package_parts(prefix) if prefix else ()
    return parts if not parts or parts == tuple(prefix.split(".")) else None


def stem_package(stem: str) -> str:
    """Return the package of a file without namespace: of `my-orders.v1` it is `my_orders_v1`."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", stem)
    return Taken(_PACKAGES).take(name if NAME.fullmatch(name) else f"contract_{name}")
