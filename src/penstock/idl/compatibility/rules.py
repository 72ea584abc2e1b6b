"""Rules of changes: what each breaks, and for which side. `RULES` is the list; the package has the table of impacts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from typing import NamedTuple

from penstock.idl.model import NOWHERE, Position


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
        "field-removed-unreserved",
        BACKWARD,
        "stored messages keep its bytes, which a later field of its number would take for its own",
        "reserve its number and its name: `reserved 3; reserved 'note';`",
    ),
    Rule(
        "required-field-added",
        BACKWARD,
        "new readers refuse messages that lack it: all that old writers wrote",
        "leave the word required out",
    ),
    Rule(
        "field-added",
        NOTHING,
        "old readers skip it, and what old writers wrote lacks it",
        "let programs take it for missing, until no such message is left",
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
    # What only Protobuf has
    Rule(
        "oneof-joined",
        BACKWARD,
        "old writers may have set it beside others of the oneof, of which readers keep the last",
        "leave it where it is, and add a field with a new number to the oneof",
    ),
    Rule(
        "oneof-left",
        FORWARD,
        "new writers may set it beside others of the oneof, of which old readers keep the last",
        _READERS_FIRST,
    ),
    Rule("oneof-changed", SOURCE, "programs ask another oneof for it; the wire has none", _GENERATED),
    Rule(
        "reserved-number-used",
        WIRE,
        "messages and readers of an early version have something else under it",
        "take a number that no version had, and keep the reservation",
    ),
    Rule(
        "reserved-name-used",
        NOTHING,
        "an early version had something else of this name, in programs and in JSON",
        "take another name, and keep the reservation",
    ),
    Rule(
        "reservation-removed",
        NOTHING,
        "a later version may use it for something else, and nothing warns",
        "keep the reservation",
    ),
    Rule(
        "json-name-changed",
        NOTHING,
        "JSON that Protobuf's libraries write has another name; the wire has numbers only",
        "set json_name to the old one, if the messages are JSON, too",
    ),
    Rule(
        "enum-default-changed",
        NOTHING,
        "old and new readers see different values where a message lacks a field of this enum",
        "keep the value that comes first",
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
    Rule(
        "declaration-added",
        NOTHING,
        "nothing of the old version uses it",
        "update servers before clients, and subscribers before publishers",
    ),
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
        "operation-added",
        NOTHING,
        "old subscribers do not hear of it",
        "update subscribers before publishers",
    ),
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
        "method-streaming-changed",
        WIRE,
        "one side sends one message where the other one sends or awaits several",
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


def breaking(changes: Iterable[Change], mode: Mode = Mode.FULL, *, source: bool = False) -> list[Change]:
    """Return the changes that the mode refuses; with `source` also those that only break programs' source code."""
    refused = mode.refuses | (SOURCE if source else NOTHING)
    return [each for each in changes if each.impact & refused]


class Changes:
    """The changes that one comparison has found so far, each once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str, Position], Change] = {}

    def add(self, rule: str, subject: str, text: str, old: Position, new: Position) -> None:
        """Note a change by the id of its rule."""
        self._found.setdefault((rule, subject, text, old), Change(RULES[rule], subject, text, old, new))

    def in_order(self) -> list[Change]:
        """Return the changes in the order of the old file."""
        return sorted(self._found.values(), key=_order)


def _order(change: Change) -> tuple[str, int, int, str, str]:
    at = change.new if change.old == NOWHERE else change.old
    return at.file, at.line, at.column, change.rule.id, change.subject
