"""Schemas of streams: their kinds, their identity, and what they are as plans of columns.

Rules: a schema is text and the text of the files that it includes, both bounded, so that a registry can keep it. Its
hash is the SHA-256 of its canonical form: JSON without white space and with sorted keys, an Arrow schema as it is, and
of a contract (FRUGAL, PROTOBUF) the fingerprint of its type (`idl.fingerprint`), which comments and other declarations
do not change. How contracts are parsed, and what the name of a type may be, `contracts` says.

| kind          | `text`                                                       | `type_name` | values               |
|---------------|--------------------------------------------------------------|-------------|----------------------|
| `ARROW`       | base64 of the schema as an Arrow IPC message                 |             | JSON                 |
| `JSON_SCHEMA` | JSON                                                         |             | JSON                 |
| `AVRO`        | JSON                                                         |             | Avro, without schema |
| `FRUGAL`      | the file, `.frugal` or `.thrift`; `closure`: its includes    | of the message | Thrift               |
| `PROTOBUF`    | base64 of a descriptor set                                   | of the message | Protobuf             |
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa

from penstock.idl.compatibility import Mode
from penstock.idl.fingerprint import fingerprint
from penstock.idl.model import Program, Type
from penstock.idl.protobuf_text import message_text
from penstock.schemas import compatibility, contracts
from penstock.schemas.avro import avro_decoder, avro_plan
from penstock.schemas.decoding import Decoder, ValueFraming
from penstock.schemas.json_values import arrow_of_json_schema, json_decoder, json_plan
from penstock.schemas.plans import PLAN_DEPTH_MAX, EnumStyle, Plan, SchemaError
from penstock.schemas.protobuf import protobuf_decoder, protobuf_plan
from penstock.schemas.thrift import ThriftProtocol, thrift_decoder, thrift_plan

TEXT_BYTES_MAX = 1 << 20  # of a schema, or of one included file
CLOSURE_FILES_MAX = 100
CLOSURE_BYTES_MAX = 4 << 20  # of all included files
TYPE_NAME_BYTES_MAX = 1_024


class SchemaKind(StrEnum):
    ARROW = "arrow"
    JSON_SCHEMA = "json-schema"
    AVRO = "avro"
    FRUGAL = "frugal"
    PROTOBUF = "protobuf"


CONTRACTS = (SchemaKind.FRUGAL, SchemaKind.PROTOBUF)


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as it is registered. `closure`: the names and texts of the files that it includes, by name."""

    kind: SchemaKind
    text: str
    closure: tuple[tuple[str, str], ...] = ()
    type_name: str = ""

    def __post_init__(self) -> None:
        sizes = [_size(text) for _, text in self.closure]
        for what, size, limit in (
            ("its text has bytes", _size(self.text), TEXT_BYTES_MAX),
            ("an included file has bytes", max(sizes, default=0), TEXT_BYTES_MAX),
            ("its included files have bytes", sum(sizes), CLOSURE_BYTES_MAX),
            ("it includes files", len(sizes), CLOSURE_FILES_MAX),
            ("the name of its type has bytes", _size(self.type_name), TYPE_NAME_BYTES_MAX),
        ):
            if size > limit:
                raise SchemaError(f"the {self.kind} schema is too large: {what}: {size:,}, {limit:,} at most")
        if len({name for name, _ in self.closure}) < len(sizes):
            raise SchemaError("two included files of the schema have one name")

    def hash(self) -> str:
        """Return the hash that names the schema: 64 hex digits. SchemaError: it has mistakes, or is no JSON."""
        if self.kind in CONTRACTS:
            return fingerprint(*self.contract())
        text = self.text
        if self.kind in (SchemaKind.JSON_SCHEMA, SchemaKind.AVRO):
            text = json.dumps(_parsed(self), sort_keys=True, separators=(",", ":"))
        encoded = [part.encode(errors="surrogatepass") for part in (self.kind.value, self.type_name, text)]
        return hashlib.sha256(b"".join(b"%d:%b" % (len(part), part) for part in encoded)).hexdigest()

    def plan(self, enums: EnumStyle = EnumStyle.DICTIONARY) -> Plan:
        """Return the plan of the columns. SchemaError: the schema has mistakes."""
        if self.kind is SchemaKind.ARROW:
            return json_plan(arrow_of_text(self.text))
        if self.kind is SchemaKind.JSON_SCHEMA:
            return json_plan(arrow_of_json_schema(self.text))
        if self.kind is SchemaKind.AVRO:
            return avro_plan(self.text, enums)
        if self.kind is SchemaKind.PROTOBUF:
            program, message = contracts.protobuf_message(self.text, self.type_name)
            return protobuf_plan(program, message.name, enums)
        return thrift_plan(*self.contract(), enums)

    def shown_type(self) -> str:
        """Return the name of the type of the values, for people: of Avro the full name of the record; "": none."""
        if self.kind is not SchemaKind.AVRO:
            return self.type_name
        try:
            record = _parsed(self)
        except SchemaError:
            return ""
        name, namespace = (record.get("name"), record.get("namespace")) if isinstance(record, dict) else (None, None)
        if not isinstance(name, str):
            return ""
        return f"{namespace}.{name}" if isinstance(namespace, str) and namespace and "." not in name else name

    def readable(self) -> str:
        """Return the schema for people: its text, but a message in Protobuf's language, and the fields of Arrow.

        SchemaError: it has mistakes.
        """
        if self.kind is SchemaKind.PROTOBUF:
            return message_text(*contracts.protobuf_message(self.text, self.type_name))
        if self.kind is SchemaKind.ARROW:
            return str(arrow_of_text(self.text).to_string(show_schema_metadata=False))
        return self.text

    def arrow_schema(self, enums: EnumStyle = EnumStyle.DICTIONARY) -> pa.Schema:
        """Return the schema of the decoded columns."""
        return self.plan(enums).schema

    def decoder(
        self,
        framing: ValueFraming = ValueFraming.BARE,
        protocol: ThriftProtocol = ThriftProtocol.BINARY,
        enums: EnumStyle = EnumStyle.DICTIONARY,
        message: str = "",
    ) -> Decoder:
        """Return a decoder of values. SchemaError: values of this kind are not framed so.

        `message`: the name in Thrift's message begin, which is the operation of a scope; empty: any.
        """
        return self.decoder_of(self.plan(enums), framing, protocol, message)

    def decoder_of(self, plan: Plan, framing: ValueFraming, protocol: ThriftProtocol, message: str) -> Decoder:
        """Return a decoder of a plan of this schema, as `decoder` does, which several decoders may have."""
        if self.kind is SchemaKind.FRUGAL:
            return thrift_decoder(plan, protocol, framing, message)
        if self.kind is SchemaKind.PROTOBUF:
            return protobuf_decoder(plan, framing)
        return avro_decoder(plan, framing) if self.kind is SchemaKind.AVRO else json_decoder(plan, framing)

    def contract(self) -> tuple[Program, Type]:
        """Return the program of a contract, and the type of the values in it. SchemaError: it has mistakes."""
        if self.kind is SchemaKind.PROTOBUF:
            return contracts.protobuf_message(self.text, self.type_name)
        program = contracts.frugal_program(self.text, self.closure)
        return program, contracts.frugal_type(program, self.type_name)


