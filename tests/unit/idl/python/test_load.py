"""Contracts at run time."""

from __future__ import annotations

import inspect
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from uuid import UUID

import pytest

from penstock.frugal.structs import FrozenMap
from penstock.idl.mistakes import IdlError
from penstock.idl.python.load import load, load_text
from tests.unit.idl.python.models import check_annotations

GOLDEN = Path(__file__).parent / "golden"


def test_a_file_and_what_it_includes() -> None:
    shop = load(GOLDEN / "shop.frugal")
    assert shop.Order(id=7, customer=shop.Customer(id="ann")).amounts == [shop.money.Amount(units=5)]
    assert shop.MAGIC == b"\x01shop"
    assert UUID(int=0) == shop.NOBODY
    assert shop.ROUTES == {(1, 2): "short"}
    assert shop.SAMPLES["one"] == shop.Line(article="pen")
    assert shop.money.FREE.currency is shop.money.Currency.EUR


def test_the_same_text_is_the_same_module() -> None:
    one, other = load_text("struct A { 1: i32 a }"), load_text("struct A { 1: i32 a }")
    assert one is other
    assert load_text("struct A { 1: i32 a, 2: i32 b }").A is not one.A
    assert sys.modules[one.__name__] is one
    assert sys.modules[one.A.__module__] is one


def test_threads_that_load_at_the_same_time() -> None:
    text = "struct Threads { 1: i32 a }\n" + "".join(f"struct S{number} {{ 1: i32 a }}\n" for number in range(200))
    found: list[ModuleType] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait()
        found.append(load_text(text))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


def test_included_files_are_attributes() -> None:
    module = load_text(
        'include "base.frugal"\nstruct A { 1: i32 base }',
        files={"base.frugal": "namespace py x.y\nstruct B { 1: optional B b }"},
    )
    assert module.base.B(b=module.base.B()).b == module.base.B()
    # A type of that name comes first.
    module = load_text('include "base.frugal"\nstruct base { 1: base.B b }', files={"base.frugal": "struct B {}"})
    assert module.base().b is None


def test_mistakes_have_their_place() -> None:
    with pytest.raises(IdlError, match=r"contract.frugal:1:15: .*Nope"):
        load_text("struct A { 1: Nope a }")
    with pytest.raises(IdlError, match="cannot be read"):
        load(GOLDEN / "none.frugal")


def test_an_include_does_not_leave_the_roots(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "base.frugal").write_text("struct B {}")
    (tmp_path / "in/a.frugal").write_text('include "../base.frugal"\nstruct A { 1: base.B b }')
    with pytest.raises(IdlError, match="leads out of the folders"):
        load(tmp_path / "in/a.frugal")
    assert load(tmp_path / "in/a.frugal", roots=[tmp_path]).base.B() is not None


def test_nothing_stays_in_the_import_system() -> None:
    before = list(sys.meta_path)
    load_text("struct Once {}")
    with pytest.raises(IdlError):
        load_text("struct")
    assert sys.meta_path == before


def test_tracebacks_show_the_code() -> None:
    module = load_text("union U { 1: i32 a, 2: Color c } enum Color { RED }")
    with pytest.raises(ValueError, match="no field") as caught:
        module.U()
    assert "TaggedUnion.__post_init__(self)" in "".join(traceback.format_tb(caught.value.__traceback__))


def test_names_that_types_and_fields_share() -> None:
    module = load_text(
        """
        enum state { on = 1 }
        struct point { 1: i32 x = 4 }
        struct all {
            1: state state = state.on, 2: list<point> point = [{}], 3: list<i32> list, 4: set<string> set
            5: map<i32, i32> dict
            6: string str, 7: i32 int = 3, 8: binary bytes, 9: bool bool, 10: double float, 11: i64 id, 12: i64 type
            13: i64 field, 14: i64 dataclass, 15: i64 known, 16: i64 Struct, 17: set<list<state>> tuple
        }
        const all ALL = {"tuple": [[state.on]]}
        service api { list<point> list(1: i32 list, 2: point point), set<string> set(), point point() }
        """
    )
    check_annotations(module.all_)
    made = module.ALL
    assert (made.state, made.point, made.list, made.set, made.dict) == (1, [module.point()], [], set(), {})
    assert made.tuple == {(module.state.on,)}
    assert type(next(iter(made.tuple))[0]) is module.state
    assert list(module.api.methods) == ["list", "set", "point"]


def test_a_default_that_is_a_map_in_a_key() -> None:
    module = load_text("struct A { 1: set<map<string, i32>> a = [{'x': 1}] }")
    assert module.A().a == {FrozenMap({"x": 1})}
    assert type(next(iter(module.A().a))) is FrozenMap


def test_types_with_names_of_the_generated_classes() -> None:
    module = load_text(
        """
        enum _service { q = 1 }
        enum _scope { q = 1 }
        struct thrift_spec { 1: optional thrift_spec thrift_spec }
        service A { void a(1: _service x = _service.q, 2: _scope y = _scope.q, 3: optional thrift_spec z) }
        """
    )
    check_annotations(module.thrift_spec)
    assert module.thrift_spec(thrift_spec_=module.thrift_spec()).thrift_spec_ == module.thrift_spec()
    arguments = module.A.methods["a"].arguments()
    assert (arguments.x, arguments.y) == (module._service.q, module._scope.q)
    assert module.AClient._service is module.A


def test_a_variable_has_one_name_in_publishers_and_subscribers() -> None:
    module = load_text("scope Hard prefix {key}.{start}.{queue}.{message}.{region}.{from} { Counted: i64 }")
    published = [*inspect.signature(module.HardPublisher.publish_counted).parameters]
    subscribed = [*inspect.signature(module.HardSubscriber.subscribe_counted).parameters]
    variables = ["key_", "start_", "queue_", "message_", "region", "from_"]
    assert published == ["self", "ctx", *variables, "message", "nowait", "options"]
    assert subscribed == ["self", "handler", *variables, "queue", "options"]
