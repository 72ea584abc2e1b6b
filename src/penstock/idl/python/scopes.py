"""Scopes of a file as Python: the description, publishers and subscribers.

| of a scope "Orders" with an operation "OrderPlaced" | in Python                                                   |
|-----------------------------------------------------|-------------------------------------------------------------|
| its description                                     | "Orders", a `ScopeType`                                     |
| publisher                                           | "OrdersPublisher.publish_order_placed(ctx, region, message)"|
| subscriber                                          | "OrdersSubscriber.subscribe_order_placed(handler, region=)" |

Annotations: `(stream = "orders")` on the operation, or on the scope for all of its operations, names the stream that
keeps the messages; which annotations contradict each other, `penstock.idl.streams` says.
"""

from __future__ import annotations

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
    for scope in module.program.document.scopes:
        module.place = scope.position
        name = module.naming.of(scope)
        module.write(["", *_description(module, scope, name)])
        module.write(docstring(scope.comment))
        module.write(module.alias_lines(name))
        _write_publisher(module, scope)
        _write_subscriber(module, scope)


def _description(module: Module, scope: Scope, name: str) -> list[str]:
    """Return the lines that make the `ScopeType`."""
    variables = [quoted(each) for each in scope.variables]
    lines = [
        f"{name} = {module.use(_CONTRACTS, 'ScopeType')}(",
        f"    name={quoted(scope.name)},",
        f"    prefix={quoted(scope.prefix)},",
        f"    variables=({', '.join(variables)}{',' if len(variables) == 1 else ''}),",
    ]
    entries = [line for each in scope.operations for line in _operation_lines(module, scope, each)]
    lines += ["    operations={", *indented(entries, " " * 8), "    },"] if entries else ["    operations={},"]
    lines += [f"    comment={quoted(scope.comment)},"] if scope.comment else []
    return [*lines, *annotation_lines(scope.annotations), ")"]


def _operation_lines(module: Module, scope: Scope, operation: Operation) -> list[str]:
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
        lines.append(f"    stream={quoted(stream)},")
    key = find_key(module, operation)
    if key:
        lines.append(f"    key=({', '.join(map(quoted, key))}{',' if len(key) == 1 else ''}),")
    return [*lines, *annotation_lines(operation.annotations), "),"]


def _write_publisher(module: Module, scope: Scope) -> None:
    """Write the class of publishers."""
    described_by = module.own(module.naming.of(scope))
    body = docstring(described(f"Publishes what the scope {scope.name} names.", scope.annotations, scope.comment))
    body += ["", f"_scope = {described_by}"]
    text = module.builtin("str")
    variables = names.parameters(scope.variables, names.OF_SCOPE)
    for operation in scope.operations:
        kind = annotation(module, module.program, operation.type)
        context = module.use("penstock.frugal.context", "Context")
        items = ["self", f"ctx: {context}", *(f"{each}: {text}" for each in variables), f"message: {kind}", "*"]
        method = names.operation_names(scope, "publish")[operation.name]
        acked, later = module.use(_SCOPES, "Published"), module.use(_SCOPES, "PublishedLater")
        literal, boolean = module.use("typing", "Literal"), module.builtin("bool")
        more = _options(module, "PublishOptions")
        for nowait, result in ((f"{literal}[True]", later), (f"{literal}[False] = False", acked)):
            body += ["", f"@{module.use('typing', 'overload')}"]
            body += call(f"async def {method}(", [*items, f"nowait: {nowait}", more], f") -> {result}: ...")
        items += [f"nowait: {boolean} = False", more]
        body += ["", *call(f"async def {method}(", items, f") -> {acked} | {later}:")]
        options = "`options`: `PublishOptions`, such as `key` and `timeout`."
        body += indented(docstring(_operation_text("Publish", operation, options)))
        values = f"({', '.join(variables)}{',' if len(variables) == 1 else ''})"
        arguments = [f"{described_by}.operations[{quoted(operation.name)}]", "ctx", values, "message"]
        arguments += ["nowait=nowait", "**options"]
        body += indented(call("return await self._publish(", arguments, ")"))
    base = module.use(_SCOPES, "ScopePublisher")
    module.write(["", "", f"class {module.naming.of_class(scope, 'Publisher')}({base}):", *indented(body), "", ""])


def _write_subscriber(module: Module, scope: Scope) -> None:
    """Write the class of subscribers."""
    described_by = module.own(module.naming.of(scope))
    body = docstring(described(f"Subscribes to what the scope {scope.name} names.", scope.annotations, scope.comment))
    body += ["", f"_scope = {described_by}"]
    text = module.builtin("str")
    variables = names.parameters(scope.variables, names.OF_SCOPE)
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