@dataclass(frozen=True, slots=True)
class PlannedSchema(Schema):
    """A schema whose plan for one style of enums is made beforehand, for decoders that must not take long to make.

    `planned`: the plan, or why there is none.
    """

    planned: Plan | SchemaError = field(default_factory=lambda: SchemaError("it is not planned"), compare=False)

    @classmethod
    def of(cls, schema: Schema, enums: EnumStyle) -> PlannedSchema:
        """Return a schema with its plan."""
        planned: Plan | SchemaError
        try:
            planned = schema.plan(enums)
        except SchemaError as error:
            planned = error
        return cls(schema.kind, schema.text, schema.closure, schema.type_name, planned)

    def plan(self, enums: EnumStyle = EnumStyle.DICTIONARY) -> Plan:
        """Return the plan of the columns, which has the style of enums that it was made for. SchemaError."""
        if isinstance(self.planned, SchemaError):
            raise self.planned
        return self.planned


def text_of_arrow(schema: pa.Schema) -> str:
    """Return the text of an ARROW schema."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def arrow_of_text(text: str) -> pa.Schema:
    """Return the schema of the text of an ARROW schema. SchemaError: it is none."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
        for field in schema:
            _check_names(field, 0)
        return schema
    except (pa.ArrowException, OSError, ValueError, binascii.Error) as error:
        raise SchemaError(f"the text is no Arrow schema in base64: {error}") from error


def _check_names(field: pa.Field, depth: int) -> None:
    """Read all names, of which Arrow does not check that they are UTF-8. ValueError: one is not, or it is too deep."""
    if depth > PLAN_DEPTH_MAX:
        raise ValueError(f"types nested more than {PLAN_DEPTH_MAX} deep")
    kind = field.type
    _ = field.name, str(kind)
    for place in range(kind.num_fields):
        _check_names(kind.field(place), depth + 1)


def compatible(
    old: Schema,
    new: Schema,
    mode: Mode = Mode.FULL,
    contract: Callable[[Schema], tuple[Program, Type]] = Schema.contract,
) -> list[str]:
    """Return why a new version of a schema is not compatible with an old one; nothing: it is.

    `contract`: gives the program and type of a contract, for a caller that keeps parsed ones. SchemaError: one of the
    schemas has mistakes.
    """
    if old.kind is not new.kind:
        return [f"the schema was {old.kind}, and is {new.kind}"]
    if new.kind is SchemaKind.AVRO:
        avro_plan(old.text)
        avro_plan(new.text)
        return compatibility.between(_parsed(old), _parsed(new), mode, compatibility.avro_reads)
    if new.kind in CONTRACTS:
        was, now = contract(old), contract(new)
        if new.kind is SchemaKind.PROTOBUF and was[1] != now[1]:
            return [f"the type was {old.type_name!r}, and is {new.type_name!r}"]
        return contracts.differences(*was, *now, mode)
    schemas = [
        arrow_of_text(each.text) if each.kind is SchemaKind.ARROW else arrow_of_json_schema(each.text)
        for each in (old, new)
    ]
    return compatibility.between(schemas[0], schemas[1], mode, compatibility.arrow_reads)


def _size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def _parsed(schema: Schema) -> Any:
    try:
        return json.loads(schema.text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the {schema.kind} schema is no JSON: {error}") from error
