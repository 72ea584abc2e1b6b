"""What each form of the language becomes in the model."""

from __future__ import annotations

import pytest

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
    Position,
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
from penstock.idl.parser import parse

I32, I64, STRING = Scalar(ScalarKind.I32), Scalar(ScalarKind.I64), Scalar(ScalarKind.STRING)


def only(text: str, file: str = "a.frugal") -> Definition:
    (definition,) = parse(text, file).definitions
    return definition


def type_of(text: str) -> Type:
    definition = only(f"typedef {text} T")
    assert isinstance(definition, Typedef)
    return definition.type


def value_of(text: str) -> ConstantValue:
    definition = only(f"const i32 C = {text}")
    assert isinstance(definition, Constant)
    return definition.value


def test_an_empty_file() -> None:
    assert parse("", "a.frugal") == Document("a.frugal")
    assert parse("// nothing\n", "a.frugal") == Document("a.frugal")


def test_namespaces_and_includes() -> None:
    document = parse(
        """
        namespace py shop.orders
        namespace py.twisted shop_tx (vendor)
        namespace * any
        namespace go shop (vendor = "github.com/x/shop")
        include "base.frugal"
        include 'sub/v1.types.thrift' (vendor, why = "twice");
        cpp_include "<map>"
        """,
        "a.frugal",
    )
    assert document.namespaces == (
        Namespace("py", "shop.orders"),
        Namespace("py.twisted", "shop_tx", (Annotation("vendor"),)),
        Namespace("*", "any"),
        Namespace("go", "shop", (Annotation("vendor", "github.com/x/shop"),)),
    )
    assert document.includes == (
        Include("base.frugal", "base"),
        Include("sub/v1.types.thrift", "v1.types", (Annotation("vendor"), Annotation("why", "twice"))),
    )
    assert document.namespace("py") == "shop.orders"
    assert document.namespace("java") == "any"
    assert document.namespaces[1].position == Position("a.frugal", 3, 19)
    assert document.includes[0].position == Position("a.frugal", 6, 17)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bool", Scalar(ScalarKind.BOOL)),
        ("byte", Scalar(ScalarKind.I8)),
        ("i8", Scalar(ScalarKind.I8)),
        ("i16", Scalar(ScalarKind.I16)),
        ("i32", I32),
        ("i64", I64),
        ("double", Scalar(ScalarKind.DOUBLE)),
        ("string", STRING),
        ("binary", Scalar(ScalarKind.BINARY)),
        ("uuid", Scalar(ScalarKind.UUID)),
        ("Order", Reference("Order")),
        ("base.Order", Reference("base.Order")),
        ("u32", Reference("u32")),  # of Protobuf only; here a name as any other
        ("list<i32>", ListOf(I32)),
        ("set < base.Order >", SetOf(Reference("base.Order"))),
        ("map<string,list<map<i32,i64>>>", MapOf(STRING, ListOf(MapOf(I32, I64)))),
        ('map cpp_type "M" <i32, i32>', MapOf(I32, I32)),
        ('cpp_type "S" set<i32>', SetOf(I32)),
        ('list<i32> cpp_type "L"', ListOf(I32)),
        ('i32 (a = "b", c.d; e)', Scalar(ScalarKind.I32, (Annotation("a", "b"), Annotation("c.d"), Annotation("e")))),
        (
            'list<double (x = "16")> (y)',
            ListOf(Scalar(ScalarKind.DOUBLE, (Annotation("x", "16"),)), (Annotation("y"),)),
        ),
        ("Order (required)", Reference("Order", annotations=(Annotation("required"),))),
    ],
)
def test_types(text: str, expected: Type) -> None:
    assert type_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-1", Literal(-1)),
        ("1.5", Literal(1.5)),
        ('"a"', Literal("a")),
        ("true", Literal(True)),
        ("false", Literal(False)),
        ("base.Color.RED", ConstantName("base.Color.RED")),
        ("[]", ConstantList(())),
        ("[1, 2; 3 4,]", ConstantList((Literal(1), Literal(2), Literal(3), Literal(4)))),
        ("{}", ConstantMap(())),
        (
            '{an_id: 1, "b": [x]; list: true}',
            ConstantMap(
                (
                    (ConstantName("an_id"), Literal(1)),
                    (Literal("b"), ConstantList((ConstantName("x"),))),
                    (ConstantName("list"), Literal(True)),
                )
            ),
        ),
    ],
)
def test_constants(text: str, expected: ConstantValue) -> None:
    found = value_of(text)
    assert found == expected
    if isinstance(expected, Literal) and isinstance(found, Literal):
        assert type(found.value) is type(expected.value)


