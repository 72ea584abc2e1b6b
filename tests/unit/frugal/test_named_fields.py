"""Errors of values and of bytes name the field: what does not fit is refused at its writer, and found by its reader."""

import re
import uuid

import pytest

from penstock.frugal.codecs import BINARY, CODECS, COMPACT, JSON, WireType, struct_spec
from penstock.frugal.errors import CodecError
from penstock.hot import thrift_values
from penstock.idl.python.load import load_text
from tests import hot_modes

SHOP = load_text(
    """
enum State { NEW = 1 }
union Payment { 1: string card, 2: i64 cash }
struct Line { 1: required string article, 2: i32 count, 3: double price }
struct Order {
    1: required i64 id,
    2: list<Line> lines,
    3: map<string, list<Line>> parts,
    4: set<string> tags,
    5: optional Payment payment,
    6: optional Order parent,
    7: required i32 copies = 1,
    8: binary data,
    9: bool urgent,
    10: optional uuid token,
    11: i8 priority,
    12: State state = State.NEW,
    13: map<i16, double> weights,
    14: required list<State> states = [State.NEW],
}
exception Refused { 1: required string reason }
service Orders { Order place(1: Order order, 2: i32 copies) throws (1: Refused refused) }
"""
)
Order, Line, Payment = SHOP.Order, SHOP.Line, SHOP.Payment
ALL = list(CODECS.values())


def line(**fields):
    """Return a line whose fields are set behind the constructor, as a program may."""
    made = Line(article="tea")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def union(**fields):
    """Return a union that its constructor refuses."""
    made = Payment(card="x")
    for name in ("card", "cash"):
        object.__setattr__(made, name, fields.get(name))
    return made


def nested(depth):
    order = Order(id=1)
    for _ in range(depth):
        order = Order(id=1, parent=order)
    return order


MISFITS = [
    (Order(id=None), "Order.id: None, and the field is required"),
    (Order(id=1, copies=None), "Order.copies: None, and the field is required"),
    (Order(id=1, lines=[line(), line(article=None)]), "Order.lines[1].article: None, and the field is required"),
    (Order(id=1, lines=[line(), None]), "Order.lines[1]: None, where the contract says Line"),
    (Order(id=1, lines=[line(price="free")]), "Order.lines[0].price: a str, where the contract says double"),
    (Order(id=1, lines=[line(count="7")]), "Order.lines[0].count: a str, where the contract says i32"),
    (Order(id=1, lines=[line(count=2.0)]), "Order.lines[0].count: a float, where the contract says i32"),
    (Order(id=1, lines=[line(count=2**31)]), "Order.lines[0].count: 2147483648 is out of the range of i32"),
    (Order(id=-(2**63) - 1), "Order.id: -9223372036854775809 is out of the range of i64"),
    (Order(id=1, priority=128), "Order.priority: 128 is out of the range of i8"),
    (Order(id=1, lines=[line(price=10**400)]), "Order.lines[0].price: an int, where the contract says double"),
    (Order(id=1, lines={"a": 1}), "Order.lines: a dict, where the contract says list"),
    (Order(id=1, lines="text"), "Order.lines: a str, where the contract says list"),
    (Order(id=1, tags=["a"]), "Order.tags: a list, where the contract says set"),
    (Order(id=1, tags={5}), "Order.tags[5]: an int, where the contract says string"),
    (Order(id=1, parts=[1]), "Order.parts: a list, where the contract says map"),
    (Order(id=1, parts={"a": [line(count="x")]}), "Order.parts['a'][0].count: a str, where the contract says i32"),
    (Order(id=1, parts={7: []}), "Order.parts[key 7]: an int, where the contract says string"),
    (Order(id=1, weights={2**15: 0.5}), "Order.weights[key 32768]: 32768 is out of the range of i16"),
    (Order(id=1, payment="card"), "Order.payment: a str, where the contract says Payment"),
    (Order(id=1, payment=union()), "Order.payment: the union Payment has no field; give exactly one of card, cash"),
    (
        Order(id=1, payment=union(card="x", cash=1)),
        "Order.payment: the union Payment has the fields card, cash; give exactly one of card, cash",
    ),
    (Order(id=1, payment=Line(article="x")), "Order.payment: a Line, where the contract says Payment"),
    (Order(id=1, data="text"), "Order.data: a str, where the contract says binary"),
    (Order(id=1, lines=[line(article=b"x")]), "Order.lines[0].article: bytes, where the contract says string"),
    (Order(id=1, lines=[line(article="\ud800")]), "Order.lines[0].article: the text has no form in UTF-8"),
    (Order(id=1, urgent="false"), "Order.urgent: a str, where the contract says bool"),
    (Order(id=1, urgent=2), "Order.urgent: an int, where the contract says bool"),
    (Order(id=1, token="x"), "Order.token: a str, where the contract says uuid"),
    (Order(id=1, state="NEW"), "Order.state: a str, where the contract says i32"),
    (Order(id=1, states=None), "Order.states: None, and the field is required"),
    (Order(id=1, states=["NEW"]), "Order.states[0]: a str, where the contract says i32"),
    (line(article=None), "Line.article: None, and the field is required"),
    (SHOP.Refused(reason=None), "Refused.reason: None, and the field is required"),
]


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
@pytest.mark.parametrize(("value", "said"), MISFITS, ids=[said for _, said in MISFITS])
def test_what_does_not_fit_is_refused_with_its_field(codec, value, said):
    with pytest.raises(CodecError, match=f"^{re.escape(said)}"):
        codec.encode_bare(struct_spec(type(value)), value)


