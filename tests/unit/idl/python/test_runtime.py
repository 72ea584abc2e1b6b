"""Generated clients, handlers, publishers and subscribers run on the runtime."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.frugal.client import ServiceClient
from penstock.frugal.codecs import COMPACT
from penstock.frugal.context import Context
from penstock.frugal.contracts import MethodType
from penstock.frugal.errors import CodecError, ProtocolError
from penstock.frugal.local_transport import LocalTransport
from penstock.frugal.middleware import Call, Proceed
from penstock.frugal.processor import Processor
from penstock.frugal.scopes import ScopePublisher, ScopeSubscriber
from penstock.idl.python import names
from penstock.idl.python.load import load, load_text

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def shop() -> ModuleType:
    return load(GOLDEN / "shop.frugal")


class Handler:
    """Keeps what it is called with."""

    def __init__(self, shop: ModuleType) -> None:
        self.shop = shop
        self.calls: list[tuple[Any, ...]] = []

    async def rate(self, ctx: Context, base: int, other: int) -> float:
        return 1.5

    async def Place(self, ctx: Context, order: Any, payment: Any, note: str | None) -> Any:
        self.calls.append((order, payment, note))
        if note == "refuse":
            raise self.shop.Refused(reason="no stock", state=self.shop.State.lost, args_=["a"])
        return self.shop.Receipt(order=order.id, payment=payment)

    async def find(self, ctx: Context, number: int, deep: bool) -> Any:
        return self.shop.Order(id=number, customer=self.shop.Customer(id="ann"))

    async def state(self, ctx: Context, number: int, expected: int) -> int:
        return 77 if number else expected

    async def states(self, ctx: Context, ids: set[int], one: Any) -> dict[str, list[int]]:
        return {"all": [one] * len(ids)}

    async def forget(self, ctx: Context, number: int, text: str) -> None:
        self.calls.append((number, text))

    async def close(self, ctx: Context) -> None:
        self.calls.append(("close",))


def _client(shop: ModuleType, handler: Handler, **options: Any) -> Any:
    processor = Processor([(shop.Orders, handler)], now=lambda: 0.0, codec=COMPACT)
    return shop.OrdersClient(LocalTransport(processor), codec=COMPACT, **options)


async def test_calls(shop: ModuleType) -> None:
    handler = Handler(shop)
    order = shop.Order(id=9, customer=shop.Customer(id="ann"), past={shop.State.NEW}, from_=b"x", list=True)
    async with _client(shop, handler) as client:
        receipt = await client.Place(Context(), order, shop.Payment(which_=shop.State.PAID))
        assert receipt == shop.Receipt(order=9, payment=shop.Payment(which_=1))
        assert receipt.payment.which_ is shop.State.PAID
        assert handler.calls == [(order, shop.Payment(which_=1), None)]
        with pytest.raises(shop.Refused, match=r"reason='no stock', state=<State.lost: 5>, args_=\['a'\]"):
            await client.Place(Context(), order, shop.Payment(card="4"), "refuse")
        assert (await client.find(Context(), 3)).customer.id == "ann"
        assert await client.rate(Context(), 1, 2) == 1.5
        assert await client.states(Context(), {1, 2}, shop.State.SENT) == {"all": [shop.State.SENT] * 2}
        assert await client.state(Context(), 0, shop.State.lost) is shop.State.lost
        assert await client.state(Context(), 1, shop.State.lost) == 77
        await client.forget(Context(), 5, "x")
        await client.close_(Context())
    assert handler.calls[-2:] == [(5, "x"), ("close",)]


async def test_an_argument_that_must_be_there(shop: ModuleType) -> None:
    """None for an order would not be written, so it is refused before anything is sent."""
    handler = Handler(shop)
    async with _client(shop, handler) as client:
        with pytest.raises(CodecError, match=r"^the request to Orders\.place: order: None, and the field is required"):
            await client.Place(Context(), None, shop.Payment(card="4"))
    assert handler.calls == []


async def test_a_request_without_an_argument_is_refused_by_the_server(shop: ModuleType) -> None:
    """Other programs may leave it out; the handler does not run."""
    handler = Handler(shop)
    processor = Processor([(shop.Orders, handler)], now=lambda: 0.0, codec=COMPACT)
    place = MethodType("place", shop.Payment, shop.Orders.methods["place"].result, returns=True)
    async with ServiceClient(LocalTransport(processor), shop.Orders, codec=COMPACT) as client:
        with pytest.raises(ProtocolError, match=r"arguments of Orders\.place cannot be read: order: it is string"):
            await client._call(place, Context(), ("4", None, None))
    assert handler.calls == []


async def test_middleware_sees_the_names_of_the_contract(shop: ModuleType) -> None:
    seen = []

    async def note(ctx: Context, call: Call, proceed: Proceed) -> Any:
        seen.append((str(call), call.is_idempotent, dict(call.annotations)))
        return await proceed(ctx, call)

    async with _client(shop, Handler(shop), middleware=[note]) as client:
        await client.find(Context(), 3)
        await client.rate(Context(), 1, 2)
    expected = {"idempotent": "", "owner": "shop"}
    assert seen == [("Orders.find", True, expected), ("Orders.rate", True, {"idempotent": ""})]


def test_the_description_of_a_scope(shop: ModuleType) -> None:
    events = shop.OrderEvents
    assert (events.name, events.prefix, events.variables) == (
        "OrderEvents", "shop.{region}.orders.{class}", ("region", "class"),
    )  # fmt: skip
    found = {name: (each.stream, each.key) for name, each in events.operations.items()}
    assert found == {
        "OrderPlaced": ("orders", ("customer", "id")),
        "OrderPaid": ("payments", ("order",)),
        "counted": ("orders", ()),
        "Batches": ("orders", ()),
    }
    spec = events.operations["Batches"].spec
    data = COMPACT.encode_bare(spec, [shop.Order(id=1, customer=shop.Customer(id="a"))])
    assert COMPACT.decode_bare(data, spec)[0].customer == shop.Customer(id="a")
    assert issubclass(shop.OrderEventsPublisher, ScopePublisher)
    assert issubclass(shop.OrderEventsSubscriber, ScopeSubscriber)


def test_base_classes_have_no_names_that_methods_could_take(shop: ModuleType) -> None:
    """What the base class of clients offers, a method of a service must not hide."""
    public = {name for name in dir(ServiceClient) if not name.startswith("_")}
    assert public <= names.OF_CLIENT
    for base in (ScopePublisher, ScopeSubscriber):
        assert not [name for name in dir(base) if name.startswith(("publish_", "subscribe_"))]
    service = load_text("service S { void _call(), void _service(), void _chains() }")
    assert {"call_", "service_", "chains_"} <= vars(service.SClient).keys()
    assert not {"_call", "_chains"} & vars(service.SClient).keys()
    assert service.SClient._service is service.S


def test_structs_are_values(shop: ModuleType) -> None:
    one = shop.Line(article="pen", price=shop.money.Amount(units=1))
    assert one == shop.Line(article="pen", price=shop.money.Amount(units=1))
    assert one != shop.Line(article="pen")
    assert one != shop.Customer(id="pen")
    assert {one: 1}[copy.deepcopy(one)] == 1
    category = shop.Category(name="a", children=[shop.Category(name="b")])
    assert hash(category) == hash(copy.deepcopy(category))
    assert repr(one) == f"Line(article='pen', count=1, price={one.price!r})"
    assert pickle.loads(pickle.dumps(one)) == one
    union = shop.Payment(card="4")
    assert pickle.loads(pickle.dumps(union)) == union == copy.copy(union)


def test_exceptions_can_be_copied_and_pickled(shop: ModuleType) -> None:
    error = shop.Refused(reason="r", args_=["a"])
    error.add_note("noted")
    for each in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (each, each.__notes__) == (error, ["noted"])
    assert str(shop.Closed()) == ""
    assert error != shop.Refused(reason="s")
    assert isinstance(error, Exception)


def test_defaults_are_not_shared(shop: ModuleType) -> None:
    one, other = (shop.Order(id=1, customer=shop.Customer(id="a")) for _ in range(2))
    one.amounts.append(3)
    one.lines.append(4)
    assert (other.amounts, other.lines) == ([shop.money.Amount(units=5)], [])
    assert other.amounts[0].currency is shop.money.Currency.EUR
