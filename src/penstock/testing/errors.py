"""What can go wrong in a simulated test, beside what the test itself finds."""

from __future__ import annotations


class NotSimulatedError(RuntimeError):
    """A program wanted what the simulation does not have: a thread, a process, a socket, TLS, a blocking sleep."""


class SpinningError(RuntimeError):
    """A program goes round and round and waits for nothing, so simulated time hardly passes."""


class StuckError(BaseException):
    """A program holds the simulation up in real time: it computes or blocks, and awaits nothing."""

    # Not an Exception: a program's own `except Exception` must not take it.


class NotLiveError(AssertionError):
    """Something has not happened within its simulated time: the test did not end, or the cluster did not settle."""


class ProgramError(AssertionError):
    """A program has ended with an error that no fault excuses."""
