"""Schemas of a stream as the registry keeps them: which subjects have which type, in which versions.

    stream orders   orders.*.placed  ->  versions 1, 2, 3 of the type Order
                    orders.*.gone    ->  version 1 of the type Gone

Rules: a pattern of subjects has versions from 1 up; each must be compatible with all before it, in both directions,
since the stream keeps old messages and old readers go on; only a forced one need not be. Patterns of one stream do not
overlap, so a message has one type or none. The newest version of its pattern decodes a message; one whose header
`Penstock-Schema` names another version is decoded by that, and its columns are then those of the newest. A schema and
its hash do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.base.ids import StreamId, TimestampUs
from penstock.base.subjects import overlap
from penstock.base.typed_headers import DEAD_PREFIX, DEAD_TOO_LONG, DEAD_UNFIT
from penstock.idl.model import Program, Scope
from penstock.schemas.decoding import ValueFraming
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.plans import SchemaError
from penstock.schemas.rows import StoredText
from penstock.schemas.thrift import ThriftProtocol


@dataclass(frozen=True, slots=True)
class Typed:
    """A pattern of subjects, and how the values there are written.

    `message`: the name in Thrift's message begin (the operation of a scope), "": any. `framing`: of messages without a
    `Content-Type` of the native framing. `protocol`: of Thrift.
    """

    subject: str
    message: str = ""
    framing: ValueFraming = ValueFraming.BARE
    protocol: ThriftProtocol = ThriftProtocol.BINARY


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of the type of a pattern of subjects.

    `by`: the user who registered it, "" without users. `is_new`: the call that returned it registered it, or would have
    if it had been more than a check. `needs_header`, also of that call: messages of all versions of the pattern need
    the header `Penstock-Schema`, since their bytes differ and do not say of which version they are, as those of Avro.
    """

    typed: Typed
    number: int
    schema: Schema
    hash: str
    registered_us: TimestampUs
    by: str = ""
    is_forced: bool = False
    is_new: bool = field(default=False, compare=False)
    needs_header: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class StreamSchemas:
    """All versions of a stream, by pattern and then by number; `stream_id` tells of a stream that was made anew."""

    stream: str
    stream_id: StreamId
    versions: tuple[SchemaVersion, ...]

    def newest(self, pins: Mapping[str, int] | None = None) -> Mapping[str, SchemaVersion]:
        """Return the newest version by pattern of subjects; of a pattern in `pins` the one of that number, if any."""
        found = {each.typed.subject: each for each in self.versions}
        for each in self.versions:
            if (pins or {}).get(each.typed.subject) == each.number:
                found[each.typed.subject] = each
        return found

    def of_subjects(self, subjects: Sequence[str] | None) -> StreamSchemas:
        """Return the schemas that messages of these subjects or patterns may have; None: of all."""
        if subjects is None:
            return self
        subjects = [*subjects, *_published_patterns(subjects)]
        kept = tuple(each for each in self.versions if any(overlap(each.typed.subject, one) for one in subjects))
        return StreamSchemas(self.stream, self.stream_id, kept)

    def with_versions(self, other: StreamSchemas) -> StreamSchemas:
        """Return this stream with the versions of another one."""
        return StreamSchemas(self.stream, self.stream_id, other.versions)


def _published_patterns(subjects: Sequence[str]) -> list[str]:
    """Return the patterns that the original subjects of dead letters match whose own match these patterns."""
    elsewhere = [f"{DEAD_PREFIX}*.{each}" for each in (DEAD_TOO_LONG, DEAD_UNFIT)]  # of letters on any subject
    dead = [subject for subject in subjects if subject.startswith(DEAD_PREFIX)]
    if any(overlap(subject, each) for subject in dead for each in elsewhere):
        return [">"]
    return [".".join(rest) for subject in dead if (rest := subject.split(".")[3:])]


class StoredInfo(Protocol):
    """A version as it is stored or sent, without its text."""

    @property
    def subject(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def type_name(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def framing(self) -> str: ...
    @property
    def protocol(self) -> str: ...
    @property
    def hash(self) -> str: ...
    @property
    def registered_us(self) -> TimestampUs: ...
    @property
    def by(self) -> str: ...
    @property
    def is_forced(self) -> bool: ...


def version_of(
    info: StoredInfo, text: StoredText, *, is_new: bool = False, needs_header: bool = False
) -> SchemaVersion | None:
    """Return a version with its text; None: this version of Penstock does not know its kind or form."""
    try:
        typed = Typed(info.subject, info.message, ValueFraming(info.framing), ThriftProtocol(info.protocol))
        kind = SchemaKind(info.kind)
    except ValueError:
        return None
    schema = Schema(kind, text.text, text.closure, info.type_name)
    return SchemaVersion(
        typed, info.number, schema, info.hash, info.registered_us, info.by, info.is_forced, is_new, needs_header
    )


def overlapping(subject: str, others: Iterable[str]) -> str | None:
    """Return the first other pattern that some subject matches together with this one; None: there is none."""
    return next((other for other in others if other != subject and overlap(subject, other)), None)


def operations(program: Program) -> list[tuple[Typed, str]]:
    """Return the operations of a contract's scopes, as they are registered, each with the name of its type.

    A variable of a prefix is `*`. SchemaError: the contract has no scopes.
    """
    found = []
    for scope in program.document.definitions:
        if isinstance(scope, Scope):
            prefix = ["*" if token.startswith("{") else token for token in scope.prefix.split(".") if token]
            for operation in scope.operations:
                subject = ".".join(["frugal", *prefix, scope.name, operation.name])
                found.append((Typed(subject, operation.name, ValueFraming.FRUGAL), f"{scope.name}.{operation.name}"))
    if not found:
        raise SchemaError("the contract has no scopes: name a type, and the subjects of its messages")
    return found
