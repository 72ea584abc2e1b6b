"""Services of a file as Python: the description, what a handler must have, and clients.

| of a service "Orders"                    | in Python                                                              |
|------------------------------------------|------------------------------------------------------------------------|
| its description, for a server            | "Orders", a `ServiceType`                                              |
| what a handler has                       | "OrdersHandler", a protocol                                            |
| clients                                  | "OrdersClient" for asyncio, "OrdersBlockingClient" for threads         |
| arguments and result of a method         | private structs                                                        |

Rules: a method's argument that is not optional is given by each caller, and one that is a struct, enum or UUID must be
there when a request is read: a handler sees None for optional ones only. An argument that is added later to a method
should be optional. In a client, an argument without a default is given by name if one in front of it has a default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.idl import graphs
from penstock.idl.model import (
    Annotations,
    Enum,
    Field,
    Found,
    Method,
    Reference,
    Requiredness,
    Scalar,
    Service,
    Streaming,
    StructKind,
)
from penstock.idl.python import names
from penstock.idl.python.keys import is_set
from penstock.idl.python.module import Module
from penstock.idl.python.structs import Member, check_ids, default_of, required_lines, spec_lines, write_class
from penstock.idl.python.text import annotation_items, call, described, docstring, indented, quoted
from penstock.idl.python.types import annotation, zero
from penstock.idl.python.values import expression

_CONTRACTS = "penstock.frugal.contracts"
_SUCCESS = "success"


@dataclass(frozen=True, slots=True)
class _Structs:
    """The private structs of a method, and the fields of the result by the exceptions that they hold."""

    arguments: str
    result: str
    exceptions: dict[str, str]


def write_services(module: Module) -> None:
    """Write the services of the file, each behind the one that it extends."""
    services = {each.name: each for each in module.program.document.services}
    needs = {name: [each.extends.name] if each.extends else [] for name, each in services.items()}
    for name in graphs.sort(needs)[0]:
        _write_service(module, services[name])


def _write_service(module: Module, service: Service) -> None:
    module.place = service.position
    _check_handler(module, service)
    structs = {each.name: _write_structs(module, service, each) for each in service.methods}
    name = module.naming.of(service)
    module.write(["", *_description(module, service, name, structs)])
    module.write(docstring(service.comment))
    module.write(module.alias_lines(name))
    _write_handler(module, service)
    _write_client(module, service, is_blocking=False)
    _write_client(module, service, is_blocking=True)


def _check_handler(module: Module, service: Service) -> None:
    """Note methods that the server would not find in a handler, by the rules of `penstock.frugal.processor`."""
    inherited = names.inherited_handler_methods(module.program, service)
    own = names.handler_methods(service)
    all_names = [*inherited, *own.values()]
    for method in service.methods:
        if method.streaming is not Streaming.NONE:
            text = f'"{service.name}.{method.name}" streams; a request and an answer are one message each'
            module.mistake(text, method.position)
        wire, name = wire_name(method), own[method.name]
        tried = [f"{first}{wire[1:]}{last}" for first in (wire[0], wire[0].upper()) for last in ("", "_")]
        found = next((each for each in tried if each in all_names), "")
        if found != name or all_names.count(name) > 1:
            but = f", but {found}" if found else ""
            text = f'a server would not find the method "{method.name}" of a handler{but}; give it another name'
            module.mistake(text, method.position)


def _write_structs(module: Module, service: Service, method: Method) -> _Structs:
    """Write the structs of a method's arguments and result."""
    module.place = method.position
    stem = f"{service.name}_{method.name}"
    arguments = module.private(f"{stem}_arguments")
    attributes = names.attributes_of(method.arguments)
    members = [_argument(module, each, attributes[each.name]) for each in method.arguments]
    _write_struct(module, arguments, method.arguments, members, attributes)
    if method.is_oneway:
        return _Structs(arguments, "", {})
    result = module.private(f"{stem}_result")
    fields = list(method.exceptions)
    if method.returns is not None:
        fields.insert(0, Field(0, _SUCCESS, method.returns, position=method.position))
    taken = names.Taken((*names.OF_STRUCT, *([_SUCCESS] if method.returns is not None else [])))
    attributes = {each.name: taken.take(names.attribute(each.name)) for each in method.exceptions}
    exceptions: dict[str, str] = {}
    for each in method.exceptions:
        exceptions.setdefault(annotation(module, module.program, each.type), attributes[each.name])
    members = [Member(each, attributes.get(each.name, _SUCCESS), each.type, True, " = None") for each in fields]
    if method.returns is not None:
        members[0] = replace(members[0], attribute=_SUCCESS)
    _write_struct(module, result, fields, members, {each.field.name: each.attribute for each in members})
    return _Structs(arguments, result, exceptions)


