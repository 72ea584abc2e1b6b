"""Protobuf's language for a message and the types that it names: what a descriptor set says, for people.

Rules: types have their full names and stand one after another, the message first; a nested one is not indented. What
the model leaves out (options, extensions, `json_name`s that follow from the name) is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import groupby

from penstock.idl.model import (
    Enum,
    Field,
    ListOf,
    Literal,
    MapOf,
    Program,
    Reference,
    Requiredness,
    Scalar,
    Struct,
    Type,
)
from penstock.idl.printer import value_text
from penstock.idl.protobuf import FULL_NAME, SCALAR_NAMES
from penstock.idl.streams import annotation


def message_text(program: Program, message: Reference) -> str:
    """Return a message of a linked program and all messages and enums that it reaches, as Protobuf writes them."""
    waiting: deque[tuple[Program, Type]] = deque([(program, message)])
    blocks: dict[str, str] = {}
    while waiting:
        owner, what = waiting.popleft()
        program, found = owner.resolve(what)
        if isinstance(found, ListOf):
            waiting.append((program, found.element))
        elif isinstance(found, MapOf):
            waiting.append((program, found.value))
        elif isinstance(found, Struct | Enum) and (name := _full_name(found)) not in blocks:
            blocks[name] = "\n".join(_struct(program, found) if isinstance(found, Struct) else _enum(found))
            if isinstance(found, Struct):
                waiting += [(program, field.type) for field in found.fields]
    return "\n\n".join(blocks.values()) + "\n"


def _full_name(found: Struct | Enum) -> str:
    return annotation(found.annotations, FULL_NAME) or found.name


def _struct(program: Program, struct: Struct) -> Iterator[str]:
    yield from _comment(struct.comment, "")
    yield f"message {_full_name(struct)} {{"
    yield from _reserved(struct)
    for oneof, fields in groupby(struct.fields, lambda field: annotation(field.annotations, "oneof")):
        if oneof:
            yield f"  oneof {oneof} {{"
        for field in fields:
            yield from _field(program, field, "    " if oneof else "  ", is_of_oneof=bool(oneof))
        if oneof:
            yield "  }"
    yield "}"


def _field(program: Program, field: Field, indent: str, *, is_of_oneof: bool) -> Iterator[str]:
    yield from _comment(field.comment, indent)
    label = ""
    if isinstance(field.type, ListOf):
        label = "repeated "
    elif field.requiredness is Requiredness.REQUIRED:
        label = "required "
    elif field.requiredness is Requiredness.OPTIONAL and not is_of_oneof and _has_label(program, field.type):
        label = "optional "
    default = ""
    if field.default is not None:
        is_name = not isinstance(field.default, Literal)
        text = value_text(field.default)
        default = f" [default = {text.rpartition('.')[2] if is_name else text}]"
    yield f"{indent}{label}{_type(program, field.type, field.encoding)} {field.name} = {field.id}{default};"


def _has_label(program: Program, type_: Type) -> bool:
    """True if `optional` says something: a message has presence without it."""
    return isinstance(program.resolve(type_)[1], Scalar | Enum)


def _type(program: Program, type_: Type, encoding: str) -> str:
    if isinstance(type_, ListOf):
        return _type(program, type_.element, encoding)
    if isinstance(type_, MapOf):
        key, _, value = encoding.removeprefix("map<").removesuffix(">").partition(", ")
        return f"map<{_type(program, type_.key, key)}, {_type(program, type_.value, value)}>"
    if isinstance(type_, Scalar):
        return encoding or SCALAR_NAMES[type_.kind]
    found = program.resolve(type_)[1]
    assert isinstance(found, Struct | Enum)
    return f"group {_full_name(found)}" if encoding == "group" else _full_name(found)


def _enum(enum: Enum) -> Iterator[str]:
    yield from _comment(enum.comment, "")
    yield f"enum {_full_name(enum)} {{"
    yield from _reserved(enum)
    for value in enum.values:
        yield from _comment(value.comment, "  ")
        yield f"  {value.name} = {value.number};"
    yield "}"


def _reserved(owner: Struct | Enum) -> Iterator[str]:
    if owner.reserved is None:
        return
    if owner.reserved.numbers:
        ranges = (f"{start}" if start + 1 == end else f"{start} to {end - 1}" for start, end in owner.reserved.numbers)
        yield f"  reserved {', '.join(ranges)};"
    if owner.reserved.names:
        names = ", ".join(f'"{name}"' for name in owner.reserved.names)
        yield f"  reserved {names};"


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in text.splitlines():
        yield f"{indent}// {line}".rstrip()
