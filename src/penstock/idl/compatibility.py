"""Breaking changes between two versions of a contract.

Rules: pure; reads linked programs only, whose types and constants have limits. Types are compared as the wire has them,
through typedefs and includes; names of types, fields and arguments are not on the wire of Thrift, names of methods,
scopes and operations are. A change that no rule names is safe: an added optional field, a comment, another order.

Versions run side by side while services are updated, and a stream keeps messages of old versions, so a rule says which
side fails:

| impact     | fails                                                                                     |
|------------|-------------------------------------------------------------------------------------------|
| `BACKWARD` | new code, with what old code wrote: stored messages, old publishers, calls of old clients |
| `FORWARD`  | old code, with what new code writes: new publishers, answers of new servers               |
| `SOURCE`   | programs that use the generated code, until they are edited; the wire stays the same      |
| `NOTHING`  | nothing, but both versions do not behave alike: a note                                    |

`RULES` below is the list. What Frugal's audit calls an error breaks the wire here, too, with two exceptions whose bytes
stay the same: a type that only has another name, and a service that has all its methods through another base.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Flag, StrEnum, auto
from typing import NamedTuple, Protocol

from penstock.idl.model import (
    NOWHERE,
    Annotations,
    Constant,
    ConstantList,
    ConstantMap,
    ConstantName,
    ConstantValue,
    Definition,
    Enum,
    EnumValue,
    Field,
    Found,
    ListOf,
    Literal,
    MapOf,
    Method,
    Operation,
    Position,
    Program,
    Reference,
    Requiredness,
    Scalar,
    ScalarKind,
    Scope,
    Service,
    SetOf,
    Struct,
    StructKind,
    Type,
    Typedef,
)
from penstock.idl.printer import value_text

VALUE_PARTS_MAX = 10_000
"""Parts of a constant that are compared; a longer one is compared as it is written, without the values of its names."""
LOST_SHOWN_MAX = 5
"""Methods that are named of those that a service has lost with its base."""
VALUE_CHARS_MAX = 60
"""Characters of a constant in the text of a change."""


class Impact(Flag):
    """Impact of a change; see the table of the module."""

    NOTHING = 0
    BACKWARD = auto()
    FORWARD = auto()
    SOURCE = auto()

    @property
    def words(self) -> tuple[str, ...]:
        """The names of its parts: ("backward", "source"); empty for `NOTHING`."""
        return tuple(each.name.lower() for each in Impact if each in self and each.name)


BACKWARD, FORWARD, SOURCE, NOTHING = Impact.BACKWARD, Impact.FORWARD, Impact.SOURCE, Impact.NOTHING
WIRE = BACKWARD | FORWARD


class Mode(StrEnum):
    """Which direction has to work. `full`: both, since services of both versions run side by side."""

    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"

    @property
    def refuses(self) -> Impact:
        """The impacts that a change must not have."""
        return {Mode.BACKWARD: BACKWARD, Mode.FORWARD: FORWARD, Mode.FULL: WIRE}[self]


class Rule(NamedTuple):
    """`why`: what happens with such a change; `advice`: what to do instead, or how to roll it out."""

    id: str
    impact: Impact
    why: str
    advice: str


_NEW_ID = "give the new field an id that no version had, and leave the old one, optional, until nothing reads it"
_NEW_TYPE = "keep the type, and add a field with a new id, or another method or operation, of the new one"
_NEW_NAME = "keep the old one, add the new one beside it, and remove the old one when nothing uses it"
_READERS_FIRST = "update everything that reads it first, and check with the mode backward"
_GENERATED = "edit the programs that use the generated code"

_RULES = (
    # Fields of structs and exceptions, and arguments of methods
    Rule(
        "required-field-removed",
        FORWARD,
        "old readers refuse messages without it",
        "keep it: a required field cannot be removed while old readers run",
    ),
    Rule(
        "field-removed",
        FORWARD,
        "old readers count on it: it was always written",
        "make it optional first, and remove it when no reader needs it",
    ),
    Rule(
        "optional-field-removed",
        SOURCE,
        "programs cannot name it any more",
        "never use its id again; " + _GENERATED,
    ),
    Rule(
        "required-field-added",
        BACKWARD,
        "new readers refuse messages that lack it: all that old writers wrote",
        "leave the word required out",
    ),
    Rule(
        "field-added-between",
        NOTHING,
        "its id lies among older ones, which may be a reused id",
        "make sure that no earlier version had this id: check against all of them",
    ),
    Rule("argument-added", SOURCE, "callers and handlers lack it", _GENERATED),
    Rule(
        "field-id-changed",
        WIRE,
        "each version loses the value that the other one wrote",
        "keep the id; a new field gets one that no version had",
    ),
    Rule("field-id-reused", WIRE, "each version takes the bytes for another field", _NEW_ID),
    Rule("field-renamed", SOURCE, "the wire has ids only, but programs use the name", _GENERATED),
    Rule(
        "field-made-required",
        BACKWARD,
        "new readers refuse messages that lack it",
        "leave it as it was, and check in the program that it is there",
    ),
    Rule(
        "field-no-longer-required",
        FORWARD,
        "old readers refuse messages without it",
        _READERS_FIRST,
    ),
    Rule(
        "field-optionality-changed",
        SOURCE,
        "its type in generated code changes: it may be missing, or may not any more",
        _GENERATED,
    ),
    Rule(
        "field-default-changed",
        NOTHING,
        "old and new readers see different values where a message lacks the field",
        "write the value that is meant, or update readers first",
    ),
    Rule("field-encoding-changed", WIRE, "its bytes mean another number", _NEW_ID),
    Rule(
        "key-changed",
        WIRE,
        "messages of one key get into another partition, and compaction keeps what it would have replaced",
        "publish to a new stream, and let consumers finish the old one",
    ),
    # Types, wherever they are used
    Rule(
        "type-changed",
        WIRE,
        "readers of the other version skip the value, or take its bytes for something else",
        _NEW_TYPE,
    ),
    Rule("type-replaced", WIRE, "the fields or numbers of another type mean something else", _NEW_TYPE),
    Rule(
        "text-bytes-changed",
        WIRE,
        "bytes that are no UTF-8 are refused or replaced as text, and the JSON protocol writes both differently",
        _NEW_TYPE,
    ),
    Rule("integer-became-enum", BACKWARD, "old writers may have written a number that the enum lacks", _NEW_TYPE),
    Rule("enum-became-integer", FORWARD, "new writers may write a number that the enum lacks", _READERS_FIRST),
    # Declarations of types and constants
    Rule("struct-removed", BACKWARD, "new code cannot read messages of this type", "keep it while messages are stored"),
    Rule("type-removed", SOURCE, "programs cannot name it any more", _GENERATED),
    Rule("declaration-renamed", SOURCE, "programs use the old name; the wire has none", _GENERATED),
    Rule("declaration-moved", SOURCE, "programs import it from another module", _GENERATED),
    Rule(
        "struct-became-union",
        BACKWARD,
        "new readers refuse messages with several fields set, or none",
        "keep the struct, and declare a union beside it",
    ),
    Rule(
        "union-became-struct",
        FORWARD,
        "old readers refuse messages with several fields set, or none",
        _READERS_FIRST,
    ),
    Rule("exception-kind-changed", SOURCE, "its class becomes an exception, or none any more", _GENERATED),
    Rule("union-variant-added", FORWARD, "old readers see a union with nothing set, and refuse it", _READERS_FIRST),
    Rule(
        "union-variant-removed",
        BACKWARD,
        "new readers see a union with nothing set, and refuse it",
        "keep the variant while messages with it are stored or written",
    ),
    Rule(
        "enum-value-removed",
        BACKWARD,
        "new readers get a number that they do not know",
        "keep it, with the annotation deprecated",
    ),
    Rule("enum-value-renumbered", WIRE, "the number means another value", "keep the number: only it is on the wire"),
    Rule("enum-value-renamed", SOURCE, "the wire has numbers only, but programs use the name", _GENERATED),
    Rule(
        "enum-value-added",
        NOTHING,
        "old readers get a number that they do not know",
        "update readers first, unless they keep unknown numbers",
    ),
    Rule("constant-removed", SOURCE, "programs cannot name it any more", _GENERATED),
    Rule("constant-type-changed", SOURCE, "programs use it as the old type", _GENERATED),
    Rule("constant-value-changed", NOTHING, "old and new programs use different values", "update them together"),
    Rule("namespace-changed", SOURCE, "programs of this language import from another package", _GENERATED),
    # Scopes
    Rule("scope-removed", WIRE, "publishers and subscribers of both versions do not meet any more", _NEW_NAME),
    Rule(
        "scope-prefix-changed",
        WIRE,
        "publishers and subscribers of both versions use different subjects",
        "keep the prefix, or declare a new scope beside it",
    ),
    Rule(
        "scope-variables-exchanged",
        WIRE,
        "the subject has the values in another order, and nothing refuses them",
        "keep the order, or declare a new scope",
    ),
    Rule(
        "scope-variable-renamed",
        SOURCE,
        "an argument of publish and subscribe has another name, and so has the header _topic_NAME",
        _GENERATED,
    ),
    Rule("operation-removed", WIRE, "publishers and subscribers of both versions do not meet any more", _NEW_NAME),
    Rule(
        "operation-stream-changed",
        WIRE,
        "subscribers of one version miss what publishers of the other store",
        "let consumers finish the old stream first, or attach it to the same subjects",
    ),
    Rule(
        "operation-stream-added",
        NOTHING,
        "new publishers wait until the stream has stored a message",
        "create the stream first",
    ),
    # Services
    Rule("service-removed", BACKWARD, "calls of old clients are not answered", _NEW_NAME),
    Rule("service-extends-changed", SOURCE, "generated classes have another base", _GENERATED),
    Rule("method-removed", BACKWARD, "old clients get the error unknown method", _NEW_NAME),
    Rule("method-renamed", SOURCE, "the wire has the name with a lower-case first letter, as before", _GENERATED),
    Rule(
        "method-added",
        NOTHING,
        "old servers answer new clients with the error unknown method",
        "update servers before clients",
    ),
    Rule(
        "method-oneway-changed",
        WIRE,
        "a client waits for an answer that the server does not give, or leaves one unread",
        "add a method beside it",
    ),
    Rule(
        "method-returns-a-value-now",
        BACKWARD,
        "new clients get no result from old servers",
        "add a method beside it, or update servers before clients and check with the mode forward",
    ),
    Rule("method-returns-nothing-now", FORWARD, "old clients get no result from new servers", "add a method beside it"),
    Rule(
        "method-idempotence-removed",
        NOTHING,
        "old clients still retry it",
        "update clients before the server's behaviour changes",
    ),
    Rule(
        "exception-added",
        NOTHING,
        "old clients get the error missing result instead of it",
        "update clients first if they have to tell it from other errors",
    ),
    Rule(
        "exception-added-to-void",
        FORWARD,
        "old clients take it for success: nothing in the answer is known to them",
        "add a method beside it, or update clients first and check with the mode backward",
    ),
    Rule("exception-removed", SOURCE, "servers cannot raise it, and clients cannot catch it, any more", _GENERATED),
    Rule(
        "exception-removed-from-void",
        BACKWARD,
        "new clients take it for success when an old server raises it",
        "update servers first, and check with the mode forward",
    ),
)

RULES = {each.id: each for each in _RULES}
"""All rules by their ids, which are stable."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two versions. `old`, `new`: where; of what is gone, where the rest of it is, or NOWHERE.

    `subject`: what it is about, such as "Order.total"; `text`: what was and what is, without the consequence.
    """

    rule: Rule
    subject: str
    text: str
    old: Position
    new: Position

    @property
    def impact(self) -> Impact:
        return self.rule.impact


class Against(NamedTuple):
    """A change, and the version that it differs from: an index into the versions that were compared."""

    version: int
    change: Change


def compare(old: Program, new: Program) -> list[Change]:
    """Return what changed between two versions of a file and its includes, in the order of the old file."""
    return _Comparison(old, new).run()


def compare_types(old: Program, old_type: Type, new: Program, new_type: Type) -> list[Change]:
    """Return what changed in the values of a type: in it, and in all types that it is made of, and in nothing else.

    The types are written as in the programs' files: `Reference("Order")`. That one type is another is a change whose
    subject is the type.
    """
    return _Comparison(old, new, only_reached=True).run_types(old_type, new_type)


def compare_all(versions: Sequence[Program]) -> list[Against]:
    """Compare the last version with each older one (transitively); a change is listed once, with its latest version.

    `versions`: oldest first. An id that version 1 had, 2 lacks and 3 uses for something else is found only so.
    """
    found: dict[tuple[str, str, str], Against] = {}
    for version in range(len(versions) - 2, -1, -1):
        for change in compare(versions[version], versions[-1]):
            found.setdefault((change.rule.id, change.subject, change.text), Against(version, change))
    return list(found.values())


def breaking(changes: Iterable[Change], mode: Mode = Mode.FULL, *, source: bool = False) -> list[Change]:
    """Return the changes that the mode refuses; with `source` also those that only break programs' source code."""
    refused = mode.refuses | (SOURCE if source else NOTHING)
    return [each for each in changes if each.impact & refused]


