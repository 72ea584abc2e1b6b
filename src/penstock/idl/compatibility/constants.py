"""Constants of two versions: names in them count as their values, each in the program that it stands in."""

from __future__ import annotations

from penstock.idl.compatibility.rules import Changes
from penstock.idl.compatibility.text import value_text
from penstock.idl.compatibility.types import Types
from penstock.idl.compatibility.versions import Pair
from penstock.idl.model import Constant, ConstantList, ConstantMap, ConstantName, ConstantValue, Found, Literal, Program

VALUE_PARTS_MAX = 10_000
"""Parts of a constant that are compared; a longer one is compared as it is written, without the values of its names."""

_Mark = tuple[str]
_LIST, _MAP, _END = ("list",), ("map",), ("end",)  # no value of a literal is a tuple


def compare_constants(changes: Changes, types: Types, pair: Pair, was: Constant, now: Constant) -> None:
    """Note how a constant has changed: its type, else its value."""
    found = types.change(pair.old_program, was.type, pair.new_program, now.type)
    if found is not None:
        changes.add("constant-type-changed", was.name, found.text, was.position, now.position)
    elif not are_equal(pair.old_program, was.value, pair.new_program, now.value):
        text = f"{value_text(was.value)} is {value_text(now.value)} now"
        changes.add("constant-value-changed", was.name, text, was.position, now.position)


def are_equal(old_program: Program, old: ConstantValue | None, new_program: Program, new: ConstantValue | None) -> bool:
    """Say whether two constants are equal; one that both name is compared where it is declared."""
    if old == new or old is None or new is None:
        return old == new
    was, now = _unfolded(old_program, old), _unfolded(new_program, new)
    return was is not None and was == now


def _unfolded(program: Program, value: ConstantValue) -> list[object] | None:
    """Return a constant as a flat list, its names replaced by their values; None: more than `VALUE_PARTS_MAX` parts."""
    parts: list[object] = []
    todo: list[tuple[Program, ConstantValue | _Mark]] = [(program, value)]
    while todo:
        if len(parts) + len(todo) > VALUE_PARTS_MAX:
            return None
        program, part = todo.pop()
        match part:
            case tuple():
                parts.append(part)
            case Literal():
                parts.append(part.value)
            case ConstantName():
                named = _named(program, part.name)
                if isinstance(named, Found) and isinstance(named.definition, Constant):
                    todo.append((named.program, named.definition.value))
                else:
                    parts.append(named)
            case ConstantList():
                inside: list[ConstantValue | _Mark] = [_LIST, *part.items, _END]
                todo.extend((program, each) for each in reversed(inside))
            case ConstantMap():
                entries = sorted(part.entries, key=lambda each: value_text(each[0]))
                inside = [_MAP, *(each for entry in entries for each in entry), _END]
                todo.extend((program, each) for each in reversed(inside))
    return parts


def _named(program: Program, name: str) -> Found | int | str:
    """Return the constant of a name, the number of a value of an enum, or the name itself: the key of a field."""
    found = program.find(name)
    if found is not None and isinstance(found.definition, Constant):
        return found
    value = program.find_value(name)
    return name if value is None else value.value.number
