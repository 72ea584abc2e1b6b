"""Enums, structs, unions, exceptions, typedefs and constants of a file as Python.

| in the contract                | in Python                                                                           |
|--------------------------------|-------------------------------------------------------------------------------------|
| enum                           | `IntEnum`                                                                           |
| struct                         | dataclass below `Struct`                                                            |
| union                          | frozen dataclass below `TaggedUnion`, all fields optional                           |
| exception                      | dataclass below `DeclaredError`                                                     |
| typedef                        | a name for the type, behind all classes                                             |
| constant                       | a `Final`, behind all classes                                                       |
| required field                 | no default, unless the contract gives one                                           |
| field of default requiredness  | its default, or zero: 0, "", b"", False, an empty container; None of structs, enums |
|                                | and UUIDs, which are not written then                                               |
| optional field                 | `T | None`, its default or None                                                     |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.idl.model import (
    Enum,
    Field,
    Found,
    Requiredness,
    Scalar,
    Struct,
    StructKind,
    Type,
    Typedef,
)
from penstock.idl.python.module import Module
from penstock.idl.python.text import LINE_CHARS_MAX, described, docstring, indented, quoted
from penstock.idl.python.types import RUNTIME, annotation, spec, with_enums, zero
from penstock.idl.python.values import expression

SPEC_ENTRIES_MAX = 1 << 22
"""Most entries of the specs of one file: a spec has one for each number up to the largest id."""
FIELD_ID_MAX = 2**15 - 1

_BASES = {StructKind.STRUCT: "Struct", StructKind.UNION: "TaggedUnion", StructKind.EXCEPTION: "DeclaredError"}


@dataclass(frozen=True, slots=True)
class Member:
    """A field as it is written: its attribute, and whether None stands for a missing value, with which default."""

    field: Field
    attribute: str
    type: Type
    is_optional: bool = False
    default: str = ""  # "= 0", or nothing

    @property
    def is_required(self) -> bool:
        """True if a value without it is not written."""
        return not self.default or self.field.requiredness is Requiredness.REQUIRED


def write_types(module: Module) -> None:
    """Write all types of the file, then their specs."""
    document = module.program.document
    for each in document.types:
        if isinstance(each, Enum):
            _write_enum(module, each)
    structs = [each for each in document.types if isinstance(each, Struct)]
    members = {each.name: _write_struct(module, each) for each in structs}
    for each in document.types:
        if isinstance(each, Typedef):
            _write_typedef(module, each)
    _check_ids(module, structs)
    for each in structs:
        name = module.naming.of(each)
        module.write(["", *spec_lines(module, name, each.fields, module.naming.attributes(each), is_early=True)])
        module.write(required_lines(name, members[each.name]))
    if structs:
        connect = module.use(RUNTIME, "connect_specs")
        module.write(["", *_call(connect, [module.naming.of(each) for each in structs])])


def write_constants(module: Module) -> None:
    """Write the constants of the file."""
    for each in module.program.document.constants:
        module.place = each.position
        resolved = module.program.resolve(each.type)
        value = expression(module, module.program, each.value, resolved)
        final = module.use("typing", "Final")
        kind = annotation(module, module.program, each.type)
        if isinstance(resolved[1], Enum) and not value.lstrip("-").isdigit():
            kind = module.definition(Found(resolved[0], resolved[1]))
        module.write(["", f"{module.naming.of(each)}: {final}[{kind}] = {value}"])
        module.write(docstring(described(each.comment, each.annotations)))


def _write_enum(module: Module, enum: Enum) -> None:
    module.place = enum.position
    members = module.naming.members(enum)
    body = docstring(described(enum.comment, enum.annotations))
    body += [""] if body and enum.values else []
    for each in enum.values:
        body.append(f"{members[each.name]} = {each.number}")
        body += docstring(described(each.comment, each.annotations))
    name = module.naming.of(enum)
    module.write(["", "", f"class {name}({module.use('enum', 'IntEnum')}):", *indented(body or ["pass"]), "", ""])
    module.write(module.alias_lines(name))


def _write_struct(module: Module, struct: Struct) -> list[Member]:
    """Write the class of a struct, and return its fields."""
    attributes = module.naming.attributes(struct)
    members = []
    for each in struct.fields:
        module.place = each.position
        members.append(_member(module, each, attributes[each.name], struct.kind))
    name = module.naming.of(struct)
    write_class(module, name, struct.kind, members, described(struct.comment, struct.annotations))
    module.write(module.alias_lines(name))
    return members


def _member(module: Module, field: Field, attribute: str, kind: StructKind) -> Member:
    """Return how a field of a struct is written."""
    if kind is StructKind.UNION:
        return Member(field, attribute, field.type, is_optional=True, default=" = None")
    is_optional = field.requiredness is Requiredness.OPTIONAL
    if field.default is not None:
        return Member(
            field, attribute, field.type, is_optional, default_of(module, field, attribute, is_optional=is_optional)
        )
    if field.requiredness is Requiredness.REQUIRED:
        return Member(field, attribute, field.type)
    empty = None if is_optional else zero(module, module.program, field.type)
    if empty is None:
        return Member(field, attribute, field.type, is_optional=True, default=" = None")
    return Member(field, attribute, field.type, default=f" = {empty[0] or _factory(module, empty[1])}")


def default_of(module: Module, field: Field, attribute: str, *, is_optional: bool) -> str:
    """Return the default that a contract gives a field, as it stands behind the type: " = 5"."""
    assert field.default is not None
    resolved = module.program.resolve(field.type)
    value = expression(module, module.program, field.default, resolved)
    if isinstance(resolved[1], Scalar | Enum):
        return f" = {value}"
    if value in ("[]", "{}", f"{module.builtin('set')}()"):
        return f" = {_factory(module, module.builtin({'[]': 'list', '{}': 'dict'}.get(value, 'set')))}"
    if is_optional and not isinstance(resolved[1], Struct):
        # Of a lambda in the place of `list[T] | None`, mypy does not find out the T.
        maker = module.private(f"default_{attribute}")
        kind = annotation(module, module.program, field.type)
        module.write(["", "", f"def {maker}() -> {kind}:", f"    return {value}", "", ""])
        return f" = {_factory(module, maker)}"
    return f" = {_factory(module, f'lambda: {value}')}"


def _factory(module: Module, made: str) -> str:
    return f"{module.use('dataclasses', 'field')}(default_factory={made})"


def write_class(module: Module, name: str, kind: StructKind, members: Iterable[Member], text: str = "") -> None:
    """Write the class of a struct, union or exception, or of a method's arguments or result."""
    members = list(members)
    frozen = ", frozen=True" if kind is StructKind.UNION else ""
    body = docstring(text)
    body += [""] if body and members else []
    for each in members:
        kind_text = annotation(module, module.program, each.type)
        kind_text += " | None" if each.is_optional else ""
        body.append(f"{each.attribute}: {kind_text}{each.default}")
        body += docstring(described(each.field.comment, each.field.annotations))
    converted = _post_init(module, kind, members)
    body += ["", *converted] if converted else []
    decorator = f"@{module.use('dataclasses', 'dataclass')}(slots=True, kw_only=True, eq=False{frozen})"
    base = module.use(RUNTIME, _BASES[kind])
    module.write(["", "", decorator, f"class {name}({base}):", *indented(body or ["pass"]), "", ""])