class _Pair(NamedTuple):
    """The same declaration in both versions, with the programs that resolve its names."""

    old_program: Program
    old: Definition
    new_program: Program
    new: Definition


class _Place(NamedTuple):
    """A list of fields in both versions: of a struct, the arguments of a method, or its exceptions."""

    name: str
    old_program: Program
    new_program: Program
    old: Position
    new: Position
    is_union: bool = False
    is_arguments: bool = False
    noun: str = "field"


class _Owner(NamedTuple):
    """A service that declares methods, and its program."""

    program: Program
    service: Service


class _TypeChange(NamedTuple):
    rule: str
    text: str


class _Comparison:
    """One run: pairs of declarations are compared once each, those first that the files name alike."""

    def __init__(self, old: Program, new: Program, *, only_reached: bool = False) -> None:
        self._root = old, new
        self._only_reached = only_reached  # by the types that are compared: else all that both versions declare
        self._changes: dict[tuple[str, str, str, Position], Change] = {}
        self._matched: dict[str, Program] = {}  # the new program by the file of the old one
        self._matched_back: dict[str, Program] = {}
        self._new_names = _lowered(each.name for each in new.document.definitions)
        self._by_name: dict[Program, dict[tuple[type[object], str], Definition]] = {}
        self._methods: dict[int, dict[str, Method]] = {}  # by the id() of their service, which the programs keep
        self._lowered_methods: dict[int, dict[str, str]] = {}
        self._compared: set[tuple[int, int]] = set()  # id() of methods: services that lose a base share its methods
        self._pairs: deque[_Pair] = deque()
        self._paired: set[tuple[str, str, str, str, object]] = set()
        self._paired_old: set[tuple[str, str, object]] = set()
        self._gone: deque[Found] = deque()  # declarations whose name the new version lacks
        self._unclaimed: dict[_Shape, list[Found]] | None = None  # declarations that the old version lacks
        self._types: dict[tuple[str, Type, str, Type], _TypeChange | None] = {}

    def run(self) -> list[Change]:
        self._match_all(*self._root)
        self._drain()
        while self._gone:
            found = self._gone.popleft()
            key = (found.program.document.file, found.definition.name, _sort(found.definition))
            if key not in self._paired_old:
                self._missing(found)
                self._drain()
        return sorted(self._changes.values(), key=_order)

    def run_types(self, old: Type, new: Type) -> list[Change]:
        was, now = self._root
        self._match_all(was, now)
        found = self._type_change(was, old, now, new)
        if found is not None:
            at = (each.position if isinstance(each, Reference) else NOWHERE for each in (old, new))
            self._change(found.rule, _type_text(old), found.text, *at)
        self._drain()
        return sorted(self._changes.values(), key=_order)

    def _change(self, rule: str, subject: str, text: str, old: Position, new: Position) -> None:
        change = Change(RULES[rule], subject, text, old, new)
        self._changes.setdefault((rule, subject, text, old), change)

    # Which declarations are the same one

    def _match_all(self, old: Program, new: Program) -> None:
        """Take two files for versions of one, and what both include under one name."""
        todo = deque([(old, new)])
        while todo:
            was, now = todo.popleft()
            if was.document.file in self._matched or now.document.file in self._matched_back:
                continue
            self._match(was, now)
            todo.extend((each, now.includes[name]) for name, each in was.includes.items() if name in now.includes)

    def _match(self, old: Program, new: Program) -> None:
        self._matched[old.document.file] = new
        self._matched_back[new.document.file] = old
        if self._only_reached:
            return
        self._namespaces(old, new)
        for was in old.document.definitions:
            now = self._declared(new).get((_sort(was), was.name))
            if now is None:
                self._gone.append(Found(old, was))
            else:
                self._pair(old, was, new, now)

    def _pair(self, old_program: Program, old: Definition, new_program: Program, new: Definition) -> None:
        key = (old_program.document.file, old.name, new_program.document.file, new.name, _sort(old))
        if key not in self._paired:
            self._paired.add(key)
            self._paired_old.add((old_program.document.file, old.name, _sort(old)))
            self._pairs.append(_Pair(old_program, old, new_program, new))

    def _are_versions(self, old: Found, new: Found) -> bool:
        """Say whether two declarations are versions of one: equally named, moved or renamed; compare them then."""
        was, now = old.definition, new.definition
        old_file, new_file = old.program.document.file, new.program.document.file
        if was.name == now.name and old_file not in self._matched and new_file not in self._matched_back:
            self._match_all(old.program, new.program)  # the include has another name
        there = self._stands_for(self._matched.get(old_file), was.name, now)
        back = self._stands_for(self._matched_back.get(new_file), now.name, was)
        if there or back:
            self._pair(old.program, was, new.program, now)
        elif there is None and back is None:
            self._moved(old, new)
        else:
            return False
        return True

    def _stands_for(self, program: Program | None, name: str, definition: Definition) -> bool | None:
        """Say whether a name of a file is this definition, or a typedef of it; None: the file declares no such."""
        found = self._declared(program).get((_sort(definition), name)) if program is not None else None
        if found is None or program is None:
            return None
        if found is definition:
            return True
        return isinstance(found, Typedef) and program.resolve(found.type)[1] is definition

    def _declared(self, program: Program) -> dict[tuple[type[object], str], Definition]:
        """Return what a file declares, by sort and name: a scope may have the name of a type."""
        if program not in self._by_name:
            self._by_name[program] = {(_sort(each), each.name): each for each in program.document.definitions}
        return self._by_name[program]

    def _moved(self, old: Found, new: Found) -> None:
        was, now = old.definition, new.definition
        self._pair(old.program, was, new.program, now)
        if was.name != now.name:
            self._change("declaration-renamed", was.name, f"{_noun(was)} is {now.name} now", was.position, now.position)
        else:
            text = f"{_noun(was)} is in {new.program.document.file} now"
            self._change("declaration-moved", was.name, text, was.position, now.position)

    def _missing(self, gone: Found) -> None:
        """Report a declaration that no version of it was found for, unless it has moved or has another name."""
        was = gone.definition
        if self._unclaimed is None:
            self._unclaimed = self._only_new()
        for shape in _shapes(was):
            if candidates := self._unclaimed.get(shape):
                self._moved(gone, candidates.pop())
                return
        rule = next((rule for sort, rule in _REMOVED if isinstance(was, sort)), "type-removed")
        text = f"{_noun(was)} is removed{_like(was.name, self._new_names)}"
        self._change(rule, was.name, text, was.position, NOWHERE)

    def _only_new(self) -> dict[_Shape, list[Found]]:
        """Return the declarations of the new version that are of no old one, by their shapes."""
        found: dict[_Shape, list[Found]] = {}
        for program in self._root[1].closure():
            old = self._matched_back.get(program.document.file)
            for each in program.document.definitions:
                if old is None or self._stands_for(old, each.name, each) is None:
                    for shape in _shapes(each):
                        found.setdefault(shape, []).append(Found(program, each))
        return found

    def _drain(self) -> None:
        while self._pairs:
            pair = self._pairs.popleft()
            match pair.old, pair.new:
                case (Struct() as was, Struct() as now):
                    self._structs(pair, was, now)
                case (Enum() as was, Enum() as now):
                    self._enums(was, now)
                case (Constant() as was, Constant() as now):
                    self._constants(pair, was, now)
                case (Scope() as was, Scope() as now):
                    self._scopes(pair, was, now)
                case (Service() as was, Service() as now):
                    self._services(pair, was, now)
                case (was, now):
                    self._typedefs(pair, was, now)

    # Files and declarations

    def _namespaces(self, old: Program, new: Program) -> None:
        was = {each.language: each for each in old.document.namespaces}
        now = {each.language: each for each in new.document.namespaces}
        for language in {**was, **now}:
            before, after = (each.get(language, each.get("*")) for each in (was, now))
            names = tuple(each.name if each else "(none)" for each in (before, after))
            if names[0] != names[1]:
                at = (each[language].position if language in each else NOWHERE for each in (was, now))
                self._change("namespace-changed", language, f"namespace {names[0]} is {names[1]} now", *at)

    def _typedefs(self, pair: _Pair, was: Definition, now: Definition) -> None:
        """Compare two declarations of types of which one at least is a typedef."""
        old = was.type if isinstance(was, Typedef) else Reference(was.name)
        new = now.type if isinstance(now, Typedef) else Reference(now.name)
        found = self._type_change(pair.old_program, old, pair.new_program, new)
        if found is not None:
            self._change(found.rule, was.name, f"{_noun(was)}: {found.text}", was.position, now.position)

    def _constants(self, pair: _Pair, was: Constant, now: Constant) -> None:
        found = self._type_change(pair.old_program, was.type, pair.new_program, now.type)
        if found is not None:
            self._change("constant-type-changed", was.name, found.text, was.position, now.position)
        elif not _are_equal(pair.old_program, was.value, pair.new_program, now.value):
            text = f"{_value_text(was.value)} is {_value_text(now.value)} now"
            self._change("constant-value-changed", was.name, text, was.position, now.position)

    def _enums(self, was: Enum, now: Enum) -> None:
        by_name = {each.name: each for each in now.values}
        old_names = {each.name for each in was.values}
        by_number: dict[int, EnumValue] = {}
        for each in now.values:  # of names with one number rather a new name, which is a renamed one
            if each.number not in by_number or by_number[each.number].name in old_names:
                by_number[each.number] = each
        for value in was.values:
            subject = f"{was.name}.{value.name}"
            same_name, same_number = by_name.get(value.name), by_number.get(value.number)
            if same_name is not None:
                if same_name.number != value.number:
                    text = f"number {value.number} is {same_name.number} now"
                    self._change("enum-value-renumbered", subject, text, value.position, same_name.position)
            elif same_number is not None:
                text = f"{value.number} is {same_number.name} now"
                self._change("enum-value-renamed", subject, text, value.position, same_number.position)
            else:
                text = f"number {value.number} is removed"
                self._change("enum-value-removed", subject, text, value.position, now.position)
        old_numbers = {each.number for each in was.values}
        for value in now.values:
            if value.number not in old_numbers and value.name not in old_names:
                text = f"number {value.number} is added"
                self._change("enum-value-added", f"{now.name}.{value.name}", text, was.position, value.position)

    def _structs(self, pair: _Pair, was: Struct, now: Struct) -> None:
        kinds = {was.kind, now.kind}
        if len(kinds) == 2:
            rule = "exception-kind-changed"
            if StructKind.UNION in kinds:
                rule = "struct-became-union" if now.kind is StructKind.UNION else "union-became-struct"
            self._change(rule, was.name, f"{was.kind} is {_article(now.kind)} now", was.position, now.position)
        place = _Place(
            was.name,
            pair.old_program,
            pair.new_program,
            was.position,
            now.position,
            is_union=was.kind is now.kind is StructKind.UNION,
            noun="variant" if was.kind is now.kind is StructKind.UNION else "field",
        )
        self._fields(place, was.fields, now.fields)
        old_keys, new_keys = _keys(was.fields), _keys(now.fields)
        if old_keys.keys() != new_keys.keys():
            before, after = (", ".join(each.name for each in keys.values()) for keys in (old_keys, new_keys))
            text = f"key {before or '(none)'} is {after or '(none)'} now"
            old_at = next((each.position for each in old_keys.values()), was.position)
            new_at = next((each.position for each in new_keys.values()), now.position)
            self._change("key-changed", was.name, text, old_at, new_at)

    # Fields

    def _fields(self, place: _Place, old: Sequence[Field], new: Sequence[Field]) -> None:
        by_id = {each.id: each for each in new}
        by_name = {each.name: each for each in new}
        for was in old:
            same_name, now = by_name.get(was.name), by_id.get(was.id)
            if same_name is not None and same_name.id != was.id:
                text = f"{place.noun} id {was.id} is {same_name.id} now"
                self._change("field-id-changed", _of(place, was), text, was.position, same_name.position)
            elif now is None:
                text = f"{place.noun} {was.id} is removed"
                self._change(_rule_removed(place, was), _of(place, was), text, was.position, place.new)
            else:
                self._field(place, was, now)
        ids, names = {each.id for each in old}, {each.name for each in old}
        for now in new:
            if now.id not in ids and now.name not in names:
                self._field_added(place, now, ids)

    def _field_added(self, place: _Place, now: Field, old_ids: set[int]) -> None:
        text = f"{place.noun} {now.id} is added"
        rules = []
        if place.is_union:
            rules.append("union-variant-added")
        elif now.requiredness is Requiredness.REQUIRED:
            rules.append("required-field-added")
        elif place.is_arguments:
            rules.append("argument-added")
        if old_ids and min(old_ids) < now.id < max(old_ids):
            rules.append("field-added-between")
        for rule in rules:
            self._change(rule, _of(place, now), text, place.old, now.position)

    def _field(self, place: _Place, was: Field, now: Field) -> None:
        at = was.position, now.position
        subject = _of(place, was)
        noun = f"{place.noun} {was.id}"
        found = self._type_change(place.old_program, was.type, place.new_program, now.type)
        if found is not None and was.name != now.name:
            self._change("field-id-reused", subject, f"{noun} is {now.name} now, {found.text}", *at)
            return
        if found is not None:
            self._change(found.rule, subject, f"{noun}: {found.text}", *at)
        elif was.encoding != now.encoding:
            text = f"{noun}: encoding {was.encoding or '(plain)'} is {now.encoding or '(plain)'} now"
            self._change("field-encoding-changed", subject, text, *at)
        if was.name != now.name:
            case = ", by case only" if was.name.lower() == now.name.lower() else ""
            self._change("field-renamed", subject, f"{noun} is {now.name} now{case}", *at)
        if not place.is_union and was.requiredness is not now.requiredness:
            text = f"{noun}: {was.requiredness} is {now.requiredness} now"
            self._change(_rule_requiredness(was, now), subject, text, *at)
        if not _are_equal(place.old_program, was.default, place.new_program, now.default):
            text = f"{noun}: default {_value_text(was.default)} is {_value_text(now.default)} now"
            self._change("field-default-changed", subject, text, *at)

    # Types

    def _type_change(self, old_program: Program, old: Type, new_program: Program, new: Type) -> _TypeChange | None:
        """Return how a type differs on the wire; None: it does not, or where it is declared says so."""
        key = (old_program.document.file, old, new_program.document.file, new)
        if key not in self._types:
            self._types[key] = self._resolved_change(old_program, old, new_program, new)
        return self._types[key]

    def _resolved_change(self, old_program: Program, old: Type, new_program: Program, new: Type) -> _TypeChange | None:
        if isinstance(old, Reference) and isinstance(new, Reference):
            before, after = old_program.find(old.name), new_program.find(new.name)
            if before and after and _are_one_typedef(before, after) and self._are_versions(before, after):
                return None  # the typedef says what has changed
        text = f"{_type_text(old)} is {_type_text(new)} now"
        was_in, was = old_program.resolve(old)
        now_in, now = new_program.resolve(new)
        rule = None
        match was, now:
            case (Scalar(), Scalar()):
                rule = _rule_scalars(was.kind, now.kind)
            case (ListOf() | SetOf() | MapOf(), ListOf() | SetOf() | MapOf()) if type(was) is type(now):
                return self._parts_change(was_in, _parts(was), now_in, _parts(now), text)
            case (Enum() | Struct(), Enum() | Struct()) if type(was) is type(now):
                rule = None if self._are_versions(Found(was_in, was), Found(now_in, now)) else "type-replaced"
            case (Scalar(kind=ScalarKind.I32), Enum()):
                rule = "integer-became-enum"
            case (Enum(), Scalar(kind=ScalarKind.I32)):
                rule = "enum-became-integer"
            case _:
                rule = "type-changed"
        return None if rule is None else _TypeChange(rule, text)

    def _parts_change(
        self,
        old_program: Program,
        old: tuple[Type, ...],
        new_program: Program,
        new: tuple[Type, ...],
        text: str,
    ) -> _TypeChange | None:
        for was, now in zip(old, new, strict=True):
            found = self._type_change(old_program, was, new_program, now)
            if found is not None:
                return _TypeChange(found.rule, text)
        return None

    # Scopes

    def _scopes(self, pair: _Pair, was: Scope, now: Scope) -> None:
        at = was.position, now.position
        if _subject_shape(was) != _subject_shape(now):
            text = f"prefix {was.prefix or '(none)'} is {now.prefix or '(none)'} now"
            self._change("scope-prefix-changed", was.name, text, *at)
        else:
            self._variables(was, now)
        by_name = {each.name: each for each in now.operations}
        lowered = _lowered(by_name)
        for operation in was.operations:
            subject = f"{was.name}.{operation.name}"
            other = by_name.get(operation.name)
            if other is None:
                text = f"operation is removed{_like(operation.name, lowered)}"
                self._change("operation-removed", subject, text, operation.position, now.position)
                continue
            found = self._type_change(pair.old_program, operation.type, pair.new_program, other.type)
            if found is not None:
                self._change(found.rule, subject, f"message: {found.text}", operation.position, other.position)
            self._stored(subject, (was, operation), (now, other))
            self._operation_keys(subject, pair, operation, other)

    def _variables(self, was: Scope, now: Scope) -> None:
        """Compare the names of equally many variables: one that has another place takes the value of another."""
        changed = [(old, new) for old, new in zip(was.variables, now.variables, strict=False) if old != new]
        if any(old in now.variables or new in was.variables for old, new in changed):
            text = f"variables {', '.join(was.variables)} are {', '.join(now.variables)} now"
            self._change("scope-variables-exchanged", was.name, text, was.position, now.position)
            return
        for old, new in changed:
            text = f"variable {old} is {new} now"
            self._change("scope-variable-renamed", was.name, text, was.position, now.position)

    def _stored(self, subject: str, old: tuple[Scope, Operation], new: tuple[Scope, Operation]) -> None:
        """Compare the streams that store the messages of an operation."""
        at = old[1].position, new[1].position
        was, now = (_annotation("stream", *each) for each in (old, new))
        if was != now:
            rule = "operation-stream-changed" if was else "operation-stream-added"
            self._change(rule, subject, f"stream {was or '(none)'} is {now or '(none)'} now", *at)

    def _operation_keys(self, subject: str, pair: _Pair, was: Operation, now: Operation) -> None:
        """Compare the keys of two operations of which one at least names it; else their structs say what changed."""
        if _annotation("key", was) is None and _annotation("key", now) is None:
            return
        before, after = _key_of(pair.old_program, was), _key_of(pair.new_program, now)
        if before != after:
            text = f"key {before or '(none)'} is {after or '(none)'} now"
            self._change("key-changed", subject, text, was.position, now.position)

    # Services

    def _services(self, pair: _Pair, was: Service, now: Service) -> None:
        old_base = pair.old_program.find(was.extends.name) if was.extends else None
        new_base = pair.new_program.find(now.extends.name) if now.extends else None
        has_same_base = old_base is not None and new_base is not None and self._are_versions(old_base, new_base)
        if was.extends and not has_same_base:
            text = f"extends {was.extends.name} is {now.extends.name if now.extends else '(none)'} now"
            self._change("service-extends-changed", was.name, text, was.position, now.position)
        olds = _chain(pair.old_program, was)
        news = _chain(pair.new_program, now)
        lost: list[str] = []
        for owner in olds[: self._shared(olds, news, has_same_base=has_same_base)]:
            for name, method in self._own(owner.service).items():
                if (other := self._find(news, name)) is not None:
                    self._method(f"{owner.service.name}.{method.name}", owner.program, method, *other)
                elif owner.service is was:
                    likes = (_like(method.name, self._lowered(each.service)) for each in news)
                    text = "method is removed" + next(filter(None, likes), "")
                    self._change("method-removed", f"{was.name}.{method.name}", text, method.position, now.position)
                else:
                    lost.append(method.name)
        if lost:
            more = f" and {len(lost) - LOST_SHOWN_MAX} more" if len(lost) > LOST_SHOWN_MAX else ""
            text = f"inherited methods are removed: {', '.join(lost[:LOST_SHOWN_MAX])}{more}"
            self._change("method-removed", was.name, text, was.position, now.position)
        for name, method in self._own(now).items():
            if self._find(olds, name) is None:
                subject = f"{now.name}.{method.name}"
                self._change("method-added", subject, "method is added", was.position, method.position)

    def _shared(self, olds: Sequence[_Owner], news: Sequence[_Owner], *, has_same_base: bool) -> int:
        """Return how many services of the old chain are to be compared: the others are bases of the new one, too."""
        bases = {id(each.service) for each in news[1:]}
        for index, owner in enumerate(olds[1:], 1):
            new = self._matched.get(owner.program.document.file)
            there = None if new is None else self._declared(new).get((Service, owner.service.name))
            if (index == 1 and has_same_base) or id(there) in bases:
                return index
        return len(olds)

    def _own(self, service: Service) -> dict[str, Method]:
        """Return the methods that a service itself declares, by their names on the wire."""
        if id(service) not in self._methods:
            self._methods[id(service)] = {wire_name(each): each for each in service.methods}
        return self._methods[id(service)]

    def _lowered(self, service: Service) -> dict[str, str]:
        if id(service) not in self._lowered_methods:
            self._lowered_methods[id(service)] = _lowered(each.name for each in service.methods)
        return self._lowered_methods[id(service)]

    def _find(self, chain: Sequence[_Owner], name: str) -> tuple[Program, Method] | None:
        """Return the method of a name on the wire, and the program that it stands in."""
        for owner in chain:
            if (method := self._own(owner.service).get(name)) is not None:
                return owner.program, method
        return None

    def _method(self, subject: str, old_program: Program, was: Method, new_program: Program, now: Method) -> None:
        at = was.position, now.position
        if (id(was), id(now)) in self._compared:
            return
        self._compared.add((id(was), id(now)))
        if was.name != now.name:
            self._change("method-renamed", subject, f"method is {now.name} now", *at)
        if was.is_oneway is not now.is_oneway:
            before, after = ("oneway" if each.is_oneway else "answered" for each in (was, now))
            self._change("method-oneway-changed", subject, f"{before} is {after} now", *at)
        elif was.returns is None and now.returns is not None:
            self._change("method-returns-a-value-now", subject, f"void is {_type_text(now.returns)} now", *at)
        elif was.returns is not None and now.returns is None:
            self._change("method-returns-nothing-now", subject, f"{_type_text(was.returns)} is void now", *at)
        elif was.returns is not None and now.returns is not None:
            found = self._type_change(old_program, was.returns, new_program, now.returns)
            if found is not None:
                self._change(found.rule, subject, f"result: {found.text}", *at)
        if _is_set("idempotent", was) and not _is_set("idempotent", now):
            self._change("method-idempotence-removed", subject, "the annotation idempotent is removed", *at)
        place = _Place(subject, old_program, new_program, *at, is_arguments=True, noun="argument")
        self._fields(place, was.arguments, now.arguments)
        if not was.is_oneway and not now.is_oneway:
            self._exceptions(place._replace(is_arguments=False, noun="exception"), was, now)

    def _exceptions(self, place: _Place, was: Method, now: Method) -> None:
        """Compare what a method throws, whose fields are all optional and have no defaults."""
        is_void = now.returns is None
        by_id = {each.id: each for each in now.exceptions}
        by_name = {each.name: each for each in now.exceptions}
        for old in was.exceptions:
            if (moved := by_name.get(old.name)) is not None and moved.id != old.id:
                text = f"exception id {old.id} is {moved.id} now"
                self._change("field-id-changed", _of(place, old), text, old.position, moved.position)
            elif (new := by_id.get(old.id)) is not None:
                self._field(place, _optional(old), _optional(new))
            else:
                rule = "exception-removed-from-void" if is_void else "exception-removed"
                self._change(rule, _of(place, old), f"exception {old.id} is removed", old.position, place.new)
        ids, names = {each.id for each in was.exceptions}, {each.name for each in was.exceptions}
        for new in now.exceptions:
            if new.id not in ids and new.name not in names:
                rule = "exception-added-to-void" if is_void else "exception-added"
                self._change(rule, _of(place, new), f"exception {new.id} is added", place.old, new.position)


