"""Checks of what a contract says of streams: the stream of an operation, the key of its messages, and how it is split.

Annotations: `(stream = "orders")` and `(partition_by = "key")` stand on the operation, or on the scope for all of its
operations. `(key)` marks a field; `(key = "customer.id")` on the operation names it.

Rules of keys: the field is a scalar or enum that is reached through fields whose types are structs, not unions or
containers. The nearest marked one counts: the type's own fields come before those of structs within. If the type of a
marked field is a struct, the key is the marked field in that.

| what is said                             | is a mistake                                                           |
|------------------------------------------|------------------------------------------------------------------------|
| `stream`                                 | if it cannot be the name of a stream; an operation cannot leave its     |
|                                          | scope's: an empty one could as well be a forgotten name                |
| `key` on an operation                    | if its type is no struct, or has no such field                         |
| two marked fields that are equally near  | always                                                                 |
| a marked field                           | if it cannot be a key, or is a struct without one                      |
| `partition_by` without `stream`          | always: nothing is split                                               |
| `partition_by = "group"`                 | if the message has a key: those of a key would be in no order          |
| `publisher`, `mapped`                    | always: the messages would be on other subjects than the scope's       |
| any `partition_by`                       | if another operation says something else of the same stream            |

Streams have one name for all files, so splits are compared over all of them.
"""

from __future__ import annotations

from penstock.base.partitioning import PartitionBy, parse_split
from penstock.base.subjects import stream_name_mistake
from penstock.idl.mistakes import Mistakes
from penstock.idl.model import (
    Annotations,
    Enum,
    Field,
    Operation,
    Position,
    Program,
    Scalar,
    ScalarKind,
    Scope,
    Struct,
    StructKind,
)

FIELDS_SEARCHED_MAX = 1_000_000
"""Most fields that one check looks at for keys. Beyond: a mistake, since each operation may search all structs."""

KeyStep = tuple[Program, Struct, Field]
"""A field on the way to a key, its struct, and the program of the struct's file."""
KeyPath = tuple[KeyStep, ...]

_Place = tuple[KeyPath, Program, Struct]
"""A struct within a type: the fields that lead to it, and the program of its file."""


def annotation(annotations: Annotations, name: str) -> str | None:
    """Return the value of an annotation, or None; of several the last."""
    return {each.name: each.value for each in annotations}.get(name)


def is_set(annotations: Annotations, name: str) -> bool:
    """True if an annotation is there, and does not say "false"."""
    return (annotation(annotations, name) or "true").lower() != "false" and annotation(annotations, name) is not None


def check_streams(programs: list[Program], mistakes: Mistakes) -> None:
    """Note what scopes say of streams and cannot be. The types of `programs` are checked already."""
    structs = (each for program in programs for each in program.document.types if isinstance(each, Struct))
    is_marked = any(is_set(field.annotations, "key") for struct in structs for field in struct.fields)
    keys = Keys(mistakes, is_marked=is_marked)
    splits: dict[str, str] = {}  # how each stream is split
    for program in programs:
        for scope in program.document.scopes:
            for operation in scope.operations:
                _check_operation(keys, program, scope, operation, splits)


def _check_operation(keys: Keys, program: Program, scope: Scope, operation: Operation, splits: dict[str, str]) -> None:
    mistakes = keys.mistakes
    stream = said(scope, operation, "stream")
    key = keys.find(program, operation)
    if stream == "":
        mistakes.add(operation.position, _empty_stream(scope, operation.name))
        return
    if stream is not None and (text := stream_name_mistake(stream)) is not None:
        mistakes.add(operation.position, f'the stream of "{operation.name}": {text}')
    split = said(scope, operation, "partition_by")
    if split is not None and (text := _split_mistake(operation.name, stream, split, key, splits)) is not None:
        mistakes.add(operation.position, text)


def _empty_stream(scope: Scope, name: str) -> str:
    """Return what to say of an operation whose stream has no name."""
    if annotation(scope.annotations, "stream"):
        return f'"{name}" cannot leave the stream of its scope; move it to a scope without (stream = "…")'
    return f'the stream of "{name}" is empty; name one: (stream = "orders"), or leave the annotation out'


def said(scope: Scope, operation: Operation, name: str) -> str | None:
    """Return the value of an annotation of an operation, else that of its scope."""
    own = annotation(operation.annotations, name)
    return annotation(scope.annotations, name) if own is None else own


def _split_mistake(name: str, stream: str | None, split: str, key: KeyPath, splits: dict[str, str]) -> str | None:
    """Return why this `partition_by` contradicts the rest. See the table above."""
    which = f'partition_by = {split!r} of "{name}"'
    if not stream:
        return f'{which} splits no stream; name one: (stream = "…")'
    try:
        parsed = parse_split(split)
    except ValueError as error:
        return f'partition_by of "{name}": {error}'
    if parsed.has_subjects:
        text = "gives each partition a subject of its own, which subscribers of the scope do not hear"
        return f'{which} {text}; use "key"'
    if parsed.how is PartitionBy.GROUP and key:
        text = f"puts a message into a log at random, and it has the key {_dotted(key)}, whose messages are in order"
        return f'{which} {text}; use "key"'
    if splits.setdefault(stream, split) != split:
        return f"{which} contradicts partition_by = {splits[stream]!r} of the same stream {stream!r}"
    return None


