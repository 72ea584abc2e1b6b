"""Names, types and constants in the texts of changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.idl import printer
from penstock.idl.model import ConstantValue, Definition, ListOf, MapOf, Reference, Scalar, SetOf, Struct, Type

VALUE_CHARS_MAX = 60
"""Characters of a constant in the text of a change."""


def lowered(names: Iterable[str]) -> dict[str, str]:
    return {each.lower(): each for each in names}


def like(name: str, others: Mapping[str, str]) -> str:
    """Return a hint at a name that differs by the case of letters only; `others`: names by their small letters."""
    other = others.get(name.lower())
    return f"; {other} differs by case" if other else ""


def noun(definition: Definition) -> str:
    return str(definition.kind) if isinstance(definition, Struct) else type(definition).__name__.lower()


def article(word: str) -> str:
    return f"an {word}" if word[0] in "aeio" else f"a {word}"


def type_text(type_: Type) -> str:
    match type_:
        case Scalar():
            return str(type_.kind)
        case Reference():
            return type_.name
        case ListOf():
            return f"list<{type_text(type_.element)}>"
        case SetOf():
            return f"set<{type_text(type_.element)}>"
        case MapOf():
            return f"map<{type_text(type_.key)}, {type_text(type_.value)}>"


def value_text(value: ConstantValue | None) -> str:
    text = "(none)" if value is None else printer.value_text(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"