_REMOVED: tuple[tuple[type[Definition], str], ...] = (
    (Struct, "struct-removed"),
    (Constant, "constant-removed"),
    (Scope, "scope-removed"),
    (Service, "service-removed"),
)
_SORTS: tuple[type[Definition], ...] = (Constant, Scope, Service)

_Shape = tuple[object, ...]


def wire_name(method: Method) -> str:
    """Return the name of a method in messages: its first letter is a small one."""
    return method.name[:1].lower() + method.name[1:]


def _order(change: Change) -> tuple[str, int, int, str, str]:
    at = change.new if change.old == NOWHERE else change.old
    return at.file, at.line, at.column, change.rule.id, change.subject


def _sort(definition: Definition) -> type[object]:
    """Return what can be versions of one another: all types are, as a typedef may stand for what was a struct."""
    return next((sort for sort in _SORTS if isinstance(definition, sort)), object)


def _shapes(definition: Definition) -> Iterator[_Shape]:
    """Yield what another version of a declaration would have in common with it: its name, else its fields or values."""
    yield _sort(definition), definition.name
    if isinstance(definition, Struct) and definition.fields:
        yield definition.kind, tuple((each.id, each.name, each.type) for each in definition.fields)
    if isinstance(definition, Enum) and definition.values:
        yield Enum, tuple((each.number, each.name) for each in definition.values)


