"""Progress of an operation, reported to its caller while it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext


class Progress:
    """Notes and steps of a running operation. This class ignores them; a subclass shows them.

    class Printed(ops.Progress):
        def note(self, text):
            print(text)

    ops.verify_backup("/backups/penstock", progress=Printed())
    """

    def note(self, text: str) -> None:
        """Take one line that is not an error, such as what was left out and why."""

    def step(self, what: str, total: int | None, *, noun: str = "") -> AbstractContextManager[Callable[[int], None]]:
        """Begin the step `what` of `total` parts (None: unknown), which are called `noun`; return its context.

        The context gives a function, which is called with the count of parts that are done.
        """
        return nullcontext(_ignored)


def _ignored(done: int) -> None:
    pass
