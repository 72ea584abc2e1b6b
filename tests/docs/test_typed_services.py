"""The reference of typed services says what the code says: options, errors, limits and the bytes on the wire."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.frugal import errors
from penstock.frugal.client import BlockingServiceClient, ServiceClient
from penstock.frugal.codecs import BINARY
from penstock.frugal.context import Context
from penstock.frugal.framing import FRUGAL, Packet
from penstock.frugal.http_transport import HttpServer, HttpTransport
from penstock.frugal.native import _CODES, NATIVE
from penstock.frugal.nats_transport import NatsTransport
from penstock.frugal.scopes import RetryPolicy, ScopeProvider, ScopePublisher, ScopeSubscriber
from penstock.frugal.scopes.framing import ScopeFraming, encode_message
from penstock.frugal.server import Server
from penstock.idl.files import texts
from penstock.idl.linker import link
from penstock.idl.python.files import write
from penstock.idl.python.generate import generate
from penstock.idl.python.load import load_text
from tests.docs.pages import FILE, PAGES, Reader, blocks, steps
from tests.extent import needs_time

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference/typed-services.md").read_text(encoding="utf-8")
WIRE = (DOCS / "reference/typed-wire-format.md").read_text(encoding="utf-8")

TYPED_PAGES = (
    "call-service",
    "durable-events",
    "services-over-http",
    "typed-events",
    "typed-services",
    "write-service",
)
OPTIONS: dict[str, tuple[Callable[..., Any], ...]] = {
    "`Context(…)`": (Context,),
    "`OrdersClient(…)`": (ServiceClient, BlockingServiceClient),
    "`NatsTransport(connection": (NatsTransport,),
    "`NatsTransport.connecting": (NatsTransport.connecting,),
    "`HttpTransport(url": (HttpTransport,),
    "`Server(connection": (Server,),
    "`HttpServer(services": (HttpServer,),
    "`ScopeProvider(…)`": (ScopeProvider,),
    "`OrderEventsPublisher(provider": (ScopePublisher, ScopeSubscriber),
    "`publish_order_placed": (ScopePublisher._publish,),
    "`subscribe_order_placed": (ScopeSubscriber._subscribe,),
    "`RetryPolicy(…)`": (RetryPolicy,),
}
"""What has the options, by how its heading begins."""
OBJECTS = {"BINARY", "time.monotonic", "random.random", "os.urandom"}  # defaults that are no literals


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rules = [place for place, line in enumerate(lines) if set(line) <= set("|-")]
    skipped = {each for place in rules for each in (place - 1, place)}
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for place, line in enumerate(lines)
        if place not in skipped
    ]


def section(heading: str, text: str = REFERENCE) -> str:
    """The text below a heading that begins so, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}.*\n((?:(?!#).*\n)*)", text, flags=re.MULTILINE)
    assert found is not None, heading
    return found[1]


def value_of(default: Any) -> Any:
    return default.value if isinstance(default, Enum) else default


@pytest.mark.parametrize("heading", OPTIONS)
def test_options_and_their_defaults_are_those_of_the_code(heading: str) -> None:
    said = {name.strip("`"): default.strip("`") for name, default, _ in rows(section(heading))}
    for kind in OPTIONS[heading]:
        parameters = {
            name: value_of(each.default)
            for name, each in inspect.signature(kind).parameters.items()
            if each.default is not inspect.Parameter.empty
        }
        assert said.keys() == parameters.keys()
        for name, default in said.items():
            if default not in OBJECTS:
                assert ast.literal_eval(default) == parameters[name], name


def test_each_group_of_options_is_compared() -> None:
    headings = re.findall(r"^### (.*)$", REFERENCE, flags=re.MULTILINE)
    assert all(sum(heading.startswith(each) for each in OPTIONS) == 1 for heading in headings)
    assert len(headings) == len(OPTIONS)


def test_errors_have_the_numbers_of_the_code() -> None:
    """The last column is `may_be_done` of a new error; it may say more."""
    said = {name.strip("`"): (number, done.partition(";")[0]) for name, number, _, done in rows(section("Errors"))}
    bases = (errors.ApplicationError, errors.TransportError, errors.FrugalError)
    classes = {}
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, bases) and kind not in bases:
            made = kind("x", 0) if kind is errors.FrameError else kind("x")
            classes[name] = (str(getattr(kind, "number", "–")), "perhaps" if made.may_be_done else "no")
    assert {name: row for name, row in said.items() if not name.startswith(("[", "other"))} == classes


def test_codes_of_native_errors_are_those_of_the_code() -> None:
    by_name = {
        name: kind.number for name, kind in inspect.getmembers(errors, inspect.isclass) if hasattr(kind, "number")
    }
    by_name |= {"DeadlineExceeded": errors.DEADLINE_EXCEEDED, "ResponseTooLarge": errors.RESPONSE_TOO_LARGE}
    said = {
        name: int(code)
        for names, code, *_ in rows(section("Native framing", WIRE))
        if code.isdigit()
        for name in re.findall(r"`(\w+)`", names)
    }
    assert {by_name[name]: code for name, code in said.items()} == _CODES


@pytest.mark.parametrize(("package", "place"), [("penstock.frugal", 0), ("penstock.idl", 1)])
def test_limits_are_those_of_the_code(package: str, place: int) -> None:
    said = rows(section("Limits").split("Of contracts")[place])
    assert len(said) > 10
    for name, value, _ in said:
        module, _, constant = name.strip("`").rpartition(".")
        inside = "penstock" if module.startswith("base.") else package  # what others have, too
        found = getattr(importlib.import_module(f"{inside}.{module}"), constant)
        assert int(value.replace(",", "")) == found, name


@needs_time
def test_the_programs_of_the_pages_satisfy_a_strict_type_checker(tmp_path: Path) -> None:
    for page in TYPED_PAGES:
        for step in steps(PAGES[page].read_text(encoding="utf-8")):
            if step.is_file:
                (tmp_path / step.name.removeprefix(FILE)).write_text(step.text, encoding="utf-8")
            elif step.is_program:
                name = f"{page}_{step.name}.py".replace("-", "_").replace(" ", "_")
                (tmp_path / name).write_text(step.text, encoding="utf-8")
    write(generate(link("shop.frugal", texts({"shop.frugal": (tmp_path / "shop.frugal").read_text()}))), tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--ignore-missing-imports", "."],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(DOCS.parent / "src")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def shop() -> ModuleType:
    """The contract of the tutorial."""
    tutorial = steps(PAGES["typed-services"].read_text(encoding="utf-8"))
    return load_text(next(step.text for step in tutorial if step.name == f"{FILE}shop.frugal"), file="shop.frugal")


def dumps() -> list[bytes]:
    """The bytes of each dump on the page of the wire format."""
    found = re.findall(r"```text\n(.*?)```", WIRE, flags=re.DOTALL)
    lines = [re.findall(r"^((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  |$)", text, flags=re.MULTILINE) for text in found]
    return [bytes.fromhex(" ".join(each)) for each in lines]


def test_the_bytes_on_the_page_are_those_of_the_code(shop: ModuleType) -> None:
    method = shop.Billing.methods["balance"]
    arguments = method.arguments(customer="anna")
    request = FRUGAL.encode_request(BINARY, method, Context("c1"), 7, 0.0, arguments)
    answer = FRUGAL.encode_result(FRUGAL.decode_request(BINARY, request), method.result(success=4200))
    ctx = Context("c1")
    ctx.topic = {"region": "eu"}
    order = shop.Order(id="1", customer="anna", cents=4200)
    placed = shop.OrderEvents.operations["OrderPlaced"]
    event = encode_message(ScopeFraming.FRUGAL, BINARY, ctx, placed, order, operation_id=1, now=0.0)
    native = NATIVE.encode_request(BINARY, method, Context("c1"), 7, 0.0, arguments)
    assert dumps() == [request.data, answer.data, event.payload, native.data]
    assert "\n".join(f"{name}: {value}" for name, value in native.headers.items()) in WIRE
    assert (
        NATIVE.decode_request(BINARY, Packet(dumps()[3], native.headers)).decode_arguments(method.arguments)
        == arguments
    )


@needs_time
@pytest.mark.parametrize("programs", [("orders.py", "billing.py"), ("http_service.py",)])
def test_services_of_the_pages_end_quietly_by_ctrl_c(tmp_path: Path, programs: tuple[str, ...]) -> None:
    tutorial = {step.name: step for step in steps(PAGES["typed-services"].read_text(encoding="utf-8"))}
    over_http = {step.name: step for step in steps(PAGES["services-over-http"].read_text(encoding="utf-8"))}
    by_name = over_http | tutorial
    reader = Reader(tmp_path)
    try:
        for name in (
            "penstock serve",
            "file shop.frugal",
            "penstock idl compile shop.frugal --out .",
            "penstock stream create order-events 'frugal.shop.*.OrderEvents.OrderPlaced'",
            *(f"file {name}" for name in programs),
        ):
            reader.run(by_name[name])
        for name in programs:
            ready = f"{name.removesuffix('.py').replace('http_service', 'billing')}: ready"
            reader.start(by_name[f"python {name}"], ready)
            assert reader.interrupt(f"python {name}").strip() == ready
    finally:
        reader.end()


@needs_time
def test_spark_reads_the_events_of_the_tutorial(tmp_path: Path) -> None:
    """The last program of typed-services.md."""
    page = PAGES["typed-services"].read_text(encoding="utf-8")
    by_name = {step.name: step for step in steps(page)}
    reader = Reader(tmp_path)
    try:
        for name in (
            "penstock serve",
            "file shop.frugal",
            "penstock idl compile shop.frugal --out .",
            "penstock stream create order-events 'frugal.shop.*.OrderEvents.OrderPlaced'",
            "file orders.py",
            "file place.py",
        ):
            reader.run(by_name[name])
        reader.start(by_name["python orders.py"], "orders: ready")
        reader.run(by_name["python place.py anna 4200"])
        reader.run(by_name["python place.py anna 100"])
        reader.run(by_name["penstock schema register order-events shop.frugal"])
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", by_name["python 2"].text],
            cwd=reader.folder,
            env=reader.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    finally:
        reader.end()
    shown = next(text for language, text in blocks(page) if language == "text" and text.startswith("+"))
    assert done.returncode == 0, done.stderr
    assert shown.strip() == done.stdout.strip()
