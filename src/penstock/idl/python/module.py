"""One generated module: what its names are, what it imports, and the lines that are written so far.

Rules: the names of the contract come first; imports and private names give way to them, and to each field, method and
parameter of the file. So a name that the generated code uses means the same everywhere, in the body of a class and of a
method, too. A type that has the name of a field gets a second, private name for that purpose.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.idl.mistakes import Mistakes
from penstock.idl.model import (
    NOWHERE,
    Definition,
    Enum,
    Found,
    Position,
    Program,
    Reference,
    Scope,
    Service,
    Struct,
)
from penstock.idl.parser import NESTING_MAX
from penstock.idl.python import names
from penstock.idl.python.names import Taken
from penstock.idl.python.text import LINE_CHARS_MAX

TEXT_CHARS_MAX = 16 << 20
"""Most characters of the Python text of one program: short typedefs and constants can name large ones many times."""


Made = TypeVar("Made")


class TooMuchTextError(Exception):
    """The code of a program would be larger than TEXT_CHARS_MAX; `generate` makes a mistake of it."""


@dataclass(slots=True)
class Run:
    """Common state of the modules of one run: mistakes, where modules are, and how much text they may have."""

    mistakes: Mistakes
    packages: dict[str, str]  # by file: "shop.orders"
    chars_left: int = TEXT_CHARS_MAX
    namings: dict[str, Naming] = field(default_factory=dict)

    def spend(self, text: str) -> str:
        """Return a name or text that is about to be written. TooMuchTextError: there would be too much of it."""
        self.chars_left -= len(text)
        if self.chars_left < 0:
            raise TooMuchTextError
        return text

    def naming(self, program: Program) -> Naming:
        """Return the names of a file's module."""
        file = program.document.file
        if file not in self.namings:
            self.namings[file] = Naming(program)
        return self.namings[file]


class Naming:
    """The public names of a file's module. Other modules use them, too."""

    def __init__(self, program: Program) -> None:
        self.taken = Taken((*names.BUILTINS, "annotations"))  # which is imported from `__future__`
        self._of: dict[tuple[bool, str], str] = {}  # a scope may have the name of a service
        self._members: dict[str, dict[str, str]] = {}
        self._attributes: dict[str, dict[str, str]] = {}
        definitions = program.document.definitions
        for each in definitions:
            self._of[isinstance(each, Scope), each.name] = self.taken.take(each.name)
        self.derived: dict[tuple[bool, str], dict[str, str]] = {}
        for each in definitions:
            if isinstance(each, Service | Scope):
                suffixes = _OF_SCOPE if isinstance(each, Scope) else _OF_SERVICE
                made = {suffix: self.taken.take(each.name + suffix) for suffix in suffixes}
                self.derived[isinstance(each, Scope), each.name] = made

    def of(self, definition: Definition) -> str:
        """Return the name of what a definition becomes."""
        return self._of[isinstance(definition, Scope), definition.name]

    def of_class(self, definition: Service | Scope, suffix: str) -> str:
        """Return the name of a class of a service or scope: "OrdersClient" for "Client"."""
        return self.derived[isinstance(definition, Scope), definition.name][suffix]

    def members(self, enum: Enum) -> dict[str, str]:
        """Return the members of an enum by the names of its values."""
        if enum.name not in self._members:
            self._members[enum.name] = names.members(enum)
        return self._members[enum.name]

    def attributes(self, struct: Struct) -> dict[str, str]:
        """Return the attributes of a struct by the names of its fields."""
        if struct.name not in self._attributes:
            self._attributes[struct.name] = names.attributes(struct)
        return self._attributes[struct.name]

    def public(self) -> list[str]:
        """Return all public names."""
        return sorted({*self._of.values(), *(name for each in self.derived.values() for name in each.values())})


_OF_SERVICE = ("Handler", "Client", "BlockingClient")
_OF_SCOPE = ("Publisher", "Subscriber")