def _write_struct(
    module: Module,
    name: str,
    fields: tuple[Field, ...] | list[Field],
    members: list[Member],
    attributes: dict[str, str],
) -> None:
    check_ids(module, fields)
    plain = [replace(each, field=replace(each.field, comment="", annotations=())) for each in members]
    write_class(module, name, StructKind.STRUCT, plain)
    module.write(["", "", *spec_lines(module, name, fields, attributes), *required_lines(name, members)])


def _argument(module: Module, field: Field, attribute: str) -> Member:
    """Return how an argument is written: what a request leaves out is zero, its default or, if optional, None."""
    is_optional = field.requiredness is Requiredness.OPTIONAL
    if field.default is not None:
        default = default_of(module, field, attribute, is_optional=is_optional)
        return Member(field, attribute, field.type, is_optional, default)
    if is_optional:
        return Member(field, attribute, field.type, is_optional=True, default=" = None")
    empty = None if field.requiredness is Requiredness.REQUIRED else zero(module, module.program, field.type)
    if empty is None:
        return Member(field, attribute, field.type)
    made = empty[0] or f"{module.use('dataclasses', 'field')}(default_factory={empty[1]})"
    return Member(field, attribute, field.type, default=f" = {made}")


def _default_value(module: Module, field: Field) -> str | None:
    """Return the default that a contract gives an argument."""
    if field.default is None:
        return None
    return expression(module, module.program, field.default, module.program.resolve(field.type))


def _is_shared(module: Module, field: Field) -> bool:
    """True if calls can share a default of this type, which none can change."""
    return isinstance(module.program.resolve(field.type)[1], Scalar | Enum)


def _description(module: Module, service: Service, name: str, structs: dict[str, _Structs]) -> list[str]:
    """Return the lines that make the `ServiceType`."""
    entries = []
    if service.extends is not None:
        entries.append(f"**{module.definition(_extended(module, service.extends))}.methods,")
    for method in service.methods:
        entries += _method_lines(module, method, structs[method.name])
    methods = ["    methods={", *indented(entries, " " * 8), "    },"] if entries else ["    methods={},"]
    lines = [
        f"{name} = {module.use(_CONTRACTS, 'ServiceType')}(",
        f"    name={quoted(service.name)},",
        *methods,
    ]
    lines += [f"    comment={quoted(service.comment)},"] if service.comment else []
    return [*lines, *annotation_lines(service.annotations), ")"]


def annotation_lines(annotations: Annotations, indent: str = "    ") -> list[str]:
    """Return the lines of a description's annotations."""
    items = annotation_items(annotations)
    return call("annotations={", items, "},", indent) if items else []


def _method_lines(module: Module, method: Method, structs: _Structs) -> list[str]:
    wire = wire_name(method)
    lines = [
        f"{quoted(wire)}: {module.use(_CONTRACTS, 'MethodType')}(",
        f"    name={quoted(wire)},",
        f"    arguments={structs.arguments},",
        f"    result={structs.result or 'None'},",
    ]
    lines += ["    returns=True,"] if method.returns is not None else []
    if structs.exceptions:
        items = [f"{kind}: {quoted(attribute)}" for kind, attribute in structs.exceptions.items()]
        lines += call("exceptions={", items, "},", "    ")
    lines += ["    is_idempotent=True,"] if is_set(method.annotations, "idempotent") else []
    return [*lines, *annotation_lines(method.annotations), "),"]


def wire_name(method: Method) -> str:
    """Return the name of a method on the wire."""
    return method.name[:1].lower() + method.name[1:]


def _extended(module: Module, reference: Reference) -> Found:
    found = module.program.find(reference.name)
    assert found is not None, f"{reference.name} is not linked"
    return found


# Handlers and clients


