"""Printer: a document as canonical IDL text, which the parser reads back as the same document.

Rules: one form for each thing, so equal documents have equal text: a hash of it identifies a contract. Nothing of the
first text's layout is kept; documentation comments are. Positions are not printed. Numbers, escapes, separators and
comments are written as both Thrift's and Frugal's compilers read them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from penstock.idl.model import (
    Annotations,
    Constant,
    ConstantList,
    ConstantMap,
    ConstantName,
    ConstantValue,
    Definition,
    Document,
    Enum,
    Field,
    ListOf,
    MapOf,
    Method,
    Operation,
    Reference,
    Requiredness,
    Scalar,
    ScalarKind,
    Scope,
    Service,
    Struct,
    StructKind,
    Type,
    Typedef,
)

_OF_PROTOBUF = (ScalarKind.U32, ScalarKind.U64, ScalarKind.FLOAT)
_ESCAPES = {ord("\\"): "\\\\", ord('"'): '\\"', ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}


def document_text(document: Document) -> str:
    """Return the IDL text of a document that a file of Thrift or Frugal can hold.

    ValueError: it has what the language lacks, such as an unsigned number of Protobuf.
    """
    lines = [f"namespace {each.language} {each.name}{annotated(each.annotations)}" for each in document.namespaces]
    lines += [f"include {quoted(each.path)}{annotated(each.annotations)}" for each in document.includes]
    blocks = ["\n".join(lines)] if lines else []
    blocks += ["\n".join(_definition(each)) for each in document.definitions]
    return "\n\n".join(blocks) + "\n" if blocks else ""


def type_text(type_: Type) -> str:
    """Return a type as it is written: `map<string, list<base.Order>>`."""
    return _bare(type_) + annotated(type_.annotations)


def value_text(value: ConstantValue) -> str:
    """Return a constant as it is written."""
    if isinstance(value, ConstantName):
        return value.name
    if isinstance(value, ConstantList):
        return f"[{', '.join(map(value_text, value.items))}]"
    if isinstance(value, ConstantMap):
        return f"{{{', '.join(f'{value_text(key)}: {value_text(item)}' for key, item in value.entries)}}}"
    if isinstance(value.value, bool):
        return "true" if value.value else "false"
    if isinstance(value.value, float):
        return _double(value.value)
    return quoted(value.value) if isinstance(value.value, str) else str(value.value)


def _double(value: float) -> str:
    """Return a number as Frugal's compiler reads it, too: with a point in front of the exponent."""
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be written in an IDL file")
    number, e, exponent = repr(value).partition("e")
    return f"{number}{'' if '.' in number else '.0'}{e}{exponent}"


def quoted(text: str) -> str:
    """Return a text in double quotes, on one line."""
    return f'"{text.translate(_ESCAPES)}"'


def annotated(annotations: Annotations) -> str:
    """Return annotations with a space in front of them; nothing if there are none."""
    if not annotations:
        return ""
    shown = (each.name + (f" = {quoted(each.value)}" if each.value else "") for each in annotations)
    return f" ({', '.join(shown)})"


def _bare(type_: Type) -> str:
    if isinstance(type_, Scalar):
        if type_.kind in _OF_PROTOBUF:
            raise ValueError(f"the type {type_.kind} cannot be written in an IDL file: it is one of Protobuf")
        return type_.kind.value
    if isinstance(type_, Reference):
        return type_.name
    if isinstance(type_, MapOf):
        return f"map<{type_text(type_.key)}, {type_text(type_.value)}>"
    return f"{'list' if isinstance(type_, ListOf) else 'set'}<{type_text(type_.element)}>"


def _definition(each: Definition) -> Iterator[str]:
    yield from _comment(each.comment)
    if isinstance(each, Typedef):
        yield f"typedef {type_text(each.type)} {each.name}{annotated(each.annotations)}"
    elif isinstance(each, Constant):
        yield f"const {type_text(each.type)} {each.name} = {value_text(each.value)}{annotated(each.annotations)}"
    elif isinstance(each, Enum):
        values = [(one.comment, f"{one.name} = {one.number}{annotated(one.annotations)}") for one in each.values]
        yield from _body(f"enum {each.name}", values, each.annotations)
    elif isinstance(each, Struct):
        is_union = each.kind is StructKind.UNION
        fields = [(one.comment, _field(one, is_optional=is_union)) for one in each.fields]
        yield from _body(f"{each.kind} {each.name}", fields, each.annotations)
    elif isinstance(each, Service):
        extends = "" if each.extends is None else f" extends {each.extends.name}"
        methods = [(one.comment, _method(one)) for one in each.methods]
        yield from _body(f"service {each.name}{extends}", methods, each.annotations)
    else:
        yield from _scope(each)


def _scope(scope: Scope) -> Iterator[str]:
    prefix = f" prefix {scope.prefix}" if scope.prefix else ""
    operations = [(one.comment, _operation(one)) for one in scope.operations]
    yield from _body(f"scope {scope.name}{prefix}", operations, scope.annotations)


def _body(head: str, members: Sequence[tuple[str, str]], annotations: Annotations) -> Iterator[str]:
    """Yield the lines of a declaration with members, each with its comment."""
    yield f"{head} {{"
    for comment, text in members:
        yield from (f"  {line}" for line in _comment(comment))
        yield f"  {text},"
    yield f"}}{annotated(annotations)}"


def _comment(comment: str) -> Iterator[str]:
    """Yield the lines of a documentation comment, which Frugal's compiler takes for one, too."""
    comment = comment.replace("*/", "* /")
    if "\n" in comment:
        yield "/**@"
        yield from (f" * {line}".rstrip(" ") for line in comment.split("\n"))
        yield " */"
    elif comment:
        yield f"/**@ {comment} */"


def _field(field: Field, *, is_optional: bool) -> str:
    """Return a field; where all are optional, the word is left out."""
    word = "" if is_optional or field.requiredness is Requiredness.DEFAULT else f"{field.requiredness} "
    if field.encoding:
        raise ValueError(f'the encoding "{field.encoding}" of "{field.name}" cannot be written in an IDL file')
    default = "" if field.default is None else f" = {value_text(field.default)}"
    return f"{field.id}: {word}{type_text(field.type)} {field.name}{default}{annotated(field.annotations)}"


def _method(method: Method) -> str:
    """Return a method on one line: comments of its arguments stand in it."""
    words = ("oneway " if method.is_oneway else "") + ("void" if method.returns is None else type_text(method.returns))
    arguments = ", ".join(_inline(each, is_optional=False) for each in method.arguments)
    throws = ", ".join(_inline(each, is_optional=True) for each in method.exceptions)
    thrown = f" throws ({throws})" if throws else ""
    return f"{words} {method.name}({arguments}){thrown}{annotated(method.annotations)}"


def _inline(field: Field, *, is_optional: bool) -> str:
    comment = "\n".join(_comment(field.comment))
    return (f"{comment} " if comment else "") + _field(field, is_optional=is_optional)


def _operation(operation: Operation) -> str:
    # Annotations behind the type alone would be the operation's: `Op: i64 (of the type) ()`.
    ours = annotated(operation.annotations) or (" ()" if operation.type.annotations else "")
    return f"{operation.name}: {type_text(operation.type)}{ours}"
