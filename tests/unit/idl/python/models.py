"""Contracts for tests: any names that a contract can have, the worst ones first, and any texts."""

from __future__ import annotations

import inspect
import keyword
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import GenericAlias, UnionType
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from penstock.idl import checks
from penstock.idl.mistakes import Mistakes
from penstock.idl.model import (
    Annotation,
    Constant,
    ConstantList,
    ConstantMap,
    ConstantName,
    ConstantValue,
    Definition,
    Document,
    Enum,
    EnumValue,
    Field,
    Include,
    ListOf,
    Literal,
    MapOf,
    Method,
    Namespace,
    Operation,
    Program,
    Reference,
    Requiredness,
    Scalar,
    ScalarKind,
    Scope,
    Service,
    SetOf,
    Struct,
    StructKind,
    Type,
    Typedef,
)

WORST_NAMES = [
    *keyword.kwlist,
    *keyword.softkwlist,
    "_",
    "__init__",
    "__post_init__",
    "__slots__",
    "__class__",
    "__x",
    "_x",
    "x_",
    "__",
    "_0",
    "_1",
    "_dflt_a",
    "_type_a",
    "_HAS_DEFAULT_FACTORY",
    "MISSING",
    "KW_ONLY",
    "self",
    "ctx",
    "message",
    "thrift_spec",
    "which",
    "args",
    "add_note",
    "with_traceback",
    "name",
    "value",
    "mro",
    "real",
    "_value_",
    "_ignore_",
    "answer",
    "handler",
    "queue",
    "options",
    "list",
    "dict",
    "set",
    "str",
    "int",
    "bytes",
    "float",
    "bool",
    "tuple",
    "frozenset",
    "object",
    "print",
    "Exception",
    "type",
    "id",
    "success",
    "dataclass",
    "field",
    "IntEnum",
    "Final",
    "Any",
    "Protocol",
    "UUID",
    "TypeAlias",
    "Callable",
    "Awaitable",
    "Struct",
    "TaggedUnion",
    "DeclaredError",
    "FrozenMap",
    "known",
    "connect_specs",
    "Context",
    "MethodType",
    "OperationType",
    "ScopeType",
    "ServiceType",
    "ServiceClient",
    "BlockingServiceClient",
    "ScopePublisher",
    "ScopeSubscriber",
    "Published",
    "Subscription",
    "annotations",
    "base",
    "_base",
    "_list",
    "_field",
    "builtins",
    "penstock",
    "A",
    "AClient",
    "AHandler",
    "ABlockingClient",
    "APublisher",
    "ASubscriber",
    "_A_A_arguments",
    "close",
    "_call",
    "_service",
    "_scope",
    "_publish",
    "_abc_impl",
    "_is_protocol",
    "_is_runtime_protocol",
    "methods",
    "operations",
    "a",
    "b",
]
NAMES = st.sampled_from(WORST_NAMES) | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)

_PIECES = ['"""', "'''", "\\", '"', "'", "\n", "\r", "\0", "#", "\u202e", "\u2066", "\u2028", "\x1b[2J", "\ud800", "é"]
_CODE = [
    "import os",
    '"""\nimport os\n"""',
    "\\N{DIGIT ONE}",
    "{x}",
    "%s",
    "raise SystemExit",
    "*/",
    " ",
    "\t",
    "x = 1",
]
WORST_TEXTS = [*_PIECES, *_CODE]
TEXTS = st.lists(st.sampled_from(WORST_TEXTS) | st.text(max_size=5), max_size=6).map("".join)
COMMENTS = st.just("") | TEXTS

_RANGES = {ScalarKind.I8: 7, ScalarKind.I16: 15, ScalarKind.I32: 31, ScalarKind.I64: 63}


def names(minimum: int = 0, maximum: int = 4) -> st.SearchStrategy[list[str]]:
    return st.lists(NAMES, min_size=minimum, max_size=maximum, unique=True)


def marks() -> st.SearchStrategy[tuple[Annotation, ...]]:
    one = st.builds(Annotation, NAMES | st.just("deprecated"), TEXTS)
    one |= st.builds(Annotation, st.just("idempotent"), st.sampled_from(["", "true", "false"]))
    return st.lists(one, max_size=2).map(tuple)


@dataclass(frozen=True)
class Value:
    """A constant, and what it is in Python: `make` gets what maps definitions to classes."""

    constant: ConstantValue
    make: Callable[[Callable[[str], Any]], Any]


