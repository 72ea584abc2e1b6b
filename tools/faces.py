"""Write the blocking client from the asyncio one: `python3 dev.py faces`, and `--check` compares.

Rules: a blocking class has the methods of its asyncio class, with the same parameters, defaults and docstrings, in the
same order. What a method does:

| the asyncio method                  | the blocking one                                                      |
|-------------------------------------|-----------------------------------------------------------------------|
| is in `_BY_HAND`                    | does what is written there                                            |
| is of `async with` or `async for`,  | has the same body, on the caller's thread; calls that the blocking    |
| or an asynchronous generator        | class does not have run on the client's thread                        |
| is a coroutine                      | runs it on the client's thread                                        |
| is anything else                    | calls it on the caller's thread                                       |

A result that has a blocking class is wrapped in it. What waits, iterates, queues and closes is written by hand, in
`penstock.client.blocking.threads`; the sources are parsed, never imported.
"""

from __future__ import annotations

import argparse
import ast
import copy
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = "src/penstock/client/blocking/client.py"

_SOURCES = {
    "penstock.client.aio": ("connect", "Client"),
    "penstock.client.consume.consumers": ("Consumer",),
    "penstock.client.consume.groups": ("Groups",),
    "penstock.client.queues.queue": ("Queue", "QueueMessage"),
    "penstock.client.consume.stream_consumers": ("StreamConsumers",),
    "penstock.client.append.producing": ("Producer",),
    "penstock.client.append.staging": ("Staging",),
    "penstock.client.consume.tables": ("Table",),
    "penstock.client.users": ("Users",),
}
_FACES = frozenset(name for names in _SOURCES.values() for name in names)

# Not offered: they are for the blocking class, or for `Client`.
_HIDDEN = {
    "Consumer": {"open", "take", "each", "is_due", "checkpoint", "hand_over", "shown", "check_messages"},
    "Table": {"load", "moved"},
    "Queue": {"open", "take"},
}

# Bodies that do not follow; {} are the arguments. Those of `__init__` come after its first lines.
_BY_HAND = {
    "connect": "return Client(*opened(aio.connect({})))",
    "Client.__init__": "\n".join(
        [
            "self.groups = Groups(client.groups, thread)",
            "self.consumers = StreamConsumers(client.consumers, thread)",
            "self.staging = Staging(client.staging, thread)",
            "self.users = Users(client.users, thread)",
            "self._publishes = PublishQueue(client, thread)",
            "thread.end_with(self, client._end)",
        ]
    ),
    "Client.__aexit__": "try:\n    if kind is None:\n        self._publishes.finish()\nfinally:\n    self.close()",
    "Client.close": "self._thread.close()\nself._publishes.tell()",
    # A whole answer crosses the threads at once.
    "Client.read": "return self._thread.iterate(answers(lambda: self._client._reader({})))",
    # The caller's thread shows the progress, and decodes.
    "Client.to_table": "gathering = self._thread.run(self._client._gathering({}))\n"
    "return gathering.table(self._thread.iterate(answers(gathering.reader)))",
    "Client.to_pandas": 'require("pandas")\nreturn pandas_of(self.to_table({}))',
    "Client.to_polars": 'require("polars")\nreturn polars_of(self.to_table({}))',
    "Client.messages": "for batch in self.read({}):\n    yield from messages_of(batch)",
    "Client.publish_nowait": "return self._publishes.put({})",
    "Client.flush": "self._publishes.flush(timeout)",
    "Consumer.next_batch": "batch = self._thread.run(self._consumer.hand_over())\n"
    "return None if batch is None else self._consumer.shown(batch)",
    "Queue.__anext__": "self._thread.run(self._queue.open())\n"
    "if (message := self._thread.run(self._queue.take())) is None:\n    raise StopIteration\n"
    "return QueueMessage(message, self._thread)",
    "Table.changes": "return self._thread.steps(self._table.changes)",
    "Table.close": "with contextlib.suppress(OperationalError):\n    self._thread.run(self._table.close())",
}
_HAND_IMPORTS = """
import concurrent.futures
import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING
from penstock.base.errors import OperationalError
from penstock.client.blocking.threads import LoopThread, PublishQueue, opened
from penstock.client.checks import require
from penstock.client.read.batches import messages_of
from penstock.client.read.gathering import pandas_of, polars_of
from penstock.client.read.reading import answers
"""
_OPERATORS = {
    "__contains__": "key in {}",
    "__getitem__": "{}[key]",
    "__iter__": "iter({})",
    "__len__": "len({})",
    "__repr__": "repr({})",
}
_OF_NOTEBOOKS = "_repr_html_"
_RENAMED = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "StopAsyncIteration": "StopIteration",
}

