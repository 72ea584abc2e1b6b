"""Scopes of a file as Python: the description, publishers and subscribers.

| of a scope "Orders" with an operation "OrderPlaced" | in Python                                                   |
|-----------------------------------------------------|-------------------------------------------------------------|
| its description                                     | "Orders", a `ScopeType`                                     |
| publisher                                           | "OrdersPublisher.publish_order_placed(ctx, region, message)"|
| subscriber                                          | "OrdersSubscriber.subscribe_order_placed(handler, region=)" |

Annotations: `(stream = "orders")` on the operation, or on the scope for all of its operations, names the stream that
keeps the messages; `(key)` on a field their key (`keys`). `(partition_by = "key")` beside `stream` says how a stream
that is created for it splits them, in the words of a stream's config.

| `partition_by`         | is a mistake                                                                     |
|------------------------|----------------------------------------------------------------------------------|
| without `stream`       | always: nothing is split                                                         |
| `group`                | if the message has a key: those of a key would be in no order                    |
| `publisher`, `mapped`  | always: the messages would be on other subjects than the scope's                 |
| any                    | if another operation says something else of the same stream                      |
"""

from __future__ import annotations

from penstock.base.partitioning import PartitionBy, parse_split
from penstock.base.subjects import stream_name_mistake
from penstock.idl.fingerprint import fingerprint
from penstock.idl.model import Operation, Scope
from penstock.idl.python import names
from penstock.idl.python.keys import annotation as annotation_value
from penstock.idl.python.keys import find_key
from penstock.idl.python.module import Module
from penstock.idl.python.services import annotation_lines
from penstock.idl.python.text import call, described, docstring, indented, quoted
from penstock.idl.python.types import annotation, spec

_CONTRACTS = "penstock.frugal.contracts"
_SCOPES = "penstock.frugal.scopes"


def write_scopes(module: Module) -> None:
    """Write the scopes of the file."""
    splits: dict[str, str] = {}  # how each stream is split
    for scope in module.program.document.scopes:
        module.place = scope.position
        name = module.naming.of(scope)
        module.write(["", *_description(module, scope, name, splits)])
        module.write(docstring(scope.comment))
        module.write(module.alias_lines(name))
        _write_publisher(module, scope)
        _write_subscriber(module, scope)


def _description(module: Module, scope: Scope, name: str, splits: dict[str, str]) -> list[str]:
    """Return the lines that make the `ScopeType`."""
    variables = [quoted(each) for each in scope.variables]
    lines = [
        f"{name} = {module.use(_CONTRACTS, 'ScopeType')}(",
        f"    name={quoted(scope.name)},",
        f"    prefix={quoted(scope.prefix)},",
        f"    variables=({', '.join(variables)}{',' if len(variables) == 1 else ''}),",
    ]
    entries = [line for each in scope.operations for line in _operation_lines(module, scope, each, splits)]
    lines += ["    operations={", *indented(entries, " " * 8), "    },"] if entries else ["    operations={},"]
    lines += [f"    comment={quoted(scope.comment)},"] if scope.comment else []
    return [*lines, *annotation_lines(scope.annotations), ")"]


def _operation_lines(module: Module, scope: Scope, operation: Operation, splits: dict[str, str]) -> list[str]:
    module.place = operation.position
    wire_type, arguments = spec(module, module.program, operation.type)
    lines = [
        f"{quoted(operation.name)}: {module.use(_CONTRACTS, 'OperationType')}(",
        f"    name={quoted(operation.name)},",
        f"    spec=({wire_type}, {arguments}),",
        f"    schema={quoted(fingerprint(module.program, operation.type))},",
    ]
    stream = annotation_value(operation.annotations, "stream")
    stream = annotation_value(scope.annotations, "stream") if stream is None else stream
    if stream is not None:
        if (mistake := stream_name_mistake(stream)) is not None:
            module.mistake(f'the stream of "{operation.name}": {mistake}')
        lines.append(f"    stream={quoted(stream)},")
    key = find_key(module, operation)
    _check_split(module, scope, operation, stream, key, splits)
    if key:
        lines.append(f"    key=({', '.join(map(quoted, key))}{',' if len(key) == 1 else ''}),")
    return [*lines, *annotation_lines(operation.annotations), "),"]