def test_a_constant_and_a_typedef() -> None:
    assert only('/** why */ const i32 LIMIT = 3 (a = "b");') == Constant(
        "LIMIT", I32, Literal(3), "why", (Annotation("a", "b"),)
    )
    assert only("/**@ why */ typedef i32 (a) Int (b),") == Typedef(
        "Int", Scalar(ScalarKind.I32, (Annotation("a"),)), "why", (Annotation("b"),)
    )


def test_an_enum() -> None:
    text = """
    /** Colors. */
    enum Color {
        RED,
        /** as grass */
        GREEN = 0x10 (deprecated = "no"),
        BLUE; CYAN = 5
        string = 5
    } (e)
    """
    assert only(text) == Enum(
        "Color",
        (
            EnumValue("RED", 0),
            EnumValue("GREEN", 16, "as grass", (Annotation("deprecated", "no"),)),
            EnumValue("BLUE", 17),
            EnumValue("CYAN", 5),
            EnumValue("string", 5),  # a keyword, and an equal number
        ),
        "Colors.",
        (Annotation("e"),),
    )


def test_numbers_in_a_thrift_file_follow_the_value_before() -> None:
    enum = only("enum E { A = -3, B, C = 9, D = 2, E, F = 0x7fffffff }", "a.thrift")
    assert isinstance(enum, Enum)
    assert [(each.name, each.number) for each in enum.values] == [
        ("A", -3), ("B", -2), ("C", 9), ("D", 2), ("E", 3), ("F", 2**31 - 1),
    ]  # fmt: skip


def test_a_struct() -> None:
    text = """
    struct Order {
        1: required i64 id,
        /** who pays */
        2: optional base.Customer customer (key);
        5: list<string> lines = ["a", "b"]
        7: Node & next
        32767: i32 optional = LIMIT xsd_optional xsd_nillable xsd_attrs { 1: i32 a } (a)
    }
    """
    assert only(text) == Struct(
        "Order",
        StructKind.STRUCT,
        (
            Field(1, "id", I64, Requiredness.REQUIRED),
            Field(
                2, "customer", Reference("base.Customer"), Requiredness.OPTIONAL,
                comment="who pays", annotations=(Annotation("key"),),
            ),
            Field(5, "lines", ListOf(STRING), default=ConstantList((Literal("a"), Literal("b")))),
            Field(7, "next", Reference("Node")),
            Field(32767, "optional", I32, default=ConstantName("LIMIT"), annotations=(Annotation("a"),)),
        ),
    )  # fmt: skip


def test_fields_of_a_union_are_optional() -> None:
    assert only("union U xsd_all { 1: required i32 a, 2: i64 b = 1 } (u)") == Struct(
        "U",
        StructKind.UNION,
        (
            Field(1, "a", I32, Requiredness.OPTIONAL),
            Field(2, "b", I64, Requiredness.OPTIONAL, Literal(1)),
        ),
        annotations=(Annotation("u"),),
    )


def test_an_exception() -> None:
    assert only("exception Bad { 1: string why }") == Struct("Bad", StructKind.EXCEPTION, (Field(1, "why", STRING),))


