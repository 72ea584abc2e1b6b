"""Generates docs/reference/python.md from the signatures and docstrings of the package's public names."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

import penstock
from penstock import ops
from penstock.access import Quotas, Rule
from penstock.client import users
from penstock.client.blocking import client as blocking
from penstock.testing import Cluster, Program, faults, plugin
from penstock.testing import __all__ as testing_names

_MADE = "<!-- Made by `python -m tests.docs.reference docs/reference`; change the code, not this file. -->\n"

_HEAD = """# Python API: client, producer, consumer, asyncio

```python
import penstock

with penstock.connect() as client:
    client.create_stream("orders", "orders.>")
    client.publish("orders.eu", b"42", key="customer-7")
    for batch in client.read("orders"):
        print(batch.num_rows)
```

`penstock.aio` is the same for asyncio: `async with penstock.aio.connect() as client`, `await` before each call, and
`async for` to iterate over batches.

A stream is given by its name, or by the `StreamInfo` that a call returned; the latter means exactly that stream, not a
later one of the same name.
A place in the log (`Start`) is text as the CLI takes it ("earliest", "latest", "5m ago", "2026-11-28T10:00", in UTC),
an offset, a negative number (-10: before the last ten offsets of a partition), an aware `datetime` or a `date` in UTC
(the first message at or after it), or a `timedelta` (that long ago).
`EARLIEST` and `LATEST` are the ends.
NumPy's integers, `datetime64` (interpreted as UTC, as pandas stores it) and `timedelta64` are accepted as well.
Text that has only digits is an offset, so a date needs its dashes.
Every call takes `timeout` in seconds; `float("inf")` waits without a limit, and `None` is an error.
A value, and a key, is `bytes` or `str`; the value `None` is a tombstone.
"""

_FIXTURE = """The fixture `penstock_cluster` of pytest gives a `Cluster`.
`@pytest.mark.penstock(seeds=20, brokers=3, faults=True, every_s=4.0, limit_s=3600.0, real_limit_s=60.0)`
configures it for a test, a class or a module; omitted arguments have these values, and seeds is 1.
Each seed is a test of its own.
`--penstock-trace=FILE` writes a trace of all events."""

_LINE_CHARS_MAX = 100
_ASKS = ("server", "nats_urls")
_TELLS = ("group", "positions")
_COUNTS = ("producer_id", "epoch", "sequence")
_RETURNED = (ops.RestorePlan,)  # programs do not construct them
_CALLED = (penstock.Client, penstock.Consumer, penstock.Producer, penstock.Table)  # their calls are listed


def python_reference() -> str:
    parts = [_HEAD, _MADE, "## Connecting", call_text("penstock.connect", penstock.connect), "## Client"]
    parts += [f"`client.{name}`: {_text(getattr(blocking.Client, name))}" for name in _ASKS]
    parts += _calls("client", blocking.Client)
    parts += ["## Groups", *_calls("client.groups", blocking.Groups)]
    parts += ["## Consumers of JetStream's API", *_calls("client.consumers", blocking.StreamConsumers)]
    parts += ["## Staging", *_calls("client.staging", blocking.Staging)]
    parts += [call_text("penstock.partitions_of", penstock.partitions_of)]
    parts += ["## Users", *_users()]
    parts += ["## Consumer", _text(blocking.Consumer), *_calls("consumer", blocking.Consumer)]
    parts += [f"`consumer.{name}`: {_text(getattr(blocking.Consumer, name))}" for name in _TELLS]
    parts += ["## Queue", _text(blocking.Queue), *_calls("queue", blocking.Queue)]
    parts += [_text(blocking.QueueMessage), *_calls("message", blocking.QueueMessage)]
    parts += ["## Producer", _text(penstock.Producer), *_calls("producer", penstock.Producer)]
    parts += [f"`producer.{name}`: {_text(getattr(penstock.Producer, name))}" for name in _COUNTS]
    parts += ["## Table", _text(penstock.Table), *_calls("table", penstock.Table)]
    parts += ["`len(table)` is the number of keys; `for message in table.values()` gives the messages of all keys."]
    parts += ["## Files", *_files(), "## penstock.ops", *_ops(), "## Values", *_values()]
    parts += [
        "## Errors",
        "Each of them can be pickled and copied, so it comes back whole from a process pool.",
        "\n".join(["| error | is also | when |", "|---|---|---|", *_errors(penstock)]),
    ]
    parts += ["## Testing", *_testing()]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _calls(owner: str, kind: type) -> list[str]:
    methods = {name: one for name, one in vars(kind).items() if inspect.isfunction(one) and not name.startswith("_")}
    return [call_text(f"{owner}.{name}", method) for name, method in methods.items()]


def _users() -> Iterator[str]:
    """Yield the API for users and rules, with the functions that make credentials and rules."""
    yield "`client.users`: [how to create users and rules](../how-to/access.md#from-python)."
    yield from _calls("client.users", blocking.Users)
    for make in (users.password_credential, users.token_credential, users.nkey_credential, users.rule):
        yield call_text(f"penstock.client.users.{make.__name__}", make)
    for kind in (Rule, Quotas):
        listed = ", ".join(f"`{field}`" for field in kind.__struct_fields__)
        yield f"### penstock.access.{kind.__name__}\n\n{_text(kind)}\n\n{listed}"


def _ops() -> Iterator[str]:
    """Yield the operations on whole streams: functions, classes with their calls, results."""
    yield _text(ops).partition("\n\nRules:")[0]
    for name in ops.__all__:
        value, title = getattr(ops, name), f"penstock.ops.{name}"
        if inspect.isfunction(value):
            yield call_text(title, value)
        elif fields := getattr(value, "_fields", None) or getattr(value, "__struct_fields__", None):
            derived = [one for one, kind in vars(value).items() if isinstance(kind, property)]
            yield f"### {title}\n\n{_text(value)}\n\n" + ", ".join(f"`{one}`" for one in (*fields, *derived) if one)
        elif issubclass(value, BaseException):
            continue
        elif issubclass(value, Enum):
            yield f"### {title}\n\n{_text(value)}\n\n" + ", ".join(f"`{str(one)!r}`" for one in value)
        else:
            yield f"### {title}\n\n{_text(value)}" if value in _RETURNED else call_text(title, value)
            if value not in _RETURNED and (made := vars(value).get("__init__")) is not None and made.__doc__:
                yield _text(made)
            yield from _calls(re.findall("[A-Z][a-z]+", name)[-1].lower(), value)
    yield "\n".join(["| error | is also | when |", "|---|---|---|", *_errors(ops, ops.__all__)])


def _testing() -> Iterator[str]:
    """Yield the API of the simulated cluster for tests, with the tables in its modules' docstrings."""
    yield "`penstock.testing`: [how to test with the simulator](../how-to/test-with-the-simulator.md)."
    yield _FIXTURE
    yield _table(plugin)
    yield call_text("penstock.testing.Cluster", Cluster)
    for kind in (Cluster, Program):
        owner = kind.__name__.lower()
        for name, one in vars(kind).items():
            if name.startswith("_"):
                continue
            if isinstance(one, property):
                yield f"`{owner}.{name}`: {_text(one)}"
            elif inspect.isfunction(one):
                text = call_text(f"{owner}.{name}", one)
                yield text.replace("```python\n", "```python\nasync ") if inspect.iscoroutinefunction(one) else text
    yield "### penstock.testing.Fault\n\n" + _table(faults)
    yield "\n".join(["| error | is also | when |", "|---|---|---|", *_errors(penstock.testing, testing_names)])


