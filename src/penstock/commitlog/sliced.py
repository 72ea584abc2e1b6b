"""Work of the cleaner, done in slices: a disk thread runs one, and others have their turn before the next."""

from __future__ import annotations

from collections.abc import Generator


class SlicedWork:
    """`run` it in a disk thread until `is_done`; then hand it to `Log.cleaned` in any case."""

    def __init__(self) -> None:
        self.is_done = False
        self.is_void = False  # the log was cut meanwhile, or is closed
        self.moved_bytes = 0  # read and written by the last `run`
        self._steps = self._work()

    def run(self) -> None:
        """Go on, by CLEANING_SLICE_BYTES or so. OSError: then it is over."""
        self.moved_bytes = 0
        try:
            self.moved_bytes = next(self._steps)
        except StopIteration:
            self.is_done = True
        except BaseException:
            self.is_done = True
            raise

    def close(self) -> None:
        """Give it up, and all files; what is written stays until the next start. Not while it runs."""
        self.is_void = self.is_done = True
        self._steps.close()

    def _work(self) -> Generator[int, None, None]:
        """A generator that gives after each slice how many bytes it has moved."""
        raise NotImplementedError
