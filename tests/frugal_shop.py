"""A contract written by hand, as generated code would have it: structs of every type, a service and its handler.

service Shop extends Base { … } and its types stand in `SHOP_IDL`, from which Frugal's own compiler makes its code.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, ClassVar

from penstock.frugal.client import BlockingServiceClient, ServiceClient
from penstock.frugal.context import Context
from penstock.frugal.contracts import MethodType, ServiceType

BOOL, I8, DOUBLE, I16, I32, I64, STRING, STRUCT, MAP, SET, LIST, UUID = 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15, 16

SHOP_IDL = """
namespace * shop

enum Size { SMALL = 1, LARGE = 2 }

struct Line {
    1: string article,
    2: i32 count,
    3: double price,
    4: Size size
}

struct Order {
    1: i64 number,
    2: string customer,
    3: list<Line> lines,
    4: map<string, i32> notes,
    5: set<i16> tags,
    6: binary data,
    7: bool urgent,
    8: byte priority
}

exception NotFound {
    1: i64 number,
    2: string reason
}

service Base {
    void ping()
}

service Shop extends Base {
    Order place(1: Order order, 2: i32 copies) throws (1: NotFound missing),
    i64 count(1: string customer),
    string wait_for(1: string name),
    oneway void note(1: string text)
}
"""


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


@dataclass(slots=True, kw_only=True)
class Line:
    article: str = ""
    count: int = 0
    price: float = 0.0
    size: int = Size.SMALL

    thrift_spec: ClassVar[Any] = (
        None,
        (1, STRING, "article", "UTF8", None),
        (2, I32, "count", None, None),
        (3, DOUBLE, "price", None, None),
        (4, I32, "size", None, None),
    )

    def write(self, protocol: Any) -> None:
        """Write it, as a struct in a struct: for Apache's loops in Python, with which tests compare."""
        protocol.writeStruct(self, self.thrift_spec)


@dataclass(slots=True, kw_only=True)
class Order:
    number: int = 0
    customer: str = ""
    lines: list[Line] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    tags: set[int] = field(default_factory=set)
    data: bytes = b""
    urgent: bool = False
    priority: int = 0

    thrift_spec: ClassVar[Any] = (
        None,
        (1, I64, "number", None, None),
        (2, STRING, "customer", "UTF8", None),
        (3, LIST, "lines", (STRUCT, [Line, Line.thrift_spec], False), None),
        (4, MAP, "notes", (STRING, "UTF8", I32, None, False), None),
        (5, SET, "tags", (I16, None, False), None),
        (6, STRING, "data", "BINARY", None),
        (7, BOOL, "urgent", None, None),
        (8, I8, "priority", None, None),
    )


@dataclass(slots=True, kw_only=True)
class Tree:
    """A struct that holds itself, and every type besides those of Order."""

    name: str | None = None
    children: list[Tree] | None = None
    by_name: dict[str, Tree] | None = None
    identity: uuid.UUID | None = None
    weights: dict[int, float] | None = None
    flags: list[bool] | None = None
    texts: set[str] | None = None

    thrift_spec: ClassVar[Any] = ()


_TREE: list[Any] = [Tree, None]
Tree.thrift_spec = _TREE[1] = (
    None,
    (1, STRING, "name", "UTF8", None),
    (2, LIST, "children", (STRUCT, _TREE, False), None),
    (3, MAP, "by_name", (STRING, "UTF8", STRUCT, _TREE, False), None),
    (4, UUID, "identity", None, None),
    (5, MAP, "weights", (I64, None, DOUBLE, None, False), None),
    (6, LIST, "flags", (BOOL, None, False), None),
    (7, SET, "texts", (STRING, "UTF8", False), None),
)


@dataclass(kw_only=True)
class NotFound(Exception):  # noqa: N818
    number: int = 0
    reason: str = ""

    thrift_spec: ClassVar[Any] = (None, (1, I64, "number", None, None), (2, STRING, "reason", "UTF8", None))