def _table(module: Any) -> str:
    """Return the table in a module's docstring, with each row on one line."""
    lines = [line for line in (inspect.getdoc(module) or "").splitlines() if line.startswith("|")]
    rows: list[list[str]] = []
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [f"{had} {more}".strip() for had, more in zip(rows[-1], cells, strict=True)]
    rows[1] = ["---"] * len(rows[1])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _files() -> list[str]:
    return [
        call_text("penstock.open_segment", penstock.open_segment),
        call_text("penstock.segment_files", penstock.segment_files),
    ]


def call_text(name: str, function: Any) -> str:
    """Return a section for a function: public name, signature, docstring."""
    signature = inspect.signature(function)
    arguments = list(_arguments(signature))
    short = name.rpartition(".")[2]
    returned = "" if signature.return_annotation is signature.empty else f" -> {signature.return_annotation}"
    text = f"{short}({', '.join(arguments)}){returned}"
    if len(text) > _LINE_CHARS_MAX:
        inner = "".join(f"    {one},\n" for one in arguments)
        text = f"{short}(\n{inner}){returned}"
    return f"### {name}\n\n```python\n{text}\n```\n\n{_text(function)}"


def _arguments(signature: inspect.Signature) -> Iterator[str]:
    """Yield the parameters as in the source, and the star between them."""
    starred = False
    for one in signature.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        starred |= one.kind is one.VAR_POSITIONAL
        stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        default = "" if one.default is one.empty else f" = {_default(one.default)}"
        yield f"{stars}{one.name}: {one.annotation}{default}"


def _default(value: Any) -> str:
    if inspect.isfunction(value):
        return value.__name__
    return value.name if isinstance(value, Enum) else repr(value)


def _text(thing: Any) -> str:
    """Return the docstring as Markdown: a sentence per line, and indented paragraphs as code."""
    paragraphs: list[str] = []
    for part in (inspect.getdoc(thing) or "").split("\n\n"):
        if not part.startswith("    "):
            paragraphs.append(re.sub(r"(?<=[a-z)\]`])\. (?=[A-Z`])", ".\n", " ".join(part.split())))
        elif paragraphs and paragraphs[-1].endswith("```"):
            paragraphs[-1] = f"{paragraphs[-1][:-3]}\n{textwrap.dedent(part)}\n```"
        else:
            paragraphs.append(f"```python\n{textwrap.dedent(part)}\n```")
    return "\n\n".join(paragraphs)


def _values() -> Iterator[str]:
    for name in penstock.__all__:
        value = getattr(penstock, name)
        if not inspect.isclass(value) or issubclass(value, BaseException) or value in _CALLED:
            continue
        fields = getattr(value, "_fields", None) or getattr(value, "__struct_fields__", None)
        if fields is None:
            fields = list(_attributes(value))
        listed = ", ".join(f"`{field}`" for field in dict.fromkeys(fields))
        yield f"### {name}\n\n{_text(value)}\n\n{listed}"


def _attributes(kind: type) -> Iterator[str]:
    """Yield the public attributes; inherited ones are sorted, because compiled classes list them in any order."""
    for one in reversed(kind.__mro__):
        if one is not kind and not one.__module__.startswith("penstock."):
            continue
        own = [name for name in (*getattr(one, "__slots__", ()), *vars(one)) if not name.startswith("_")]
        yield from own if one is kind else sorted(own)


def _errors(module: Any, names: Iterable[str] = penstock.__all__) -> Iterator[str]:
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value) and issubclass(value, BaseException):
            bases = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
            yield f"| `{name}` | {bases} | {' '.join(_text(value).split())} |"