def _are_one_typedef(old: Found, new: Found) -> bool:
    was, now = old.definition, new.definition
    return isinstance(was, Typedef) and isinstance(now, Typedef) and was.name == now.name


def _chain(program: Program, service: Service) -> list[_Owner]:
    """Return a service, the one that it extends, and so on; a linked program has no cycle of them."""
    owners = [_Owner(program, service)]
    while service.extends is not None:
        found = program.find(service.extends.name)
        assert found is not None
        assert isinstance(found.definition, Service)
        program, service = found.program, found.definition
        owners.append(_Owner(program, service))
    return owners


def _parts(type_: ListOf | SetOf | MapOf) -> tuple[Type, ...]:
    return (type_.key, type_.value) if isinstance(type_, MapOf) else (type_.element,)


def _rule_scalars(old: ScalarKind, new: ScalarKind) -> str | None:
    if old is new:
        return None
    return "text-bytes-changed" if {old, new} == {ScalarKind.STRING, ScalarKind.BINARY} else "type-changed"


def _rule_removed(place: _Place, field: Field) -> str:
    if place.is_union:
        return "union-variant-removed"
    return {
        Requiredness.REQUIRED: "required-field-removed",
        Requiredness.DEFAULT: "field-removed",
        Requiredness.OPTIONAL: "optional-field-removed",
    }[field.requiredness]