class Keys:
    """Search for the keys of messages; `mistakes` takes what is wrong with them.

    `is_marked`: False says that no field is marked as a key, so that none is searched for.
    """

    def __init__(self, mistakes: Mistakes, *, is_marked: bool = True) -> None:
        self.mistakes = mistakes
        self._is_marked = is_marked
        self._searched = 0

    def find(self, program: Program, operation: Operation) -> KeyPath:
        """Return the fields that lead to the key of an operation's messages; empty: they have none."""
        owner, kind = program.resolve(operation.type)
        named = annotation(operation.annotations, "key")
        if not isinstance(kind, Struct):
            if named is not None:
                self.mistakes.add(operation.position, f'"{operation.name}" has a key, and its type is no struct')
            return ()
        if named is not None:
            return self._named(operation, named, owner, kind)
        return self._marked(((), owner, kind), operation.position) if self._is_marked else ()

    def _marked(self, root: _Place, position: Position) -> KeyPath:
        """Return the path to the nearest marked field of a struct."""
        seen = {(root[1].document.file, root[2].name)}
        level: list[_Place] = [root]
        while level:
            self._searched += sum(len(place[2].fields) for place in level)
            if self._searched > FIELDS_SEARCHED_MAX:
                text = f"the search for keys looks at more than {FIELDS_SEARCHED_MAX:,} fields; name them on operations"
                self.mistakes.add(position, text)
                return ()
            found = [(place, field) for place in level for field in place[2].fields if is_set(field.annotations, "key")]
            if len(found) > 1:
                both = " and ".join(_dotted(_longer(place, field)) for place, field in found[:2])
                self.mistakes.add(position, f'the message has two keys, {both}; mark one, or name it: (key = "…")')
                return ()
            if found:
                return self._of_field(*found[0])
            # The same struct by several fields stays in the level twice at most: two are a mistake, if it has a key.
            following: dict[tuple[str, str], list[_Place]] = {}
            for place in level:
                for field in place[2].fields:
                    inner = _inner(place, field)
                    key = None if inner is None else (inner[1].document.file, inner[2].name)
                    if inner is not None and key is not None and key not in seen:
                        following.setdefault(key, []).append(inner)
            seen |= following.keys()
            level = [each for places in following.values() for each in places[:2]]
        return ()

    def _of_field(self, place: _Place, field: Field) -> KeyPath:
        """Return the path to the key that a marked field is, or holds."""
        _, kind = place[1].resolve(field.type)
        if isinstance(kind, Enum) or (isinstance(kind, Scalar) and kind.kind not in _NO_KEYS):
            return _longer(place, field)
        inner = _inner(place, field)
        if inner is not None:
            before = len(self.mistakes)
            found = self._marked(inner, field.position)
            if found or len(self.mistakes) > before:
                return found
            text = f'"{field.name}" is marked as the key, and no field of its type is'
        else:
            text = f'"{field.name}" cannot be a key: its type is no text, whole number, UUID, enum or struct with a key'
        self.mistakes.add(field.position, text)
        return ()

    def _named(self, operation: Operation, named: str, owner: Program, struct: Struct) -> KeyPath:
        """Return the path that the annotation of an operation names."""
        place: _Place = ((), owner, struct)
        names = named.split(".")
        for depth, name in enumerate(names):
            field = next((each for each in place[2].fields if each.name == name), None)
            if field is None:
                text = f'the key {named!r} is not there: "{place[2].name}" has no field {name!r}'
                self.mistakes.add(operation.position, text)
                return ()
            if depth == len(names) - 1:
                return self._of_field(place, field)
            inner = _inner(place, field)
            if inner is None:
                text = f"the key {named!r} leads through {name!r}, which is no struct"
                self.mistakes.add(operation.position, text)
                return ()
            place = inner
        return ()


_NO_KEYS = frozenset({ScalarKind.DOUBLE, ScalarKind.FLOAT})


def _longer(place: _Place, field: Field) -> KeyPath:
    """Return the path of a field in a struct."""
    path, program, struct = place
    return (*path, (program, struct, field))


def _inner(place: _Place, field: Field) -> _Place | None:
    """Return the struct that a field holds, if it is one."""
    owner, kind = place[1].resolve(field.type)
    if not isinstance(kind, Struct) or kind.kind is StructKind.UNION:
        return None
    return _longer(place, field), owner, kind


def _dotted(path: KeyPath) -> str:
    return ".".join(field.name for _, _, field in path)