_ANNOTATIONS = (
    (r"AsyncGenerator\[(.*), None\]", r"Generator[\1, None, None]"),
    (r"\basyncio\.Future\b", "concurrent.futures.Future"),
    (r"-> Changes:", "-> Iterator[Message]:"),
    (r"-> Connecting:", "-> Client:"),
)
_WORDS = (
    ("use it in `async with` and `async for`.", "use it in `with`, and iterate over it."),
    ("made by `penstock.aio.connect`.", "made by `connect`. Thread-safe."),
    ("an `async with`", "a `with`"),
    ("`async with`", "`with`"),
    ("Close the connections. Unacked", "Close the connections and the thread. Unacked"),
)

_HEAD = '''"""The blocking client: runs the asyncio client on an event loop in a thread of its own.

Generated by `python3 dev.py faces` from `client.aio` and the classes that it returns; do not edit.

Rules: a `Client` may be used from many threads at once. Each has one daemon thread, which ends with `close` (or at
exit). Ctrl-C interrupts a waiting call and cancels it. A client cannot be used after a fork: in the child its calls
fail with the advice to connect again. Look-ups in a `Table` run on the caller's thread; the table is changed only on
its own thread, in single steps, each of which leaves it consistent.

    with penstock.connect() as client:
        for batch in client.read("orders", start=penstock.EARLIEST):
            print(batch.num_rows)
"""

# ruff: noqa: SLF001 (the asyncio object belongs to the blocking one)

from __future__ import annotations

'''

_Function = ast.FunctionDef | ast.AsyncFunctionDef
Read = Callable[[str], str]
"""Returns the source of a module."""