def _rule_requiredness(old: Field, new: Field) -> str:
    if new.requiredness is Requiredness.REQUIRED:
        return "field-made-required"
    return "field-no-longer-required" if old.requiredness is Requiredness.REQUIRED else "field-optionality-changed"


def _optional(field: Field) -> Field:
    return replace(field, requiredness=Requiredness.OPTIONAL)


def _keys(fields: Iterable[Field]) -> dict[int, Field]:
    return {each.id: each for each in fields if _is_set("key", each)}


def _key_of(program: Program, operation: Operation) -> str:
    """Return the key that an operation names, else the fields that its struct marks."""
    if (named := _annotation("key", operation)) is not None:
        return named
    struct = program.resolve(operation.type)[1]
    return ", ".join(each.name for each in _keys(struct.fields).values()) if isinstance(struct, Struct) else ""


class _Annotated(Protocol):
    @property
    def annotations(self) -> Annotations: ...


def _annotation(name: str, *holders: _Annotated) -> str | None:
    """Return the value of an annotation; of several holders that of the last which has it, None: none has."""
    values = [each.value for holder in holders for each in holder.annotations if each.name == name]
    return values[-1] if values else None


def _is_set(name: str, holder: _Annotated) -> bool:
    """True if an annotation is there, and does not say "false"."""
    value = _annotation(name, holder)
    return value is not None and value.lower() != "false"


