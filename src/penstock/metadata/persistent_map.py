"""Persistent (immutable) map: `with_item` and `without` return another one, which shares nearly all with it.

Theory: a map is a large dict that many maps share and a small one of differences. A change copies only the small one;
when that has grown to the square root of the large one, both are merged into a new large one. So a change costs about
√n copied references, and n changes n·√n, where copying the whole each time costs n².
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from math import isqrt
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_GONE: Any = object()
_DIFFERENT_MIN = 64


class PersistentMap(Mapping[K, V]):
    """An immutable map, in the order in which keys were first added."""

    __slots__ = ("_different", "_length", "_shared")

    def __init__(self, items: Mapping[K, V] | None = None) -> None:
        self._shared: dict[K, V] = dict(items or {})
        self._different: dict[K, V] = {}
        self._length = len(self._shared)

    def with_item(self, key: K, value: V) -> PersistentMap[K, V]:
        """Return this map with `value` at `key`."""
        return self._changed(key, value, self._length + (key not in self))

    def without(self, key: K) -> PersistentMap[K, V]:
        """Return this map without `key`. Raise KeyError if it is missing."""
        self[key]
        return self._changed(key, _GONE, self._length - 1)

    def with_items(self, items: Mapping[K, V]) -> PersistentMap[K, V]:
        """Return this map with all of `items`; merged in one go if they are many."""
        if len(items) <= max(_DIFFERENT_MIN, isqrt(len(self._shared))):
            changed = self
            for key, value in items.items():
                changed = changed.with_item(key, value)
            return changed
        return PersistentMap({**self._merged(), **items})

    def _changed(self, key: K, value: V, length: int) -> PersistentMap[K, V]:
        changed: PersistentMap[K, V] = PersistentMap.__new__(PersistentMap)
        changed._shared, changed._length = self._shared, length
        changed._different = {**self._different, key: value}
        if len(changed._different) > max(_DIFFERENT_MIN, isqrt(len(self._shared))):
            changed._shared, changed._different = changed._merged(), {}
        return changed

    def __getitem__(self, key: K) -> V:
        if key not in self._different:
            return self._shared[key]
        value = self._different[key]
        if value is _GONE:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[K]:
        different = self._different
        yield from (key for key in self._shared if different.get(key) is not _GONE)
        yield from (key for key, value in different.items() if value is not _GONE and key not in self._shared)

    def items(self) -> ItemsView[K, V]:
        """Return keys and values; faster than one by one."""
        return self._merged().items()

    def values(self) -> ValuesView[V]:
        """Return the values; faster than one by one."""
        return self._merged().values()

    def _merged(self) -> dict[K, V]:
        """Return all of it as one dict, which the caller must not change."""
        if not self._different:
            return self._shared
        merged = {**self._shared, **self._different}
        for gone in [one for one, kept in self._different.items() if kept is _GONE]:
            del merged[gone]
        return merged

    def __len__(self) -> int:
        return self._length
