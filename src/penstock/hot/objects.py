"""Making an object without calling anything of its class: written twice, here for plain Python."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def new(kind: type[T]) -> T:
    """An instance of `kind` with nothing in it yet."""
    return kind.__new__(kind)