@dataclass
class Made:
    """A linked program, and the values of its constants by their names."""

    program: Program
    values: dict[str, Value] = field(default_factory=dict)


class Builder:
    """Draws one document, whose types may be those of an included one."""

    def __init__(self, draw: Any, included: Program | None) -> None:
        self.draw = draw
        self.included = included
        self.definitions: list[Definition] = []
        self.values: dict[str, Value] = {}
        self.enums: dict[str, Enum] = {}
        self.structs: dict[str, Struct] = {}
        self.taken: set[str] = {"base"}
        if included is not None:
            for each in included.document.types:
                if isinstance(each, Enum):
                    self.enums[f"base.{each.name}"] = each
                elif isinstance(each, Struct):
                    self.structs[f"base.{each.name}"] = each

    def name(self) -> str:
        found: str = self.draw(NAMES.filter(lambda one: one not in self.taken))
        self.taken.add(found)
        return found

    def type(self, depth: int = 0, *, as_key: bool = False) -> Type:
        draw = self.draw
        sorts = (
            ["scalar", "scalar", "enum", "struct"] if depth > 2 else ["scalar", "enum", "struct", "list", "set", "map"]
        )
        sort = draw(st.sampled_from(sorts))
        if sort == "enum" and self.enums:
            return Reference(draw(st.sampled_from(sorted(self.enums))))
        if sort == "struct" and self.structs and not as_key:
            return Reference(draw(st.sampled_from(sorted(self.structs))))
        if sort == "list":
            return ListOf(self.type(depth + 1, as_key=as_key))
        if sort == "set":
            return SetOf(self.type(depth + 1, as_key=True))
        if sort == "map" and not as_key:
            return MapOf(self.type(depth + 1, as_key=True), self.type(depth + 1))
        kinds = [each for each in ScalarKind if each not in (ScalarKind.U32, ScalarKind.U64, ScalarKind.FLOAT)]
        return Scalar(draw(st.sampled_from(kinds)))

    def fields(self, *, default: bool, maximum: int = 4) -> tuple[Field, ...]:
        made = []
        for number, name in enumerate(self.draw(names(0, maximum))):
            type_ = self.type()
            value = self.value(type_) if default and self.draw(st.booleans()) else None
            required = self.draw(st.sampled_from(Requiredness))
            if required is Requiredness.REQUIRED and not isinstance(type_, Scalar):
                required = Requiredness.DEFAULT  # a struct that needs itself is refused
            identity = 3 * number + 1
            constant = None if value is None else value.constant
            comment, marked = self.draw(COMMENTS), self.draw(marks())
            made.append(Field(identity, name, type_, required, constant, comment, marked))
        return tuple(made)

    def value(self, type_: Type, *, as_key: bool = False) -> Value | None:
        """Draw a constant of a type; None: of structs none is drawn here."""
        draw = self.draw
        if isinstance(type_, Scalar):
            return _scalar(draw, type_.kind)
        if isinstance(type_, Reference):
            enum = self.enums.get(type_.name)
            if enum is None or not enum.values:
                return None
            one = draw(st.sampled_from(enum.values))
            first = next(each for each in enum.values if each.number == one.number)
            constant: ConstantValue = draw(
                st.sampled_from([Literal(first.number), ConstantName(f"{type_.name}.{one.name}")])
            )
            return Value(constant, lambda found: found(type_.name)(one.number))
        if isinstance(type_, MapOf):
            return self._map(type_)
        is_set = isinstance(type_, SetOf)
        inner = [self.value(type_.element, as_key=as_key or is_set) for _ in range(draw(st.integers(0, 2)))]
        items = [each for each in inner if each is not None]
        kind: Any = (frozenset if as_key else set) if is_set else (tuple if as_key else list)
        return Value(
            ConstantList(tuple(each.constant for each in items)), lambda found: kind(one.make(found) for one in items)
        )

    def _map(self, type_: MapOf) -> Value:
        key, item = self.value(type_.key, as_key=True), self.value(type_.value)
        if key is None or item is None:
            return Value(ConstantMap(()), lambda found: {})
        return Value(ConstantMap(((key.constant, item.constant),)), lambda found: {key.make(found): item.make(found)})

    def build(self) -> None:
        """Draw types, constants, a service and a scope."""
        draw = self.draw
        for _ in range(draw(st.integers(0, 2))):
            name = self.name()
            values = [EnumValue(one, draw(st.integers(0, 3)), draw(COMMENTS), draw(marks())) for one in draw(names(1))]
            self.enums[name] = Enum(name, tuple(values), draw(COMMENTS), draw(marks()))
            self.definitions.append(self.enums[name])
        for kind in draw(st.lists(st.sampled_from(StructKind), max_size=3)):
            name = self.name()
            is_union = kind is StructKind.UNION
            self.structs[name] = Struct(name, kind, ())  # recursive ones can name it
            fields = self.fields(default=not is_union)
            if is_union:
                fields = tuple(Field(each.id, each.name, each.type, Requiredness.OPTIONAL) for each in fields)
            made = Struct(name, kind, fields, draw(COMMENTS), draw(marks()))
            self.structs[name] = made
            self.definitions.append(made)
        for _ in range(draw(st.integers(0, 1))):
            self.definitions.append(Typedef(self.name(), self.type(), draw(COMMENTS)))
        for _ in range(draw(st.integers(0, 3))):
            type_ = self.type()
            value = self.value(type_)
            if value is not None:
                name = self.name()
                self.values[name] = value
                self.definitions.append(Constant(name, type_, value.constant, draw(COMMENTS)))
        self._service()
        self._scope()

    def _service(self) -> None:
        draw = self.draw
        methods: dict[str, Method] = {}
        errors = sorted(name for name, each in self.structs.items() if each.kind is StructKind.EXCEPTION)
        for name in draw(names()):
            is_oneway = draw(st.booleans())
            returns = None if is_oneway or draw(st.booleans()) else self.type()
            throws = (
                () if is_oneway or not errors else (Field(1, draw(NAMES), Reference(draw(st.sampled_from(errors)))),)
            )
            arguments = self.fields(default=True)
            method = Method(name, returns, arguments, throws, is_oneway, draw(COMMENTS), draw(marks()))
            methods.setdefault(name[:1].lower() + name[1:], method)
        if draw(st.booleans()):
            self.definitions.append(Service(self.name(), None, tuple(methods.values()), draw(COMMENTS), draw(marks())))

    def _scope(self) -> None:
        draw = self.draw
        if draw(st.booleans()):
            variables = tuple(draw(names(0, 2)))
            operations = tuple(Operation(one, self.type(), draw(COMMENTS), draw(marks())) for one in draw(names()))
            prefix = ".".join(f"{{{one}}}" for one in variables)
            scope = Scope(self.name(), prefix, variables, operations, draw(COMMENTS), draw(marks()))
            self.definitions.append(scope)