def _subject_shape(scope: Scope) -> tuple[str, ...]:
    return tuple("{}" if token.startswith("{") else token for token in scope.prefix.split("."))


def _of(place: _Place, field: Field) -> str:
    return f"{place.name}.{field.name}"


def _lowered(names: Iterable[str]) -> dict[str, str]:
    return {each.lower(): each for each in names}


def _like(name: str, others: Mapping[str, str]) -> str:
    """Return a hint at a name that differs by the case of letters only; `others`: names by their small letters."""
    like = others.get(name.lower())
    return f"; {like} differs by case" if like else ""


def _noun(definition: Definition) -> str:
    return str(definition.kind) if isinstance(definition, Struct) else type(definition).__name__.lower()


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeio" else f"a {word}"


def _type_text(type_: Type) -> str:
    match type_:
        case Scalar():
            return str(type_.kind)
        case Reference():
            return type_.name
        case ListOf():
            return f"list<{_type_text(type_.element)}>"
        case SetOf():
            return f"set<{_type_text(type_.element)}>"
        case MapOf():
            return f"map<{_type_text(type_.key)}, {_type_text(type_.value)}>"


# Constants

_Mark = tuple[str]
_LIST, _MAP, _END = ("list",), ("map",), ("end",)  # no value of a literal is a tuple


