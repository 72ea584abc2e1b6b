"""The key of a message: which field of an operation's type gives it.

Rules: the annotation `(key)` marks a field; `(key = "customer.id")` on the operation names it. The field is a scalar or
enum that is reached through fields whose types are structs, not unions or containers. The nearest marked one counts:
the type's own fields come before those of structs within. Two that are equally near are a mistake. If the type of a
marked field is a struct, the key is the marked field in that.
"""

from __future__ import annotations

from penstock.idl.model import (
    Annotations,
    Enum,
    Field,
    Operation,
    Position,
    Program,
    Scalar,
    ScalarKind,
    Struct,
    StructKind,
)
from penstock.idl.python.module import Module

_Place = tuple[tuple[str, ...], Program, Struct]
"""A struct within a type: the attributes that lead to it, and the program of its file."""


def find_key(module: Module, operation: Operation) -> tuple[str, ...]:
    """Return the path of attributes to the key of an operation's messages; empty: they have none."""
    owner, kind = module.program.resolve(operation.type)
    named = annotation(operation.annotations, "key")
    if not isinstance(kind, Struct):
        if named is not None:
            module.mistake(f'"{operation.name}" has a key, and its type is no struct', operation.position)
        return ()
    if named is not None:
        return _named(module, operation, named, owner, kind)
    return _marked(module, ((), owner, kind), operation.position)


def annotation(annotations: Annotations, name: str) -> str | None:
    """Return the value of an annotation, or None; of several the last."""
    return {each.name: each.value for each in annotations}.get(name)


def is_set(annotations: Annotations, name: str) -> bool:
    """True if an annotation is there, and does not say "false"."""
    return (annotation(annotations, name) or "true").lower() != "false" and annotation(annotations, name) is not None


def _marked(module: Module, root: _Place, position: Position) -> tuple[str, ...]:
    """Return the path to the nearest marked field of a struct."""
    seen = {(root[1].document.file, root[2].name)}
    level: list[_Place] = [root]
    while level:
        found = [(place, field) for place in level for field in place[2].fields if is_set(field.annotations, "key")]
        if len(found) > 1:
            both = " and ".join(".".join((*place[0], _attribute(module, place, field))) for place, field in found[:2])
            module.mistake(f'the message has two keys, {both}; mark one, or name it: (key = "…")', position)
            return ()
        if found:
            return _of_field(module, *found[0])
        # The same struct by several fields stays in the level twice at most: two are a mistake, if it has a key.
        following: dict[tuple[str, str], list[_Place]] = {}
        for place in level:
            for field in place[2].fields:
                inner = _inner(module, place, field)
                key = None if inner is None else (inner[1].document.file, inner[2].name)
                if inner is not None and key is not None and key not in seen:
                    following.setdefault(key, []).append(inner)
        seen |= following.keys()
        level = [each for places in following.values() for each in places[:2]]
    return ()


def _inner(module: Module, place: _Place, field: Field) -> _Place | None:
    """Return the struct that a field holds, if it is one."""
    path, program, _ = place
    owner, kind = program.resolve(field.type)
    if not isinstance(kind, Struct) or kind.kind is StructKind.UNION:
        return None
    return (*path, _attribute(module, place, field)), owner, kind


def _of_field(module: Module, place: _Place, field: Field) -> tuple[str, ...]:
    """Return the path to the key that a marked field is, or holds."""
    path, program, _ = place
    _, kind = program.resolve(field.type)
    if isinstance(kind, Enum) or (isinstance(kind, Scalar) and kind.kind is not ScalarKind.DOUBLE):
        return (*path, _attribute(module, place, field))
    inner = _inner(module, place, field)
    if inner is not None:
        found = _marked(module, inner, field.position)
        if found:
            return found
        text = f'"{field.name}" is marked as the key, and no field of its type is'
    else:
        text = f'"{field.name}" cannot be a key: its type is no text, whole number, UUID, enum or struct with a key'
    module.mistake(text, field.position)
    return ()


def _named(module: Module, operation: Operation, named: str, owner: Program, struct: Struct) -> tuple[str, ...]:
    """Return the path that the annotation of an operation names."""
    place: _Place = ((), owner, struct)
    names = named.split(".")
    for depth, name in enumerate(names):
        field = next((each for each in place[2].fields if each.name == name), None)
        if field is None:
            module.mistake(
                f'the key {named!r} is not there: "{place[2].name}" has no field {name!r}', operation.position
            )
            return ()
        if depth == len(names) - 1:
            return _of_field(module, place, field)
        inner = _inner(module, place, field)
        if inner is None:
            module.mistake(f"the key {named!r} leads through {name!r}, which is no struct", operation.position)
            return ()
        place = inner
    return ()


def _attribute(module: Module, place: _Place, field: Field) -> str:
    return module.run.naming(place[1]).attributes(place[2])[field.name]
