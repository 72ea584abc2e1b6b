"""Packages of other products' clients, which nobody needs who does not measure those products."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.base.errors import OperationalError


def imported(module: str, *, extra: str) -> Any:
    """The module; OperationalError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise OperationalError(
            f"the Python package of {module} is not installed; the extra {extra!r} brings it: "
            f"pip install 'penstock[{extra}]', or in a clone: pip install '.[{extra}]'"
        ) from None
