"""Check that a value fits its spec, and name the place of what does not: `Order.lines[3].price`.

Rules: a path begins with the name of the struct. The structs of arguments and results of methods are no names of a
contract, so there it begins with the argument: `order.lines[3].price`.
"""

from __future__ import annotations

from typing import Any

from penstock.frugal.contracts import Spec
from penstock.frugal.errors import CodecError
from penstock.hot.thrift_values import Shape, find_misfit, kept_shape, shape_of

_STRUCT = 12
NO_STRUCT = "the value"


def check_fit(spec: Spec, value: Any) -> None:
    """Raise CodecError, with the path and the reason, if a value has no form by its spec."""
    try:
        misfit = find_misfit(shape_by(spec), value)
    except Exception as error:  # of the struct's own code
        raise CodecError(f"{root_of(spec)} cannot be read: {type(error).__name__}: {error}") from error
    if misfit is not None:
        raise CodecError(placed(spec, misfit))


def shape_by(spec: Spec) -> Shape:
    """Return the shape of a type; those of structs are kept."""
    return kept_shape(spec[1][0]) if spec[0] == _STRUCT else shape_of(*spec)


def root_of(spec: Spec) -> str:
    """Return the name of the type for an error."""
    name = spec[1][0].__name__ if spec[0] == _STRUCT else ""
    return NO_STRUCT if not name or name.startswith("_") else str(name)


def placed(spec: Spec, found: str) -> str:
    """Return a path within the value and its reason (".lines[3]: …") with the name in front."""
    root = root_of(spec)
    if root == NO_STRUCT and found.startswith("."):
        return found[1:]
    return f"{root}{found}"
