"""A registration: which versions it leads to, or why it is refused. Pure, and run off the event loop.

Rules: all entries are registered or none. The same schema again, written the same way, is no new version: the newest
one that is the same answers, or an older one unless the registration is forced (a forced one puts it on top again). A
new version has to be compatible with all before it, and its values have to be written as theirs were, since the newest
version decodes old messages. A forced one need not be, nor does its pattern have to match the stream's subject: rows of
copies and of JetStream consumers keep their own. It still has to be without mistakes, and its pattern may not overlap
another. A contract is parsed once, and counts once, however many operations and versions are compared. At most
SCHEMA_COMPARED_BYTES_MAX of texts are compared; a forced registration does without comparing the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.subjects import overlap, subject_mistake
from penstock.idl.fingerprint import fingerprint
from penstock.idl.model import Program, Type
from penstock.schemas import contracts
from penstock.schemas.avro import avro_layout
from penstock.schemas.kinds import CONTRACTS, Schema, SchemaKind, compatible
from penstock.schemas.plans import SchemaError
from penstock.schemas.registry import Typed, overlapping
from penstock.schemas.rows import StoredText, StoredVersion


class Wanted(NamedTuple):
    """An entry of a registration."""

    typed: Typed
    type_name: str


class Numbered(NamedTuple):
    """The version that an entry leads to. `is_new`: it has to be stored.

    `needs_header`: messages of all versions of the pattern have to name theirs.
    """

    number: int
    hash: str
    is_new: bool
    is_forced: bool = False  # it is not compatible, and was forced
    needs_header: bool = False


class Registration(NamedTuple):
    """A request and the known versions of its stream: everything that `judge` uses. Its texts are by hash."""

    stream: str
    stream_subjects: tuple[str, ...]
    text: StoredText
    entries: tuple[Wanted, ...]
    before: Mapping[str, Mapping[int, StoredVersion]]
    texts: Mapping[str, StoredText]
    is_forced: bool = False


def judge(asked: Registration) -> tuple[Numbered, ...]:
    """Return the version of each entry. RemoteError invalid_schema, incompatible_schema, too_large."""
    _check_subjects(asked)
    judging = _Judging(asked)
    try:
        found = [judging.version(entry) for entry in asked.entries]
    except SchemaError as error:
        raise RemoteError(ErrorCode.INVALID_SCHEMA, f"nothing was registered: {error}") from error
    if judging.reasons and not asked.is_forced:
        raise _incompatible(judging.reasons)
    kept = sum(map(len, asked.before.values())) + sum(one.is_new for one in found)
    if kept > limits.SCHEMA_VERSIONS_PER_STREAM_MAX:
        raise _too_many(f"stream {asked.stream!r}", kept, limits.SCHEMA_VERSIONS_PER_STREAM_MAX)
    return tuple(found)


def _too_many(what: str, count: int, limit: int) -> RemoteError:
    text = f"nothing was registered: {what} would have {count} versions of schemas, {limit} at most"
    return RemoteError(ErrorCode.TOO_LARGE, f"{text}; forget the schemas of subjects that are not used")


def _incompatible(reasons: Sequence[str]) -> RemoteError:
    shown = [reason[: limits.SCHEMA_REASON_CHARS_MAX] for reason in reasons[: limits.SCHEMA_REASONS_MAX]]
    more = len(reasons) - len(shown)
    listed = "; ".join(shown) + (f"; and {more} more" if more else "")
    text = (
        f"nothing was registered, as messages and programs of earlier versions would not go on: {listed}. Change the "
        "schema so that it is compatible, register it for other subjects, or force it"
    )
    return RemoteError(ErrorCode.INCOMPATIBLE_SCHEMA, text, reasons=shown, more=more)


def _check_subjects(asked: Registration) -> None:
    """Raise RemoteError invalid_schema unless patterns are of the stream, or forced, and none overlaps another."""
    patterns = [entry.typed.subject for entry in asked.entries]
    for number, pattern in enumerate(patterns):
        others = [*asked.before, *patterns[:number]]
        if (mistake := subject_mistake(pattern, wildcards=True)) is not None:
            text = mistake
        elif not asked.is_forced and not any(overlap(pattern, one) for one in asked.stream_subjects):
            stored = ", ".join(map(repr, asked.stream_subjects))
            text = f"stream {asked.stream!r} stores {stored}, which {pattern!r} does not match"
            text += "; force it if rows have other subjects, as those of copies and of JetStream consumers do"
        elif pattern in patterns[:number]:
            text = f"the subjects {pattern!r} are named twice"
        elif (other := overlapping(pattern, others)) is not None:
            text = f"{pattern!r} and {other!r} match the same subjects, and a message has one schema"
        else:
            continue
        raise RemoteError(ErrorCode.INVALID_SCHEMA, f"nothing was registered: {text}", subject=pattern)


class _Judging:
    """One registration: parsed contracts, and reasons against it."""

    def __init__(self, asked: Registration) -> None:
        self._asked = asked
        self._text_hash = asked.text.hash()
        self._programs: dict[tuple[str, tuple[tuple[str, str], ...]], Program] = {}  # of texts with their includes
        self._compared: set[str] = set()  # hashes of texts of contracts
        self._compared_bytes = 0
        self._layouts: dict[str, object] = {}  # of Avro, by the hash of the text
        self._planned_bytes = 0
        self.reasons: list[str] = []

    def version(self, entry: Wanted) -> Numbered:
        """Return the version of an entry; note why it is not compatible. SchemaError, RemoteError too_large."""
        asked = self._asked
        new = schema_of(asked.text, entry.type_name)
        new.decoder(entry.typed.framing, entry.typed.protocol)  # SchemaError: mistakes, or a framing it does not have
        schema_hash = self._hash(new)
        before = asked.before.get(entry.typed.subject, {})
        form = _form(entry.typed)
        same = [number for number, one in before.items() if one.hash == schema_hash and _form(one) == form]
        if same and (max(same) == max(before) or not asked.is_forced):
            return Numbered(max(same), schema_hash, is_new=False, needs_header=self._needs_header(before, new))
        if len(before) >= limits.SCHEMA_VERSIONS_PER_SUBJECT_MAX:
            what = f"the pattern {entry.typed.subject!r}"
            raise _too_many(what, len(before) + 1, limits.SCHEMA_VERSIONS_PER_SUBJECT_MAX)
        reasons = [
            f"{entry.typed.subject}: version {number}: {reason}"
            for number, one in sorted(before.items())
            for reason in self._differences(one, new, entry.typed)
        ]
        self.reasons += reasons
        number = max(before, default=0) + 1
        return Numbered(number, schema_hash, True, bool(reasons), self._needs_header(before, new))

    def _needs_header(self, before: Mapping[int, StoredVersion], new: Schema) -> bool:
        """True if the versions are of Avro and differ in their bytes, of which none says which version it is of."""
        if new.kind is not SchemaKind.AVRO:
            return False
        own = self._layout(self._text_hash, self._asked.text)
        for text_hash in dict.fromkeys(one.text_hash for one in before.values()):
            text = self._asked.texts.get(text_hash)
            if text is None or self._layout(text_hash, text) != own:
                return True
            if self._planned_bytes > limits.SCHEMA_COMPARED_BYTES_MAX:
                return True  # not known; a header does no harm
        return False

    def _layout(self, text_hash: str, text: StoredText) -> object:
        """Return `avro_layout` of a text, which is planned once."""
        if text_hash not in self._layouts:
            self._planned_bytes += text.size
            self._layouts[text_hash] = _layout(text.text)
        return self._layouts[text_hash]

    def _hash(self, schema: Schema) -> str:
        """Return `Schema.hash`, for a contract without parsing it again."""
        if schema.kind not in CONTRACTS:
            return schema.hash()
        return fingerprint(*self._contract(schema))

    def _differences(self, before: StoredVersion, new: Schema, typed: Typed) -> list[str]:
        """Return why a schema does not go with a version before it."""
        found = [
            f"its {what} was {was or 'any'!r}, and is {now or 'any'!r}"
            for what, was, now in zip(("message", "framing", "protocol"), _form(before), _form(typed), strict=True)
            if was != now
        ]
        text = self._asked.texts.get(before.text_hash)
        if text is None:
            return [*found, "its text is not there any more"]
        if new.kind not in CONTRACTS or before.text_hash not in self._compared:
            self._compared_bytes += text.size
        if self._compared_bytes > limits.SCHEMA_COMPARED_BYTES_MAX:
            what = f"the versions before it have more than {limits.SCHEMA_COMPARED_BYTES_MAX:,} bytes to compare with"
            if self._asked.is_forced:
                return [*found, what]
            raise RemoteError(
                ErrorCode.TOO_LARGE, f"nothing was registered: {what}; force it, or forget subjects with many versions"
            )
        self._compared.add(before.text_hash)
        try:
            return found + compatible(schema_of(text, before.type_name), new, contract=self._contract)
        except SchemaError as error:  # one that this version of Penstock does not read any more
            return [*found, f"it cannot be read: {error}"]

    def _contract(self, schema: Schema) -> tuple[Program, Type]:
        """Return the program of a contract and its type: `Schema.contract`, parsed once for each text."""
        if schema.kind is SchemaKind.PROTOBUF:
            return schema.contract()
        program = self._programs.get((schema.text, schema.closure))
        if program is None:
            program = contracts.frugal_program(schema.text, schema.closure)
            self._programs[schema.text, schema.closure] = program
        return program, contracts.frugal_type(program, schema.type_name)


def schema_of(text: StoredText, type_name: str) -> Schema:
    """Return a text and the name of a type as a schema. SchemaError: a kind that this version does not know."""
    if text.kind not in list(SchemaKind):
        raise SchemaError(f"this version of Penstock knows no schemas of the kind {text.kind!r}")
    return Schema(SchemaKind(text.kind), text.text, text.closure, type_name)


def _layout(text: str) -> object:
    try:
        return avro_layout(text)
    except SchemaError:  # of another kind, or one that this version of Penstock does not read any more
        return None


def needed_texts(before: Mapping[str, Mapping[int, StoredVersion]], subjects: Iterable[str]) -> set[str]:
    """Return the hashes of the texts that a registration for these subjects is compared with."""
    return {one.text_hash for subject in subjects for one in before.get(subject, {}).values()}


def _form(one: StoredVersion | Typed) -> tuple[str, str, str]:
    """Return how values are written."""
    return one.message, str(one.framing), str(one.protocol)
