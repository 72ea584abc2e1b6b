"""Create an object without calling its class's methods: written twice, here for plain Python."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def new(kind: type[T]) -> T:
    """Return an uninitialised instance of `kind`."""
    return kind.__new__(kind)
