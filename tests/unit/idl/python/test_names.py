"""Python's names for those of a contract."""

from __future__ import annotations

import builtins
import enum
import keyword
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.idl.model import (
    Document,
    Enum,
    EnumValue,
    Field,
    Method,
    Program,
    Scalar,
    ScalarKind,
    Service,
    Struct,
    StructKind,
)
from penstock.idl.python import names
from tests.unit.idl.python.models import NAMES


def _attributes(*found: str, kind: StructKind = StructKind.STRUCT) -> list[str]:
    fields = (Field(number, name, Scalar(ScalarKind.BOOL)) for number, name in enumerate(found, 1))
    return list(names.attributes(Struct("S", kind, tuple(fields))).values())


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("id", "id"), ("type", "type"), ("list", "list"), ("match", "match"), ("Order", "Order"), ("_x", "_x"),
        ("from", "from_"), ("None", "None_"), ("_", "__"), ("__x", "_x"), ("__init__", "_init__"), ("self", "self_"),
        ("thrift_spec", "thrift_spec_"), ("_dflt_x", "dflt_x_"), ("_type_x", "type_x_"), ("MISSING", "MISSING_"),
        ("_HAS_DEFAULT_FACTORY", "HAS_DEFAULT_FACTORY_"), ("__HAS_DEFAULT_FACTORY", "HAS_DEFAULT_FACTORY_"),
        ("___dflt_x", "dflt_x_"), ("__type_x", "type_x_"), ("__MISSING", "_MISSING"),
    ],
)  # fmt: skip
def test_attributes(name: str, attribute: str) -> None:
    assert _attributes(name) == [attribute]


def test_attributes_that_only_some_have() -> None:
    assert _attributes("which", "args") == ["which", "args"]
    assert _attributes("which", "args", kind=StructKind.UNION) == ["which_", "args"]
    assert _attributes("which", "args", kind=StructKind.EXCEPTION) == ["which", "args_"]


def test_names_that_become_the_same_differ() -> None:
    assert _attributes("from", "from_", "from__") == ["from_", "from__", "from___"]
    assert _attributes("__x", "_x") == ["_x", "_x_"]


@given(st.lists(NAMES, unique=True, max_size=12))
def test_members_are_members(found: list[str]) -> None:
    values = tuple(EnumValue(name, number) for number, name in enumerate(found))
    members = names.members(Enum("_A", values))
    space: dict[str, object] = {}
    body = "".join(f"\n    {members[each.name]} = {each.number}" for each in values)
    exec(f"class _A(IntEnum):\n    pass{body}", {"IntEnum": enum.IntEnum}, space)
    made = space["_A"]
    assert [each.value for each in made] == list(range(len(found)))  # type: ignore[attr-defined]


@given(st.lists(NAMES, unique=True, max_size=12), st.sets(NAMES))
def test_taken(found: list[str], reserved: set[str]) -> None:
    taken = names.Taken(reserved)
    made = [taken.take(name) for name in found] + [taken.take_private(f"_{name}") for name in found]
    assert len(set(made)) == len(made)
    assert not reserved & set(made)
    assert all(each.isidentifier() and not keyword.iskeyword(each) for each in made)
    assert not [each for each in made if each.startswith("__") and each.strip("_")]


def test_methods_of_clients_and_handlers() -> None:
    methods = tuple(Method(name, None, ()) for name in ("close", "_call", "del", "Ping", "place"))
    service = Service("S", None, methods)
    program = Program(Document("a.frugal", definitions=(service,)), {})
    assert list(names.client_methods(program, service).values()) == ["close_", "call_", "del_", "Ping", "place"]
    assert list(names.handler_methods(service).values()) == ["close", "_call", "del_", "Ping", "place"]


@pytest.mark.parametrize(
    ("name", "snake"),
    [("OrderPlaced", "order_placed"), ("HTTPError", "http_error"), ("sIxItH", "s_ix_it_h"), ("A1B", "a1_b")],
)
def test_snake_case(name: str, snake: str) -> None:
    assert names.snake_case(name) == snake


@pytest.mark.parametrize(
    ("namespace", "package"),
    [
        ("shop.orders", ("shop", "orders")), ("os.path", ("os_", "path")), ("class.import", ("class_", "import_")),
        ("penstock", ("penstock_",)), ("a.os", ("a", "os")), ("__init__", ("_init__",)), ("", None), ("a..b", None),
        ("..", None), ("/etc", None), ("a/b", None), ("a.b\n", None), ("é", None), (".a", None), ("1", None),
    ],
)  # fmt: skip
def test_packages(namespace: str, package: tuple[str, ...] | None) -> None:
    assert names.package_parts(namespace) == package


@pytest.mark.parametrize(
    ("stem", "package"),
    [
        ("shop", "shop"),
        ("my-orders.v1", "my_orders_v1"),
        ("types", "types_"),
        ("1st", "contract_1st"),
        ("é\n", "__"),
        ("", "contract_"),
    ],
)
def test_package_of_a_file(stem: str, package: str) -> None:
    assert names.stem_package(stem) == package


def test_names_of_this_python_are_known() -> None:
    """What this Python has must be known, so that one of its names is not given to something else."""
    for name in dir(enum.IntEnum):
        assert names.members(Enum("A", (EnumValue(name, 1),)))[name] not in dir(enum.IntEnum)
    for name in set(dir(builtins)) - {"__debug__"}:
        assert names.Taken(names.BUILTINS).take(name) not in dir(builtins)
    for name in sys.stdlib_module_names:
        assert names.stem_package(name) not in sys.stdlib_module_names