def _write_handler(module: Module, service: Service) -> None:
    """Write the protocol of handlers."""
    bases = [module.use("typing", "Protocol")]
    if service.extends is not None:
        bases.insert(0, module.class_of(_extended(module, service.extends), "Handler"))
    intro = f"What a handler of the service {service.name} has."
    body = docstring(described(intro, (), service.comment))
    attributes = names.handler_methods(service)
    for method in service.methods:
        signature = _signature(module, method, attributes[method.name], is_handler=True)
        documented = indented(docstring(_method_text(module, method)))
        # A protocol's method has no body but its docstring.
        body += ["", *signature, *documented] if documented else ["", *signature[:-1], f"{signature[-1]} ..."]
    name = module.naming.of_class(service, "Handler")
    module.write(["", "", f"class {name}({', '.join(bases)}):", *indented(body), "", ""])
    module.write(module.alias_lines(name))


def _write_client(module: Module, service: Service, *, is_blocking: bool) -> None:
    """Write a client class."""
    suffix = "BlockingClient" if is_blocking else "Client"
    if service.extends is not None:
        base = module.class_of(_extended(module, service.extends), suffix)
    else:
        base = module.use("penstock.frugal.client", "BlockingServiceClient" if is_blocking else "ServiceClient")
    sort = "Calls the service {} and waits for its answers." if is_blocking else "Calls the service {}, with asyncio."
    body = docstring(described(sort.format(service.name), service.annotations, service.comment))
    described_by = module.own(module.naming.of(service))
    body += ["", f"_service = {described_by}"]
    attributes = names.client_methods(module.program, service)
    for method in service.methods:
        signature = _signature(module, method, attributes[method.name], is_blocking=is_blocking)
        parameters = names.parameters([each.name for each in method.arguments], names.OF_METHOD)
        values = f"({', '.join(parameters)}{',' if len(parameters) == 1 else ''})"
        wait = "" if is_blocking else "await "
        made = [f"{described_by}.methods[{quoted(wire_name(method))}]", "ctx", values]
        body += ["", *signature, *indented(docstring(_method_text(module, method)))]
        body += indented(_made_defaults(module, method, parameters))
        if method.returns is None:
            body += call(f"{wait}self._call(", made, ")", "    ")
        else:
            answer = next(name for name in ("answer", "answer_", "answer__") if name not in parameters)
            kind = annotation(module, module.program, method.returns)
            body += call(f"{answer}: {kind} = {wait}self._call(", made, ")", "    ")
            body.append(f"    return {answer}")
    name = module.naming.of_class(service, suffix)
    module.write(["", "", f"class {name}({base}):", *indented(body), "", ""])
    module.write(module.alias_lines(name))


def _made_defaults(module: Module, method: Method, parameters: list[str]) -> list[str]:
    """Return the lines of a client's method that make defaults which calls cannot share."""
    lines = []
    for each, name in zip(method.arguments, parameters, strict=True):
        is_made = each.default is not None and each.requiredness is not Requiredness.OPTIONAL
        if is_made and not _is_shared(module, each):
            lines += [f"if {name} is None:", f"    {name} = {_default_value(module, each)}"]
    return lines


def _signature(
    module: Module, method: Method, attribute: str, *, is_handler: bool = False, is_blocking: bool = False
) -> list[str]:
    """Return the first lines of a method."""
    parameters = names.parameters([each.name for each in method.arguments], names.OF_METHOD)
    items = ["self", f"ctx: {module.use('penstock.frugal.context', 'Context')}"]
    has_default, by_name = False, False
    for each, name in zip(method.arguments, parameters, strict=True):
        kind = annotation(module, module.program, each.type)
        is_optional = each.requiredness is Requiredness.OPTIONAL
        if is_handler:
            items.append(f"{name}: {kind}{' | None' if is_optional else ''}")
            continue
        default = _default_value(module, each) if _is_shared(module, each) else None
        may_be_none = is_optional or (each.default is not None and default is None)
        default = default or ("None" if may_be_none else None)
        if has_default and default is None and not by_name:
            items.append("*")
            by_name = True
        has_default = has_default or default is not None
        items.append(f"{name}: {kind}{' | None' if may_be_none else ''}{f' = {default}' if default else ''}")
    items += ["/"] if is_handler else []
    returns = "None" if method.returns is None else annotation(module, module.program, method.returns)
    return call(f"{'' if is_blocking else 'async '}def {attribute}(", items, f") -> {returns}:")


def _method_text(module: Module, method: Method) -> str:
    """Return the text of a method's docstring."""
    raised = ", ".join(dict.fromkeys(annotation(module, module.program, each.type) for each in method.exceptions))
    return described(method.comment, method.annotations, f"Raises {raised}." if raised else "")