@pytest.mark.parametrize("mode", ["plain", "compiled"])
@pytest.mark.parametrize(("value", "said"), MISFITS, ids=[said for _, said in MISFITS])
def test_plain_and_compiled_say_the_same(mode, value, said):
    module = hot_modes.plain("thrift_values") if mode == "plain" else hot_modes.running("thrift_values")
    shape = module.shape_of(*struct_spec(type(value)))
    assert said.startswith(f"{type(value).__name__}{module.find_misfit(shape, value)}"[: len(said)])


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
def test_what_fits_is_written_and_read(codec):
    order = Order(
        id=2**63 - 1,
        lines=[line(count=True, price=3), Line(article="té")],
        parts={"a": [line()]},
        tags={"x", "é"},
        payment=Payment(cash=5),
        parent=Order(id=0),
        data=b"\xff",
        urgent=1,
        token=uuid.UUID(int=7),
        priority=-128,
        state=77,
        weights={-1: 0.5},
    )
    spec = struct_spec(Order)
    assert codec.decode_bare(codec.encode_bare(spec, order), spec) == order


@pytest.mark.parametrize("codec", ALL, ids=CODECS)
def test_a_struct_that_holds_itself_is_refused(codec):
    order = Order(id=1)
    order.parent = order
    with pytest.raises(CodecError, match="nest deeper than 64"):
        codec.encode_bare(struct_spec(Order), order)
    codec.encode_bare(struct_spec(Order), nested(62))


def test_a_value_that_is_no_struct_is_named_too():
    spec = (WireType.LIST, (WireType.I16, None, False))
    for codec in ALL:
        with pytest.raises(CodecError, match=r"^the value\[1\]: 32768 is out of the range of i16"):
            codec.encode_bare(spec, [1, 32768])
        with pytest.raises(CodecError, match=r"^the value: None, where the contract says list"):
            codec.encode_bare(spec, None)


def test_arguments_are_named_without_the_struct_that_holds_them():
    place = SHOP.Orders.methods["place"]
    with pytest.raises(CodecError, match=r"^order\.lines\[0\]\.article: None, and the field is required"):
        BINARY.encode_bare(
            struct_spec(place.arguments), place.arguments(order=Order(id=1, lines=[line(article=None)]), copies=1)
        )
    with pytest.raises(CodecError, match=r"^order: None, and the field is required"):
        BINARY.encode_bare(struct_spec(place.arguments), place.arguments(order=None, copies=1))