def _scalar(draw: Any, kind: ScalarKind) -> Value:
    if kind in _RANGES:
        number = draw(st.integers(-(2 ** _RANGES[kind]), 2 ** _RANGES[kind] - 1))
        return Value(Literal(number), lambda found: number)
    if kind is ScalarKind.BOOL:
        truth = draw(st.booleans())
        return Value(Literal(draw(st.sampled_from([truth, int(truth)]))), lambda found: truth)
    if kind is ScalarKind.DOUBLE:
        double = draw(st.floats(allow_nan=False) | st.integers(-5, 5) | st.just(10**400))
        real = math.inf if double == 10**400 else float(double)
        return Value(Literal(double), lambda found: real)
    if kind is ScalarKind.UUID:
        uuid = draw(st.uuids())
        return Value(Literal(str(uuid)), lambda found: UUID(str(uuid)))
    text = draw(TEXTS)
    return Value(
        Literal(text), lambda found: text.encode("utf-8", "surrogatepass") if kind is ScalarKind.BINARY else text
    )


def check_annotations(made: Any) -> None:
    """Fail if an annotation of a class means no type where it stands: a field may hide what it names."""
    around = vars(sys.modules[made.__module__])
    for hint in inspect.get_annotations(made).values():
        assert isinstance(eval(hint, around, dict(vars(made))), type | UnionType | GenericAlias), hint


@st.composite
def programs(draw: Any) -> Made:
    """Draw a linked program of two files."""
    base = Builder(draw, None)
    base.build()
    included = Program(Document("base.frugal", (), (), tuple(base.definitions)), {})
    main = Builder(draw, included)
    main.build()
    namespace = ".".join(draw(names(1, 3)))
    document = Document(
        "my contract.frugal", (Namespace("py", namespace),), (Include("base.frugal", "base"),), tuple(main.definitions)
    )
    made = Made(Program(document, {"base": included}), main.values)
    mistakes = Mistakes()
    checks.check(made.program, mistakes)
    # Keys that are equal in the contract, and the like, are drawn seldom; the linker refuses them.
    assert not list(mistakes) or all("already" in each.text or "large" in each.text for each in mistakes), list(
        mistakes
    )
    return made


