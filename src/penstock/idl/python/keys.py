"""The key of a message in Python: the path of attributes to the field that gives it.

Which field that is, and what is a mistake: `penstock.idl.streams`.
"""

from __future__ import annotations

from penstock.idl.model import Operation
from penstock.idl.python.module import Module
from penstock.idl.streams import Keys, annotation, is_set

__all__ = ["annotation", "find_key", "is_set"]


def find_key(module: Module, operation: Operation) -> tuple[str, ...]:
    """Return the path of attributes to the key of an operation's messages; empty: they have none."""
    path = Keys(module.run.mistakes).find(module.program, operation)
    return tuple(module.run.naming(program).attributes(struct)[field.name] for program, struct, field in path)
