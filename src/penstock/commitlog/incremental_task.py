"""Long work done in slices: a disk thread runs one slice, and other tasks get their turn before the next."""

from __future__ import annotations

from collections.abc import Generator


class IncrementalTask:
    """Call `run` in a disk thread until `is_done`; then call `Log.cleaned` in any case."""

    def __init__(self) -> None:
        self.is_done = False
        self.is_void = False  # the log was truncated or closed meanwhile
        self.moved_bytes = 0  # bytes read and written by the last `run`
        self._steps = self._work()

    def run(self) -> None:
        """Run one slice of about CLEANING_SLICE_BYTES. OSError ends the work."""
        self.moved_bytes = 0
        try:
            self.moved_bytes = next(self._steps)
        except StopIteration:
            self.is_done = True
        except BaseException:
            self.is_done = True
            raise

    def close(self) -> None:
        """Abandon the work and close its files; what is written stays until a start. Not while `run` runs."""
        self.is_void = self.is_done = True
        self._steps.close()

    def _work(self) -> Generator[int, None, None]:
        """Yield, after each slice, the number of bytes moved."""
        raise NotImplementedError
