"""Coroutines that are begun by hand: most handlers end in their first step, and need no deadline and no task more.

Rules: the first step is `send(None)`, in the task that shall await the rest, since a coroutine may ask for its task.
What it waits for then is passed on to that task.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

_Result = TypeVar("_Result")


@types.coroutine
def rest_of(running: Coroutine[Any, Any, _Result], waits_for: Any) -> Generator[Any, Any, _Result]:
    """Await a coroutine that has begun, and waits for this."""
    try:
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                running.close()
                raise
            except BaseException as error:  # noqa: BLE001 (the coroutine's own affair)
                waits_for = running.throw(error)
            else:
                waits_for = running.send(sent)
    except StopIteration as end:
        result: _Result = end.value
        return result