def test_a_service() -> None:
    text = """
    /** Orders. */
    service Orders extends base.Service {
        /** is it there? */
        void ping() (deprecated),
        i64 place(1: Order order, 2: optional bool now = true) throws (1: Bad bad, 2: base.Worse worse);
        oneway void forget(
            /** which */
            1: i64 id)
        async void old()
        list<i32> list()
    } (s)
    """
    assert only(text) == Service(
        "Orders",
        Reference("base.Service"),
        (
            Method("ping", None, (), comment="is it there?", annotations=(Annotation("deprecated"),)),
            Method(
                "place",
                I64,
                (
                    Field(1, "order", Reference("Order")),
                    Field(2, "now", Scalar(ScalarKind.BOOL), Requiredness.OPTIONAL, Literal(True)),
                ),
                (
                    Field(1, "bad", Reference("Bad"), Requiredness.OPTIONAL),
                    Field(2, "worse", Reference("base.Worse"), Requiredness.OPTIONAL),
                ),
            ),
            Method("forget", None, (Field(1, "id", I64, comment="which"),), is_oneway=True),
            Method("old", None, (), is_oneway=True),
            Method("list", ListOf(I32), ()),
        ),
        "Orders.",
        (Annotation("s"),),
    )


def test_a_scope() -> None:
    text = """
    /** Events. */
    scope Events prefix shop.{region}.v-1.{user_id} {
        /** paid for */
        Paid: Order (durable = "orders", key = "customer"),
        Count: i64
        Batch: list<Order> (of_type) (of_operation);
        Bare: i64 (of_type) ()
    } (s)
    """
    assert only(text) == Scope(
        "Events",
        "shop.{region}.v-1.{user_id}",
        ("region", "user_id"),
        (
            Operation(
                "Paid",
                Reference("Order"),
                "paid for",
                (Annotation("durable", "orders"), Annotation("key", "customer")),
            ),
            Operation("Count", I64),
            Operation(
                "Batch",
                ListOf(Reference("Order"), (Annotation("of_type"),)),
                annotations=(Annotation("of_operation"),),
            ),
            Operation("Bare", Scalar(ScalarKind.I64, (Annotation("of_type"),))),
        ),
        "Events.",
        (Annotation("s"),),
    )


@pytest.mark.parametrize(
    ("head", "prefix", "variables"),
    [
        ("scope S", "", ()),
        ("scope S prefix a", "a", ()),
        ("scope\nS\nprefix // why\n a.{b}", "a.{b}", ("b",)),
        ("scope S prefix {x}", "{x}", ("x",)),
        ("scope S prefix a#b.c/d.'e.$f", "a#b.c/d.'e.$f", ()),
        ("scope S prefix größe", "größe", ()),
    ],
)
def test_prefixes(head: str, prefix: str, variables: tuple[str, ...]) -> None:
    scope = only(f"{head} {{Op: i32}}")
    assert isinstance(scope, Scope)
    assert (scope.prefix, scope.variables) == (prefix, variables)
    assert only(f"{head.replace('S', 'S ', 1)}{{Op: i32}}") == scope  # the brace may touch the prefix


def test_a_scope_may_have_the_name_of_a_service() -> None:
    document = parse("service Foo {} scope Foo {} scope Bar {} struct bar {}", "a.frugal")
    assert [each.name for each in document.definitions] == ["Foo", "Foo", "Bar", "bar"]


def test_words_that_only_some_places_reserve_are_names() -> None:
    document = parse("struct scope { 1: prefix prefix } struct prefix {} service S { scope scope() }", "a.frugal")
    assert [each.name for each in document.definitions] == ["scope", "prefix", "S"]


def test_positions_are_those_of_names() -> None:
    text = "enum E {\n  A\n}\nstruct S {\n  1: i32 a\n}\nservice T {\n  void m(2: X x)\n}\nscope U {\n  Op: X\n}"
    document = parse(text, "a.frugal")
    enum, struct, service, scope = document.definitions
    assert isinstance(enum, Enum)
    assert isinstance(struct, Struct)
    assert isinstance(service, Service)
    assert isinstance(scope, Scope)
    found = [
        enum.position, enum.values[0].position, struct.position, struct.fields[0].position, service.position,
        service.methods[0].position, service.methods[0].arguments[0].position, scope.position,
        scope.operations[0].position,
    ]  # fmt: skip
    assert [(each.line, each.column) for each in found] == [
        (1, 6), (2, 3), (4, 8), (5, 3), (7, 9), (8, 8), (8, 10), (10, 7), (11, 3),
    ]  # fmt: skip
    reference = scope.operations[0].type
    assert isinstance(reference, Reference)
    assert reference.position == Position("a.frugal", 11, 7)
