"""The Python of a rich contract is the committed one, and static checkers accept it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from penstock.idl.files import FileReader
from penstock.idl.linker import link
from penstock.idl.python import names
from penstock.idl.python.files import write
from penstock.idl.python.generate import generate
from tests.extent import each_change

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[4]

USE = """
import asyncio
from collections.abc import Callable

from penstock.frugal import PublishOptions, ScopeProvider
from penstock.frugal.client import RpcTransport
from penstock.frugal.context import Context
from shop.money import Amount, Currency
from shop.orders import (
    Closed, Customer, Line, Order, OrderEventsPublisher, OrderEventsSubscriber, OrdersBlockingClient, OrdersClient,
    OrdersHandler, Payment, Receipt, State,
)


class Shop:
    async def rate(self, ctx: Context, base: Currency | int, other: Currency | int) -> float:
        return 1.5

    async def Place(self, ctx: Context, order: Order, payment: Payment, note: str | None) -> Receipt:
        if note is None:
            raise Closed
        return Receipt(order=order.id, payment=payment)

    async def find(self, ctx: Context, number: int, deep: bool) -> Order:
        return Order(id=number, customer=Customer(id="ann"), lines=[Line(article="pen")])

    async def state(self, ctx: Context, id: int, expected: State | int) -> State | int:
        return State.PAID

    async def states(self, ctx: Context, ids: set[int], one: State | int) -> dict[str, list[State | int]]:
        return {}

    async def forget(self, ctx: Context, id: int, text: str) -> None: ...

    async def close(self, ctx: Context) -> None: ...


handler: OrdersHandler = Shop()


async def call(transport: RpcTransport, provider: ScopeProvider) -> Amount | None:
    client = OrdersClient(transport)
    order = await client.find(Context(), 7)
    found: State | int = await client.state(Context(), 7, State.NEW)
    publisher = OrderEventsPublisher(provider)
    ack = await publisher.publish_order_placed(Context(), "eu", "a", order, timeout=3.0)
    later = await publisher.publish_order_placed(Context(), "eu", "a", order, nowait=True)
    later.add_done_callback(print)
    for each in (ack, await later):
        print("" if each is None else each.offset)

    async def heard(ctx: Context, message: Order) -> None: ...

    async with await OrderEventsSubscriber(provider).subscribe_order_placed(heard, region="eu", group="billing"):
        pass
    receipt = Receipt(order=7, payment=Payment(card="4"))
    given: PublishOptions = {"key": b"ann", "message_id": "1", "headers": {"Nats-TTL": "1h"}}
    await OrderEventsPublisher(provider).publish_order_paid(Context(), "eu", "a", receipt, nowait=True, **given)
    return Payment(cash=Amount(units=found)).cash


def wait(client: OrdersBlockingClient) -> Receipt:
    return client.Place(Context(), Order(id=1, customer=Customer(id="a")), Payment(card="4"), note="now")
