"""Base classes of structs, unions and exceptions in generated code.

A struct is a dataclass below `Struct`, with its fields in `__slots__` and their wire types in `thrift_spec`: a tuple by
field id of `(id, ttype, attribute, arguments of the type, None)`, or None for an id without field. `thrift_required`
names the fields that must not be None.

Rules: a struct is made with all of its fields at once, by a user and by every decoder. So fields that are required, and
the one field of a union, are checked by the constructor; encoders check them again, since a field can be set later. The
base class is Apache thrift's for structs that cannot change: its C code gives the fields of those to the constructor,
and sets them one by one on others.

| class           | what                                                                                          |
|-----------------|-----------------------------------------------------------------------------------------------|
| `Struct`        | base of structs                                                                               |
| `TaggedUnion`   | base of unions: exactly one field is not None, and none can be set later                      |
| `DeclaredError` | base of exceptions of a contract: a struct that can be raised                                 |
| `FrozenMap`     | a map within a key of a map or an element of a set: a dict with a hash                        |
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from penstock.base.extras import how_to_install

if TYPE_CHECKING:
    _Key = TypeVar("_Key")
    _Value = TypeVar("_Value")

    class _Base:
        __slots__ = ()

    class FrozenMap(dict[_Key, _Value]):
        """A map within a key of a map or an element of a set: a dict that cannot change and has a hash."""

        def __hash__(self) -> int: ...  # type: ignore[override]
else:
    try:
        from thrift.protocol.TBase import TFrozenBase as _Base
        from thrift.Thrift import TFrozenDict as FrozenMap
    except ImportError as error:
        raise ImportError(f"Apache thrift is not installed: {how_to_install('frugal')}") from error

__all__ = ["DeclaredError", "FrozenMap", "Struct", "TaggedUnion", "connect_specs", "known"]

_Enum = TypeVar("_Enum", bound=IntEnum)
_STRUCT, _MAP, _SET, _LIST = 12, 13, 14, 15


class Struct(_Base):
    """Base of structs: they are equal if their types and fields are.

    The hash is that of the fields, so a struct can be a key of a dict or an element of a set; do not change it then.
    """

    __slots__ = ()
    thrift_spec: ClassVar[tuple[Any, ...]] = ()
    thrift_required: ClassVar[tuple[str, ...]] = ()
    thrift_is_union: ClassVar[bool] = False

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash((type(self), *map(_hashable, _values(self))))

    def __lt__(self, other: object) -> bool:
        """An order without meaning: the hash of a `FrozenMap` sorts its keys."""
        if not isinstance(other, Struct):
            return NotImplemented
        return (hash(self), repr(self)) < (hash(other), repr(other))


class TaggedUnion(Struct):
    """Base of unions. ValueError: not exactly one field is given."""

    __slots__ = ()
    thrift_is_union = True

    def __post_init__(self) -> None:
        names = _fields(self)
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"the fields {', '.join(given)}" if given else "no field"
            raise ValueError(f"the union {type(self).__name__} has {found}; give exactly one of {', '.join(names)}")

    @property
    def which(self) -> str:
        """The name of the field that is there."""
        return next(name for name in _fields(self) if getattr(self, name) is not None)


class DeclaredError(Struct, Exception):
    """Base of exceptions that a contract declares."""

    __slots__ = ()

    def __str__(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in _fields(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Support `pickle` and `copy`: an exception's own form keeps positional arguments only."""
        fields = {name: getattr(self, name) for name in _fields(self)}
        return _made, (type(self), fields), self.__dict__ or None


def _made(kind: type[DeclaredError], fields: dict[str, Any]) -> DeclaredError:
    return kind(**fields)


def _fields(struct: Struct) -> tuple[str, ...]:
    return type(struct).__slots__


def _values(struct: Struct) -> tuple[Any, ...]:
    return tuple([getattr(struct, name) for name in _fields(struct)])


def _hashable(value: Any) -> Hashable:
    """Return what equal values have in common and what has a hash."""
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    if isinstance(value, set | frozenset):
        return frozenset(map(_hashable, value))
    if isinstance(value, dict):
        return frozenset((_hashable(key), _hashable(each)) for key, each in value.items())
    hashable: Hashable = value
    return hashable


@overload
def known(kind: type[_Enum], value: int) -> _Enum | int: ...
@overload
def known(kind: type[_Enum], value: None) -> None: ...
def known(kind: type[_Enum], value: int | None) -> _Enum | int | None:
    """Return the value of an enum that a number means, or the number if the enum has none: a newer contract may."""
    if not isinstance(value, int):
        return value  # None, or what an encoder refuses with the name of its field
    return kind._value2member_map_.get(value, value)  # type: ignore[return-value]


def connect_specs(*structs: type[Struct]) -> None:
    """Give each struct that a spec names its own spec: classes that need each other have none yet when they are made.

    In a spec, `[Order, None]` stands for such a struct.
    """
    for struct in structs:
        for field in struct.thrift_spec:
            if field is not None:
                _connect(field[1], field[3])


def _connect(wire_type: int, arguments: Any) -> None:
    for kind, inner in _parts(wire_type, arguments):
        if kind == _STRUCT:
            inner[1] = inner[0].thrift_spec
        else:
            _connect(kind, inner)


def _parts(wire_type: int, arguments: Any) -> Iterator[tuple[int, Any]]:
    if wire_type == _STRUCT:
        yield wire_type, arguments
    elif wire_type in {_LIST, _SET}:
        yield arguments[0], arguments[1]
    elif wire_type == _MAP:
        yield arguments[0], arguments[1]
        yield arguments[2], arguments[3]
