"""Contracts as schemas: parses and links the text of one, and compares the types of two versions.

Rules: a contract's own file is named `CONTRACT`, and its includes are those of the schema's closure, by their paths
from it; no other file is read. The name of a type is one of the contract ("Order", "base.Order"), or for Frugal also
"Scope.Operation": the type of that operation's message, which may be a list or a number.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from functools import lru_cache

from penstock.idl import protobuf
from penstock.idl.compatibility import Mode, breaking, compare_types
from penstock.idl.files import texts
from penstock.idl.linker import link
from penstock.idl.mistakes import IdlError
from penstock.idl.model import Enum, Program, Reference, Scope, Struct, Type, Typedef
from penstock.idl.streams import annotation
from penstock.schemas.plans import SchemaError

CONTRACT = "contract.frugal"
"""The path of a contract in its errors, and in includes that name it."""


PROGRAMS_KEPT = 8
"""Contracts that are not parsed again: each operation of one is a schema of its own, with the same text."""


def frugal_program(text: str, closure: Sequence[tuple[str, str]]) -> Program:
    """Return the program of a `.frugal` or `.thrift` file and its includes. SchemaError: its mistakes."""
    return _frugal_program(text, tuple(closure))


@lru_cache(PROGRAMS_KEPT)
def _frugal_program(text: str, closure: tuple[tuple[str, str], ...]) -> Program:
    try:
        return link(CONTRACT, texts({**dict(closure), CONTRACT: text}))
    except IdlError as error:
        raise SchemaError(f"the contract has mistakes: {error}") from error


def protobuf_message(text: str, type_name: str) -> tuple[Program, Reference]:
    """Return a message of a descriptor set in base64, and the program of its file.

    `type_name`: its full name ("shop.v1.Order.Line"), or that in the model ("Order_Line"). SchemaError: the text
    is no descriptor set, none of its files has the message, or `protobuf` is not installed.
    """
    programs = _protobuf_programs(text)
    for program in programs.values():
        for each in program.document.types:
            if type_name == annotation(each.annotations, protobuf.FULL_NAME):
                return program, Reference(each.name)
    for program in programs.values():
        if program.find(type_name) is not None:
            return program, Reference(type_name)
    raise SchemaError(f"no file of the descriptor set has the message {type_name!r}")


@lru_cache(PROGRAMS_KEPT)
def _protobuf_programs(text: str) -> Mapping[str, Program]:
    try:
        return protobuf.from_descriptor_set(base64.b64decode(text, validate=True))
    except IdlError as error:
        raise SchemaError(f"the descriptor set has mistakes: {error}") from error
    except (binascii.Error, ValueError) as error:
        raise SchemaError(f"the text is no descriptor set in base64: {error}") from error
    except ImportError as error:
        raise SchemaError(f"a Protobuf schema needs the package protobuf: {error}") from error


def frugal_type(program: Program, type_name: str) -> Type:
    """Return the type that a name stands for. SchemaError: it stands for none."""
    found = program.find(type_name)
    if found is not None and isinstance(found.definition, Typedef | Enum | Struct):
        return Reference(type_name)
    name, _, operation = type_name.rpartition(".")
    scope = None if not name else program.find(name)
    if scope is not None and scope.program is program and isinstance(scope.definition, Scope):
        for one in scope.definition.operations:
            if one.name == operation:
                return one.type
    raise SchemaError(f"the contract has no type and no operation of a scope named {type_name!r}")


def differences(old: Program, old_type: Type, new: Program, new_type: Type, mode: Mode) -> list[str]:
    """Return why values of two versions of a type are not compatible; nothing: they are."""
    refused = breaking(compare_types(old, old_type, new, new_type), mode)
    return [f"{each.subject}: {each.text}; {each.rule.why}" for each in refused]