FAULTS = [
    (BINARY, "08000700000001 00", "Order.id: the required field is missing, at byte 8"),
    (BINARY, "0800010000000500", "Order.id: it is i32 in the bytes, where the contract says i64, at byte 8"),
    (BINARY, "0a00010000", "Order.id: the value ends in it, at byte 3"),
    (
        BINARY,
        "0a0001 0000000000000001 0f0002 0c00000001 0b0001000000",
        "Order.lines[0].article: its size is beyond the end of the value, at byte 22",
    ),
    (
        BINARY,
        "0a0001 0000000000000001 0f0002 0c00000002 0b00010000000178 00 00 00",
        "Order.lines[1].article: the required field is missing, at byte 29",
    ),
    (
        BINARY,
        "0a0001 0000000000000001 0f0002 0b00000001 0000000178 00",
        "Order.lines: its elements are string, where the contract says Line, at byte 14",
    ),
    (
        BINARY,
        "0a0001 0000000000000001 0f0002 0c0000ffff 00",
        "Order.lines: its size is beyond the end of the value, at byte 14",
    ),
    (
        BINARY,
        "0a0001 0000000000000001 0c0005 00 00",
        "Order.payment: the union Payment has no field; give exactly one of card, cash, at byte 15",
    ),
    (
        BINARY,
        "0a0001 0000000000000001 0c0005 0b00010000000178 0a00020000000000000001 00 00",
        "Order.payment: the union Payment has the fields card, cash; give exactly one of card, cash, at byte 34",
    ),
    (
        BINARY,
        "0a0001 0000000000000001 0d0003 0b0f00000001 0000000161 0c00000001 00 00",
        "Order.parts[entry 0][0].article: the required field is missing, at byte 31",
    ),
    (
        BINARY,
        "0a0001 0000000000000001 0d0003 0b0f00000001 00000001ff 0c00000000 00",
        "Order.parts[key of entry 0]: it is no UTF-8, at byte 24",
    ),
    (BINARY, "0a0001 0000000000000001 0e0004 0b00000001 00000001ff 00", "Order.tags[0]: it is no UTF-8, at byte 23"),
    (
        BINARY,
        "0a0001 0000000000000001 0b0063 000000ff 00",
        "Order, the unknown field 99: it cannot be read, at byte 11",
    ),
    (BINARY, "0a0001 0000000000000001", "Order: it does not end, at byte 11"),
    (COMPACT, "1602 19fc ff01 00", "Order.lines: its size is beyond the end of the value, at byte 3"),
    (COMPACT, "1602 191c 00 00", "Order.lines[0].article: the required field is missing, at byte 5"),
    (COMPACT, "00", "Order.id: the required field is missing, at byte 1"),
    (
        JSON,
        b'{"1":{"i64":1},"2":{"lst":["rec",1,{"2":{"i32":5}}]}}'.hex(),
        "Order.lines[0].article: the required field is missing",
    ),
    (
        JSON,
        b'{"1":{"i64":1},"2":{"lst":["rec",1,{"1":{"str":"x"},"2":{"i32":"5"}}]}}'.hex(),
        "Order.lines[0].count: '5' is no i32",
    ),
    (
        JSON,
        b'{"1":{"i64":1},"3":{"map":["str","lst",1,{"a":["rec",1,{"1":{"str":5}}]}]}}'.hex(),
        "Order.parts['a'][0].article: 5 is no string",
    ),
    (
        JSON,
        b'{"1":{"i64":1},"13":{"map":["i16","dbl",1,{"70000":1.5}]}}'.hex(),
        "Order.weights[key '70000']: 70000 does not fit into 16 bits",
    ),
    (
        JSON,
        b'{"1":{"i64":1},"5":{"rec":{}}}'.hex(),
        "Order.payment: the union Payment has no field; give exactly one of card, cash",
    ),
]


@pytest.mark.parametrize(("codec", "data", "said"), FAULTS, ids=[said for *_, said in FAULTS])
def test_bytes_that_are_no_value_are_refused_with_the_field(codec, data, said):
    with pytest.raises(CodecError, match=f"^{re.escape(said)}"):
        codec.decode_bare(bytes.fromhex(data), struct_spec(Order))


def test_a_struct_of_another_module_is_named_with_it():
    other = load_text("struct Line { 1: required string article }", file="other.frugal")
    said = f"Order.lines[0]: Line of the module {other.__name__}, where the contract says that of {SHOP.__name__}"
    with pytest.raises(CodecError, match=re.escape(said)):
        BINARY.encode_bare(struct_spec(Order), Order(id=1, lines=[other.Line(article="x")]))


def test_shapes_of_structs_are_kept():
    assert thrift_values.shape_of(*struct_spec(Order)) is thrift_values.shape_of(*struct_spec(Order))
