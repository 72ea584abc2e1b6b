"""Imports without the garbage collector.

Theory: an import makes objects that stay as long as the process. The collector looks at all of them again and again,
because there are more and more, and finds nothing to free.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    """Imports inside are quicker; the collector is afterwards as it was."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