def _struct(name: str, *fields: tuple[int, int, str, Any]) -> type[Any]:
    """Make a struct of arguments or of a result: fields of (id, ttype, name, arguments of the type)."""
    spec: list[Any] = [None] * (max((each[0] for each in fields), default=-1) + 1)
    for number, kind, attribute, arguments in fields:
        spec[number] = (number, kind, attribute, arguments, None)

    def __init__(self: Any, **values: Any) -> None:  # noqa: N807
        for each in fields:
            setattr(self, each[2], values.pop(each[2], None))
        assert not values, values

    return type(name, (), {"__init__": __init__, "thrift_spec": tuple(spec)})


_ORDER = [Order, Order.thrift_spec]
_MISSING = (1, STRUCT, "missing", [NotFound, NotFound.thrift_spec])

PING = MethodType("ping", _struct("ping_args"), _struct("ping_result"), is_idempotent=True)
PLACE = MethodType(
    "place",
    _struct("place_args", (1, STRUCT, "order", _ORDER), (2, I32, "copies", None)),
    _struct("place_result", (0, STRUCT, "success", _ORDER), _MISSING),
    returns=True,
    exceptions={NotFound: "missing"},
)
COUNT = MethodType(
    "count",
    _struct("count_args", (1, STRING, "customer", "UTF8")),
    _struct("count_result", (0, I64, "success", None)),
    returns=True,
    is_idempotent=True,
)
WAIT_FOR = MethodType(
    "wait_for",
    _struct("wait_for_args", (1, STRING, "name", "UTF8")),
    _struct("wait_for_result", (0, STRING, "success", "UTF8")),
    returns=True,
)
NOTE = MethodType("note", _struct("note_args", (1, STRING, "text", "UTF8")), None)
SHOP = ServiceType("Shop", {each.name: each for each in (PING, PLACE, COUNT, WAIT_FOR, NOTE)})


def result_of(method: MethodType, **values: Any) -> Any:
    """Return the struct of a method's result."""
    assert method.result is not None
    return method.result(**values)


ORDER = Order(
    number=2**40,
    customer="Ånn",
    lines=[Line(article="tea", count=2, price=1.5, size=Size.LARGE), Line()],
    notes={"gift": 1},
    tags={3, -4},
    data=b"\x00\xff",
    urgent=True,
    priority=-8,
)


class ShopClient(ServiceClient):
    """As generated code has it."""

    async def ping(self, ctx: Context) -> None:
        await self._call(PING, ctx, ())

    async def place(self, ctx: Context, order: Order, copies: int) -> Order:
        placed: Order = await self._call(PLACE, ctx, (order, copies))
        return placed

    async def count(self, ctx: Context, customer: str) -> int:
        counted: int = await self._call(COUNT, ctx, (customer,))
        return counted

    async def wait_for(self, ctx: Context, name: str) -> str:
        said: str = await self._call(WAIT_FOR, ctx, (name,))
        return said

    async def note(self, ctx: Context, text: str) -> None:
        await self._call(NOTE, ctx, (text,))


class BlockingShopClient(BlockingServiceClient):
    def count(self, ctx: Context, customer: str) -> int:
        counted: int = self._call(COUNT, ctx, (customer,))
        return counted

    def place(self, ctx: Context, order: Order, copies: int) -> Order:
        placed: Order = self._call(PLACE, ctx, (order, copies))
        return placed


class Shop:
    """A handler of the service. `wait_for(name)` waits until the test opens that gate."""

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.begun: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.cancelled: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.notes: asyncio.Queue[str] = asyncio.Queue()
        self.contexts: list[Context] = []
        self.pings = 0

    async def ping(self, ctx: Context) -> None:
        self.contexts.append(ctx)
        self.pings += 1

    async def place(self, ctx: Context, order: Order, copies: int) -> Order:
        self.contexts.append(ctx)
        if order.number == 404:
            raise NotFound(number=order.number, reason="gone")
        if order.number == 500:
            raise KeyError("a secret of the service")
        ctx.set_response_header("copies", str(copies))
        return replace(order, lines=order.lines * copies)

    def count(self, ctx: Context, customer: str) -> int:
        return len(customer)

    async def wait_for(self, ctx: Context, name: str) -> str:
        self.contexts.append(ctx)
        self.begun[name].set()
        try:
            await self.gates[name].wait()
        except asyncio.CancelledError:
            self.cancelled[name].set()
            raise
        return name

    async def note(self, ctx: Context, text: str) -> None:
        await self.notes.put(text)