"""

_PUBLISH = "OrderEventsPublisher(ScopeProvider()).publish_counted(Context(), 'eu', 'a', 7"
_SUBSCRIBE = "OrderEventsSubscriber(ScopeProvider()).subscribe_counted(lambda ctx, count: None"
MISUSE = {
    'Order(id="7", customer=Customer(id="ann"))': "arg-type",
    "Order(id=7)": "call-arg",
    "Payment(card=1)": "arg-type",
    "Payment(card='4').card = '5'": "misc",
    "LIMIT = 3": "misc",
    f"a = {_PUBLISH}, timeot=3.0)": "call-overload",
    f"b = {_PUBLISH}, timeout='3')": "call-overload",
    f"async def acked() -> None: print((await {_PUBLISH})).offset)": "union-attr",
    f"c = {_SUBSCRIBE}, group=3)": "arg-type",
    f"d = {_SUBSCRIBE}, groups='billing')": "call-arg",
    f"e = {_SUBSCRIBE}, retry=3)": "arg-type",
}


def _generated(prefix: str = "") -> dict[str, str]:
    return generate(link(str(GOLDEN / "shop.frugal"), FileReader([str(GOLDEN)]), [str(GOLDEN)]), prefix=prefix)


@pytest.mark.parametrize("name", ["orders", "money"])
def test_golden(name: str) -> None:
    """Whoever changes the generator looks at what it changes: copy the new text over the old file."""
    expected = (GOLDEN / f"{name}.py.txt").read_text(encoding="utf-8")
    assert _generated()[f"shop/{name}/__init__.py"] == expected


def test_packages_around_a_module_are_there() -> None:
    assert sorted(_generated()) == ["shop/__init__.py", "shop/money/__init__.py", "shop/orders/__init__.py"]


def test_prefix() -> None:
    files = _generated("acme.contracts")
    assert sorted(files)[0] == "acme/__init__.py"
    assert "import acme.contracts.shop.money as money" in files["acme/contracts/shop/orders/__init__.py"]


def _check_types(folder: Path, text: str) -> str:
    (folder / "use.py").write_text(text, encoding="utf-8")
    options = ["--strict", f"--config-file={ROOT / 'pyproject.toml'}", "--explicit-package-bases"]
    return _run(folder, "mypy", *options, f"--cache-dir={folder / 'cache'}", "shop", "use.py").stdout


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {"MYPYPATH": f"{folder}:{ROOT / 'src'}", "PATH": ""}
    arguments = [sys.executable, "-m", *command]
    return subprocess.run(arguments, env=environment, cwd=folder, capture_output=True, text=True, check=False)


@each_change
def test_mypy_accepts_the_code_and_its_right_use_only(tmp_path: Path) -> None:
    write(_generated(), tmp_path)
    wrong = "".join(f"{line}\n" for line in MISUSE)
    first = len(USE.splitlines()) + 2
    said = _check_types(tmp_path, f"{USE}\nfrom shop.orders import LIMIT\n{wrong}")
    errors = [line for line in said.splitlines() if ": error:" in line]
    found = dict.fromkeys((int(line.split(":")[1]), line.rpartition("[")[2].rstrip("]")) for line in errors)
    assert list(found) == list(enumerate(MISUSE.values(), first + 1)), said


@each_change
def test_ruff_leaves_the_code_as_it_is(tmp_path: Path) -> None:
    write(_generated(), tmp_path)
    options = ["--isolated", "--no-cache", "--line-length=120", "--target-version=py311"]
    for command in (["format", "--diff"], ["check", "--select=E4,E7,E9,F,I,B,UP"]):
        found = _run(tmp_path, "ruff", *command, *options, ".")
        assert found.returncode == 0, found.stdout + found.stderr


@each_change
def test_mypy_accepts_variables_that_have_the_names_of_options(tmp_path: Path) -> None:
    variables = sorted({"message", *names.PUBLISH_OPTIONS, *names.SUBSCRIBE_OPTIONS})
    prefix = ".".join(f"{{{each}}}" for each in variables)
    (tmp_path / "hard.frugal").write_text(f"scope Hard prefix {prefix} {{ Counted: i64 }}\n", encoding="utf-8")
    write(generate(link(str(tmp_path / "hard.frugal"), FileReader([str(tmp_path)]), [str(tmp_path)])), tmp_path)
    use = "from hard import HardPublisher, HardSubscriber\n"
    (tmp_path / "use.py").write_text(use, encoding="utf-8")
    options = ["--strict", f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={tmp_path / 'cache'}"]
    found = _run(tmp_path, "mypy", *options, "use.py")
    assert found.returncode == 0, found.stdout


@each_change
def test_mypy_and_ruff_accept_the_defaults_of_arguments(tmp_path: Path) -> None:
    (tmp_path / "shop.frugal").write_text(ARGUMENTS, encoding="utf-8")
    write(generate(link(str(tmp_path / "shop.frugal"), FileReader([str(tmp_path)]), [str(tmp_path)])), tmp_path)
    use = """
    from penstock.frugal import Context
    from shop import DepotClient

    async def use(client: DepotClient) -> str:
        await client.all(Context(), 1, ["a"])
        await client.all(Context())
        await client.two(Context(), a=1, b="b")
        return await client.two(Context(), b="b")
    """
    assert "Success" in _check_types(tmp_path, textwrap.dedent(use))
    assert "Too many positional arguments" in _check_types(tmp_path, f"{textwrap.dedent(use)}\n{TOO_MANY}")
    options = ["--isolated", "--no-cache", "--line-length=120", "--target-version=py311"]
    found = _run(tmp_path, "ruff", "format", "--diff", *options, "shop")
    assert found.returncode == 0, found.stdout + found.stderr


ARGUMENTS = """
struct Part { 1: string name }
enum State { NEW = 1 }
service Depot {
    string two(1: i32 a = 5, 2: string b)
    string all(
        1: optional i32 a, 2: list<string> tags = ["x"], 3: Part part = {"name": "y"},
        4: optional map<string, i32> sizes = {"a": 1}, 5: State state = State.NEW, 6: required set<i32> numbers = []
    )
}
"""
TOO_MANY = """
async def wrong(client: DepotClient) -> str:
    return await client.two(Context(), 1, "b")
"""
