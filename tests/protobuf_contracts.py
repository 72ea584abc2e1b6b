"""Descriptor sets from a few lines, built by Google's own library; there is no protoc in the tests."""

from __future__ import annotations

import re
from typing import Any

from penstock.idl.model import Program
from penstock.idl.protobuf import from_descriptor_set

TYPES = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8, "string": 9,
    "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16, "sint32": 17, "sint64": 18,
}  # fmt: skip
_LABELS = {"optional": 1, "required": 2, "repeated": 3}
_FIELD = re.compile(
    r"(?:(?P<oneof>\w+): )?(?:(?P<label>optional|required|repeated) )?(?P<type>\w+) (?P<name>\w+) = (?P<number>\d+)"
    r"(?: \[(?P<option>json_name|default) = (?P<value>\w+)\])?"
)


def message(proto: Any, name: str, body: str) -> None:
    """Add a message: `int32 a = 1; choice: string b = 2; reserved 3 to 5; reserved x`, `choice` being a oneof."""
    made = proto.message_type.add(name=name)
    alone = []
    for line in filter(None, (each.strip() for each in body.split(";"))):
        if line.startswith("reserved "):
            reserve(made, line.removeprefix("reserved "), 1)
            continue
        found = _FIELD.fullmatch(line)
        assert found, line
        field = made.field.add(
            name=found["name"], number=int(found["number"]), label=_LABELS[found["label"] or "optional"]
        )
        if found["type"] in TYPES:
            field.type = TYPES[found["type"]]
        else:
            field.type_name = f".{proto.package}.{found['type']}"
        if found["option"] == "json_name":
            field.json_name = found["value"]
        elif found["option"]:
            field.default_value = found["value"]
        if found["oneof"]:
            names = [each.name for each in made.oneof_decl]
            if found["oneof"] not in names:
                made.oneof_decl.add(name=found["oneof"])
                names.append(found["oneof"])
            field.oneof_index = names.index(found["oneof"])
        elif found["label"] == "optional" and proto.syntax == "proto3":
            alone.append(field)
    for field in alone:  # their oneofs come behind all others
        field.proto3_optional = True
        field.oneof_index = len(made.oneof_decl)
        made.oneof_decl.add(name=f"_{field.name}")


def enum(proto: Any, name: str, body: str) -> None:
    """Add an enum: `A = 0; B = 1; reserved 2; reserved C`."""
    made = proto.enum_type.add(name=name)
    for line in filter(None, (each.strip() for each in body.split(";"))):
        if line.startswith("reserved "):
            reserve(made, line.removeprefix("reserved "), 0)
        else:
            value, number = line.split(" = ")
            made.value.add(name=value, number=int(number))


def reserve(made: Any, text: str, behind: int) -> None:
    """Reserve `3`, `3 to 5` or a name."""
    if not text[0].isdigit():
        made.reserved_name.append(text)
        return
    first, _, last = text.partition(" to ")
    made.reserved_range.add(start=int(first), end=int(last or first) + behind)


def service(proto: Any, name: str, body: str) -> None:
    """Add a service: `Place M M; Follow M stream M`, names, requests and answers."""
    made = proto.service.add(name=name)
    for line in filter(None, (each.strip() for each in body.split(";"))):
        method, *types = line.replace("stream ", "stream:").split()
        requests, answers = (each.removeprefix("stream:") for each in types)
        made.method.add(
            name=method,
            input_type=f".{proto.package}.{requests}",
            output_type=f".{proto.package}.{answers}",
            client_streaming=types[0].startswith("stream:"),
            server_streaming=types[1].startswith("stream:"),
        )


_KINDS = {"message": message, "enum": enum, "service": service}


def descriptor_set(text: str, *, syntax: str = "proto3", name: str = "shop.proto", package: str = "shop") -> bytes:
    """Return the set of one file: `message M { int32 a = 1 } enum E { A = 0 } service S { Get M M }`."""
    from google.protobuf import descriptor_pb2

    proto = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax=syntax)
    for kind, declared, body in re.findall(r"(message|enum|service) (\w+) \{([^}]*)\}", text):
        _KINDS[kind](proto, declared, body)
    data: bytes = descriptor_pb2.FileDescriptorSet(file=[proto]).SerializeToString()
    return data


def protobuf_program(text: str, *, syntax: str = "proto3") -> Program:
    """Return the program of one file."""
    (found,) = from_descriptor_set(descriptor_set(text, syntax=syntax)).values()
    return found


def message_class(text: str, name: str, *, syntax: str = "proto3") -> Any:
    """Return the class of a message that Google's library makes."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set(text, syntax=syntax)).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
