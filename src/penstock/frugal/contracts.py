"""Descriptions of structs, services and scopes, as generated code carries them and the runtime reads them.

A struct is a dataclass with keyword-only fields and a class variable `thrift_spec`, in the form that Apache thrift's
compiled protocols read: a tuple by field id of `(id, ttype, name, arguments of the type, default)` or None. So Thrift's
C code reads and writes it without a loop in Python. Optional fields are None when they are missing. `thrift_required`,
if the class has it, names the fields that no encoder leaves out.

Rules: descriptions are immutable and know no network. Names are those of the contract, not of Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Spec = tuple[int, Any]
"""The type of a value for Apache thrift: its ttype, and the arguments of the type: (12, [Order, Order.thrift_spec])."""


@dataclass(frozen=True, slots=True)
class MethodType:
    """A method of a service. `name` is that on the wire: as in the contract, with a lower-case first letter.

    `arguments`: the struct of the arguments, its fields in the order of the call. `result`: a struct with the field
    `success` (id 0), unless the method returns nothing, and a field for each declared exception; None: oneway.
    """

    name: str
    arguments: type[Any]
    result: type[Any] | None
    returns: bool = False
    exceptions: Mapping[type[Exception], str] = field(default_factory=dict)  # to the fields of the result
    is_idempotent: bool = False  # a retry may repeat it
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_oneway(self) -> bool:
        """True if no answer comes."""
        return self.result is None


@dataclass(frozen=True, slots=True)
class ServiceType:
    """A service: its methods by their names on the wire, those that it inherits included."""

    name: str
    methods: Mapping[str, MethodType]
    comment: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperationType:
    """An operation of a scope: the type of its message, and how it is kept.

    `stream`: the Penstock stream that stores the messages; "": none does unless the publisher names one. `key`: the
    path of names of the field that gives a message's key, such as ("customer", "id"); empty: no key.
    """

    name: str
    spec: Spec
    stream: str = ""
    key: tuple[str, ...] = ()
    schema: str = ""  # fingerprint of the type of its message: the hash of the schema, if that is registered
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScopeType:
    """A scope: tokens of its subjects with variables in braces ("orders.{region}"), and its operations by name."""

    name: str
    prefix: str
    variables: tuple[str, ...]
    operations: Mapping[str, OperationType]
    comment: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
