"""Arguments of methods: which a caller may leave out, and what a handler gets for them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from penstock.frugal.client import ServiceClient
from penstock.frugal.codecs import CODECS, struct_spec
from penstock.frugal.context import Context
from penstock.frugal.errors import CodecError, ProtocolError
from penstock.frugal.local_transport import LocalTransport
from penstock.frugal.processor import Processor
from penstock.idl.python.load import load_text

SHOP = load_text("""
    struct Part { 1: string name }
    union Payment { 1: string card }
    service Depot {
        string two(1: i32 a = 5, 2: string b),
        string all(
            1: optional i32 a, 2: list<string> tags = ["x"], 3: Part part = {"name": "y"},
            4: optional map<string, i32> sizes = {"a": 1}, 5: required set<i32> numbers = [1], 6: i32 from = 7
        ),
        string ship(1: Payment payment, 2: Part part)
    }
""")
OLDER = load_text("service Depot { string ship(2: i32 other), string all(9: i32 other) }")


def now() -> float:
    return 0.0


class Depot:
    async def two(self, ctx: Context, *given: Any) -> str:
        return repr(given)

    async def all(self, ctx: Context, *given: Any) -> str:
        return repr(given)

    async def ship(self, ctx: Context, *given: Any) -> str:
        return repr(given)


def client(module: Any = SHOP, codec: str = "binary") -> Any:
    processor = Processor([(SHOP.Depot, Depot())], now=now, codec=CODECS[codec])
    made: ServiceClient = module.DepotClient(LocalTransport(processor), codec=CODECS[codec], now=now)
    return made


def test_an_argument_behind_a_default_is_given_by_name() -> None:
    for kind in (SHOP.DepotClient, SHOP.DepotBlockingClient):
        assert str(inspect.signature(kind.two)).startswith("(self, ctx: 'Context', a: 'int' = 5, *, b: 'str')")


async def test_defaults_are_those_of_the_contract() -> None:
    assert await client().two(Context(), b="b") == "(5, 'b')"
    whole = "(None, ['x'], Part(name='y'), {'a': 1}, {1}, 7)"
    assert await client().all(Context()) == whole
    assert await client().all(Context(), 3, [], sizes={}, from_=1) == "(3, [], Part(name='y'), {}, {1}, 1)"


async def test_no_two_calls_share_a_default() -> None:
    class Growing(Depot):
        async def all(self, ctx: Context, a: Any, tags: list[str], *others: Any) -> str:
            tags.append("z")
            return repr(tags)

    growing = SHOP.DepotClient(LocalTransport(Processor([(SHOP.Depot, Growing())], now=now)), now=now)
    assert [await growing.all(Context()) for _ in range(2)] == ["['x', 'z']"] * 2


def test_a_request_without_an_argument_has_its_default() -> None:
    sent = OLDER.Depot.methods["all"].arguments(other=1)
    kind = SHOP.Depot.methods["all"].arguments
    for codec in CODECS.values():
        data = codec.encode_bare(struct_spec(type(sent)), sent)
        assert codec.decode_bare(data, struct_spec(kind)) == kind(
            tags=["x"], part=SHOP.Part(name="y"), sizes={"a": 1}, numbers={1}, from_=7
        )


@pytest.mark.parametrize("codec", CODECS)
async def test_none_is_refused_at_the_client_by_the_name_of_the_argument(codec: str) -> None:
    with pytest.raises(CodecError, match=r"the request to Depot.ship: payment: None, and the field is required"):
        await client(codec=codec).ship(Context(), None, SHOP.Part())


@pytest.mark.parametrize("codec", CODECS)
async def test_a_missing_argument_is_answered_by_its_name(codec: str) -> None:
    with pytest.raises(ProtocolError, match=r"the arguments of Depot.ship cannot be read: payment: the required field"):
        await client(OLDER, codec).ship(Context(), 1)
