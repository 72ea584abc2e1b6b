"""Close blocking clients that are still open when the program exits."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from typing import Protocol


class _Closable(Protocol):
    def close(self) -> None: ...


OPEN_CLIENTS: weakref.WeakSet[_Closable] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for client in list(OPEN_CLIENTS):
        with contextlib.suppress(Exception):
            client.close()