class Module:
    """The module of one file, as it is written."""

    def __init__(self, run: Run, program: Program) -> None:
        self.run = run
        self.program = program
        self.naming = run.naming(program)
        self.place: Position = NOWHERE  # of what is being written
        self.lines: list[str] = []
        self._inside = _names_inside(program, self.naming)
        self._taken = Taken((*self.naming.public(), *self._inside))
        self._imports: dict[tuple[str, str], str] = {}  # (module, name, or "" for the module itself) → local name
        self._aliases: dict[str, str] = {}
        self._made: dict[Hashable, Any] = {}

    # Names

    def use(self, module: str, name: str) -> str:
        """Return the local name of something of another module, and import it."""
        return self._import(module, name, name)

    def builtin(self, name: str) -> str:
        """Return what a builtin is called here: itself, unless a field or method hides it."""
        return self.use("builtins", name) if name in self._inside else name

    def own(self, name: str) -> str:
        """Return what a public name of this module is called in classes and methods."""
        if name not in self._inside:
            return name
        if name not in self._aliases:
            self._aliases[name] = self._taken.take_private(name)
        return self._aliases[name]

    def alias_lines(self, name: str) -> list[str]:
        """Return the line that gives a public name its second name, where it needs one. The second one is public."""
        return [] if self.own(name) == name else ["", f"{self.own(name)} = {name}", ""]

    def definition(self, found: Found) -> str:
        """Return the expression for what a definition of this or another file becomes."""
        return self.run.spend(self._from(found.program, self.run.naming(found.program).of(found.definition)))

    def class_of(self, found: Found, suffix: str) -> str:
        """Return the expression for a class of a service of this or another file."""
        assert isinstance(found.definition, Service)
        return self._from(found.program, self.run.naming(found.program).of_class(found.definition, suffix))

    def private(self, name: str) -> str:
        """Return a private name, and take it."""
        return self._taken.take_private(f"_{name.strip('_')}")

    def _from(self, program: Program, name: str) -> str:
        if program.document.file == self.program.document.file:
            return self.own(name)
        file = program.document.file
        included = next((key for key, one in self.program.includes.items() if one.document.file == file), "")
        package = self.run.packages[file]
        preferred = included if names.NAME.fullmatch(included) else package.rpartition(".")[2]
        return f"{self._import(package, '', preferred)}.{name}"

    def _import(self, module: str, name: str, preferred: str) -> str:
        key = module, name
        if key not in self._imports:
            is_usable = preferred not in names.BUILTINS and preferred not in names.KEYWORDS and preferred[:2] != "__"
            if not is_usable:
                preferred = f"_{preferred.strip('_')}"
            self._imports[key] = self._taken.take_private(preferred)
        return self._imports[key]

    def import_lines(self) -> list[str]:
        """Return the imports: of Python, of penstock, of other generated modules."""
        blocks: list[list[str]] = [[], [], []]
        froms: dict[str, list[tuple[str, str]]] = {}
        own = set(self.run.packages.values())
        for (module, name), local in sorted(self._imports.items()):
            if name:
                froms.setdefault(module, []).append((name, local))
            else:
                blocks[_block(module, own)].append(f"import {module}" + (f" as {local}" if local != module else ""))
        for module, imported in sorted(froms.items()):
            block = blocks[_block(module, own)]
            plain = sorted((name for name, local in imported if name == local), key=_isort)
            if plain:
                block += _import_from(module, plain)
            block += [f"from {module} import {name} as {local}" for name, local in imported if name != local]
        lines = ["from __future__ import annotations", ""]
        for block in blocks:
            lines += [*block, ""] if block else []
        return lines

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what `make` makes, which is called once for a key: a name of a type can stand for a large one."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    # Lines

    def write(self, lines: Iterable[str]) -> None:
        """Add lines."""
        self.lines += map(self.run.spend, lines)

    def mistake(self, text: str, place: Position | None = None) -> None:
        """Note a mistake at what is being written."""
        self.run.mistakes.add(self.place if place is None else place, text)


def stem(file: str) -> str:
    """Return the name of a file without folder and ending."""
    name = posixpath.basename(file)
    return name.rpartition(".")[0] or name


def _isort(name: str) -> tuple[int, str, str]:
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2), name.lower(), name


def _import_from(module: str, plain: list[str]) -> list[str]:
    """Return an import of names, as formatters leave it: each on its own line if they are too many for one."""
    line = f"from {module} import {', '.join(plain)}"
    if len(line) <= LINE_CHARS_MAX:
        return [line]
    return [f"from {module} import (", *(f"    {each}," for each in plain), ")"]


def _block(module: str, own: set[str]) -> int:
    return 2 if module in own else 1 if module.partition(".")[0] == "penstock" else 0


def _names_inside(program: Program, naming: Naming) -> set[str]:
    """Return each name that a class or method of the module may have inside, so that it hides one of the module."""
    inside = {*names.OF_SCOPE, *names.OF_CLIENT, "_scope", "_service", "answer", "success"}
    inside |= {*names.OF_STRUCT, *names.OF_UNION, *names.OF_EXCEPTION}
    inside |= {f"_{number}" for number in range(2 * NESTING_MAX + 2)}  # variables of comprehensions
    for struct in program.document.types:
        if isinstance(struct, Struct):
            inside |= set(naming.attributes(struct).values())
        elif isinstance(struct, Enum):
            inside |= set(naming.members(struct).values())
    for service in program.document.services:
        inside |= {*names.client_methods(program, service).values(), *names.handler_methods(service).values()}
        for method in service.methods:
            inside |= set(names.attributes_of((*method.arguments, *method.exceptions)).values())
            inside |= set(names.parameters([each.name for each in method.arguments], names.OF_METHOD))
    for scope in program.document.scopes:
        inside |= set(names.parameters(scope.variables, names.OF_SCOPE))
        for verb in ("publish", "subscribe"):
            inside |= set(names.operation_names(scope, verb).values())
    return inside


def check_names(program: Program, mistakes: Mistakes) -> None:
    """Note each name of a file that is none of Python's alphabet; the parser reads no such, other front ends may."""
    for name, place in _names(program):
        if not names.NAME.fullmatch(name):
            mistakes.add(place, f"{name!r} cannot be a name in Python: give letters, digits and _, a digit not first")


def _names(program: Program) -> Iterator[tuple[str, Position]]:
    for each in program.document.definitions:
        yield each.name, each.position
        if isinstance(each, Enum):
            yield from ((one.name, one.position) for one in each.values)
        elif isinstance(each, Struct):
            yield from ((one.name, one.position) for one in each.fields)
        elif isinstance(each, Scope):
            yield from ((one, each.position) for one in each.variables)
            yield from ((one.name, one.position) for one in each.operations)
        elif isinstance(each, Service):
            for method in each.methods:
                yield method.name, method.position
                yield from ((one.name, one.position) for one in (*method.arguments, *method.exceptions))


def found(program: Program, reference: Reference) -> Found:
    """Return what a name of a linked program means."""
    meant = program.find(reference.name)
    assert meant is not None, f"{reference.name} is not linked"
    return meant