def _are_equal(
    old_program: Program, old: ConstantValue | None, new_program: Program, new: ConstantValue | None
) -> bool:
    """Say whether two constants are equal; one that both name is compared where it is declared."""
    if old == new or old is None or new is None:
        return old == new
    was, now = _unfolded(old_program, old), _unfolded(new_program, new)
    return was is not None and was == now


def _unfolded(program: Program, value: ConstantValue) -> list[object] | None:
    """Return a constant as a flat list, its names replaced by their values; None: more than `VALUE_PARTS_MAX` parts."""
    parts: list[object] = []
    todo: list[tuple[Program, ConstantValue | _Mark]] = [(program, value)]
    while todo:
        if len(parts) + len(todo) > VALUE_PARTS_MAX:
            return None
        program, part = todo.pop()
        match part:
            case tuple():
                parts.append(part)
            case Literal():
                parts.append(part.value)
            case ConstantName():
                named = _named(program, part.name)
                if isinstance(named, Found) and isinstance(named.definition, Constant):
                    todo.append((named.program, named.definition.value))
                else:
                    parts.append(named)
            case ConstantList():
                inside: list[ConstantValue | _Mark] = [_LIST, *part.items, _END]
                todo.extend((program, each) for each in reversed(inside))
            case ConstantMap():
                entries = sorted(part.entries, key=lambda each: _value_text(each[0]))
                inside = [_MAP, *(each for entry in entries for each in entry), _END]
                todo.extend((program, each) for each in reversed(inside))
    return parts


def _named(program: Program, name: str) -> Found | int | str:
    """Return the constant of a name, the number of a value of an enum, or the name itself: the key of a field."""
    found = program.find(name)
    if found is not None and isinstance(found.definition, Constant):
        return found
    value = program.find_value(name)
    return name if value is None else value.value.number


def _value_text(value: ConstantValue | None) -> str:
    text = "(none)" if value is None else value_text(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"