def _post_init(module: Module, kind: StructKind, members: list[Member]) -> list[str]:
    """Return the method that makes members of numbers of enums; none if the class has no enum."""
    lines = []
    for each in members:
        current = f"self.{each.attribute}"
        made = with_enums(module, module.program, each.type, current)
        if made == current:
            continue
        is_checked = not made.endswith(f", {current})")  # `known` takes None; one that must not be is left to encoders
        indent = "        " if is_checked else "    "
        lines += [f"    if {current} is not None:"] if is_checked else []
        if kind is StructKind.UNION:
            lines.append(f'{indent}{module.builtin("object")}.__setattr__(self, "{each.attribute}", {made})')
        else:
            lines.append(f"{indent}{current} = {made}")
    if not lines:
        return []
    if kind is StructKind.UNION:
        lines.insert(0, f"    {module.use(RUNTIME, _BASES[kind])}.__post_init__(self)")
    return ["def __post_init__(self) -> None:", *lines]


def _write_typedef(module: Module, typedef: Typedef) -> None:
    module.place = typedef.position
    alias = module.use("typing", "TypeAlias")
    kind = annotation(module, module.program, typedef.type)
    module.write(["", f"{module.naming.of(typedef)}: {alias} = {kind}"])
    module.write(docstring(described(typedef.comment, typedef.annotations)))


def spec_lines(
    module: Module, name: str, fields: Iterable[Field], attributes: Mapping[str, str], *, is_early: bool = False
) -> list[str]:
    """Return the lines that give a class its spec."""
    lines = []
    following = 0
    for each in sorted(fields, key=lambda one: one.id):
        module.place = each.position
        if each.id < following:
            continue  # a mistake, told by `_check_ids`
        gap = each.id - following
        lines += ["    None,"] * gap if gap < 3 else [f"    *(None,) * {gap},"]
        wire_type, arguments = spec(module, module.program, each.type, is_early=is_early)
        lines.append(f'    ({each.id}, {wire_type}, "{attributes[each.name]}", {arguments}, None),')
        following = each.id + 1
    if not lines:
        return [f"{name}.thrift_spec = ()"]
    line = f"{name}.thrift_spec = ({lines[0].strip()})"
    if len(lines) == 1 and len(line) <= LINE_CHARS_MAX:
        return [line]
    return [f"{name}.thrift_spec = (", *lines, ")"]


def required_lines(name: str, members: Iterable[Member]) -> list[str]:
    """Return the lines that tell encoders which fields of a class must be there; none if none must."""
    required = [quoted(each.attribute) for each in members if each.is_required]
    if not required:
        return []
    line = f"{name}.thrift_required = ({', '.join(required)}{',' if len(required) == 1 else ''})"
    if len(line) <= LINE_CHARS_MAX:
        return [line]
    return [f"{name}.thrift_required = (", *(f"    {each}," for each in required), ")"]


def check_ids(module: Module, fields: Iterable[Field]) -> int:
    """Note ids that a spec cannot have, and return the length of the spec."""
    largest = -1
    for each in fields:
        if not 0 <= each.id <= FIELD_ID_MAX:
            module.mistake(f'"{each.name}" has the id {each.id}; give one from 1 to {FIELD_ID_MAX:,}', each.position)
        largest = max(largest, each.id)
    return largest + 1


def _check_ids(module: Module, structs: Iterable[Struct]) -> None:
    total = 0
    for each in structs:
        total += check_ids(module, each.fields)
        if total > SPEC_ENTRIES_MAX:
            text = f"the largest ids of the file's structs add up to more than {SPEC_ENTRIES_MAX:,}; give small ids"
            module.mistake(text, each.position)
            return


def _call(name: str, arguments: list[str]) -> list[str]:
    line = f"{name}({', '.join(arguments)})"
    return [line] if len(line) <= LINE_CHARS_MAX else [f"{name}(", *(f"    {each}," for each in arguments), ")"]