def source_of(module: str) -> str:
    return (ROOT / "src" / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")


def blocking_client(read: Read = source_of) -> str:
    """Return the text of the blocking client."""
    sources = {module: read(module) for module in _SOURCES}
    parts = [_imports(sources)]
    for module, names in _SOURCES.items():
        lines = sources[module].splitlines()
        for node in ast.parse(sources[module]).body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                parts.append(_Face(module, node, lines).text())
            elif isinstance(node, _Function) and node.name in names:
                parts.append(_signature(node, lines) + _docstring(node, 1) + _indented(_by_hand(node.name, node), 1))
    return _formatted(_HEAD + "\n\n".join(parts))


class _Face:
    """One class to be written: a blocking class around an object of its asyncio class."""

    def __init__(self, module: str, node: ast.ClassDef, lines: list[str]) -> None:
        self._module = module.rpartition(".")[2]
        self._node = node
        self._lines = lines
        self._inner = f"self._{node.name.lower()}"
        methods = (one for one in node.body if isinstance(one, _Function) and one.name != "__init__")
        offered = (one for one in methods if one.name not in _HIDDEN.get(node.name, ()))
        shown = ("__", _OF_NOTEBOOKS)
        self._methods = [one for one in offered if one.name.startswith(shown) or not one.name.startswith("_")]
        self._names = {one.name for one in self._methods}

    def text(self) -> str:
        name = self._node.name
        bases = ", ".join(map(ast.unparse, self._node.bases))
        head = f"class {name}({bases}):\n" if bases else f"class {name}:\n"
        return head + _docstring(self._node, 1) + "\n\n".join([self._constructor(), *self._written()]) + "\n"

    def _constructor(self) -> str:
        name = self._node.name
        wrapped = name.lower()
        head = f"    def __init__(self, {wrapped}: {self._module}.{name}, thread: LoopThread) -> None:\n"
        body = f"{self._inner} = {wrapped}\nself._thread = thread\n{_BY_HAND.get(f'{name}.__init__', '')}"
        return head + _indented(body, 2)

    def _written(self) -> Iterator[str]:
        end = self._node.body[0].end_lineno or 0
        for node in self._node.body:
            if node in self._methods:
                assert isinstance(node, _Function)
                titles = [line for line in self._lines[end : node.lineno - 1] if line.startswith("    # ")]
                yield "".join(f"{line}\n\n" for line in titles) + self._method(node)
            end = node.end_lineno or 0

    def _method(self, node: _Function) -> str:
        decorators = [ast.unparse(one) for one in node.decorator_list]
        head = "".join(f"    @{one}\n" for one in decorators) + _signature(node, self._lines)
        if "overload" in decorators:
            return head
        return head + _docstring(node, 2) + _indented(self._body(node, is_property="property" in decorators), 2)

    def _body(self, node: _Function, *, is_property: bool) -> str:
        by_hand = f"{self._node.name}.{node.name}"
        if by_hand in _BY_HAND:
            return _by_hand(by_hand, node)
        if node.name in _RENAMED or any(isinstance(one, ast.Yield) for one in ast.walk(node)):
            blocking = _Translation(self._inner, self._names)
            body = node.body[1:] if ast.get_docstring(node) else node.body
            return "\n".join(ast.unparse(blocking.visit(copy.deepcopy(one))) for one in body)
        if node.name in _OPERATORS:
            call = _OPERATORS[node.name].format(self._inner)
        else:
            call = f"{self._inner}.{node.name}" + ("" if is_property else f"({_arguments(node)})")
        if isinstance(node, ast.AsyncFunctionDef):
            call = f"self._thread.run({call})"
        result = "" if node.returns is None else ast.unparse(node.returns)
        if result in _FACES:
            call = f"{result}({call}, self._thread)"
        return call if result == "None" else f"return {call}"


class _Translation(ast.NodeTransformer):
    """Turns the body of an asyncio method into one for the caller's thread."""

    def __init__(self, inner: str, names: set[str]) -> None:
        self._inner = inner
        self._names = names

    def visit_Await(self, node: ast.Await) -> ast.AST:
        call = self.visit(node.value)
        is_ours = ast.unparse(call).startswith("self.") and not ast.unparse(call).startswith(self._inner)
        return call if is_ours else ast.parse(f"self._thread.run({ast.unparse(call)})", mode="eval").body

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        is_ours = isinstance(node.value, ast.Name) and node.value.id == "self"
        if is_ours and node.attr not in self._names:
            return ast.parse(f"{self._inner}.{node.attr}", mode="eval").body
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(_RENAMED.get(node.id, node.id))


def _by_hand(name: str, node: _Function) -> str:
    return _BY_HAND[name].format(_arguments(node))


def _arguments(node: _Function) -> str:
    """Return the parameters as the arguments of a call: positional ones by place, keywords by name."""
    given = [one.arg for one in (*node.args.posonlyargs, *node.args.args) if one.arg != "self"]
    given += [f"*{node.args.vararg.arg}"] if node.args.vararg else []
    given += [f"{one.arg}={one.arg}" for one in node.args.kwonlyargs]
    given += [f"**{node.args.kwarg.arg}"] if node.args.kwarg else []
    return ", ".join(given)


def _signature(node: _Function, lines: list[str]) -> str:
    """Return the lines of the signature as in the source, without `async`; of an overload with its body."""
    body = node.body[0]
    is_apart = not lines[body.lineno - 1][: body.col_offset].strip()
    text = "\n".join(lines[node.lineno - 1 : body.lineno - is_apart]) + "\n"
    text = text.replace("async def ", "def ", 1)
    for old, new in _RENAMED.items():
        text = text.replace(f"def {old}(", f"def {new}(", 1)
    for pattern, new in _ANNOTATIONS:
        text = re.sub(pattern, new, text)
    return text


def _docstring(node: _Function | ast.ClassDef, depth: int) -> str:
    text = ast.get_docstring(node)
    if text is None:
        return ""
    for old, new in _WORDS:
        text = text.replace(old, new)
    end = '"""\n' if "\n" not in text else '\n"""\n'
    return _indented(f'"""{text}{end}', depth) + ("\n" if isinstance(node, ast.ClassDef) else "")


def _indented(text: str, depth: int) -> str:
    return textwrap.indent(text.strip("\n"), "    " * depth) + "\n"


def _imports(sources: dict[str, str]) -> str:
    """Return the imports that the signatures may need; those that they do not are removed at the end."""
    always: dict[str, str] = {}
    for_types: dict[str, str] = {}
    for module, source in sources.items():
        package, _, short = module.rpartition(".")
        always[short] = f"from {package} import {short}"
        for node in ast.parse(source).body:
            guarded = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for one in node.body if isinstance(node, ast.If) else [node]:
                lines = for_types if guarded else always
                if isinstance(one, ast.ImportFrom | ast.Import):
                    source_of_names = f"from {one.module} " if isinstance(one, ast.ImportFrom) else ""
                    for name in one.names:
                        lines[name.asname or name.name] = f"{source_of_names}import {ast.unparse(name)}"
                elif isinstance(one, ast.ClassDef):
                    always[one.name] = f"from {module} import {one.name}"
                elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
                    always[one.targets[0].id] = f"from {module} import {one.targets[0].id}"
    unwanted = _FACES | {"annotations"}
    wanted = [line for name, line in always.items() if name not in unwanted and name not in for_types]
    guarded_lines = "".join(f"    {line}\n" for line in for_types.values())
    return _HAND_IMPORTS + "\n".join(wanted) + f"\n\nif TYPE_CHECKING:\n{guarded_lines}"


def _formatted(text: str) -> str:
    """Remove unneeded imports, sort the others, and format."""
    ruff = str(Path(sys.executable).with_name("ruff"))
    for step in (["check", "--fix-only", "--select=F401"], ["check", "--fix-only", "--select=I001"], ["format"]):
        command = [ruff, *step, "--quiet", f"--stdin-filename={TARGET}", "-"]
        text = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout
    return text


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="faces", description="Write the blocking client from the asyncio one.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if it is out of date")
    is_check = parser.parse_args(arguments).check
    path, text = ROOT / TARGET, blocking_client()
    if path.read_text(encoding="utf-8") == text:
        return 0
    if is_check:
        print(f"{TARGET} is out of date: `python3 dev.py faces` writes it anew")
        return 1
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