def named_everywhere(name: str, turn: int) -> Made:
    """Return a contract that gives a name, and those that are easily made of it, to all that can have one.

    `turn`: which declaration has which of them.
    """
    near = [*dict.fromkeys((name, f"{name}_", f"_{name}", f"__{name}"))]
    string, enum = Scalar(ScalarKind.STRING), Reference("E9")
    types: list[Type] = [string, enum, ListOf(string), MapOf(string, enum), SetOf(string)]

    def fields(first: int = 0, presence: Requiredness = Requiredness.DEFAULT) -> tuple[Field, ...]:
        kinds = types[first % len(types) :] + types[: first % len(types)]
        return tuple(
            Field(at, each, kind, presence) for at, (each, kind) in enumerate(zip(near, kinds, strict=False), 1)
        )

    # Each in a service of its own, and none with two underscores in front: a server would not find them in a handler.
    methods = [
        Method(each, string, fields(at), (Field(1, name, Reference("X9")),))
        for at, each in enumerate(near)
        if not each.startswith("__")
    ]
    operations = tuple(Operation(each, Reference("S9")) for each in near)
    values = tuple(EnumValue(each, at) for at, each in enumerate(near))
    variables = tuple(near)
    named = near[turn % len(near) :] + near[: turn % len(near)]
    declared: list[Definition] = [
        Struct(named[0], StructKind.STRUCT, (Field(1, "a", Reference("U9")), Field(2, "b", enum))),
        *(Service(each, None, tuple(methods[:1])) for each in named[1:2]),
        *(Scope(each, "", (), operations[:1]) for each in named[2:3]),
        *(Typedef(each, ListOf(Reference(named[0]))) for each in named[3:]),
    ]
    definitions: list[Definition] = [
        Enum("E9", values),
        Struct("S9", StructKind.STRUCT, fields(turn)),
        Struct("U9", StructKind.UNION, fields(turn + 1, Requiredness.OPTIONAL)),
        Struct("X9", StructKind.EXCEPTION, fields(turn + 2)),
        *(Service(f"V{at}", None, (method,)) for at, method in enumerate(methods)),
        Scope("P9", ".".join(f"{{{each}}}" for each in variables), variables, operations),
        *(declared if turn % 2 else reversed(declared)),
    ]
    return _with_base(definitions)


def said_everywhere(text: str) -> Made:
    """Return a contract with a text in the name of its file, and in each comment, annotation and constant."""
    marks = (Annotation("deprecated", text), Annotation("any.thing", text))
    values = {
        "TEXT9": Value(Literal(text), lambda found: text),
        "BYTES9": Value(Literal(text), lambda found: text.encode("utf-8", "surrogatepass")),
    }
    string, binary = Scalar(ScalarKind.STRING), Scalar(ScalarKind.BINARY)
    fields = (Field(1, "a", string, default=Literal(text), comment=text, annotations=marks),)
    method = Method("call", string, fields, comment=text, annotations=marks)
    definitions: list[Definition] = [
        Enum("E9", (EnumValue("A", 0, text, marks),), text, marks),
        *(Struct(f"S{kind}", kind, fields if kind is not StructKind.UNION else (), text, marks) for kind in StructKind),
        Typedef("T9", string, text, marks),
        Constant("TEXT9", string, Literal(text), text),
        Constant("BYTES9", binary, Literal(text), text),
        Service("V9", None, (method,), text, marks),
        Scope("P9", "", (), (Operation("Made", string, text, (*marks, Annotation("stream", text))),), text, marks),
    ]
    return _with_base(definitions, values, file=f"{text}.frugal")


def _with_base(
    definitions: list[Definition], values: dict[str, Value] | None = None, *, file: str = "all.frugal"
) -> Made:
    base = Program(Document("base.frugal"), {})
    document = Document(file, (), (Include("base.frugal", "base"),), tuple(definitions))
    made = Made(Program(document, {"base": base}), values or {})
    mistakes = Mistakes()
    checks.check(made.program, mistakes)
    # The linker refuses the name of a stream; the generator writes it as text all the same.
    assert all(each.text.startswith('the stream of "Made": ') for each in mistakes), list(mistakes)
    return made