def _check_split(
    module: Module, scope: Scope, operation: Operation, stream: str | None, key: tuple[str, ...], splits: dict[str, str]
) -> None:
    """Note a `partition_by` that contradicts the rest. See the table above."""
    split = annotation_value(operation.annotations, "partition_by")
    split = annotation_value(scope.annotations, "partition_by") if split is None else split
    if split is None:
        return
    which = f'partition_by = {split!r} of "{operation.name}"'
    if not stream:
        module.mistake(f'{which} splits no stream; name one: (stream = "…")')
        return
    try:
        parsed = parse_split(split)
    except ValueError as error:
        module.mistake(f'partition_by of "{operation.name}": {error}')
        return
    if parsed.has_subjects:
        text = "gives each partition a subject of its own, which subscribers of the scope do not hear"
        module.mistake(f'{which} {text}; use "key"')
    elif parsed.how is PartitionBy.GROUP and key:
        text = f"puts a message into a log at random, and it has the key {'.'.join(key)}, whose messages are in order"
        module.mistake(f'{which} {text}; use "key"')
    elif splits.setdefault(stream, split) != split:
        module.mistake(f"{which} contradicts partition_by = {splits[stream]!r} of the same stream {stream!r}")


def _write_publisher(module: Module, scope: Scope) -> None:
    """Write the class of publishers."""
    described_by = module.own(module.naming.of(scope))
    body = docstring(described(f"Publishes what the scope {scope.name} names.", scope.annotations, scope.comment))
    body += ["", f"_scope = {described_by}"]
    text = module.builtin("str")
    variables = names.parameters(scope.variables, names.OF_PUBLISHER)
    for operation in scope.operations:
        kind = annotation(module, module.program, operation.type)
        context = module.use("penstock.frugal.context", "Context")
        items = ["self", f"ctx: {context}", *(f"{each}: {text}" for each in variables), f"message: {kind}"]
        items.append(_options(module, "PublishOptions"))
        method = names.operation_names(scope, "publish")[operation.name]
        body += ["", *call(f"async def {method}(", items, f") -> {module.use(_SCOPES, 'Published')}:")]
        options = "`options`: `PublishOptions`, such as `key` and `timeout`."
        body += indented(docstring(_operation_text("Publish", operation, options)))
        values = f"({', '.join(variables)}{',' if len(variables) == 1 else ''})"
        arguments = [f"{described_by}.operations[{quoted(operation.name)}]", "ctx", values, "message", "**options"]
        body += indented(call("return await self._publish(", arguments, ")"))
    base = module.use(_SCOPES, "ScopePublisher")
    module.write(["", "", f"class {module.naming.of_class(scope, 'Publisher')}({base}):", *indented(body), "", ""])


def _write_subscriber(module: Module, scope: Scope) -> None:
    """Write the class of subscribers."""
    described_by = module.own(module.naming.of(scope))
    body = docstring(described(f"Subscribes to what the scope {scope.name} names.", scope.annotations, scope.comment))
    body += ["", f"_scope = {described_by}"]
    text = module.builtin("str")
    variables = names.parameters(scope.variables, names.OF_SUBSCRIBER)
    for operation in scope.operations:
        kind = annotation(module, module.program, operation.type)
        context, called = module.use("penstock.frugal.context", "Context"), module.use("collections.abc", "Callable")
        returned = f"{module.use('collections.abc', 'Awaitable')}[None] | None"
        items = ["self", f"handler: {called}[[{context}, {kind}], {returned}]", "*"]
        items += [*(f'{each}: {text} = "*"' for each in variables), f'queue: {text} = ""']
        items.append(_options(module, "SubscribeOptions"))
        method = names.operation_names(scope, "subscribe")[operation.name]
        body += ["", *call(f"async def {method}(", items, f") -> {module.use(_SCOPES, 'Subscription')}:")]
        more = "A variable that is not given is any token. " if variables else ""
        options = f"{more}`options`: `SubscribeOptions`, such as `group`."
        body += indented(docstring(_operation_text("Subscribe to", operation, options)))
        values = f"({', '.join(variables)}{',' if len(variables) == 1 else ''})"
        arguments = [
            f"{described_by}.operations[{quoted(operation.name)}]",
            values,
            "handler",
            "queue=queue",
            "**options",
        ]
        body += indented(call("return await self._subscribe(", arguments, ")"))
    base = module.use(_SCOPES, "ScopeSubscriber")
    module.write(["", "", f"class {module.naming.of_class(scope, 'Subscriber')}({base}):", *indented(body), "", ""])


def _operation_text(verb: str, operation: Operation, options: str) -> str:
    return described(operation.comment or f"{verb} {operation.name}.", operation.annotations, options)


def _options(module: Module, kind: str) -> str:
    """Return the parameter of all further keyword arguments."""
    return f"**options: {module.use('typing', 'Unpack')}[{module.use(_SCOPES, kind)}]"
