"""Imports, and parsing of large texts, without the garbage collector.

Theory: an import creates objects that live as long as the process, and a parser of a large contract hundreds of
thousands that live for long. The collector would scan their growing number again and again, and find nothing to free;
all threads stand still meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    """Disable the garbage collector inside, which makes imports faster; restore its state afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
