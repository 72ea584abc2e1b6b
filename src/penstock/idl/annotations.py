"""Annotations that mean something to Penstock: where each stands, values that it cannot have, and names that are near.

Rules: contracts carry annotations of other programs, so an unknown one is no mistake. One whose name is near to a known
one is told, since an event whose `(stream = "…")` is mistyped would be kept by no stream. A name with a dot is another
program's.

| annotation         | on                                   | value                         |
|--------------------|--------------------------------------|-------------------------------|
| `stream`           | operation, scope                     | the name of a stream          |
| `partition_by`     | operation, scope                     | see `streams`                 |
| `key`              | operation                            | the path of a field           |
| `key`              | field of a struct or exception       | none, "true" or "false"       |
| `idempotent`       | method                               | none, "true" or "false"       |
| `deprecated`       | all of these, and services           | any text                      |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

from penstock.idl.mistakes import Mistake, Mistakes
from penstock.idl.model import Annotations, Program, Struct, Type

_OPERATION: Final = ("stream", "key", "partition_by", "deprecated")
_SCOPE: Final = ("stream", "partition_by", "deprecated")
_FIELD: Final = ("key", "deprecated")
_METHOD: Final = ("idempotent", "deprecated")
_SERVICE: Final = ("deprecated",)

_FLAGS: Final[dict[tuple[str, ...], str]] = {_FIELD: "key", _METHOD: "idempotent"}
"""The annotation of each place that is true or false."""
_NEAR: Final = 0.82
"""Least similarity of names, from 0 to 1, that are taken for one another."""


def check_values(programs: Iterable[Program], mistakes: Mistakes) -> None:
    """Note annotations that are neither true nor false, and have to be."""
    for known, given in _annotated(programs):
        flag = _FLAGS.get(known)
        for each in given:
            if each.name == flag and each.value.lower() not in ("", "true", "false"):
                text = f'{flag} is {each.value!r}; write ({flag}) for yes, or ({flag} = "false")'
                mistakes.add(each.position, text)


def near_misses(programs: Iterable[Program]) -> list[Mistake]:
    """Return annotations without a meaning that are near to one: in their names, or because they stand on a type."""
    programs = list(programs)
    found = []
    for known, given in _annotated(programs):
        for each in given:
            if each.name not in known and (meant := _near(each.name, known)):
                text = f'the annotation "{each.name}" means nothing to Penstock; did you mean "{meant}"?'
                found.append(Mistake(each.position, text))
    return [*found, *_on_types(programs)]


def _on_types(programs: Iterable[Program]) -> Iterator[Mistake]:
    """Yield annotations of types that mean something behind the name: `1: string (key) id` has no key."""
    for program in programs:
        typed: list[tuple[tuple[str, ...], str, Type]] = []
        for struct in program.document.types:
            if isinstance(struct, Struct):
                typed += ((_FIELD, field.name, field.type) for field in struct.fields)
        for service in program.document.services:
            typed += ((_METHOD, each.name, each.returns) for each in service.methods if each.returns is not None)
        for known, name, type_ in typed:
            for each in type_.annotations:
                if each.name in known:
                    text = f'the annotation "{each.name}" stands on the type; write it at the end, behind "{name}"'
                    yield Mistake(each.position, text)


def _near(name: str, known: tuple[str, ...]) -> str | None:
    """Return the known name that is near; None: there is none."""
    lower = name.lower()
    swapped = (each for each in known if sorted(each) == sorted(lower))
    return next(swapped, None) or next(iter(get_close_matches(lower, known, 1, _NEAR)), None)


def _annotated(programs: Iterable[Program]) -> Iterator[tuple[tuple[str, ...], Annotations]]:
    """Yield the annotations of what may have some that are known, with those."""
    for program in programs:
        document = program.document
        for scope in document.scopes:
            yield _SCOPE, scope.annotations
            for operation in scope.operations:
                yield _OPERATION, operation.annotations
        for service in document.services:
            yield _SERVICE, service.annotations
            for method in service.methods:
                yield _METHOD, method.annotations
        for struct in document.types:
            if isinstance(struct, Struct):
                for field in struct.fields:
                    yield _FIELD, field.annotations
